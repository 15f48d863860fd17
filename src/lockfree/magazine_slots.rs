//! What the owner of a magazine does with its slots, while visitors [steal](super::steal) blocks out of them.
//! `front/magazine.rs` describes magazines, and `reclaim/drain_magazines.rs` why this works.

use crate::lockfree::barrier::light as light_barrier;
use crate::sync::AtomicPtr;
use crate::sync::Ordering::{self, Relaxed, Release};

/// A place for a block's address.
pub(crate) type Slot = AtomicPtr<u8>;

/// The ordering with which a push stores a block and the new top. Release where that is free: it pairs with
/// the acquire of the swap in [`steal`](super::steal) and of the top's load in `reclaim::drain_magazines`, so
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
    #[cfg(not(loom))]
    // SAFETY: other threads only read it, by the caller's clause, and two reads are no race.
    unsafe {
        word.as_ptr().read()
    }
    // Loom has no plain loads of atomics.
    #[cfg(loom)]
    word.load(Relaxed)
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
    // SAFETY: only the owner writes top and limit, so `own` may read them. What is not at the limit is a free
    // slot; a placeholder's top is, so nothing is written to it.
    unsafe {
        let at = own(top);
        if at == own(limit) {
            return false;
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
        true
    }
}
