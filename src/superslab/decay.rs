//! How much unused memory is kept: what the policies for free slices, for idle memory in sparse slabs and for
//! freed mappings have in common.
//!
//! * *Allowance*: the memory that may lie unused, a fixed amount and a part of what is in use. What exceeds
//!   it is given back at once, because after the last free of a program there is no further event.
//! * *Regret*: memory that is needed again soon after it was given back for exceeding the allowance. It
//!   widens the allowance, for as long as that helps and a while longer, so that a program whose use goes
//!   steadily up and down does not pay for page faults every time. When the program asks for a purge, only
//!   the regret of freed mappings is forgotten.
//! * *Patience*: a measure that turned out to be premature is taken later the next time.
//!
//! What has been unused for the purge delay is given back whatever the allowance. Each user sees to that
//! itself; sparse slabs have no such rule. While that is premature the [`Delay`] grows.
//!
//! All accesses to these atomics are relaxed: they are figures, on which no other memory depends.

use crate::base::pause::Pause;
use crate::os;
use crate::superslab::delay::Delay;
pub(crate) use crate::superslab::delay::REGRET;
use crate::superslab::layout::{SLICE, SLICES};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU32, AtomicUsize};

/// Slices that may always lie unused: 16 MiB.
pub(crate) const ALLOWED: usize = (16 << 20) / SLICE;

/// Slices that may lie unused while `slices` are in use: [`ALLOWED`], and one for each `part` slices in use.
pub(crate) const fn allowance(slices: usize, part: usize) -> usize {
    ALLOWED + slices / part
}

/// Regret. Its user chooses the unit: slices or bytes. Threads that race lose a count at worst.
pub(crate) struct Regret {
    /// What the allowance is widened by.
    slack: AtomicUsize,
    /// The amount that was given back for exceeding the allowance, and has not been regretted yet.
    dropped: AtomicUsize,
    /// When some was last given back for that, in milliseconds.
    dropped_at: AtomicU32,
    /// When the slack was last of use, or halved, in milliseconds.
    faded_at: AtomicU32,
}

impl Regret {
    /// No regret.
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

    /// The amount that can be regretted.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped.load(Relaxed)
    }

    /// Halves the slack if it has not been of use for [`REGRET`]. Returns whether it was time for that.
    pub(crate) fn fade(&self, now: u32) -> bool {
        let time = os::elapsed(self.faded_at.load(Relaxed), now) >= REGRET;
        if time {
            self.faded_at.store(now, Relaxed);
            self.slack.store(self.slack() / 2, Relaxed);
        }
        time
    }

    /// Notes that the slack is of use, so it is not halved for a while.
    pub(crate) fn note_use(&self, now: u32) {
        self.faded_at.store(now, Relaxed);
    }

    /// Notes that `amount` is given back for exceeding the allowance.
    pub(crate) fn drop(&self, amount: usize, now: u32) {
        let before = if self.is_recent(now) { self.dropped() } else { 0 };
        self.dropped.store(before + amount, Relaxed);
        self.dropped_at.store(now, Relaxed);
    }

    /// Whether what was given back last can still be regretted.
    fn is_recent(&self, now: u32) -> bool {
        os::elapsed(self.dropped_at.load(Relaxed), now) < REGRET
    }

    /// Notes that the system had to provide `amount`. As far as that much was dropped shortly before, it
    /// should have been kept: so the slack grows, to `most` at most.
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

    /// Widens the allowance by `amount`. The slack is `most` at most.
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

/// Patience: how many times the amount that triggers a measure is doubled.
pub(crate) struct Patience(AtomicU32);

impl Patience {
    /// Doublings after a premature measure. No more: an owner that sleeps then may keep as much for ever.
    const MOST: u32 = 3;

    /// No patience.
    pub(crate) const fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    /// `amount`, doubled as often as patience says.
    pub(crate) fn stretch(&self, amount: usize) -> usize {
        amount << self.0.load(Relaxed)
    }

    /// The most that [`Patience::stretch`] can make of `amount`.
    pub(crate) const fn longest(amount: usize) -> usize {
        amount << Self::MOST
    }

    /// Learns whether a measure that was taken was premature.
    pub(crate) fn learn(&self, premature: bool) {
        self.0.store(if premature { Self::MOST } else { 0 }, Relaxed);
    }

    /// Forgets everything.
    pub(crate) fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Besides [`ALLOWED`], one free slice may lie dirty for this many slices in use.
const DIRTY_PART: usize = 8;
/// The longest pause, in milliseconds, after the system has refused everything that was to be given back.
const PAUSE: u32 = 4096;

/// The policy for the pool's free dirty slices. Under the pool's lock.
pub(crate) struct Policy {
    /// In slices.
    pub(super) regret: Regret,
    /// In slices, too.
    pub(super) delay: Delay,
    /// The most slices in use recently: the allowance is widened by no more than that.
    peak: usize,
    /// Slices that may always lie unused.
    always: usize,
    /// The allowance is widened by no more than that either.
    widest: usize,
    /// When the pool was last searched for slices that are due by age, in milliseconds.
    pub(super) looked: u32,
    /// How long until it is searched again, at least.
    pub(super) pause_of_looks: u32,
    /// While it is on, nothing is given back for exceeding the allowance, because the system has refused
    /// everything: locked memory, for example.
    pub(super) pause: Pause,
}

impl Policy {
    /// The policy of a pool without slices.
    pub(super) const fn new() -> Self {
        Self {
            regret: Regret::none(),
            delay: Delay::new(),
            peak: 0,
            always: ALLOWED,
            widest: usize::MAX,
            looked: 0,
            pause_of_looks: 0,
            pause: Pause::up_to(PAUSE),
        }
    }

