//! Heap records of threads that have ended, for threads that begin.
//!
//! A stack with a counter around the pointer. Records are never unmapped and their link is atomic, so reading the
//! link of a record that another thread has just popped is harmless, and the counter makes the exchange that follows
//! fail.

use crate::sync::{AtomicUsize, Node, Ordering};
use core::marker::PhantomData;

/// Records are aligned to this, which leaves the low bits of their address to the counter.
pub(crate) const RECORD_ALIGN: usize = 4096;
/// Where the address sits: user addresses have 47 or 48 bits, so the counter gets 12 bits below and 16 above.
const ADDRESS: usize = ((1 << 48) - 1) & !(RECORD_ALIGN - 1);
/// One step of the counter: carries run from the low bits over the address into the high ones.
fn step(word: usize) -> usize {
    let low = (word & (RECORD_ALIGN - 1)) + 1;
    let high = (word >> 48).wrapping_add(low >> 12);
    (low & (RECORD_ALIGN - 1)) | high << 48
}

/// A stack of free records.
pub(crate) struct RecordStack<N> {
    /// Address of the top record, with a counter of changes in the bits around it.
    word: AtomicUsize,
    _nodes: PhantomData<*mut N>,
}

// SAFETY: the stack hands a record to one thread at a time; records themselves may move between threads.
unsafe impl<N> Sync for RecordStack<N> {}
// SAFETY: as above.
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

    /// Gives `node` to whoever wants one next.
    ///
    /// # Safety
    ///
    /// `node` is aligned to [`RECORD_ALIGN`], never unmapped, and the caller's alone.
    pub(crate) unsafe fn push(&self, node: *mut N) {
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            // SAFETY: `node` is ours until the exchange succeeds.
            unsafe { N::set_next(node, (old & ADDRESS) as *mut N) };
            let new = node as usize | step(old);
            // Release: pairs with the acquire in `pop`, which reads the link and hands out the record.
            match self.word.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Takes a record, or null.
    ///
    /// # Safety
    ///
    /// Every record ever pushed is still mapped.
    pub(crate) unsafe fn pop(&self) -> *mut N {
        // Acquire, here and on failure: pairs with the release in `push`; the link is read before the exchange.
        let mut old = self.word.load(Ordering::Acquire);
        loop {
            let node = (old & ADDRESS) as *mut N;
            if node.is_null() {
                return node;
            }
            // SAFETY: mapped for ever. A link read from a record that is no longer on top is not used: the counter
            // makes the exchange fail.
            let next = unsafe { N::next(node) } as usize;
            let new = next | step(old);
            // Relaxed when it succeeds: the word is the one that was read with acquire, counter and all.
            match self.word.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => return node,
                Err(now) => old = now,
            }
        }
    }
}
