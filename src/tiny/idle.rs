//! How much may lie idle in slabs that have hardly a block in use, and how fast it is given back.

use crate::base::options;
use crate::os;
use crate::superslab::decay::{ALLOWED, Regret, allowance};
use crate::superslab::granules::Granules;
use crate::superslab::layout::PAGE;
use crate::superslab::slab::Slab;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};

/// Of the pages mapped, this part may do so besides.
const ALLOWED_PART: usize = 64;
/// Bytes that may be purged before time sets the pace, and how many it earns in a millisecond: 24 MiB in a second. Giving a page
/// back and having it again costs 1.5 microseconds, so a program that always wants again what was purged pays 1% of its time.
const CREDIT: usize = 1 << 30;
/// See [`CREDIT`].
const EARNED: usize = (24 << 20) / 1000;
/// How long a purge can be regretted, in milliseconds: what lives longer than that was well purged.
const MOMENT: u32 = 20;

/// Pages of slabs that are sparse and not purged, but for the few that each heap has not told yet: for a slab that is soon
/// empty or full again an atomic addition would be too much.
static IDLE: AtomicUsize = AtomicUsize::new(0);
/// A heap tells when it is so many pages.
const TELL: i32 = 16;
/// What may be idle besides, for regret, in bytes: most slabs have one page, of which a part at least is in use. Races lose a
/// count at worst, here and below.
static SLACK: Regret = Regret::none();
/// Bytes purged that time has not paid back yet, and when it last did.
static SPENT: AtomicUsize = AtomicUsize::new(0);
/// See [`SPENT`].
static EARNED_AT: AtomicU32 = AtomicU32::new(0);

/// Counts pages that have become idle, or are so no more.
pub(super) fn count(counted: &mut i32, pages: i32) {
    *counted += pages;
    if counted.unsigned_abs() >= TELL.unsigned_abs() {
        tell(counted);
    }
}

/// Adds what a heap has counted to what all have.
pub(super) fn tell(counted: &mut i32) {
    let pages = core::mem::take(counted);
    IDLE.fetch_add(pages as isize as usize, Relaxed);
}

/// A slab of so many pages is not idle any more, whose bins cannot count that.
pub(super) fn forget(pages: usize) {
    IDLE.fetch_sub(pages, Relaxed);
}

/// Whether more lies idle in sparse slabs than is allowed.
pub(crate) fn is_due() -> bool {
    // What heaps have not told yet may make it negative.
    let idle = (IDLE.load(Relaxed) as isize).max(0) as usize;
    idle > ALLOWED && idle > allowed() && options::get().purge_delay >= 0 && has_credit()
}

fn allowed() -> usize {
    allowance(os::MAPPED.load(Relaxed) / PAGE, ALLOWED_PART) + SLACK.slack() / PAGE
}

/// Pays back what time has earned since the last look; whether there is credit.
fn has_credit() -> bool {
    if SPENT.load(Relaxed) < CREDIT {
        return true;
    }
    let now = os::now_ms();
    let elapsed = os::elapsed(EARNED_AT.swap(now, Relaxed), now) as usize;
    let spent = SPENT.load(Relaxed).saturating_sub(elapsed.saturating_mul(EARNED));
    SPENT.store(spent, Relaxed);
    spent < CREDIT
}

/// `bytes` bytes were purged because there was too much of them, not because somebody asked for it.
pub(crate) fn spend(bytes: usize) {
    SPENT.fetch_add(bytes, Relaxed);
}

/// A slab without blocks in use is about to be given back. If a part of it was purged a moment ago, then all are on their way
/// to empty: the purge was for nothing, and so will be the next.
///
/// # Safety
///
/// The slab is the caller's.
pub(super) unsafe fn on_release(slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe {
        let purged = (*slab).purged.load(Relaxed);
        if purged != 0 {
            let now = os::now_ms();
            if os::elapsed((*slab).purged_at, now) < MOMENT {
                let bytes = (purged.count_ones() as usize) << Granules::of(slab).shift;
                SLACK.widen(bytes, os::MAPPED.load(Relaxed), now);
            }
        }
    }
}

/// Half of the regret is forgotten now and then.
pub(super) fn fade(now: u32) {
    SLACK.fade(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_purged_is_bounded_by_time() {
        SPENT.store(0, Relaxed);
        assert!(has_credit());
        spend(CREDIT - 1);
        assert!(has_credit());
        spend(CREDIT + 1);
        EARNED_AT.store(os::now_ms(), Relaxed);
        assert!(!has_credit(), "for that it takes most of a minute");
        SPENT.store(CREDIT, Relaxed);
        EARNED_AT.store(os::now_ms().wrapping_sub(1000), Relaxed);
        assert!(has_credit());
        let left = SPENT.load(Relaxed);
        assert!(left <= CREDIT - 1000 * EARNED && left > CREDIT / 2, "{left}");
        SPENT.store(0, Relaxed);
    }
}
