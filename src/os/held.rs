//! Bytes held from the system, and the limits on them.
//!
//! Held bytes are those that blocks are made of: SuperSlabs and direct mappings, including those that are
//! free or kept for reuse. The allocator's own records (heaps, the page map, descriptors) are not counted:
//! they are small, and a process at its limit can still start a thread.
//!
//! Bytes are reserved before they are mapped and given back after they are unmapped, so the hard limit is
//! never exceeded. When the soft limit refuses bytes, `reclaim/retry.rs` purges, asks again, and then gets
//! them. All of this runs only on the way to a system call.

use crate::os::{calls, generation};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

// Each of these is a figure by itself and publishes nothing, so Relaxed is enough: each change of `HELD` only
// has to be one atomic step.

/// A number of bytes that several threads change at once.
struct Meter(AtomicUsize);

impl Meter {
    /// Adds `bytes` if the sum is at most `most`. The error is what the sum would have been.
    fn add(&self, bytes: usize, most: usize) -> Result<(), usize> {
        let add = |now: usize| now.checked_add(bytes).filter(|&new| new <= most);
        let added = self.0.fetch_update(Relaxed, Relaxed, add);
        added.map(drop).map_err(|now| now.saturating_add(bytes))
    }

    /// Subtracts bytes that were added before; returns what is left.
    fn sub(&self, bytes: usize) -> usize {
        self.0.fetch_sub(bytes, Relaxed) - bytes
    }
}

/// Bytes held, and bytes about to be mapped.
static HELD: Meter = Meter(AtomicUsize::new(0));
/// The limits, or `NONE`.
static SOFT: AtomicUsize = AtomicUsize::new(NONE);
static HARD: AtomicUsize = AtomicUsize::new(NONE);
const NONE: usize = usize::MAX;
/// Whether there has ever been a limit. It stays set when limits are removed: one of them may have refused
/// something just before.
static LIMITED: AtomicBool = AtomicBool::new(false);
/// How far memory may grow beyond the soft limit before it is checked again. 0 while the limit has not been
/// crossed, or since held bytes have fallen well below it.
static RAISED: AtomicUsize = AtomicUsize::new(0);
/// The fewest bytes held since the last purge for the soft limit.
static LEAST: AtomicUsize = AtomicUsize::new(0);
/// When that purge was, in milliseconds.
static PURGED: AtomicU32 = AtomicU32::new(0);
/// Threads that may go beyond the soft limit now. Other threads pass, too, meanwhile, and are checked the
/// next time.
static PASSING: AtomicUsize = AtomicUsize::new(0);
/// Growths that the hard limit has refused. A call that fails may try more than one.
static REFUSALS: AtomicUsize = AtomicUsize::new(0);

/// Purges made for the soft limit.
pub(crate) static SOFT_HITS: AtomicU64 = AtomicU64::new(0);
/// Allocations that failed because of the hard limit.
pub(crate) static HARD_HITS: AtomicU64 = AtomicU64::new(0);

/// Beyond the soft limit, growth is checked again after each such part of the limit.
const STEP_PART: usize = 16;
/// The smallest step between two checks: one SuperSlab.
pub(crate) const LEAST_STEP: usize = 2 << 20;
/// Held bytes must fall below the soft limit by this part of it before the limit counts as crossed again.
const REARM_PART: usize = 8;

fn step(soft: usize) -> usize {
    (soft / STEP_PART).max(LEAST_STEP)
}

/// Bytes held.
pub(crate) fn bytes() -> usize {
    HELD.0.load(Relaxed)
}

/// Whether a limit may be the reason for a refusal.
#[inline]
pub(crate) fn limited() -> bool {
    LIMITED.load(Relaxed)
}

/// Sets the limits; 0 is none. The soft limit then counts as not crossed.
pub(crate) fn set(soft: usize, hard: usize) {
    let or_none = |limit| if limit == 0 { NONE } else { limit };
    if soft != 0 || hard != 0 {
        LIMITED.store(true, Relaxed);
    }
    HARD.store(or_none(hard), Relaxed);
    SOFT.store(or_none(soft), Relaxed);
    RAISED.store(0, Relaxed);
    LEAST.store(0, Relaxed);
}

