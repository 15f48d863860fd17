//! Blocks of whole pages inside SuperSlabs.

use crate::superslab::layout::PAGE;
use crate::superslab::pagemap::RUN;
use crate::superslab::slab::{Allocation, Slab};
use crate::superslab::{pagemap, pool};
use core::ptr;

pub(super) fn pages_for(size: usize) -> usize {
    size.div_ceil(PAGE).max(1)
}

/// The record of the run that `address` lies in the first page of.
fn record(address: *mut u8) -> *mut Slab {
    // SAFETY: the page map said RUN, so the page is in use and has a record.
    unsafe { Slab::of(address) }
}

/// A run for `size` bytes; where it can grow to `room` bytes, if there is such a place.
pub(super) fn alloc(size: usize, room: usize) -> Allocation {
    match pool::take_span_with_room(pages_for(size), RUN, pages_for(room)) {
        None => Allocation { ptr: ptr::null_mut(), zeroed: false },
        Some(span) => {
            // Runs never lie in page 0, so the block begins with its page.
            let block = pool::address(span.slab);
            if !span.zero {
                // What a small block in this place left behind must not come back to it through the program's copies.
                // SAFETY: the run is ours.
                unsafe { block.cast::<usize>().add(1).write(0) };
            }
            Allocation { ptr: block, zeroed: span.zero }
        }
    }
}

pub(super) fn is_start(address: *mut u8) -> bool {
    address.addr() & (PAGE - 1) == 0
}

/// The pages of the run at `address`.
///
/// # Safety
///
/// A run in use, or one that has been claimed.
pub(crate) unsafe fn pages(address: *mut u8) -> usize {
    // SAFETY: passed on.
    unsafe { (*record(address)).pages as usize }
}

pub(super) fn usable(address: *mut u8) -> usize {
    // SAFETY: the page map said that it is a run's.
    unsafe { pages(address) * PAGE }
}

/// Frees a run. False when another thread has just freed it.
pub(super) unsafe fn free(address: *mut u8) -> bool {
    if !pagemap::claim(address, RUN) {
        return false;
    }
    // SAFETY: we alone claimed it.
    unsafe { give(address) };
    true
}

/// [`free`] for a run whose contents have moved to fresh memory.
pub(super) unsafe fn free_replaced(address: *mut u8) -> bool {
    if !pagemap::claim(address, RUN) {
        return false;
    }
    // SAFETY: we alone claimed it.
    unsafe { pool::give_replaced_run(record(address)) };
    true
}

/// Gives a run that has been claimed back to the pool.
pub(super) unsafe fn give(address: *mut u8) {
    let slab = record(address);
    // SAFETY: passed on; every page may have been written.
    unsafe { pool::give_span(slab, u32::MAX >> (32 - (*slab).pages as u32)) };
}

/// Grows into free neighbours, or gives the tail back. Null when it cannot.
pub(super) unsafe fn resize(address: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: passed on.
    if unsafe { pool::resize_run(record(address), pages_for(size)) } { address } else { ptr::null_mut() }
}
