//! Counters that one thread changes and others read.

use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU64, AtomicUsize};

/// A counter that only its owner changes, without a read-modify-write, and that any thread reads. Relaxed: a
/// figure by itself, which publishes nothing.
#[repr(transparent)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    /// Adds `n`. Owner only: two threads that add at once lose one of the additions.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    /// Sets it. Owner only.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
    /// Reads it.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A heap's counters, all on slow paths. Records are recycled, and the counters go on with the next thread.
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) refill_current: Counter,
    pub(crate) refill_bump: Counter,
    pub(crate) refill_partial: Counter,
    pub(crate) refill_ready: Counter,
    pub(crate) refill_orphan: Counter,
    pub(crate) refill_span: Counter,
    pub(crate) home_local: Counter,
    pub(crate) home_foreign: Counter,
    /// Blocks returned to their slabs because their magazine was flushed.
    pub(crate) flushed: Counter,
}

impl Counters {
    /// All zero.
    pub(crate) const fn new() -> Self {
        Self {
            refill_current: Counter::new(),
            refill_bump: Counter::new(),
            refill_partial: Counter::new(),
            refill_ready: Counter::new(),
            refill_orphan: Counter::new(),
            refill_span: Counter::new(),
            home_local: Counter::new(),
            home_foreign: Counter::new(),
            flushed: Counter::new(),
        }
    }
}

/// Large blocks allocated, freed, and served from the cache. The counters are shared by all threads, but each
/// is changed next to a lock or a system call. Accesses are relaxed: these are figures.
pub(crate) static LARGE_ALLOCS: AtomicU64 = AtomicU64::new(0);
/// See [`LARGE_ALLOCS`].
pub(crate) static LARGE_FREES: AtomicU64 = AtomicU64::new(0);
/// See [`LARGE_ALLOCS`].
pub(crate) static LARGE_CACHE_HITS: AtomicU64 = AtomicU64::new(0);
/// Bytes in large blocks that are in use.
pub(crate) static LARGE_IN_USE: AtomicUsize = AtomicUsize::new(0);
