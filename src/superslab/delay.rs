//! How long unused memory is kept: the purge delay, or longer where that is too short.

use crate::lockfree::waker;
use crate::os;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize};

/// How long giving memory back can be regretted, and the half-life of the slack that results
/// ([`Regret`](super::decay::Regret)), in milliseconds.
pub(crate) const REGRET: u32 = 1000;
/// Doublings of the delay at most.
const MOST: u32 = 3;
/// A delay of less than this many milliseconds is not made longer than this.
const LONGEST: u32 = 2000;
/// How many times in a row what goes, and what is kept longer, has to be of no use before the delay is
/// halved.
const ROW: u32 = 4;
/// How long the delay stays as it was set when doublings were in vain, in milliseconds.
const REST: u32 = 60_000;

/// How much longer than the purge delay memory is kept, because what went back for its age was needed again
/// soon: a program that does something every second would pay for page faults each time. Its user chooses the
/// unit of amounts. All accesses are relaxed: these are figures; threads that race may gain or lose a count.
pub(crate) struct Delay {
    /// How many times the delay is doubled.
    doublings: AtomicU32,
    /// The amount that has gone back for its age, and is not judged yet.
    gone: AtomicUsize,
    /// When the first of that went, and the last, in milliseconds.
    began: AtomicU32,
    gone_at: AtomicU32,
    /// The amount that the system has had to provide since.
    missed: AtomicUsize,
    /// The amount that was kept longer than the delay that was set, and used again, since the last judgement.
    helped: AtomicUsize,
    /// How many times in a row it was right to let memory go, and of no use to keep it longer.
    right: AtomicU32,
    /// Whether the longest delay was too short, and when, in milliseconds.
    was_vain: AtomicBool,
    vain_at: AtomicU32,
}

impl Delay {
    /// The delay as it was set.
    pub(crate) const fn new() -> Self {
        Self {
            doublings: AtomicU32::new(0),
            gone: AtomicUsize::new(0),
            began: AtomicU32::new(0),
            gone_at: AtomicU32::new(0),
            missed: AtomicUsize::new(0),
            helped: AtomicUsize::new(0),
            right: AtomicU32::new(0),
            was_vain: AtomicBool::new(false),
            vain_at: AtomicU32::new(0),
        }
    }

    /// How long memory is kept where `delay` was set, in milliseconds. No longer than that beside the
    /// background thread: who has that wants memory to go.
    pub(crate) fn stretch(&self, delay: u32) -> u32 {
        if waker::WATCHED.load(Relaxed) {
            return delay;
        }
        delay.saturating_mul(1 << self.doublings.load(Relaxed)).min(delay.max(LONGEST))
    }

    /// Whether anything has gone back for its age that may turn out to be needed.
    pub(crate) fn has_gone(&self) -> bool {
        self.gone.load(Relaxed) != 0
    }

    /// Notes that `amount` is used again that has been unused since `since`, where the delay was set to
    /// `delay`.
    #[inline(always)]
    pub(crate) fn used_again(&self, amount: usize, since: u32, delay: i64, now: impl FnOnce() -> u32) {
        if self.doublings.load(Relaxed) != 0 && i64::from(os::elapsed(since, now())) >= delay {
            self.helped.store(self.helped.load(Relaxed).saturating_add(amount), Relaxed);
        }
    }

    /// Whether at least as much as has gone was there only because the delay is longer than it was set.
    fn has_helped(&self) -> bool {
        self.helped.load(Relaxed) >= self.gone.load(Relaxed)
    }

    /// Notes that `amount` goes back for its age.
    pub(crate) fn went(&self, amount: usize, now: u32) {
        if self.has_gone() && os::elapsed(self.began.load(Relaxed), now) >= REGRET {
            self.was_right();
        }
        let gone = self.gone.load(Relaxed);
        if gone == 0 {
            self.began.store(now, Relaxed);
        }
        self.gone.store(gone.saturating_add(amount), Relaxed);
        self.gone_at.store(now, Relaxed);
    }

    /// Notes that the system had to provide `amount`. With half of what went back shortly before, that was
    /// too early.
    pub(crate) fn wanted(&self, amount: usize, now: u32) {
        let gone = self.gone.load(Relaxed);
        if gone == 0 {
            return;
        }
        if os::elapsed(self.gone_at.load(Relaxed), now) >= REGRET {
            return self.was_right();
        }
        let missed = self.missed.load(Relaxed).saturating_add(amount);
        self.missed.store(missed, Relaxed);
        if missed >= gone.div_ceil(2) {
            self.was_early(now);
        }
    }

    /// What went back is needed again.
    fn was_early(&self, now: u32) {
        let doublings = self.doublings.load(Relaxed);
        let rests = self.was_vain.load(Relaxed) && os::elapsed(self.vain_at.load(Relaxed), now) < REST;
        if doublings < MOST {
            self.learn(doublings + u32::from(!rests));
        } else if self.has_helped() {
            // That was a little beside the rest, or the one long pause of many.
            self.learn(doublings);
        } else {
            // Not even that helps, so memory was kept for nothing.
            self.was_vain.store(true, Relaxed);
            self.vain_at.store(now, Relaxed);
            self.learn(0);
        }
        self.right.store(0, Relaxed);
    }

