//! Taking blocks out of slots in which another thread pops and pushes at the same time.
//! `reclaim/drain_magazines.rs` explains why this works.

use crate::lockfree::barrier::heavy as heavy_barrier;
use crate::sync::{AtomicPtr, Ordering};
use core::ptr;

/// How many slots are handled between two barriers at most.
pub(crate) const BATCH: usize = 64;

/// Takes the blocks in `slots`, at most the first [`BATCH`], and calls `f` with each block that has become
/// the caller's. The owner's topmost block must not be among the slots. `top` returns how many slots, counted
/// from the first of these, lie below the owner's top. False, with everything as before, when the system has
/// no barrier.
pub(crate) fn steal(slots: &[AtomicPtr<u8>], top: impl Fn() -> usize, mut f: impl FnMut(*mut u8)) -> bool {
    let mut blocks = [ptr::null_mut::<u8>(); BATCH];
    // The barrier below orders all of this, and pairs with the compiler fences in `MagazineTops`. The
    // orderings are for sanitizers, which do not know such barriers: the acquire pairs with the release in
    // the owner's push, where that has one.
    let (swapped, put_back) = (Ordering::AcqRel, Ordering::Release);
    for (slot, block) in slots.iter().zip(&mut blocks) {
        *block = slot.swap(ptr::null_mut(), swapped);
    }
    let barrier = heavy_barrier();
    let top = top();
    // On processors that reorder stores, the top may be newer than what was pushed before it moved.
    let barrier = barrier && heavy_barrier();
    for (i, (slot, &block)) in slots.iter().zip(&blocks).enumerate() {
        if block.is_null() {
            continue;
        }
        if barrier && top > i + 1 && slot.load(Ordering::Relaxed).is_null() {
            f(block);
        } else {
            // Fails when the owner has put another block there: then it has taken this one, too.
            let _ = slot.compare_exchange(ptr::null_mut(), block, put_back, Ordering::Relaxed);
        }
    }
    barrier
}
