//! Heap records of threads that have ended, for new threads.
//!
//! A stack with a counter around the pointer. Records are never unmapped, and their link is atomic. So
//! reading the link of a record that another thread has just popped is harmless, and the counter makes the
//! exchange that follows fail.

use crate::sync::{AtomicPtr, Node, Ordering};
use core::ptr;

/// Alignment of records, which leaves the low bits of their addresses to the counter.
pub(crate) const RECORD_ALIGN: usize = 4096;
/// The bits of the address: user addresses have 47 or 48 bits, so the counter gets 12 bits below and 16
/// above.
const ADDRESS: usize = ((1 << 48) - 1) & !(RECORD_ALIGN - 1);

/// The record that is on top where this is the word; null where there is none.
fn top<N>(word: *mut N) -> *mut N {
    word.map_addr(|a| a & ADDRESS)
}

/// The word that follows `word` when `node`, or null, comes to be on top: the counter is one step further.
/// The carry from its low bits skips the address and goes to the high ones.
fn step<N>(word: *mut N, node: *mut N) -> *mut N {
    let low = (word.addr() & (RECORD_ALIGN - 1)) + 1;
    let high = (word.addr() >> 48).wrapping_add(low >> 12);
    node.map_addr(|a| a | (low & (RECORD_ALIGN - 1)) | high << 48)
}

/// A stack of free records.
pub(crate) struct RecordStack<N> {
    /// A pointer to the top record, with a counter of changes around its address.
    word: AtomicPtr<N>,
}

// SAFETY: what threads share is one atomic word. A record that `pop` returns is the popper's alone until it
// pushes it, and by the contract of `push` any thread may have it next.
unsafe impl<N> Sync for RecordStack<N> {}
// SAFETY: as for `Sync`: the stack holds addresses only, and records may change threads.
unsafe impl<N> Send for RecordStack<N> {}

impl<N: Node> RecordStack<N> {
    /// An empty stack.
    pub(crate) const fn new() -> Self {
        Self { word: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Forgets all records, which are about to be unmapped.
    ///
    /// # Safety
    ///
    /// No thread pushes or pops meanwhile.
    pub(crate) unsafe fn clear(&self) {
        self.word.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Makes `node` available.
    ///
    /// # Safety
    ///
    /// `node` is aligned to [`RECORD_ALIGN`], below 2^48, never unmapped, the caller's alone, and fit to be
    /// used by any other thread next. Its link is atomic.
    pub(crate) unsafe fn push(&self, node: *mut N) {
        // Release: pairs with the acquire in `pop`, which reads the link and hands the record out.
        let _ = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, |old| {
            // SAFETY: by this function's contract `node` is valid and ours alone until the exchange succeeds.
            // A `pop` that still has its address from earlier reads the link atomically.
            unsafe { N::set_next(node, top(old)) };
            Some(step(old, node))
        });
    }

    /// Takes a record that is the caller's alone from now on; null when there is none.
    ///
    /// # Safety
    ///
    /// No record that was ever pushed has been unmapped.
    pub(crate) unsafe fn pop(&self) -> *mut N {
        let below = |old: *mut N| {
            let node = top(old);
            // SAFETY: the record is mapped by this function's contract, and its link is atomic. A link read
            // from a record that is not on top any more is not used, because the counter makes the exchange
            // fail.
            (!node.is_null()).then(|| step(old, unsafe { N::next(node) }))
        };
        // Acquire where it fails, and for the first load: pairs with the release in `push`, because the link
        // is read before the exchange. Relaxed where it succeeds: the exchange finds the same word, counter
        // included, that was read with acquire.
        let popped = self.word.fetch_update(Ordering::Relaxed, Ordering::Acquire, below);
        popped.map_or(ptr::null_mut(), top)
    }
}
