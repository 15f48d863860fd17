//! What large blocks there are.

use core::sync::atomic::{AtomicU64, AtomicUsize};

/// Large blocks handed out, freed, and served from the cache. Shared, but each next to a lock or a system call.
pub(crate) static ALLOCS: AtomicU64 = AtomicU64::new(0);
/// See [`ALLOCS`].
pub(crate) static FREES: AtomicU64 = AtomicU64::new(0);
/// See [`ALLOCS`].
pub(crate) static CACHE_HITS: AtomicU64 = AtomicU64::new(0);
/// Bytes in large blocks that are in use.
pub(crate) static IN_USE: AtomicUsize = AtomicUsize::new(0);