    /// Dirty slices that may lie unused while `used` slices are in use.
    pub(super) fn allowed(&self, used: usize) -> usize {
        self.always + used / DIRTY_PART + self.regret.slack()
    }

    /// Takes the purge delay over. Without one slices go at the next tick of the clock, but only when some
    /// are taken or given back then: until then little may lie unused, and of what is needed again in each
    /// round of a loop as much as otherwise of anything.
    pub(super) fn set_delay(&mut self, delay: i64) {
        (self.always, self.widest) = if delay == 0 { (SLICES, ALLOWED) } else { (ALLOWED, usize::MAX) };
    }

    /// Notes that slices have been taken. `fresh` of them were clean, `reused` says whether any were dirty,
    /// `used` slices are in use now, and `dirty` free slices were dirty before.
    #[inline(always)]
    pub(super) fn taken(&mut self, fresh: usize, used: usize, dirty: usize, reused: bool, now: u32) {
        self.peak = self.peak.max(used);
        if reused && dirty > allowance(used, DIRTY_PART) {
            // Without the slack they would have been given back.
            self.regret.note_use(now);
        }
        if fresh != 0 {
            self.wanted(fresh, now);
        }
    }

    /// Notes that the pool did not have `slices`: the system or the large cache had to provide them.
    pub(super) fn wanted(&mut self, slices: usize, now: u32) {
        self.regret.regret(slices, self.peak.min(self.widest), now);
        self.delay.wanted(slices, now);
    }

    /// Lets regret and peak decay.
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
        regret.note_use(3 * REGRET);
        assert!(!regret.fade(4 * REGRET - 1) && regret.fade(4 * REGRET));
        regret.drop(1, 9 * REGRET);
        assert_eq!(regret.dropped(), 1, "what was dropped before is forgotten");
        regret.forget();
        assert_eq!((regret.slack(), regret.dropped()), (0, 0));
    }

    #[test]
    fn what_may_lie_unused_follows_what_is_in_use_and_the_delay() {
        assert_eq!((ALLOWED, allowance(0, 8), allowance(87, 8)), (256, 256, 266));
        let mut policy = Policy::new();
        policy.taken(0, 1000, 0, false, 0);
        let regrets = |policy: &mut Policy, slices| {
            policy.regret.forget();
            policy.regret.drop(slices, 0);
            policy.taken(slices, 87, 0, false, 0);
            (policy.regret.slack(), policy.allowed(87))
        };
        assert_eq!(regrets(&mut policy, 300), (300, 566));
        policy.set_delay(0);
        assert_eq!(regrets(&mut policy, 20), (20, 62));
        assert_eq!(regrets(&mut policy, 300), (ALLOWED, 298));
        policy.set_delay(1);
        assert_eq!(regrets(&mut policy, 300), (300, 566));
    }

    /// Which of them would have been given back without the slack.
    #[test]
    fn slack_is_of_use_while_dirty_slices_beyond_the_allowance_are_used_again() {
        for (dirty, reused, is_of_use) in [(267, true, true), (266, true, false), (267, false, false)] {
            let mut policy = Policy::new();
            policy.regret.widen(8, 8, 0);
            policy.taken(0, 87, dirty, reused, REGRET - 1);
            policy.fade(87, REGRET);
            assert_eq!(policy.regret.slack(), if is_of_use { 8 } else { 4 }, "{dirty} {reused}");
        }
    }

    #[test]
    fn the_peak_is_halved_with_the_slack_and_is_what_is_in_use_at_least() {
        let mut policy = Policy::new();
        policy.taken(0, 1000, 0, false, 0);
        for (now, used, peak) in
            [(REGRET - 1, 10, 1000), (REGRET, 10, 500), (REGRET + 1, 10, 500), (2 * REGRET, 300, 300)]
        {
            policy.fade(used, now);
            assert_eq!(policy.peak, peak, "{now}");
        }
    }

    #[test]
    fn slices_that_are_wanted_delay_the_next_purge() {
        let mut policy = Policy::new();
        policy.delay.went(6, 50);
        policy.taken(2, 100, 0, false, 60);
        assert_eq!(policy.delay.stretch(250), 250);
        policy.wanted(1, 60);
        assert_eq!(policy.delay.stretch(250), 500);
    }

    #[test]
    fn patience_is_learned_and_lost_at_once() {
        let patience = Patience::none();
        for (premature, times) in [(true, 8), (true, 8), (false, 1), (true, 8)] {
            patience.learn(premature);
            assert_eq!(patience.stretch(5), 5 * times);
        }
        assert_eq!(Patience::longest(5), 5 * 8);
        patience.forget();
        assert_eq!(patience.stretch(5), 5);
    }
}
