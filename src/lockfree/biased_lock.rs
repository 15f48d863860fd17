//! A heap's lock, biased to its owner. The owner, which takes it all the time, pays two plain stores and a
//! load. A *visitor*, another thread that takes it rarely, pays for a barrier in every running thread.
//!
//! The owner holds the lock where it moves slabs between lists, resizes magazines, and uses its run cache.
//! Its two shortest paths hold nothing: taking a block from the current slab, which no visitor touches, and
//! putting one back into any slab of its own. For the latter there is a *hazard pointer*: the owner names the
//! slab before it checks that the slab is its own. A visitor first changes the slab's owner, then executes a
//! barrier, and then looks whether the slab is named.

use crate::lockfree::barrier::{heavy as heavy_barrier, light as light_barrier};
use crate::sync::Ordering::{self, Release};
use crate::sync::{AtomicBool, AtomicPtr, fence};

/// The lock of one heap, and the slab that its owner is putting a block into, or did last.
pub(crate) struct BiasedLock<S> {
    /// The owner is inside, or about to look whether it may be. Written by the owner only.
    busy: AtomicBool,
    /// A visitor is inside, or about to look whether it may be. Written by the visitor only; there is one at
    /// a time.
    wanted: AtomicBool,
    /// The slab that the owner has named last. Written by the owner only.
    hazard: AtomicPtr<S>,
    /// A visitor is inside, for the child of a fork. Written by visitors only.
    inside: AtomicBool,
}

impl<S> BiasedLock<S> {
    /// A free lock.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            hazard: AtomicPtr::new(core::ptr::null_mut()),
            inside: AtomicBool::new(false),
        }
    }

    /// A free lock.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
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
    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.busy.store(false, Ordering::Relaxed);
        self.wanted.store(false, Ordering::Relaxed);
        self.inside.store(false, Ordering::Relaxed);
    }

    /// Removes a visitor, of which the child of a fork has none. Called by its only thread. Returns whether a
    /// visitor was inside, and so may have been stopped halfway.
    #[cfg(not(loom))]
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

    /// Names the slab that the owner is about to put a block into. Afterwards it checks that the slab is its
    /// own.
    #[inline(always)]
    pub(crate) fn name(&self, slab: *mut S) {
        // Release: pairs with the acquire in `hazard`; a visitor that reads this name sees all that was put
        // into slabs named before. The barrier pairs with those in `visit` and `hazard_after_barrier`.
        self.hazard.store(slab, Ordering::Release);
        light_barrier();
    }

    /// Lets a visitor in, unless the owner is inside. What the visitor wrote before this call the owner sees
    /// when it names its next slab; if it has named one already, [`BiasedLock::hazard`] returns that one. One
    /// visitor at a time.
    pub(crate) fn visit(&self) -> bool {
        self.wanted.store(true, Ordering::Relaxed);
        // Acquire: pairs with the release in `leave`. The barrier pairs with those in `enter` and `name`.
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

    /// The slab that the owner may be putting a block into. For a visitor, after a barrier.
    pub(crate) fn hazard(&self) -> *mut S {
        // Acquire: pairs with the release in `name`.
        self.hazard.load(Ordering::Acquire)
    }

    /// Executes a barrier, then returns [`BiasedLock::hazard`]; `None` when the system has no barrier.
    #[cfg(not(loom))]
    pub(crate) fn hazard_after_barrier(&self) -> Option<*mut S> {
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
