//! The slots of a magazine: its owner pops and pushes blocks, while visitors [`steal`] blocks out of them.
//! `front/magazine.rs` describes magazines, and `reclaim/drain_magazines.rs` why this works.

use crate::lockfree::barrier::{heavy as heavy_barrier, light as light_barrier};
use crate::sync::AtomicPtr;
use crate::sync::Ordering::{self, AcqRel, Relaxed, Release};
use core::ptr;

/// A place for a block's address.
pub(crate) type Slot = AtomicPtr<u8>;

/// The ordering with which a push stores a block and the new top. Release where that is free: it pairs with
/// the acquire of the swap in [`steal`] and of the top's load in `reclaim::drain_magazines`, so
/// that whoever takes the block out sees what was written to it before. Elsewhere, and so in the model, the
/// visitor's barriers order the two.
const PUT: Ordering = if cfg!(all(target_arch = "x86_64", not(loom))) { Release } else { Relaxed };

/// Reads a top or limit of the calling thread's own magazine: a plain load, which the compiler may fold into
/// its use.
///
/// # Safety
///
/// No other thread writes it meanwhile.
#[inline(always)]
pub(crate) unsafe fn own(word: &AtomicPtr<Slot>) -> *mut Slot {
    // SAFETY: other threads only read it, by the caller's clause, and two reads are no race.
    unsafe { word.as_ptr().read() }
}

/// Pops a block from the magazine with this top; null when that is empty.
///
/// # Safety
///
/// The calling thread owns the magazine, or it is a placeholder's. Below the top there is a slot: that of a
/// block, or a null at the bottom.
#[inline(always)]
pub(crate) unsafe fn pop(top: &AtomicPtr<Slot>) -> *mut u8 {
    // SAFETY: only the owner writes its tops, so `own` may read this one; the slot is there by the caller's
    // clause. Nothing is written unless there is a block, which no placeholder has.
    unsafe {
        let below = own(top).sub(1);
        // Relaxed: this thread's own push, or what a visitor put there: null, or the same block again.
        let block = (*below).load(Relaxed);
        if !block.is_null() {
            // Relaxed: this publishes nothing. drain_magazines.rs says what a visitor concludes from it.
            top.store(below, Relaxed);
            // The program must not use the block before the top has moved: in the child of a fork, what is
            // below the top counts as free. Nor may the next pop read its slot before: visitors rely on that
            // order. Pairs with the heavy barriers in `steal`.
            light_barrier();
        }
        block
    }
}

/// Pushes a block into the magazine with this top and limit. False, and nothing done, when that is full.
///
/// # Safety
///
/// The calling thread owns the magazine, or it is a placeholder's, which is always full. Below the limit
/// every slot from the top on is free. The caller alone has the block.
#[inline(always)]
pub(crate) unsafe fn push(top: &AtomicPtr<Slot>, limit: &AtomicPtr<Slot>, block: *mut u8) -> bool {
    // SAFETY: the caller's clauses are the same.
    matches!(unsafe { push_if(top, limit, block, || true) }, Push::Done)
}

/// The result of [`push_if`].
pub(crate) enum Push {
    /// The block is in the magazine.
    Done,
    /// Nothing was done: the magazine is full.
    Full,
    /// Nothing was done: there is room, but the block must not go there.
    Refused,
}

/// [`push`], if there is room, and then if `agrees` says so.
///
/// # Safety
///
/// As [`push`], but that the caller need have the block only if `agrees`.
#[inline(always)]
pub(crate) unsafe fn push_if(
    top: &AtomicPtr<Slot>,
    limit: &AtomicPtr<Slot>,
    block: *mut u8,
    agrees: impl FnOnce() -> bool,
) -> Push {
    // SAFETY: only the owner writes top and limit, so `own` may read them. What is below the limit is a free
    // slot; a placeholder's top is not, so nothing is written to it.
    unsafe {
        let at = own(top);
        // Not just "equal": a limit of null makes every magazine full (see `front/gate.rs`).
        if at >= own(limit) {
            return Push::Full;
        }
        if !agrees() {
            return Push::Refused;
        }
        #[cfg(not(loom))]
        (*at).store(block, PUT);
        // Loom may order a store before an exchange of another thread that it cannot have preceded, and then
        // lets the exchange after that one overwrite it. Exchanges it keeps in order.
        #[cfg(loom)]
        (*at).swap(block, PUT);
        // The child of a fork takes every slot below the top for a block, so the block is stored first. Pairs
        // with the heavy barriers in `steal`.
        light_barrier();
        top.store(at.add(1), PUT);
        Push::Done
    }
}

/// How many slots are handled between two barriers at most.
pub(crate) const BATCH: usize = 64;

/// Takes the blocks in `slots`, at most the first [`BATCH`], and calls `f` with each block that has become
/// the caller's. The owner's topmost block must not be among the slots. `top` returns how many slots, counted
/// from the first of these, lie below the owner's top. False, with everything as before, when the system has
/// no barrier.
pub(crate) fn steal(slots: &[Slot], top: impl Fn() -> usize, mut f: impl FnMut(*mut u8)) -> bool {
    let mut blocks = [ptr::null_mut::<u8>(); BATCH];
    // The barrier below orders all of this, and pairs with the compiler fences in `MagazineTops`. The
    // orderings are for sanitizers, which do not know such barriers: the acquire pairs with the release in
    // the owner's push, where that has one.
    let (swapped, put_back) = (AcqRel, Release);
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
        if barrier && top > i + 1 && slot.load(Relaxed).is_null() {
            f(block);
        } else {
            // Fails when the owner has put another block there: then it has taken this one, too.
            let _ = slot.compare_exchange(ptr::null_mut(), block, put_back, Relaxed);
        }
    }
    barrier
}
