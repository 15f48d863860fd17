//! The ready list: slabs that hold something for their owner.
//!
//! Any thread pushes. The owner, or a visitor on its behalf, takes everything at once, so there is no ABA
//! problem.

use crate::sync::{AtomicPtr, Node, Ordering};
use core::ptr;

/// A list of slabs with many producers, taken as a whole.
pub(crate) struct ReadyList<N> {
    head: AtomicPtr<N>,
}

impl<N: Node> ReadyList<N> {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Publishes `node`.
    ///
    /// # Safety
    ///
    /// `node` is valid and in no ready list, and the caller alone has the duty to publish it: until it is on
    /// the list, nobody else touches its link or releases it.
    pub(crate) unsafe fn push(&self, node: *mut N) {
        // Release: pairs with the acquire in `take_all`, whose caller reads the links.
        let _ = self.head.fetch_update(Ordering::Release, Ordering::Relaxed, |old| {
            // SAFETY: the caller has the duty to publish `node` and has not fulfilled it before the exchange
            // succeeds, so the node is valid and its link ours.
            unsafe { N::set_next(node, old) };
            Some(node)
        });
    }

    /// Whether the list is empty: one load, and no write to a shared cache line. A hint: Relaxed, and
    /// `take_all` decides.
    pub(crate) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Takes the whole list. Its nodes are linked through `Node::next` and are the caller's.
    pub(crate) fn take_all(&self) -> *mut N {
        // Acquire: pairs with the release in `push`. Later pushes are exchanges, so they continue the
        // release sequence of the earlier ones.
        self.head.swap(ptr::null_mut(), Ordering::Acquire)
    }
}

/// The nodes of a chain that has been taken off a list. The link of each is read before it is passed on, so
/// what is done to it does not matter.
///
/// # Safety
///
/// `first` is null or the beginning of a chain that is linked through `Node::next` and ends with null. Its
/// nodes are valid, and the caller's, until they are passed on.
pub(crate) unsafe fn nodes<N: Node>(first: *mut N) -> impl Iterator<Item = *mut N> {
    let some = |node: *mut N| (!node.is_null()).then_some(node);
    // SAFETY: by this function's contract: this node has not been passed on yet.
    core::iter::successors(some(first), move |&node| some(unsafe { N::next(node) }))
}
