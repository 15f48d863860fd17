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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::thread;
    use crate::os::child::is_so;

    /// Whether orphans are purged now, when they were last so many milliseconds ago.
    fn are_purged(ago: u32) -> bool {
        let before = os::now_ms().wrapping_sub(ago);
        PURGED_AT.store(before, Relaxed);
        // SAFETY: `with_heap` passes the calling thread's heap.
        thread::with_heap(None, |mine| unsafe { purge_quiet(mine) });
        PURGED_AT.load(Relaxed) != before
    }

    /// As in a server in which some thread always frees what another one has left.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn orphans_that_change_all_the_time_are_purged_all_the_same() {
        assert!(is_so(|| {
            TOOK.store(0, Relaxed);
            CHANGING.store(0, Relaxed);
            let mut times = 0..20;
            let first = times.position(|_| {
                orphans::note_change();
                are_purged(1 << 24)
            });
            first == Some(MOST_CHANGING as usize)
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn orphans_are_purged_for_a_part_of_the_time_only() {
        const HOURS: u32 = 1 << 24;
        assert!(is_so(|| {
            orphans::take_changed();
            let are_purged = |ago| {
                CHANGING.store(1, Relaxed);
                TOOK.store(HOURS / TIME_PART, Relaxed);
                are_purged(ago)
            };
            !are_purged(HOURS / 2) && are_purged(HOURS)
        }));
    }
}
