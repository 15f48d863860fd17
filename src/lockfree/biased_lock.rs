//! A heap's lock, biased to its owner: who enters it all the time pays two plain stores and a load, and who comes seldom,
//! a *visitor*, a barrier in every running thread.
//!
//! The owner holds it where it changes which lists its slabs are in, sizes of magazines, and its run cache. Its two shortest
//! paths hold nothing: taking a block of the current slab, which no visitor touches, and putting one back into any slab of
//! its own. For the latter there is the *hazard*: the owner names the slab before it asks whether it is its own. A
//! visitor first makes the slab somebody else's, then looks for its name there, with a barrier in between.

use crate::sync::{AtomicBool, AtomicPtr, Ordering, heavy_barrier, light_barrier};

/// The lock of one heap, and the slab that its owner is putting a block into or was the last time.
pub(crate) struct BiasedLock<S> {
    /// The owner is in. Written by the owner.
    busy: AtomicBool,
    /// A visitor is in, or about to be. Written by the visitor, of whom there is one at a time.
    wanted: AtomicBool,
    hazard: AtomicPtr<S>,
}

impl<S> BiasedLock<S> {
    /// Nobody is in.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            hazard: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Nobody is in.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            hazard: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Lets the owner in; `wait` is called, as often as need be, while a visitor is. What to give [`BiasedLock::leave`]: the owner
    /// may be in already.
    #[inline]
    pub(crate) fn enter(&self, wait: impl Fn()) -> bool {
        // Only the owner writes it.
        let before = self.busy.load(Ordering::Relaxed);
        loop {
            self.busy.store(true, Ordering::Relaxed);
            light_barrier();
            // Acquire: pairs with the release in `end_visit`. A visitor that has come while we are in goes away again.
            if before || !self.wanted.load(Ordering::Acquire) {
                return before;
            }
            // Relaxed, here and in `visit`: nothing was done in there.
            self.busy.store(false, Ordering::Relaxed);
            wait();
        }
    }

    /// Lets the owner out.
    #[inline]
    pub(crate) fn leave(&self, before: bool) {
        // Release: pairs with the acquire in `visit`.
        self.busy.store(before, Ordering::Release);
    }

    /// Nobody is in: for the record of a thread that a fork has left behind.
    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.busy.store(false, Ordering::Relaxed);
        self.wanted.store(false, Ordering::Relaxed);
    }

    /// In the child of a fork, by the owner, if that is the thread that forked: there is no visitor here. Whether there was one in
    /// the middle of something. Where the owner was in, interrupted by a signal handler that forked, there was not.
    #[cfg(not(loom))]
    pub(crate) fn inherit(&self) -> bool {
        let visited = self.wanted.load(Ordering::Relaxed) && !self.busy.load(Ordering::Relaxed);
        self.wanted.store(false, Ordering::Relaxed);
        visited
    }

    /// Names the slab that the owner is about to put a block into, if it then finds that it is its own.
    #[inline(always)]
    pub(crate) fn name(&self, slab: *mut S) {
        // Release: pairs with the acquire in `hazard`; what was put into the slab named before is over.
        self.hazard.store(slab, Ordering::Release);
        light_barrier();
    }

    /// Lets a visitor in, unless the owner is. What the visitor has written before, the owner sees when it next names a slab,
    /// or its name is there. One visitor at a time.
    pub(crate) fn visit(&self) -> bool {
        self.wanted.store(true, Ordering::Relaxed);
        // Acquire: pairs with the release in `leave`.
        if heavy_barrier() && !self.busy.load(Ordering::Acquire) {
            return true;
        }
        self.wanted.store(false, Ordering::Relaxed);
        false
    }

    /// The slab that the owner may be putting a block into. For a visitor, after a barrier.
    pub(crate) fn hazard(&self) -> *mut S {
        // Acquire: pairs with the release in `name`.
        self.hazard.load(Ordering::Acquire)
    }

    /// [`BiasedLock::hazard`] after a barrier of its own; `None` when the system has none.
    #[cfg(not(loom))]
    pub(crate) fn hazard_after_barrier(&self) -> Option<*mut S> {
        heavy_barrier().then(|| self.hazard())
    }

    /// Lets the visitor out.
    pub(crate) fn end_visit(&self) {
        // Release: pairs with the acquire in `enter`.
        self.wanted.store(false, Ordering::Release);
    }
}
