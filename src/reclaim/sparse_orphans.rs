//! What the background thread gives back of slabs whose threads have ended.
//!
//! Nobody looks at an orphan but who adopts it, and who frees its last block. So those that are nearly empty
//! keep their pages until somebody asks, or this does.

use crate::front::heap::Heap;
use crate::os;
use crate::superslab::orphans;
use crate::sync::AtomicU32;
use crate::sync::Ordering::Relaxed;
use crate::tiny::partial_purge;

/// In how many calls of [`purge_quiet`] in a row orphans have changed. Relaxed: only the background thread's.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// After so many they are purged all the same.
const MOST_CHANGING: u32 = 16;
/// When orphans were last purged, and how long that took, in milliseconds.
static PURGED_AT: AtomicU32 = AtomicU32::new(0);
static TOOK: AtomicU32 = AtomicU32::new(0);
/// It takes as long as there are many, so it has one in so many parts of the time at most.
const TIME_PART: u32 = 32;

/// Purges idle memory in orphans once no block of any has been freed since the last call. Returns whether
/// that is still to come, or `mine` has any of them still.
///
/// # Safety
///
/// `mine` is the calling thread's heap.
pub(super) unsafe fn purge_quiet(mine: *mut Heap) -> bool {
    let before = CHANGING.load(Relaxed);
    let has_changed = orphans::take_changed();
    let begun = os::now_ms();
    let rest = TOOK.load(Relaxed).saturating_mul(TIME_PART);
    let is_early = os::elapsed(PURGED_AT.load(Relaxed), begun) < rest;
    let waits = is_early || has_changed && before < MOST_CHANGING;
    let now = if waits && (has_changed || before != 0) { before.saturating_add(1) } else { 0 };
    CHANGING.store(now, Relaxed);
    // SAFETY: the caller's clause; entered as long as the orphans are in its bins.
    unsafe {
        let _entered = Heap::enter(mine);
        if before != 0 && now == 0 {
            partial_purge::purge_orphans(&raw mut (*mine).bins, false);
            PURGED_AT.store(os::now_ms(), Relaxed);
            TOOK.store(os::elapsed(begun, os::now_ms()), Relaxed);
        }
        // Some may have been published meanwhile, and then stay in the heap.
        let all = (*mine).bins.bytes() == 0 || (*mine).bins.abandon(&(*mine).counters, false);
        now != 0 || !all
    }
}