/// The soft and the hard limit; 0 is none.
pub(crate) fn limits() -> (usize, usize) {
    let of = |limit: &AtomicUsize| match limit.load(Relaxed) {
        NONE => 0,
        limit => limit,
    };
    (of(&SOFT), of(&HARD))
}

/// Reserves bytes that are about to be mapped. False, with nothing reserved, when a limit forbids it.
pub(super) fn reserve(bytes: usize) -> bool {
    let hard = HARD.load(Relaxed);
    let passing = PASSING.load(Relaxed) != 0;
    let soft = if passing { NONE } else { SOFT.load(Relaxed).max(RAISED.load(Relaxed)) };
    match HELD.add(bytes, hard.min(soft)) {
        Ok(()) => true,
        Err(new) => {
            if new > hard {
                REFUSALS.fetch_add(1, Relaxed);
            }
            false
        }
    }
}

/// Gives a reservation back: the bytes are unmapped, or were never mapped.
pub(super) fn release(bytes: usize) {
    let raised = RAISED.load(Relaxed);
    let now = HELD.sub(bytes);
    let soft = SOFT.load(Relaxed);
    if soft == NONE {
        return;
    }
    LEAST.fetch_min(now, Relaxed);
    if now >= soft - soft / REARM_PART {
        RAISED.fetch_min(soft.max(now.saturating_add(step(soft))), Relaxed);
    } else if raised != 0 {
        // Fails if another thread has crossed the limit meanwhile: the hook would hear of it twice.
        let _ = RAISED.compare_exchange(raised, 0, Relaxed, Relaxed);
    }
}

/// Reserves what a mapping needs to grow from `old` to `new` bytes. False, with nothing reserved, when a
/// limit forbids it.
pub(crate) fn reserve_growth(old: usize, new: usize) -> bool {
    new <= old || reserve(new - old)
}

/// Gives back the reservation of what `from` bytes have beyond `to` bytes, if anything: when a mapping has
/// changed from the one size to the other, or [`reserve_growth`] was in vain, and it stays at `to` bytes.
pub(crate) fn release_excess(from: usize, to: usize) {
    if from > to {
        release(from - to);
    }
}

/// Whether to purge before growing by `need` bytes beyond the soft limit. Not if the last purge was a moment
/// ago. `delay` is the purge delay and `now` the time, both in milliseconds.
pub(crate) fn purge_is_due(need: usize, delay: i64, now: u32) -> bool {
    let soft = SOFT.load(Relaxed);
    let new = bytes().saturating_add(need);
    if new <= soft.max(RAISED.load(Relaxed)) {
        return false;
    }
    let grown = new >= LEAST.load(Relaxed).saturating_add(step(soft));
    // At most once per tick of the clock, whatever the delay.
    grown || delay >= 0 && calls::elapsed(PURGED.load(Relaxed), now) as i64 > delay
}

/// A purge for the soft limit was done at `now`.
pub(crate) fn purged(now: u32) {
    SOFT_HITS.fetch_add(1, Relaxed);
    PURGED.store(now, Relaxed);
    LEAST.store(bytes(), Relaxed);
}

/// Whether there is a soft limit, and it applies: what is refused may be had beyond it.
pub(crate) fn soft_applies() -> bool {
    SOFT.load(Relaxed) != NONE && PASSING.load(Relaxed) == 0
}

/// Runs `f` while the soft limit does not apply.
pub(crate) fn beyond_soft<T>(f: impl FnOnce() -> T) -> T {
    let generation = generation::now();
    PASSING.fetch_add(1, Relaxed);
    let result = f();
    // Not in the child of a handler that has forked meanwhile, where it is not counted any more.
    if generation == generation::now() {
        PASSING.fetch_sub(1, Relaxed);
    }
    result
}

/// After growing beyond the soft limit: allows growth by one more step. Returns the bytes held and the limit
/// if this is a new crossing.
pub(crate) fn crossed() -> Option<(usize, usize)> {
    let (held, soft) = (bytes(), SOFT.load(Relaxed));
    if held <= soft {
        return None;
    }
    let first = RAISED.swap(held.saturating_add(step(soft)), Relaxed) == 0;
    first.then_some((held, soft))
}

/// Makes it so that the soft limit has just been crossed.
#[cfg(all(test, loom))]
pub(crate) fn cross() {
    HELD.0.store(2, Relaxed);
    SOFT.store(1, Relaxed);
    RAISED.store(0, Relaxed);
}

