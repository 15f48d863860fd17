//! A heap's lock, biased to its owner. The owner, which takes it all the time, pays two plain stores and a
//! load. A *visitor*, another thread that takes it rarely, pays for a barrier in every running thread.
//!
//! The owner holds the lock where it moves slabs between lists, resizes magazines, and uses its run cache.
//! Its two shortest paths hold nothing: taking a block from a current slab, and putting one back into any
//! slab of its own. For these there is a *hazard pointer*: before it looks which slab is current, the owner
//! names the class, and before it checks that a slab is its own, the block. A visitor first takes the slab
//! out of the current one's place and changes its owner, then executes a barrier, and then looks what is
//! named.

use crate::lockfree::barrier::{heavy as heavy_barrier, light as light_barrier};
use crate::sync::Ordering::{self, Release};
use crate::sync::{AtomicBool, AtomicPtr, fence};

/// The lock of one heap, and what its owner is doing outside of it, or did last.
pub(crate) struct BiasedLock {
    /// The owner is inside, or about to look whether it may be. Written by the owner only.
    busy: AtomicBool,
    /// A visitor is inside, or about to look whether it may be. Written by the visitor only; there is one at
    /// a time.
    wanted: AtomicBool,
    /// What the owner has named last. Written by the owner only.
    hazard: AtomicPtr<u8>,
    /// A visitor is inside, for the child of a fork. Written by visitors only.
    inside: AtomicBool,
}

impl BiasedLock {
    /// A free lock.
    pub(crate) const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            hazard: AtomicPtr::new(core::ptr::null_mut()),
            inside: AtomicBool::new(false),
        }
    }

    /// Lets the owner in. Calls `wait` again and again while a visitor is inside. Returns what
    /// [`BiasedLock::leave`] needs: the owner may be inside already.
    #[inline]
    pub(crate) fn enter(&self, wait: impl Fn()) -> bool {
        // Relaxed: only this thread, the owner, writes it.
        let before = self.busy.load(Ordering::Relaxed);
        loop {
            self.busy.store(true, Ordering::Relaxed);
            light_barrier();
            // Acquire: pairs with the release in `end_visit`. A visitor that arrives while we are inside
            // withdraws. The barrier pairs with the one in `visit`.
            if before || !self.wanted.load(Ordering::Acquire) {
                return before;
            }
            // Relaxed: since the barrier above we have changed nothing. It orders what we did before.
            self.busy.store(false, Ordering::Relaxed);
            wait();
        }
    }

    /// Lets the owner out.
    #[inline]
    pub(crate) fn leave(&self, before: bool) {
        // Release: pairs with the acquire in `visit`, by which a visitor sees what we did inside.
        self.busy.store(before, Ordering::Release);
    }

    /// Frees the lock, in the record of a thread that a fork has left behind.
    pub(crate) fn reset(&self) {
        self.busy.store(false, Ordering::Relaxed);
        self.wanted.store(false, Ordering::Relaxed);
        self.inside.store(false, Ordering::Relaxed);
    }

    /// Removes a visitor, of which the child of a fork has none. Called by its only thread, or by the owner
    /// where there are no visitors any more. Returns whether a visitor was inside, and so may have been
    /// stopped halfway.
    pub(crate) fn inherit(&self) -> bool {
        // Relaxed, here and below: there is no other thread.
        let visited = self.inside.load(Ordering::Relaxed);
        // Only where it was: the child writes to no page without need.
        if self.wanted.load(Ordering::Relaxed) {
            self.inside.store(false, Ordering::Relaxed);
            self.wanted.store(false, Ordering::Relaxed);
        }
        visited
    }

    /// Names the block that the owner is about to put into its slab, and then checks that the slab is its
    /// own; or the class from whose current slab it is about to take a block, and then reads which one that
    /// is.
    #[inline(always)]
    pub(crate) fn name(&self, what: *mut u8) {
        // Release: pairs with the acquire in `hazard`; a visitor that reads this name sees all that was done
        // to slabs under earlier names. The barrier pairs with that in `hazard_after_barrier`.
        self.hazard.store(what, Ordering::Release);
        light_barrier();
    }

    /// Lets a visitor in, unless the owner is inside. One visitor at a time.
    pub(crate) fn visit(&self) -> bool {
        self.wanted.store(true, Ordering::Relaxed);
        // Acquire: pairs with the release in `leave`. The barrier pairs with that in `enter`.
        if heavy_barrier() && !self.busy.load(Ordering::Acquire) {
            // Relaxed, with a fence behind it: the child of a fork sees it before anything that this visitor
            // changes.
            self.inside.store(true, Ordering::Relaxed);
            fence(Ordering::Release);
            return true;
        }
        // Relaxed: this visitor has changed nothing. What visitors before us did is ordered by our barrier,
        // or, should the system have refused it, by their lock alone.
        self.wanted.store(false, Ordering::Relaxed);
        false
    }

    /// What the owner has named last. For a visitor.
    pub(crate) fn hazard(&self) -> *mut u8 {
        // Acquire: pairs with the release in `name`.
        self.hazard.load(Ordering::Acquire)
    }

    /// Executes a barrier, then returns [`BiasedLock::hazard`]; `None` when the system has no barrier. What a
    /// visitor wrote before this call the owner sees after it names something else.
    pub(crate) fn hazard_after_barrier(&self) -> Option<*mut u8> {
        heavy_barrier().then(|| self.hazard())
    }

    /// Lets the visitor out.
    pub(crate) fn end_visit(&self) {
        // The fence makes both stores releases. It pairs with the acquire in `enter`, by which the owner sees
        // what the visitor did; and in the child of a fork all of that is done before `inside` is cleared.
        fence(Ordering::Release);
        self.inside.store(false, Ordering::Relaxed);
        // Release once more, for ThreadSanitizer: it does not know fences.
        self.wanted.store(false, Release);
    }
}
