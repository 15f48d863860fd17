//! How much unused memory is kept, and for how long: one policy for free pages, for what lies idle in slabs, and for freed mappings.
//!
//! * An *allowance*: so much may lie unused, a fixed amount and a part of what is in use. What is above it is given back at once, because
//!   after the last free of a program there is no further event.
//! * *Regret*: memory that is wanted again soon after it was given back for being above the allowance. It widens the allowance, for as
//!   long as that helps and a while longer, so that a program that swings steadily does not pay for page faults at every swing.
//! * *Patience*: a measure that turned out to be premature is taken later the next time.

use crate::base::pause::Pause;
use crate::os;
use crate::superslab::layout::PAGE;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};

/// Pages that may always lie unused: 16 MiB.
pub(crate) const ALLOWED: usize = (16 << 20) / PAGE;
/// How long giving memory back can be regretted, and how long half of the regret lasts, in milliseconds.
pub(crate) const REGRET: u32 = 1000;

/// Pages that may lie unused, where `pages` are in use: one in `part` of these, besides [`ALLOWED`].
pub(crate) const fn allowance(pages: usize, part: usize) -> usize {
    ALLOWED + pages / part
}

/// What an allowance is widened by, in the unit of its user. Threads that race lose a count at worst.
pub(crate) struct Regret {
    slack: AtomicUsize,
    /// What was given back for being above the allowance and has not been regretted yet, and when that was last done.
    dropped: AtomicUsize,
    dropped_at: AtomicU32,
    /// When the slack was last of use, or halved.
    faded_at: AtomicU32,
}

impl Regret {
    /// None.
    pub(crate) const fn none() -> Self {
        Self {
            slack: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            dropped_at: AtomicU32::new(0),
            faded_at: AtomicU32::new(0),
        }
    }

    /// What the allowance is widened by.
    pub(crate) fn slack(&self) -> usize {
        self.slack.load(Relaxed)
    }

    /// What can be regretted.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Relaxed)
    }

    /// Halves the slack when it has not been of use for [`REGRET`]. Whether it was time for that.
    pub(crate) fn fade(&self, now: u32) -> bool {
        let time = os::elapsed(self.faded_at.load(Relaxed), now) >= REGRET;
        if time {
            self.faded_at.store(now, Relaxed);
            self.slack.store(self.slack() / 2, Relaxed);
        }
        time
    }

    /// The slack is of use, and stays.
    pub(crate) fn is_of_use(&self, now: u32) {
        self.faded_at.store(now, Relaxed);
    }

    /// `amount` is given back for being above the allowance.
    pub(crate) fn drop(&self, amount: usize, now: u32) {
        let before = if self.is_recent(now) { self.dropped() } else { 0 };
        self.dropped.store(before + amount, Relaxed);
        self.dropped_at.store(now, Relaxed);
    }

    fn is_recent(&self, now: u32) -> bool {
        os::elapsed(self.dropped_at.load(Relaxed), now) < REGRET
    }

    /// `amount` had to be had from the system: as far as that much was dropped just before, more should have been kept, at most `most`.
    pub(crate) fn regret(&self, amount: usize, most: usize, now: u32) {
        let dropped = self.dropped();
        if dropped == 0 {
            return;
        }
        if self.is_recent(now) {
            self.widen(amount.min(dropped), most, now);
        }
        self.dropped.store(dropped.saturating_sub(amount), Relaxed);
    }

    /// Widens the allowance by `amount`, to `most` at most.
    pub(crate) fn widen(&self, amount: usize, most: usize, now: u32) {
        self.slack.store(self.slack().saturating_add(amount).min(most), Relaxed);
        self.faded_at.store(now, Relaxed);
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        self.slack.store(0, Relaxed);
        self.dropped.store(0, Relaxed);
    }
}

/// How much longer than usual a measure waits.
pub(crate) struct Patience(AtomicU32);

impl Patience {
    /// What a measure that was premature adds, and the most: 3 doublings, and 6.
    const STEP: u32 = 3;
    /// See [`Patience::STEP`].
    const MOST: u32 = 6;

    /// None.
    pub(crate) const fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    /// `amount`, as much larger as patience says.
    pub(crate) fn stretch(&self, amount: usize) -> usize {
        amount << self.0.load(Relaxed)
    }

