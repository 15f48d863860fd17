//! Memory on its way back to the system, for those who are refused memory meanwhile.

use crate::os::{futex, generation};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU32, AtomicUsize};

/// Threads that are giving memory back. Relaxed: see [`Returning`].
static RETURNING: AtomicUsize = AtomicUsize::new(0);
/// How often one has done so.
static RETURNED: AtomicU32 = AtomicU32::new(0);

/// While this lives, memory that was free is on its way back to the system: nobody can have it, and it is
/// still held. Whoever is refused memory meanwhile can wait for that. It is made under the lock under which
/// the memory is taken out of where it was free, or before that, so whoever looks there later knows of it.
pub(crate) struct Returning {
    /// Of which process of a row of forks it is. In a child it is not counted: see [`reset_in_child`].
    generation: u32,
}

impl Returning {
    /// Memory is about to be given back.
    pub(crate) fn begin() -> Self {
        RETURNING.fetch_add(1, Relaxed);
        Self { generation: generation::now() }
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `returned`. Who sees that it has ended sees what is held now.
        RETURNED.fetch_add(1, Release);
        if self.generation == generation::now() {
            // Release: pairs with the acquire in `is_returning`.
            RETURNING.fetch_sub(1, Release);
        }
    }
}

/// Whether some thread is giving memory back.
pub(crate) fn is_returning() -> bool {
    // Acquire: pairs with the release in `drop`. Who sees that it is over sees in `returned` that it was.
    RETURNING.load(Acquire) != 0
}

/// A number that changes whenever a thread has given memory back.
pub(crate) fn returned() -> u32 {
    // Acquire: see `drop`.
    RETURNED.load(Acquire)
}

/// Waits for a moment, if the number is still `seen`. Nobody ends it earlier: that would cost a system call
/// each time that memory is given back.
pub(crate) fn wait(seen: u32) {
    futex::wait(RETURNED.as_ptr(), seen, Some(1));
}

/// In the child of a fork: the threads that were giving memory back do not exist. The one that has forked may
/// go on with it, if a handler has forked: then it is not counted any more.
pub(crate) fn reset_in_child() {
    RETURNING.store(0, Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::child::is_so;

    /// The child of a signal handler that has forked in the middle goes on from there.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_a_fork_has_interrupted_is_not_counted_below_nothing() {
        let returning = Returning::begin();
        assert!(is_so(|| {
            reset_in_child();
            generation::next();
            drop(returning);
            let (passing, is_over) = (Returning::begin(), !is_returning());
            drop(passing);
            !is_over && !is_returning()
        }));
    }

    #[test]
    fn the_number_changes_when_memory_was_given_back() {
        for _ in 0..3 {
            let before = returned();
            drop(Returning::begin());
            assert_ne!(returned(), before);
        }
    }
}
