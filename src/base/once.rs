//! Values that are made once and never change.

use crate::os::futex;
use crate::sync::AtomicU32;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use core::cell::UnsafeCell;

/// A value that the first call of [`Once::init`] makes. From then on every thread can read it.
pub(crate) struct Once<T> {
    /// One of the following three.
    state: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

const UNMADE: u32 = 0;
const BEING_MADE: u32 = 1;
const MADE: u32 = 2;

// SAFETY: the value is written once, by the thread that moved `state` from `UNMADE` to `BEING_MADE`, and
// referred to once that is `MADE`.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// Without a value.
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU32::new(UNMADE), value: UnsafeCell::new(None) }
    }

    /// The value, if it has been made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // Acquire: pairs with the release in `init`.
        if self.state.load(Acquire) != MADE {
            return None;
        }
        // SAFETY: it was written before it was `MADE`, and is not written again.
        unsafe { &*self.value.get() }.as_ref()
    }

    /// Makes the value. Only the first call does so; the others wait until it is done.
    #[cold]
    #[inline(never)]
    pub(crate) fn init(&self, make: impl FnOnce() -> T) {
        // Relaxed: whoever succeeds is the first, and the others go on to `get`.
        if self.state.compare_exchange(UNMADE, BEING_MADE, Relaxed, Relaxed).is_err() {
            while self.get().is_none() {
                futex::pause();
            }
            return;
        }
        let value = make();
        // SAFETY: only the thread that moved `state` from `UNMADE` gets here, and nobody reads before it is
        // `MADE`.
        unsafe { *self.value.get() = Some(value) };
        // Release: pairs with the acquire in `get`.
        self.state.store(MADE, Release);
    }

    /// Forgets the value.
    ///
    /// # Safety
    ///
    /// Nobody refers to it, and no other thread uses this.
    #[cfg(all(test, not(any(loom, miri))))]
    pub(crate) unsafe fn unmake(&self) {
        self.state.store(UNMADE, Relaxed);
    }
}
