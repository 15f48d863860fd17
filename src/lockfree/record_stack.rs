//! Heap records of threads that have ended, for new threads.
//!
//! A stack with a counter around the pointer. Records are never unmapped, and their link is atomic. So
//! reading the link of a record that another thread has just popped is harmless, and the counter makes the
//! exchange that follows fail.

use crate::sync::{AtomicUsize, Node, Ordering};
use core::marker::PhantomData;
use core::ptr;

/// Alignment of records, which leaves the low bits of their addresses to the counter.
pub(crate) const RECORD_ALIGN: usize = 4096;
/// The bits of the address: user addresses have 47 or 48 bits, so the counter gets 12 bits below and 16
/// above.
const ADDRESS: usize = ((1 << 48) - 1) & !(RECORD_ALIGN - 1);
/// The counter's bits of `word`, one step further: the carry from the low bits skips the address and goes to
/// the high ones.
fn step(word: usize) -> usize {
    let low = (word & (RECORD_ALIGN - 1)) + 1;
    let high = (word >> 48).wrapping_add(low >> 12);
    (low & (RECORD_ALIGN - 1)) | high << 48
}

/// A stack of free records.
pub(crate) struct RecordStack<N> {
    /// Address of the top record, and around it a counter of changes.
    word: AtomicUsize,
    _nodes: PhantomData<*mut N>,
}

// SAFETY: what threads share is one atomic word. A record that `pop` returns is the popper's alone until it
// pushes it, and by the contract of `push` any thread may have it next.
unsafe impl<N> Sync for RecordStack<N> {}
// SAFETY: as for `Sync`: the stack holds addresses only, and records may change threads.
unsafe impl<N> Send for RecordStack<N> {}

impl<N: Node> RecordStack<N> {
    /// An empty stack.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { word: AtomicUsize::new(0), _nodes: PhantomData }
    }

    /// An empty stack (loom's atomics have no constant constructor).
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { word: AtomicUsize::new(0), _nodes: PhantomData }
    }

    /// Forgets all records, which are about to be unmapped.
    ///
    /// # Safety
    ///
    /// No thread pushes or pops meanwhile.
    #[cfg(not(loom))]
    pub(crate) unsafe fn clear(&self) {
        self.word.store(0, Ordering::Relaxed);
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
            unsafe { N::set_next(node, (old & ADDRESS) as *mut N) };
            Some(node as usize | step(old))
        });
    }

    /// Takes a record that is the caller's alone from now on; null when there is none.
    ///
    /// # Safety
    ///
    /// No record that was ever pushed has been unmapped.
    pub(crate) unsafe fn pop(&self) -> *mut N {
        let below = |old| {
            let node = (old & ADDRESS) as *mut N;
            // SAFETY: the record is mapped by this function's contract, and its link is atomic. A link read
            // from a record that is not on top any more is not used, because the counter makes the exchange
            // fail.
            (!node.is_null()).then(|| unsafe { N::next(node) } as usize | step(old))
        };
        // Acquire where it fails, and for the first load: pairs with the release in `push`, because the link
        // is read before the exchange. Relaxed where it succeeds: the exchange finds the same word, counter
        // included, that was read with acquire.
        let popped = self.word.fetch_update(Ordering::Relaxed, Ordering::Acquire, below);
        popped.map_or(ptr::null_mut(), |old| (old & ADDRESS) as *mut N)
    }
}
