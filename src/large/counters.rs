//! Counters of large blocks.

use crate::sync::{AtomicU64, AtomicUsize};

/// Large blocks allocated, freed, and served from the cache. The counters are shared by all threads, but each
/// is changed next to a lock or a system call. Accesses are relaxed: these are figures.
pub(crate) static ALLOCS: AtomicU64 = AtomicU64::new(0);
/// See [`ALLOCS`].
pub(crate) static FREES: AtomicU64 = AtomicU64::new(0);
/// See [`ALLOCS`].
pub(crate) static CACHE_HITS: AtomicU64 = AtomicU64::new(0);
/// Bytes in large blocks that are in use.
pub(crate) static IN_USE: AtomicUsize = AtomicUsize::new(0);
