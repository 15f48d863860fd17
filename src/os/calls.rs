//! What every system call here observes: the C library's error number belongs to the program, and a process
//! that has given up system calls makes few. And the clocks, which need none.

use crate::os::vdso;
use crate::sync::AtomicBool;
use crate::sync::Ordering::Relaxed;
use core::cell::Cell;

/// The calling thread's `errno`. Not passed on: it does not outlive the thread.
fn cell() -> &'static Cell<i32> {
    // SAFETY: the C library returns the address of this thread's own `errno`, which no other thread uses.
    unsafe { &*libc::__errno_location().cast() }
}

/// Runs `f` and then restores `errno`.
pub(crate) fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    let errno = cell();
    let before = errno.get();
    let result = f();
    errno.set(before);
    result
}

/// `errno`, right after the call that has set it.
pub(super) fn errno() -> i32 {
    cell().get()
}

/// Sets `errno`.
pub fn set_errno(value: i32) {
    cell().set(value);
}

/// An address that no other thread has while this one lives: a multiple of 4.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) fn address() -> usize {
    cell().as_ptr().addr()
}

/// Set when the process may be restricted to few system calls: see [`confine`].
static CONFINED: AtomicBool = AtomicBool::new(false);

/// From now on the only system calls are those that any allocator makes: mmap, munmap, mremap, madvise and
/// futex.
pub(crate) fn confine() {
    CONFINED.store(true, Relaxed);
}

/// Whether [`confine`] has been called.
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

/// Milliseconds of a monotonic clock with the resolution of the system tick. Wraps after 49 days.
pub(crate) fn now_ms() -> u32 {
    let t = vdso::read(libc::CLOCK_MONOTONIC_COARSE);
    (t.tv_sec as u64).wrapping_mul(1000).wrapping_add(t.tv_nsec as u64 / 1_000_000) as u32
}

/// Nanoseconds of a monotonic clock.
pub(crate) fn now_ns() -> u64 {
    ns_of(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970.
pub(crate) fn real_ns() -> u64 {
    ns_of(libc::CLOCK_REALTIME)
}

fn ns_of(clock: libc::clockid_t) -> u64 {
    let t = vdso::read(clock);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}

/// Milliseconds from one reading of [`now_ms`] to another. Zero when `since` is the later one: two threads
/// read the clock, and the one that proceeds first may have read last.
pub(crate) fn elapsed(since: u32, now: u32) -> u32 {
    const AHEAD: u32 = 3_600_000;
    let elapsed = now.wrapping_sub(since);
    if elapsed > u32::MAX - AHEAD { 0 } else { elapsed }
}
