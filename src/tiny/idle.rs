//! How much memory may lie idle in sparse slabs, and how fast it is given back.

use crate::base::options;
use crate::os;
use crate::superslab::decay::{ALLOWED, Regret, allowance};
use crate::superslab::granules::Granules;
use crate::superslab::layout::SLICE;
use crate::superslab::slab::Slab;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, AtomicUsize};

/// Besides [`ALLOWED`] slices, one mapped slice in this many may lie idle.
const ALLOWED_PART: usize = 64;
/// Bytes that may be purged before the rate is limited. Purging a slice and faulting it in again costs 1.5
/// microseconds, so at the rate of [`EARNED`] a program that always needs the purged memory again loses 1% of
/// its time.
const CREDIT: usize = 1 << 30;
/// Bytes of credit that are regained in a millisecond: 24 MiB in a second.
const EARNED: usize = (24 << 20) / 1000;
/// A purge is regretted if its slab becomes empty within this many milliseconds. A slab that lives longer was
/// worth it.
const MOMENT: u32 = 20;

/// Slices of slabs that are sparse and not purged. Up to [`TELL`] slices of each heap are missing: for a slab
/// that is soon empty or full again, an atomic addition would cost too much. A sum of counts, so all accesses
/// are relaxed.
static IDLE: AtomicUsize = AtomicUsize::new(0);
/// A heap adds its count to [`IDLE`] when it has reached this many slices.
const TELL: i16 = 16;
/// Bytes that may lie idle besides, because purges were regretted. Bytes, not slices, since most slabs have
/// one slice, part of which is in use. Races lose a count at worst, here and below; so all accesses are
/// relaxed.
static SLACK: Regret = Regret::none();
/// Bytes of credit that have been used and not regained yet.
static SPENT: AtomicUsize = AtomicUsize::new(0);
/// When credit was last regained, in milliseconds.
static EARNED_AT: AtomicU32 = AtomicU32::new(0);

/// Adds to a heap's count of idle slices; `slices` is negative for slices that are not idle any more.
pub(super) fn count(counted: &mut i16, slices: i16) {
    *counted += slices;
    if counted.unsigned_abs() >= TELL.unsigned_abs() {
        tell(counted);
    }
}

/// Moves a heap's count to the count of all heaps.
pub(super) fn tell(counted: &mut i16) {
    let slices = core::mem::take(counted);
    IDLE.fetch_add(slices as isize as usize, Relaxed);
}

/// A slab of this many slices is not idle any more, and there are no bins that could count it.
pub(super) fn forget(slices: usize) {
    IDLE.fetch_sub(slices, Relaxed);
}

/// Whether more lies idle in sparse slabs than is allowed.
pub(super) fn is_due() -> bool {
    // Negative when heaps have reported more slices that ceased to be idle than slices that became so.
    let idle = (IDLE.load(Relaxed) as isize).max(0) as usize;
    if idle <= ALLOWED || options::get().purge_delay < 0 {
        return false;
    }
    let mapped = os::MAPPED.load(Relaxed);
    let mut allowed = allowance(mapped / SLICE, ALLOWED_PART);
    if idle > allowed && SLACK.slack() != 0 {
        // Here, too: while the slack prevents purges, nothing else would make it fade.
        SLACK.fade(os::now_ms());
        allowed += SLACK.slack().min(mapped) / SLICE;
    }
    idle > allowed && has_credit()
}

/// Whether there is credit left. If not, first adds what has been regained since the last call.
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

/// Uses up credit: this many bytes were purged because too much was idle, not because the program asked for
/// it.
pub(super) fn spend(bytes: usize) {
    SPENT.fetch_add(bytes, Relaxed);
}

/// A time so long before `now` that a purge then is not regretted: what was asked for never is.
pub(super) fn before_regret(now: u32) -> u32 {
    now.wrapping_sub(MOMENT)
}