    /// What went back is not needed soon, or less than half of it.
    fn was_right(&self) {
        let right = if self.has_helped() { 0 } else { self.right.load(Relaxed) + 1 };
        self.right.store(right % ROW, Relaxed);
        self.learn(self.doublings.load(Relaxed).saturating_sub(right / ROW));
    }

    fn learn(&self, doublings: u32) {
        self.doublings.store(doublings, Relaxed);
        self.gone.store(0, Relaxed);
        self.missed.store(0, Relaxed);
        self.helped.store(0, Relaxed);
    }

    /// Forgets what was learnt.
    pub(crate) fn forget(&self) {
        self.learn(0);
        self.right.store(0, Relaxed);
        self.was_vain.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(delay: &Delay) -> u32 {
        delay.stretch(1)
    }

    /// Lets something go at `now` that is needed at once.
    fn early(delay: &Delay, now: u32) {
        delay.went(8, now);
        delay.wanted(3, now);
        delay.wanted(1, now);
    }

    #[test]
    fn the_delay_is_doubled_while_half_of_what_goes_is_needed_again_soon() {
        let delay = Delay::new();
        delay.wanted(9, 100);
        assert!(times(&delay) == 1 && !delay.has_gone());
        for (now, before) in [(1000, 1), (2000, 2), (2100, 4)] {
            delay.went(4, now - 1);
            delay.went(5, now);
            delay.wanted(4, now + 1);
            assert!(times(&delay) == before && delay.has_gone(), "less than half of it");
            delay.wanted(1, now + REGRET - 1);
            assert!(times(&delay) == 2 * before && !delay.has_gone());
            delay.wanted(9, now + REGRET - 1);
            assert_eq!(times(&delay), 2 * before, "that was the rest");
        }
        assert_eq!(
            [0, 250, 1000, 3000, u32::MAX].map(|set| delay.stretch(set)),
            [0, 2000, 2000, 3000, u32::MAX]
        );
        delay.forget();
        assert_eq!((times(&delay), delay.stretch(250)), (1, 250));
    }

    /// What goes all the time is judged all the same, and what is needed is needed within a second.
    #[test]
    fn the_delay_is_halved_when_what_goes_is_not_needed_many_times() {
        let delay = Delay::new();
        [1, 2, 3].into_iter().for_each(|now| early(&delay, now));
        delay.went(9, 1000);
        for round in 1..3 * ROW {
            let now = 1000 + round * REGRET;
            delay.went(9, now - 1);
            assert_eq!(times(&delay), 8 >> ((round - 1) / ROW), "{round}");
            delay.went(9, now);
        }
        delay.wanted(100, 1000 + 4 * ROW * REGRET);
        assert!(times(&delay) == 1 && !delay.has_gone(), "too late");
    }

    #[test]
    fn doublings_that_do_not_help_are_taken_back_for_a_minute() {
        let delay = Delay::new();
        for (now, expected) in [(10, 2), (20, 4), (30, 8), (40, 1), (40 + REST - 1, 1), (40 + REST, 2)] {
            early(&delay, now);
            assert_eq!(times(&delay), expected, "{now}");
        }
    }

    /// What is used again has been kept for longer than the delay that was set. A little that nobody needs
    /// goes beside it, or all after a long pause.
    #[test]
    fn a_delay_that_helps_stays() {
        let learnt = || {
            let delay = Delay::new();
            delay.used_again(8, 0, 250, || 500);
            [1, 2, 3].into_iter().for_each(|now| early(&delay, now));
            delay
        };
        let delay = learnt();
        assert_eq!(times(&delay), 8);
        for round in 0..3 * ROW {
            let now = 2000 + 2 * round * REGRET;
            delay.used_again(9, now, 250, || now + 250);
            if round % 2 == 0 {
                early(&delay, now)
            } else {
                delay.went(9, now)
            }
            delay.wanted(1, now + REGRET);
            assert!(times(&delay) == 8 && !delay.has_gone(), "{round}");
        }
        // Less than what went, and what would have been kept anyway.
        for (amount, unused) in [(7, 250), (8, 249)] {
            let delay = learnt();
            delay.used_again(amount, 0, 250, || unused);
            early(&delay, 1);
            assert_eq!(times(&delay), 1);
            let delay = learnt();
            for round in 0..ROW {
                delay.used_again(amount, 0, 250, || unused);
                delay.went(8, round * REGRET);
                delay.wanted(1, (round + 1) * REGRET);
            }
            assert_eq!(times(&delay), 4);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn beside_the_background_thread_the_delay_is_as_it_was_set() {
        assert!(os::child::is_so(|| {
            waker::WATCHED.store(false, Relaxed);
            let delay = Delay::new();
            early(&delay, 7);
            let without = delay.stretch(250);
            waker::WATCHED.store(true, Relaxed);
            (without, delay.stretch(250)) == (500, 250)
        }));
    }
}
