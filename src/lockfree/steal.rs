//! Taking blocks out of slots in which another thread pops and pushes at will: see `reclaim/drain_magazines.rs` for why this works.

use crate::sync::{AtomicPtr, Ordering, heavy_barrier};
use core::ptr;

/// Slots handled between two barriers, at most.
pub(crate) const BATCH: usize = 64;

/// Takes what is in `slots`, at most [`BATCH`] of them and none the owner's topmost, and calls `f` with each block that has
/// become the caller's. `top` says how many slots from the first of these on lie below the owner's top. False when the system
/// has no barrier, and all is as it was.
pub(crate) fn steal(slots: &[AtomicPtr<u8>], top: impl Fn() -> usize, mut f: impl FnMut(*mut u8)) -> bool {
    let mut blocks = [ptr::null_mut::<u8>(); BATCH];
    // The barrier below orders all this. The orderings are what a sanitizer sees, which knows no such barrier: acquire pairs
    // with the push's release, where that has one.
    let (swapped, put_back) = (Ordering::AcqRel, Ordering::Release);
    for (slot, block) in slots.iter().zip(&mut blocks) {
        *block = slot.swap(ptr::null_mut(), swapped);
    }
    let barrier = heavy_barrier();
    let top = top();
    // Where stores are not seen in order, the top may be newer than what was pushed before it moved.
    let barrier = barrier && heavy_barrier();
    for (i, (slot, &block)) in slots.iter().zip(&blocks).enumerate() {
        if block.is_null() {
            continue;
        }
        if barrier && top > i + 1 && slot.load(Ordering::Relaxed).is_null() {
            f(block);
        } else {
            // Fails when the owner has put something else there: then it has the block, too.
            let _ = slot.compare_exchange(ptr::null_mut(), block, put_back, Ordering::Relaxed);
        }
    }
    barrier
}
