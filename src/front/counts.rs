//! How many heaps threads have, and what each may keep of what they keep together. All relaxed: figures.

use crate::sync::{AtomicU64, Ordering};

/// With more threads than these, what each has for itself in every size class adds up.
const FEW: usize = 8;

/// How often a thread has been given a heap that it has not only borrowed.
pub(crate) static STARTED: AtomicU64 = AtomicU64::new(0);
/// How often a heap has been given back that was not borrowed.
pub(crate) static EXITED: AtomicU64 = AtomicU64::new(0);
/// Heaps that a fork has left behind, of threads that do not exist in this process.
pub(in crate::front) static LEFT: AtomicU64 = AtomicU64::new(0);

/// Heaps that are not free.
fn taken() -> u64 {
    STARTED.load(Ordering::Relaxed).saturating_sub(EXITED.load(Ordering::Relaxed))
}

/// About how many threads of this process have a heap.
pub(crate) fn live() -> usize {
    taken().saturating_sub(LEFT.load(Ordering::Relaxed)) as usize
}

/// Whether there are many threads: what they have should rather be used again than be more.
pub(super) fn are_many() -> bool {
    // Most processes have few, even with those that a fork has left behind: two loads say so.
    let started = STARTED.load(Ordering::Relaxed);
    started.wrapping_sub(EXITED.load(Ordering::Relaxed)) > FEW as u64 && live() > FEW
}

/// What each thread may have where all together may have `all`, about: as with the next lower number of
/// threads that is a power of two.
pub(super) fn share(all: usize) -> usize {
    all >> live().max(1).ilog2()
}

/// In the child of a fork: all heaps are left behind, but for so many, which are the survivor's.
pub(crate) fn left_behind(own: u64) {
    LEFT.store(taken().saturating_sub(own), Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::child;

    /// In a child, whose figures nobody else changes.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn more_than_eight_are_many_but_for_those_that_a_fork_has_left_behind() {
        assert!(child::is_so(|| {
            let are_many = |started, exited, left| {
                STARTED.store(started, Ordering::Relaxed);
                EXITED.store(exited, Ordering::Relaxed);
                LEFT.store(left, Ordering::Relaxed);
                super::are_many()
            };
            let few = FEW as u64;
            assert!(are_many(100 + few + 1, 100, 0));
            ![(100 + few, 100, 0), (100 + few + 1, 100, 1), (100 + 2 * few, 100, few)]
                .iter()
                .any(|&(started, exited, left)| are_many(started, exited, left))
        }));
    }
}
