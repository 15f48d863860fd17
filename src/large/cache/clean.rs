//! Memory that is kept though it was never touched: what is left of batches (`large/batch.rs`).

use crate::large::cache::{CACHE, kept};
use crate::large::huge::Mapping;
use crate::lockfree::waker;
use crate::os::{self, now_ms};
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// Bytes of this in the cache. Relaxed, like the next one: figures, of which races lose some at worst.
static CLEAN: AtomicUsize = AtomicUsize::new(0);
/// Bytes of this that went back to the system before any block had them.
static LOST: AtomicUsize = AtomicUsize::new(0);
/// One part in this many of what was lost is forgotten with each block that gets no batch because of it.
const FORGETS: usize = 16;

/// How many of the bytes that are kept were never touched.
pub(crate) fn clean() -> usize {
    CLEAN.load(Relaxed).min(kept())
}

/// Bytes of batches that no block has, or will ever have.
pub(in crate::large) fn unused() -> usize {
    clean() + LOST.load(Relaxed)
}

/// Notes that a block gets no batch because too much is unused.
pub(in crate::large) fn forget_some() {
    let lost = LOST.load(Relaxed);
    LOST.store(lost - lost.div_ceil(FORGETS), Relaxed);
}

/// Notes how many of the bytes that are kept were never touched.
pub(super) fn is(clean: usize) {
    CLEAN.store(clean, Relaxed);
}

/// Notes that as much as this has gone back to the system.
pub(super) fn lost(len: usize) {
    LOST.fetch_add(len, Relaxed);
}

/// Keeps the rest of a batch, or gives it back to the system.
///
/// # Safety
///
/// A part of a mapping of ours in whole system pages, of at least 64 KiB. It is the caller's alone, and
/// nobody has used it.
pub(in crate::large) unsafe fn keep_clean(rest: Mapping) {
    if CACHE.lock_soon().is_some_and(|mut cache| cache.add(rest, now_ms(), false)) {
        waker::notify();
    } else {
        lost(rest.len);
        // SAFETY: the caller's alone, which gives it up.
        unsafe { os::discard(rest.block, rest.len) };
    }
}
