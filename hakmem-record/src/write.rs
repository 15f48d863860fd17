//! Writing events: the path that every call takes.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::raw::{self, Kind};

use crate::{attach, tls};

/// Stands in for the word of [`PROCESS`] until this process has joined the recording.
static NOBODY: AtomicU32 = AtomicU32::new(0);

/// The number of this process in the recording, 0 as long as it has none.
///
/// The word it points at lies in a page that the kernel wipes in a forked child, by whatever call it was
/// forked. So one load tells the child, before it writes anything, that the chunk it inherited is its
/// parent's.
pub(crate) static PROCESS: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NOBODY).cast_mut());

/// Nanoseconds of CLOCK_MONOTONIC; the C library reads it without a system call. Not 0.
#[inline(always)]
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live value; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
        | u64::from(time.tv_sec == 0 && time.tv_nsec == 0)
}

/// Room for `words` words, given out: null when nothing is being recorded. `time` is that of the event.
#[inline(always)]
fn room(words: usize, time: u64) -> *mut u64 {
    let local = tls::local();
    // SAFETY: the thread's own variable. The word of PROCESS is never unmapped.
    unsafe {
        // Relaxed: the mapping behind the chunk is older than this thread's claim of it, which is what it
        // guards.
        let process = (*PROCESS.load(Ordering::Relaxed)).load(Ordering::Relaxed);
        let cursor = (*local).cursor;
        // In a fresh thread all are 0, so the second condition fails.
        if (*local).process == process && ((*local).end as usize).wrapping_sub(cursor as usize) >= words * 8 {
            // Moved on before anything is written: a signal handler that comes in between writes behind us.
            (*local).cursor = cursor.add(words);
            return cursor;
        }
        attach::chunk(local, words, time)
    }
}

/// Writes one event; `time` last.
#[inline(always)]
unsafe fn put<const N: usize>(time: u64, rest: [u64; N]) {
    let at = room(N + 1, time);
    if at.is_null() {
        return;
    }
    for (i, word) in rest.into_iter().enumerate() {
        // SAFETY: within the room.
        unsafe { at.add(i + 1).write(word) };
    }
    // SAFETY: as above, aligned.
    // Release: pairs with the reader, which may read while the program still runs.
    unsafe { AtomicU64::from_ptr(at) }.store(time, Ordering::Release);
}

/// `block` was allocated; null is not recorded.
#[inline(always)]
pub(crate) fn allocated(kind: Kind, align_log2: u32, block: *mut u8, size: usize) {
    if !block.is_null() {
        // SAFETY: writes to this thread's own chunk.
        unsafe { put(now(), [raw::place(kind, align_log2, block as usize), size as u64]) };
    }
}

/// `block` is about to be freed.
#[inline(always)]
pub(crate) fn freeing(block: *mut u8) {
    if !block.is_null() {
        // SAFETY: writes to this thread's own chunk.
        unsafe { put(now(), [raw::place(Kind::Free, 0, block as usize)]) };
    }
}

/// `old` became `new` in a call that began at `before`.
#[inline(always)]
pub(crate) fn reallocated(before: u64, old: *mut u8, new: *mut u8, size: usize) {
    let from = raw::place(Kind::Reallocate, 0, old as usize);
    let to = raw::place(Kind::Reallocate, 0, new as usize);
    // SAFETY: writes to this thread's own chunk.
    unsafe { put(before, [from, size as u64, now(), to]) };
}
