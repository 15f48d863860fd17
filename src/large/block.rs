//! Allocating, freeing and resizing large blocks of either kind: runs and direct mappings.

use crate::base::counters::{LARGE_ALLOCS, LARGE_FREES, LARGE_IN_USE};
use crate::base::misuse::{self, Fault};
use crate::large::cache::{self, clean, kept, tick};
use crate::large::{direct, run};
use crate::superslab::layout::{MAX_SPAN, SLICE};
use crate::superslab::pagemap::{self, DIRECT, RUN};
use crate::superslab::slab::Allocation;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;
use core::ptr;

/// The largest block that is a run.
pub(crate) const MAX_RUN: usize = MAX_SPAN * SLICE;

/// A run of this many slices (512 KiB) or more goes back to the system once its contents have moved to a
/// larger run. The memory of a smaller run is soon used again, and so is that of a run that becomes a
/// mapping, in a program of that size. With 256 KiB instead, or with every run, a perl that fills a hash had
/// 13% more page faults and saved nothing.
const REPLACED: usize = 8;

/// Whether a block of `size` bytes at a multiple of `align` is a run, not a direct mapping.
fn is_run(size: usize, align: usize) -> bool {
    size <= MAX_RUN && align <= SLICE
}

/// The bytes of a block that is made for `size` bytes at a multiple of `align`; one that was kept may have
/// more. `None` if that overflows.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn bytes_for(size: usize, align: usize) -> Option<usize> {
    match run_slices(size, align) {
        Some(slices) => Some(slices * SLICE),
        None => direct::length_for(size),
    }
}

/// Allocates a block of `size` bytes (at most `isize::MAX`) at a multiple of `align`. Null if there is no
/// memory.
pub(crate) fn alloc(size: usize, align: usize) -> Allocation {
    alloc_with_room(size, align, size, false)
}

/// Like [`alloc`], for a block that the caller clears unless it is known to be zero.
pub(crate) fn alloc_to_clear(size: usize, align: usize) -> Allocation {
    alloc_with_room(size, align, size, true)
}

/// Blocks that have outgrown the largest run, at most [`MANY_GREW`], less those that were placed in kept
/// memory because of them. Relaxed: races lose a count.
static GREW: AtomicUsize = AtomicUsize::new(0);
/// The most blocks that are expected to grow as others have.
const MANY_GREW: usize = 16;

/// Whether a block that grows should lie in kept memory, though it could be a run: as far as earlier ones
/// outgrew the largest run. Where a mapping was freed it can do that without being copied.
pub(crate) fn grows_into_kept() -> bool {
    GREW.load(Relaxed) != 0 && kept().saturating_sub(clean()) > MAX_RUN
}

/// Like [`alloc`], for a block that is growing: placed where it can grow further, if possible.
pub(crate) fn alloc_growing(size: usize, align: usize) -> Allocation {
    alloc_with_room(size, align, MAX_RUN, false)
}

fn alloc_with_room(size: usize, align: usize, room: usize, clear: bool) -> Allocation {
    let (run, growing) = (is_run(size, align), room != size);
    let mut allocation = Allocation::NONE;
    if !run {
        allocation = direct::alloc_kept(size, align, clear, growing);
    } else if growing && grows_into_kept() {
        GREW.store(GREW.load(Relaxed).saturating_sub(1), Relaxed);
        allocation = direct::alloc_kept(size, align, clear, true);
    }
    if allocation.ptr.is_null() {
        allocation = if run { run::alloc(size, room) } else { direct::alloc(size, align, clear, growing) };
    }
    tick();
    if !allocation.ptr.is_null() {
        LARGE_ALLOCS.fetch_add(1, Relaxed);
        LARGE_IN_USE.fetch_add(usable(allocation.ptr, pagemap::kind(allocation.ptr)), Relaxed);
    }
    allocation
}

/// The slices of a block of `size` bytes at a multiple of `align`, if it is a run.
pub(crate) fn run_slices(size: usize, align: usize) -> Option<usize> {
    is_run(size, align).then(|| run::slices_for(size))
}

/// Gives a run from a thread's run cache back to the pool. It has been counted as freed, but still counts as
/// in use.
///
/// # Safety
///
/// `run` is the start of a run that the caller has claimed in the page map, so that it is the caller's alone.
pub(crate) unsafe fn give_run(run: *mut u8) {
    // SAFETY: the run is the caller's, so its record is a run's.
    LARGE_IN_USE.fetch_sub(unsafe { run::slices(run) } * SLICE, Relaxed);
    // SAFETY: claimed by the caller.
    unsafe { run::give(run) };
}

/// Whether `address`, in a slice of kind `kind` (`RUN` or `DIRECT`), is the start of a block.
fn is_start(address: *mut u8, kind: u8) -> bool {
    if kind == RUN { run::is_start(address) } else { direct::is_start(address) }
}