/// A slab without blocks in use is about to be released. If part of it was purged a moment ago, slabs are
/// probably on their way to empty: that purge was for nothing, and the next would be, too.
///
/// # Safety
///
/// The slab is the caller's alone and has been made.
pub(super) unsafe fn on_release(slab: *mut Slab) {
    // SAFETY: nobody else writes the record, and `slices` is constant.
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

/// Slices that heaps have told of: for models.
#[cfg(all(test, loom))]
pub(crate) fn told() -> usize {
    IDLE.load(Relaxed)
}

/// Lets the regret decay: see [`Regret::fade`].
pub(super) fn fade(now: u32) {
    SLACK.fade(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alone, because other tests have heaps, which spend, too.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn what_is_purged_is_bounded_by_time() {
        if !os::child::is_alone() {
            return;
        }
        SPENT.store(0, Relaxed);
        assert!(has_credit());
        spend(CREDIT - 1);
        assert!(has_credit());
        SPENT.store(1 << 50, Relaxed);
        EARNED_AT.store(os::now_ms(), Relaxed);
        assert!(!has_credit(), "to regain that takes months");
        SPENT.store(CREDIT, Relaxed);
        let since = os::now_ms().wrapping_sub(1000);
        EARNED_AT.store(since, Relaxed);
        assert!(has_credit());
        let left = SPENT.load(Relaxed);
        let most = os::elapsed(since, os::now_ms()) as usize * EARNED;
        assert!(left <= CREDIT - 1000 * EARNED && left >= CREDIT.saturating_sub(most), "{left}");
    }

    #[test]
    fn what_was_asked_for_is_not_regretted() {
        for now in [0, 5, 1 << 31, u32::MAX] {
            assert!(os::elapsed(before_regret(now), now) >= MOMENT);
        }
    }

    /// In the child of a fork, because other tests have heaps, which count here, too.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn heaps_report_what_is_idle_in_steps() {
        assert!(os::child::is_so(|| {
            let idle = || IDLE.load(Relaxed);
            IDLE.store(100, Relaxed);
            let mut mine = 0;
            count(&mut mine, TELL - 1);
            assert_eq!((mine, idle()), (TELL - 1, 100));
            count(&mut mine, 1);
            assert_eq!((mine, idle()), (0, 116));
            count(&mut mine, 1 - TELL);
            assert_eq!((mine, idle()), (1 - TELL, 116));
            count(&mut mine, -1);
            assert_eq!((mine, idle()), (0, 100));
            count(&mut mine, 3);
            tell(&mut mine);
            assert_eq!((mine, idle()), (0, 103));
            forget(4);
            idle() == 99
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_purge_is_due_above_the_allowance_the_slack_and_with_credit() {
        assert!(os::child::is_so(|| {
            let due = |idle: usize| {
                IDLE.store(idle, Relaxed);
                is_due()
            };
            // What heaps have not reported yet may make it negative.
            os::MAPPED.store(0, Relaxed);
            assert!(!due(0) && !due(usize::MAX) && !due(ALLOWED) && due(ALLOWED + 1));
            os::MAPPED.store(10 * ALLOWED_PART * SLICE, Relaxed);
            assert!(!due(ALLOWED + 1) && !due(ALLOWED + 10) && due(ALLOWED + 11));
            // Slack that fades only when it is looked at.
            let now = os::now_ms();
            SLACK.widen(6 * SLICE, usize::MAX, now.wrapping_sub(100_000));
            assert!(!due(ALLOWED + 10) && SLACK.slack() == 6 * SLICE);
            assert!(due(ALLOWED + 14) && SLACK.slack() == 3 * SLICE);
            // As if the clock stood still.
            SLACK.widen(5 * SLICE - SLACK.slack(), usize::MAX, now.wrapping_add(200_000));
            assert!(!due(ALLOWED + 15) && due(ALLOWED + 16));
            SLACK.widen(usize::MAX, usize::MAX, now.wrapping_add(200_000));
            assert!(!due(ALLOWED + 10 + 10 * ALLOWED_PART) && due(ALLOWED + 11 + 10 * ALLOWED_PART));
            SLACK.forget();
            spend(CREDIT * 2);
            EARNED_AT.store(os::now_ms(), Relaxed);
            !due(ALLOWED + 11)
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_slab_that_is_released_soon_after_a_purge_widens_what_is_allowed() {
        use crate::superslab::slab::NO_SLAB;
        assert!(os::child::is_so(|| {
            // SAFETY: a record, whose memory nobody looks at; only this thread has it.
            unsafe {
                let mut slab = core::ptr::read(&raw const NO_SLAB);
                (slab.slices, slab.purged_at) = (1, os::now_ms().wrapping_add(200_000));
                os::MAPPED.store(1 << 30, Relaxed);
                on_release(&raw mut slab);
                assert_eq!(SLACK.slack(), 0, "nothing was purged");
                slab.purged.store(0b1011, Relaxed);
                let bytes = 3 << Granules::of(&raw mut slab).shift;
                on_release(&raw mut slab);
                assert_eq!(SLACK.slack(), bytes);
                slab.purged_at = before_regret(os::now_ms());
                on_release(&raw mut slab);
                assert_eq!(SLACK.slack(), bytes);
                fade(os::now_ms());
                assert_eq!(SLACK.slack(), bytes, "it was of use a moment ago");
                fade(os::now_ms().wrapping_add(100_000));
                SLACK.slack() == bytes / 2
            }
        }));
    }
}
