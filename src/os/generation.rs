//! Of which generation of forks a process is.

use crate::sync::AtomicU32;
use crate::sync::Ordering::Relaxed;

/// How many forks lie between the first process that used this allocator and this one. Relaxed: the thread
/// that forked changes it in the child while it is alone.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks there were before this process: differs from the number in the process that it was forked
/// from.
pub(crate) fn now() -> u32 {
    GENERATION.load(Relaxed)
}

/// In the child of a fork: this is another one.
pub(crate) fn next() {
    GENERATION.fetch_add(1, Relaxed);
}