/// Frees a block on behalf of `function`, which is named if a misuse is reported. `kind` is the page map's
/// answer for `address`, and no size class. Null is ignored.
///
/// # Safety
///
/// The program does not use the block any more.
pub(crate) unsafe fn free(address: *mut u8, kind: u8, function: &str) {
    if address.is_null() {
        return;
    }
    let bytes = usable_checked(address, kind, function);
    if kind != RUN && kind != DIRECT {
        // A foreign pointer, which has been reported.
        return;
    }
    // It is counted before its memory is kept: how much may be kept depends on what is in use.
    // SAFETY: the start of a block of that kind, which the program does not use any more.
    let claimed = unsafe {
        if kind == RUN {
            run::free(address).then(|| {
                count_freed(bytes);
                tick();
            })
        } else {
            direct::claim(address).map(|kept| {
                count_freed(bytes);
                cache::keep(kept);
            })
        }
    };
    if claimed.is_none() {
        misuse::report(function, address, Fault::DoubleFree);
    }
}

/// [`free`] for a long run whose contents have moved to `new`, a run of fresh memory: its slices go back to
/// the system at once, so that the process does not grow by both. False, and nothing done, if the block is no
/// such run.
///
/// # Safety
///
/// As [`free`].
pub(crate) unsafe fn free_replaced(address: *mut u8, kind: u8, new: *mut u8) -> bool {
    if kind != RUN || pagemap::kind(new) != RUN || !run::is_start(address) {
        return false;
    }
    let bytes = usable(address, RUN);
    if bytes < REPLACED * SLICE {
        return false;
    }
    // SAFETY: the start of a run that the program does not use any more.
    if unsafe { run::free_replaced(address) } {
        count_freed(bytes);
    } else {
        misuse::report("realloc", address, Fault::DoubleFree);
    }
    true
}

fn count_freed(bytes: usize) {
    LARGE_FREES.fetch_add(1, Relaxed);
    LARGE_IN_USE.fetch_sub(bytes, Relaxed);
}

/// The usable bytes of the block at `address`. Reports a misuse and returns 0 if that is no block. `kind` as
/// for [`free`].
pub(crate) fn usable_checked(address: *mut u8, kind: u8, function: &str) -> usize {
    let fault = match kind {
        RUN | DIRECT if is_start(address, kind) => return usable(address, kind),
        RUN | DIRECT => Fault::Interior,
        // A small block that is large by what the program says of it.
        1..RUN => Fault::Size,
        _ => Fault::Foreign,
    };
    misuse::report(function, address, fault);
    0
}

/// The usable bytes of a large block of kind `kind`.
fn usable(address: *mut u8, kind: u8) -> usize {
    if kind == RUN { run::usable(address) } else { direct::usable(address) }
}

/// Grows or shrinks a large block to `size` bytes without copying, if possible. Returns its new address, or
/// null if the caller has to copy. `size` is above the largest class; the result keeps the alignment `align`.
///
/// # Safety
///
/// `address` is the start of a large block of kind `kind`, in use and the caller's.
pub(crate) unsafe fn resize(address: *mut u8, kind: u8, size: usize, align: usize) -> *mut u8 {
    let before = usable(address, kind);
    if before <= MAX_RUN && size > MAX_RUN {
        GREW.store(MANY_GREW.min(GREW.load(Relaxed) + 1), Relaxed);
    }
    // A mapping that shrinks by half, to half of the largest run or less, is better copied into a run.
    let stays = size > before.min(MAX_RUN) / 2;
    if kind == DIRECT && stays && size < before {
        // SAFETY: a direct mapping in use and the caller's, which gives up what it cuts off.
        if let Some(tail) = unsafe { direct::cut(address, size) } {
            LARGE_IN_USE.fetch_sub(tail.len, Relaxed);
            // SAFETY: cut off just now, so ours alone, in whole system pages, and long enough.
            unsafe { cache::keep(tail) };
            return address;
        }
    }
    let moved = match kind {
        // SAFETY: a run in use and the caller's.
        RUN if size <= MAX_RUN => unsafe { run::resize(address, size) },
        // SAFETY: a direct mapping in use and the caller's.
        DIRECT if stays => unsafe { direct::resize(address, size, align) },
        _ => ptr::null_mut(),
    };
    if !moved.is_null() {
        LARGE_IN_USE.fetch_add(usable(moved, kind).wrapping_sub(before), Relaxed);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_run_that_was_replaced_is_not_resident() {
        let bytes = REPLACED * SLICE;
        // The thread of another test may take the slices before we look.
        let gone = (0..100).any(|_| {
            let old = alloc(bytes, 16).ptr;
            // SAFETY: our own block; after the free only the system is asked about it.
            unsafe {
                old.write_bytes(1, bytes);
                assert!(!free_replaced(old.add(16), RUN, old) && free_replaced(old, RUN, old));
                crate::os::resident_pages(old, bytes) == Some(0)
            }
        });
        assert!(gone);
        let less = alloc(bytes - SLICE, 16).ptr;
        // SAFETY: our own block, not used any more.
        unsafe {
            assert!(!free_replaced(less, RUN, less));
            free(less, RUN, "free");
        }
    }
}
