//! Allocating, freeing and resizing a large block, whichever kind it is of.

use crate::base::misuse::{self, Fault};
use crate::large::cache::tick;
use crate::large::counters::{ALLOCS, FREES, IN_USE};
use crate::large::{direct, run};
use crate::superslab::layout::{MAX_SPAN, PAGE};
use crate::superslab::pagemap::{self, DIRECT, RUN};
use crate::superslab::slab::Allocation;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

/// The largest block that is a run.
pub(crate) const MAX_RUN: usize = MAX_SPAN * PAGE;

/// Pages of a run that is not to stay resident beside its successor: 512 KiB. The memory of a smaller one is soon used again,
/// and so is that of one that becomes a mapping, in a program of that size: 256 KiB, or every run, cost a perl that fills a
/// hash 13% more page faults and saved it nothing.
const REPLACED: usize = 8;

fn is_run(size: usize, align: usize) -> bool {
    size <= MAX_RUN && align <= PAGE
}

/// Allocates a block of `size` bytes (at most `isize::MAX`) at a multiple of `align`, or null.
pub(crate) fn alloc(size: usize, align: usize) -> Allocation {
    alloc_with_room(size, align, size, false)
}

/// Like [`alloc`], for a block that will be cleared unless it is known to be zero.
pub(crate) fn alloc_to_clear(size: usize, align: usize) -> Allocation {
    alloc_with_room(size, align, size, true)
}

/// Like [`alloc`], for a block that is growing: a run lies where it can grow further, if there is such a place.
pub(crate) fn alloc_growing(size: usize, align: usize) -> Allocation {
    alloc_with_room(size, align, MAX_RUN, false)
}

fn alloc_with_room(size: usize, align: usize, room: usize, clear: bool) -> Allocation {
    let allocation =
        if is_run(size, align) { run::alloc(size, room) } else { direct::alloc(size, align, clear) };
    tick();
    if !allocation.ptr.is_null() {
        ALLOCS.fetch_add(1, Relaxed);
        IN_USE.fetch_add(usable(allocation.ptr, pagemap::kind(allocation.ptr)), Relaxed);
    }
    allocation
}

/// The pages of a block of `size` bytes at a multiple of `align`, if it is to be a run.
pub(crate) fn run_pages(size: usize, align: usize) -> Option<usize> {
    is_run(size, align).then(|| run::pages_for(size))
}

/// Gives a run back to the pool that counts as in use, but is in the page map no more and has been counted as freed.
///
/// # Safety
///
/// The run is the caller's.
pub(crate) unsafe fn give_run(run: *mut u8) {
    // SAFETY: passed on.
    unsafe {
        IN_USE.fetch_sub(run::pages(run) * PAGE, Relaxed);
        run::give(run);
    }
}

/// Whether `address`, in a page of kind `kind` (`RUN` or `DIRECT`), is the start of a block.
fn is_start(address: *mut u8, kind: u8) -> bool {
    if kind == RUN { run::is_start(address) } else { direct::is_start(address) }
}

/// Frees a block on behalf of `function`; `kind` is the page map's answer, any that is not a size class. Null is fine.
///
/// # Safety
///
/// Nobody uses the block any more.
pub(crate) unsafe fn free(address: *mut u8, kind: u8, function: &str) {
    if address.is_null() {
        return;
    }
    let fault = match kind {
        RUN | DIRECT if !is_start(address, kind) => Fault::Interior,
        RUN | DIRECT => {
            let bytes = usable(address, kind);
            // SAFETY: passed on; the start of a block of that kind.
            let claimed = unsafe { if kind == RUN { run::free(address) } else { direct::free(address) } };
            if claimed {
                if kind == RUN {
                    tick();
                }
                FREES.fetch_add(1, Relaxed);
                IN_USE.fetch_sub(bytes, Relaxed);
                return;
            }
            Fault::DoubleFree
        }
        _ => Fault::Foreign,
    };
    misuse::report(function, address, fault);
}

/// Whether the run at `address`, whose contents have moved to fresh memory, goes to [`free_replaced`].
///
/// # Safety
///
/// A run in use.
pub(crate) unsafe fn is_worth_purging(address: *mut u8) -> bool {
    // SAFETY: passed on.
    run::is_start(address) && unsafe { run::pages(address) } >= REPLACED
}

/// [`free`] for a run whose contents have moved to a run of fresh memory: its pages go back to the system at once, so that
/// the process does not grow by both.
///
/// # Safety
///
/// As [`free`]; [`is_worth_purging`].
pub(crate) unsafe fn free_replaced(address: *mut u8) {
    let bytes = usable(address, RUN);
    // SAFETY: passed on.
    if !unsafe { run::free_replaced(address) } {
        return misuse::report("realloc", address, Fault::DoubleFree);
    }
    FREES.fetch_add(1, Relaxed);
    IN_USE.fetch_sub(bytes, Relaxed);
}

/// The bytes that the block at `address` has; 0 after a complaint. `kind` as for [`free`].
pub(crate) fn usable_checked(address: *mut u8, kind: u8, function: &str) -> usize {
    match kind {
        RUN | DIRECT if is_start(address, kind) => usable(address, kind),
        RUN | DIRECT => {
            misuse::report(function, address, Fault::Interior);
            0
        }
        _ => {
            misuse::report(function, address, Fault::Foreign);
            0
        }
    }
}

/// The bytes that a large block has.
fn usable(address: *mut u8, kind: u8) -> usize {
    if kind == RUN { run::usable(address) } else { direct::usable(address) }
}

/// Grows or shrinks a large block to `size` bytes without copying, where that is possible: its new address, or null
/// when the caller has to copy. `size` is above the biggest class; the result keeps the alignment `align`.
///
/// # Safety
///
/// `address` is the start of a large block of kind `kind`, in use and the caller's.
pub(crate) unsafe fn resize(address: *mut u8, kind: u8, size: usize, align: usize) -> *mut u8 {
    let before = usable(address, kind);
    // A mapping that would be half empty as such is better copied into a run.
    let moved = match kind {
        // SAFETY: passed on.
        RUN if size <= MAX_RUN => unsafe { run::resize(address, size) },
        // SAFETY: passed on.
        DIRECT if size > MAX_RUN / 2 => unsafe { direct::resize(address, size, align) },
        _ => ptr::null_mut(),
    };
    if !moved.is_null() {
        IN_USE.fetch_add(usable(moved, kind).wrapping_sub(before), Relaxed);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_run_that_was_replaced_is_not_resident() {
        let bytes = REPLACED * PAGE;
        // Another test's thread may take the pages before we look.
        let gone = (0..100).any(|_| {
            let old = alloc(bytes, 16).ptr;
            // SAFETY: ours; after the free it is only looked at.
            unsafe {
                old.write_bytes(1, bytes);
                assert!(is_worth_purging(old) && !is_worth_purging(old.add(16)));
                free_replaced(old);
                crate::os::resident_pages(old, bytes) == Some(0)
            }
        });
        assert!(gone);
        let less = alloc(bytes - PAGE, 16).ptr;
        // SAFETY: ours.
        unsafe {
            assert!(!is_worth_purging(less));
            free(less, RUN, "free");
        }
    }
}
