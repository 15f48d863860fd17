//! Runs: blocks of whole slices inside SuperSlabs.

use crate::large::cache;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::RUN;
use crate::superslab::slab::{Allocation, Slab};
use crate::superslab::{pagemap, pool};
use core::ptr;

/// The slices of a run for `size` bytes.
pub(super) fn slices_for(size: usize) -> usize {
    size.div_ceil(SLICE).max(1)
}

/// The record of the run whose first slice holds `address`.
fn record(address: *mut u8) -> *mut Slab {
    // SAFETY: every caller has `RUN` from the page map for this slice, or had it before it claimed the run.
    // So the slice lies in a SuperSlab and has a record.
    unsafe { Slab::of(address) }
}

/// Allocates a run for `size` bytes, placed where it can grow to `room` bytes, if possible.
pub(super) fn alloc(size: usize, room: usize) -> Allocation {
    let span = pool::take_span_with_room(slices_for(size), RUN, slices_for(room), cache::spare);
    let Some(span) = span else { return Allocation::NONE };
    // Runs never lie in slice 0, so the block begins with its slice.
    let block = Slab::address(span.slab);
    if !span.zero {
        // A small block in this place may have left its mark here. The program could copy it out of the run
        // and into a block that later lies in the same place, which would then look free.
        // SAFETY: the run was taken just now and is longer than two words.
        unsafe { block.cast::<usize>().add(1).write(0) };
    }
    Allocation { ptr: block, zeroed: span.zero }
}

pub(super) fn is_start(address: *mut u8) -> bool {
    address.addr() & (SLICE - 1) == 0
}

/// The slices of the run at `address`.
///
/// # Safety
///
/// The run is in use or has been claimed, and nobody resizes it meanwhile.
pub(crate) unsafe fn slices(address: *mut u8) -> usize {
    // SAFETY: the run stays, so its record does, and `slices` changes only when the run is resized.
    unsafe { (*record(address)).slices as usize }
}

/// The bytes of the run at `address`, for which the page map has said `RUN`.
pub(super) fn usable(address: *mut u8) -> usize {
    // SAFETY: the run is the caller's own block and in use. Only a program that frees it in another thread at
    // the same time breaks that.
    unsafe { slices(address) * SLICE }
}

/// Frees a run. False if another thread has just freed it.
///
/// # Safety
///
/// `address` is the start of a run, which the program does not use any more.
pub(super) unsafe fn free(address: *mut u8) -> bool {
    if !pagemap::claim(address, RUN) {
        return false;
    }
    // SAFETY: only one thread succeeds in claiming a run, so it is ours alone.
    unsafe { give(address) };
    true
}

/// [`free`] for a run whose contents have moved to fresh memory.
///
/// # Safety
///
/// As [`free`].
pub(super) unsafe fn free_replaced(address: *mut u8) -> bool {
    if !pagemap::claim(address, RUN) {
        return false;
    }
    // SAFETY: only one thread succeeds in claiming a run, so it is ours alone.
    unsafe { pool::give_replaced_run(record(address)) };
    true
}

/// Gives a run that has been claimed back to the pool.
///
/// # Safety
///
/// `address` is the start of a run that the caller has claimed in the page map.
pub(super) unsafe fn give(address: *mut u8) {
    let slab = record(address);
    // Every slice may have been written.
    // SAFETY: the run is the caller's alone, so its record can be read, and it can be given back.
    unsafe { pool::give_span(slab, u32::MAX >> (32 - (*slab).slices as u32)) };
}

/// Grows a run into free slices behind it, or gives its tail back. Null if neither is possible.
///
/// # Safety
///
/// `address` is the start of a run in use, and the caller's.
pub(super) unsafe fn resize(address: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the record of a run in use, and the caller's.
    if unsafe { pool::resize_run(record(address), slices_for(size)) } { address } else { ptr::null_mut() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::large::block::{MAX_RUN, run_slices};

    #[test]
    fn every_size_has_the_slices_that_hold_it() {
        let mut slices = 1;
        for size in 0..=MAX_RUN {
            slices += (size > slices * SLICE) as usize;
            assert_eq!(slices_for(size), slices, "{size}");
            assert_eq!(run_slices(size, 1), Some(slices));
        }
        for shift in 0..64 {
            let run = if 1 << shift <= SLICE { Some(3) } else { None };
            assert_eq!(run_slices(2 * SLICE + 1, 1 << shift), run, "{shift}");
        }
        for size in (20..64)
            .flat_map(|shift| (0..3).map(move |i| (1usize << shift) - 1 + i))
            .chain([MAX_RUN + 1, usize::MAX])
        {
            assert_eq!(run_slices(size, 1), None, "{size:#x}");
        }
        assert_eq!(slices_for(usize::MAX), 1 << 48);
    }

    /// The second word is where a free small block has its mark.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_run_has_no_mark_from_before() {
        for _ in 0..64 {
            let runs = [(); 4].map(|()| alloc(3 * SLICE, 3 * SLICE).ptr);
            for run in runs {
                assert!(!run.is_null());
                // SAFETY: ours, and longer than two words.
                let second = unsafe { &mut *run.cast::<usize>().add(1) };
                assert_eq!(*second, 0);
                *second = usize::MAX;
            }
            // SAFETY: ours, and not used any more.
            assert!(runs.into_iter().all(|run| unsafe { free(run) }));
        }
    }
}