    /// The most that [`Patience::stretch`] can make of `amount`.
    pub(crate) const fn longest(amount: usize) -> usize {
        amount << Self::MOST
    }

    /// The measure has been taken, and was premature or not.
    pub(crate) fn learn(&self, premature: bool) {
        let longer = (self.0.load(Relaxed) + Self::STEP).min(Self::MOST);
        self.0.store(if premature { longer } else { 0 }, Relaxed);
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Of the pages in use, this part may lie dirty besides [`ALLOWED`].
const DIRTY_PART: usize = 8;
/// Milliseconds after which the system is asked again at the latest when it has refused all that was to be given back.
const PAUSE: u32 = 4096;

/// What is known about the pool's free dirty pages. Under the pool's lock.
pub(crate) struct Policy {
    /// In pages.
    pub(super) regret: Regret,
    /// The most pages in use of late: the allowance is widened by no more than that.
    peak: usize,
    /// When pages were last looked through by age.
    pub(super) looked: u32,
    /// When the background thread last looked.
    pub(super) seen: u32,
    /// Nothing is given back for being above the allowance, because the system has refused all of it: memory that is locked.
    pub(super) pause: Pause,
}

impl Policy {
    /// Of a pool without pages.
    pub(super) const fn new() -> Self {
        Self { regret: Regret::none(), peak: 0, looked: 0, seen: 0, pause: Pause::up_to(PAUSE) }
    }

    /// Dirty pages that may lie about while `used` are in use.
    pub(super) fn allowed(&self, used: usize) -> usize {
        allowance(used, DIRTY_PART) + self.regret.slack()
    }

    /// Pages have been taken, of which `fresh` had to be touched afresh; `used` are in use, and `dirty` free ones were dirty before.
    #[inline(always)]
    pub(super) fn taken(&mut self, fresh: usize, used: usize, dirty: usize, reused: bool, now: u32) {
        self.peak = self.peak.max(used);
        if reused && dirty > allowance(used, DIRTY_PART) {
            // They would have been given back without the slack.
            self.regret.is_of_use(now);
        }
        if fresh != 0 {
            self.regret.regret(fresh, self.peak, now);
        }
    }

    /// Forgets a part of what is past.
    pub(super) fn fade(&mut self, used: usize, now: u32) {
        if self.regret.fade(now) {
            self.peak = used.max(self.peak / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_bounded_by_what_was_dropped_and_by_the_peak() {
        let mut policy = Policy::new();
        policy.taken(0, 1000, 0, false, 0);
        policy.taken(50, 400, 0, false, 0);
        assert_eq!(policy.regret.slack(), 0, "nothing was dropped");
        policy.regret.drop(300, 10);
        policy.taken(200, 400, 0, false, 20);
        policy.taken(200, 400, 0, false, 30);
        assert_eq!((policy.regret.slack(), policy.regret.dropped()), (300, 0));
        policy.regret.drop(900, 40);
        policy.taken(900, 400, 0, false, 50);
        assert_eq!(policy.regret.slack(), 1000);
    }

    #[test]
    fn regret_comes_soon_or_never_and_fades() {
        let regret = Regret::none();
        regret.drop(5, 0);
        regret.drop(7, REGRET - 1);
        assert_eq!(regret.dropped(), 12);
        regret.regret(4, 100, 2 * REGRET - 2);
        assert_eq!((regret.slack(), regret.dropped()), (4, 8));
        regret.regret(4, 100, 2 * REGRET - 1);
        assert_eq!((regret.slack(), regret.dropped()), (4, 4), "too late");
        assert!(!regret.fade(3 * REGRET - 3) && regret.fade(3 * REGRET - 2));
        assert_eq!(regret.slack(), 2);
        regret.is_of_use(3 * REGRET);
        assert!(!regret.fade(4 * REGRET - 1) && regret.fade(4 * REGRET));
        regret.drop(1, 9 * REGRET);
        assert_eq!(regret.dropped(), 1, "what was dropped before is forgotten");
        regret.forget();
        assert_eq!((regret.slack(), regret.dropped()), (0, 0));
    }
}
