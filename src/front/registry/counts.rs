//! How many heaps threads have. All relaxed: figures.

use crate::sync::{AtomicU64, Ordering};

/// How often a thread has been given a heap that it has not only borrowed.
pub(crate) static STARTED: AtomicU64 = AtomicU64::new(0);
/// How often a heap has been given back that was not borrowed.
pub(crate) static EXITED: AtomicU64 = AtomicU64::new(0);
/// Heaps that a fork has left behind, of threads that do not exist in this process.
pub(super) static LEFT: AtomicU64 = AtomicU64::new(0);

/// Heaps that are not free.
fn taken() -> u64 {
    STARTED.load(Ordering::Relaxed).saturating_sub(EXITED.load(Ordering::Relaxed))
}

/// About how many threads of this process have a heap.
pub(crate) fn live() -> usize {
    taken().saturating_sub(LEFT.load(Ordering::Relaxed)) as usize
}

/// In the child of a fork: all heaps are left behind, but for so many, which are the survivor's.
pub(crate) fn left_behind(own: u64) {
    LEFT.store(taken().saturating_sub(own), Ordering::Relaxed);
}