/// Whether the hard limit refuses `need` bytes even after `back` of the held bytes have been given back.
pub(crate) fn is_beyond_hard(need: usize, back: usize) -> bool {
    bytes().saturating_sub(back).saturating_add(need) > HARD.load(Relaxed)
}

/// Whether a limit refuses `need` bytes more, as things are now.
pub(crate) fn refuses(need: usize) -> bool {
    let soft = SOFT.load(Relaxed).max(RAISED.load(Relaxed));
    bytes().saturating_add(need) > HARD.load(Relaxed).min(soft)
}

/// How many growths the hard limit has refused so far.
pub(crate) fn refusals() -> usize {
    REFUSALS.load(Relaxed)
}

/// In the child of a fork: the threads that were passing do not exist. Bytes that they were mapping or
/// unmapping stay counted: the child may have them, and cannot tell where.
pub(crate) fn reset_in_child() {
    PASSING.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(any(loom, miri)))]
    use crate::os::child::is_so;

    #[test]
    fn racing_threads_add_no_more_than_the_most() {
        const MOST: usize = 3;
        static METER: Meter = Meter(AtomicUsize::new(0));
        static LIVE: AtomicUsize = AtomicUsize::new(0);
        let rounds = if cfg!(miri) { 20 } else { 1_000_000 };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        match METER.add(1, MOST) {
                            Ok(()) => {
                                assert!(LIVE.fetch_add(1, Relaxed) < MOST);
                                LIVE.fetch_sub(1, Relaxed);
                                METER.sub(1);
                            }
                            Err(new) => assert_eq!(new, MOST + 1),
                        }
                    }
                });
            }
        });
        assert_eq!(METER.0.load(Relaxed), 0);
        assert_eq!(METER.add(usize::MAX, NONE - 1), Err(usize::MAX));
    }

    #[test]
    fn steps_have_a_least() {
        assert_eq!((step(1), step(32 << 20), step(1 << 30)), (LEAST_STEP, LEAST_STEP, 64 << 20));
    }

    #[test]
    #[cfg(not(any(loom, miri)))]
    fn whether_there_was_ever_a_limit() {
        for (soft, hard) in [(0, 0), (1 << 40, 0), (0, 1 << 40)] {
            assert!(is_so(|| {
                set(soft, hard);
                let was = limited();
                set(0, 0);
                was == (soft + hard != 0) && limited() == was
            }));
        }
    }

    #[test]
    #[cfg(not(any(loom, miri)))]
    fn only_what_the_hard_limit_refuses_counts_as_refused_by_it() {
        assert!(is_so(|| {
            assert!(reserve(100));
            let before = (bytes(), refusals());
            set(bytes() + 5, bytes() + 10);
            for (need, is_beyond) in [(5, false), (6, false), (10, false), (11, true), (usize::MAX, true)] {
                assert_eq!(is_beyond_hard(need, 0), is_beyond, "{need}");
            }
            assert!(!is_beyond_hard(11, 1) && is_beyond_hard(12, 1));
            assert!(!reserve(6) && !reserve(10) && refusals() == before.1);
            assert!(!reserve(11) && refusals() == before.1 + 1);
            assert!(beyond_soft(|| reserve(10) && !reserve(1)) && refusals() == before.1 + 2);
            // A thread that the child does not have was passing.
            release(6);
            PASSING.store(1, Relaxed);
            assert!(reserve(2));
            reset_in_child();
            !reserve(1) && bytes() == before.0 + 6
        }));
    }

    #[test]
    #[cfg(not(any(loom, miri)))]
    fn a_purge_is_due_after_growing_by_a_step_or_after_the_delay() {
        assert!(is_so(|| {
            set(bytes() + 8, 0);
            let step = step(bytes() + 8);
            let soft_hits = SOFT_HITS.load(Relaxed);
            purged(100);
            for (need, delay, now, expected) in [
                (8, 0, 200, false),
                (9, 5, 105, false),
                (9, 5, 106, true),
                (9, -1, 200, false),
                (9, 0, 100, false),
                (9, 0, 101, true),
                (step - 1, -1, 100, false),
                (step, -1, 100, true),
            ] {
                assert_eq!(purge_is_due(need, delay, now), expected, "{need} {delay} {now}");
            }
            SOFT_HITS.load(Relaxed) == soft_hits + 1
        }));
    }
}
