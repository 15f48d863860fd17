//! Values that are made once and never change.

use crate::os::{self, futex};
use crate::sync::AtomicU32;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use core::cell::UnsafeCell;

/// A value that the first call of [`Once::init`] makes. From then on every thread can read it.
pub(crate) struct Once<T> {
    /// One of the following three.
    state: AtomicU32,
    /// The process whose thread makes it; 0 until that is known. Relaxed: only a hint.
    maker: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

const UNMADE: u32 = 0;
const BEING_MADE: u32 = 1;
const MADE: u32 = 2;
/// Milliseconds after which the child of a fork makes the value, while a thread was making it that the child
/// does not have. A child of `vfork` has it.
const PATIENCE: u32 = 1000;

// SAFETY: the value is written once, by the thread that moved `state` from `UNMADE` to `BEING_MADE` or
// took over from one that does not exist, and referred to once that is `MADE`.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// Without a value.
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU32::new(UNMADE), maker: AtomicU32::new(0), value: UnsafeCell::new(None) }
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

    /// Makes the value. Only the first call does so; the others wait until it is done. If a fork has stopped
    /// that, one of those in the child makes it.
    #[cold]
    #[inline(never)]
    pub(crate) fn init(&self, make: impl FnOnce() -> T) {
        // Relaxed: whoever succeeds is the first, and the others go on to `get`.
        let is_first = self.state.compare_exchange(UNMADE, BEING_MADE, Relaxed, Relaxed).is_ok();
        // If it took long from there to here, somebody may have taken over.
        let makes = is_first && self.maker.compare_exchange(0, os::process_id(), Relaxed, Relaxed).is_ok();
        if !makes && !self.takes_over() {
            return;
        }
        let value = make();
        // Without a look at what is there: a thread that does not exist may have been writing it.
        // SAFETY: the thread that has put its process into `maker` is the only one of that process that gets
        // here, and nobody reads before the state is `MADE`.
        unsafe { self.value.get().write(Some(value)) };
        // Release: pairs with the acquire in `get`.
        self.state.store(MADE, Release);
    }

    /// Waits until the value is made. True if the caller has to make it instead.
    fn takes_over(&self) -> bool {
        let mut waited = 0;
        while self.get().is_none() {
            futex::pause();
            let (maker, ours) = (self.maker.load(Relaxed), os::process_id());
            waited = if maker == ours { 0 } else { waited + 1 };
            // Relaxed: of several that wait one succeeds.
            if waited > PATIENCE && self.maker.compare_exchange(maker, ours, Relaxed, Relaxed).is_ok() {
                return true;
            }
        }
        false
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// In the child of a fork the thread that makes the value does not exist.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_child_does_not_wait_for_who_was_making_it() {
        static ONCE: Once<u32> = Once::new();
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ONCE.init(|| {
                    barrier.wait();
                    barrier.wait();
                    7
                });
            });
            barrier.wait();
            let is_so = crate::os::child::is_so(|| {
                ONCE.init(|| 8);
                ONCE.get() == Some(&8)
            });
            barrier.wait();
            assert!(is_so);
        });
        assert_eq!(ONCE.get(), Some(&7));
    }
}
