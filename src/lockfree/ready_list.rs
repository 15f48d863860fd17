//! The ready list: slabs that have something for their owner.
//!
//! Any thread pushes, only the owner takes, and it takes everything at once: so there is no ABA.

use crate::sync::{AtomicPtr, Node, Ordering};
use core::ptr;

/// A multi-producer, single-consumer list of slabs.
pub(crate) struct ReadyList<N> {
    head: AtomicPtr<N>,
}

impl<N: Node> ReadyList<N> {
    /// An empty list.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// An empty list (loom's atomics have no constant constructor).
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Publishes `node`.
    ///
    /// # Safety
    ///
    /// `node` is valid, in no ready list, and the caller alone has the duty to publish it.
    pub(crate) unsafe fn push(&self, node: *mut N) {
        // SAFETY: passed on.
        unsafe { self.push_all(node, node) }
    }

    /// Publishes the list that begins with `first` and ends with `last`.
    ///
    /// # Safety
    ///
    /// As [`ReadyList::push`] for each of its nodes; they are linked.
    pub(crate) unsafe fn push_all(&self, first: *mut N, last: *mut N) {
        let mut old = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the duty to publish makes the link ours.
            unsafe { N::set_next(last, old) };
            // Release: pairs with the acquire in `take`, which reads the link.
            match self.head.compare_exchange_weak(old, first, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Whether the list is empty: one load, no shared line written.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes the whole list; its nodes are linked through `Node::next`.
    pub(crate) fn take_all(&self) -> *mut N {
        // Acquire: pairs with the release in `push`.
        self.head.swap(ptr::null_mut(), Ordering::Acquire)
    }
}
