//! Blocks of whole pages inside SuperSlabs.

use crate::superslab::Fresh;
use crate::superslab::pagemap::{self, PAGE, RUN};
use crate::superslab::{Slab, pool};
use core::ptr;

fn pages_for(size: usize) -> usize {
    size.div_ceil(PAGE).max(1)
}

/// The record of the run that `address` lies in the first page of.
fn record(address: *mut u8) -> *mut Slab {
    // SAFETY: the page map said RUN, so the page is in use and has a record.
    unsafe { Slab::of(address) }
}

pub(super) fn alloc(size: usize) -> Fresh {
    match pool::take(pages_for(size), RUN) {
        None => Fresh { block: ptr::null_mut(), zero: false },
        Some(span) => {
            // Runs never lie in page 0, so the block begins with its page.
            let block = pool::address(span.slab);
            if !span.zero {
                // What a small block in this place left behind must not come back to it through the program's copies.
                // SAFETY: the run is ours.
                unsafe { block.cast::<usize>().add(1).write(0) };
            }
            Fresh { block, zero: span.zero }
        }
    }
}

pub(super) fn is_start(address: *mut u8) -> bool {
    address.addr() & (PAGE - 1) == 0
}

pub(super) fn usable(address: *mut u8) -> usize {
    // SAFETY: the record of a run in use.
    unsafe { (*record(address)).pages as usize * PAGE }
}

/// Frees a run. False when another thread has just freed it.
pub(super) unsafe fn free(address: *mut u8) -> bool {
    let slab = record(address);
    if !pagemap::claim(address, RUN) {
        return false;
    }
    // SAFETY: we alone claimed it; every page may have been written.
    unsafe { pool::give(slab, u32::MAX >> (32 - (*slab).pages as u32)) };
    true
}

/// Grows into free neighbours, or gives the tail back. Null when it cannot.
pub(super) unsafe fn resize(address: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: passed on.
    if unsafe { pool::resize(record(address), pages_for(size)) } { address } else { ptr::null_mut() }
}
