//! Tests of purging.

use super::*;
use crate::lockfree::slice_sets::Sets;
use crate::superslab::desc::Desc;
use crate::superslab::pagemap::RUN;
use crate::superslab::pool;
use core::ptr::{self, without_provenance_mut};

/// How many of two SuperSlabs are due, of which one became dirty so many milliseconds ago, and the other
/// ten minutes ago.
fn due_after(ms: u32) -> usize {
    let mut pool = State::new();
    let now = os::now_ms();
    for ago in [ms, 600_000] {
        let desc = Desc::stand_in(without_provenance_mut(SUPERSLAB));
        desc.slices.set(Sets { free: 0b1100, dirty: 0b1100 });
        pool.enter(desc, now.wrapping_sub(ago));
    }
    let mut job = Job::none();
    add_aged(&mut pool, now, &mut job);
    job.len
}

/// The clock has 32 bits, so half of its round is 24.8 days.
#[test]
fn slices_are_due_however_old_they_are() {
    const DAY: u32 = 24 * 3_600_000;
    for days in [1, 24, 25, 40, 49] {
        assert_eq!(due_after(days * DAY), 2, "{days} days");
    }
    assert_eq!(due_after(0), 0, "and the ones behind are taken for younger");
    // Another thread's clock was read a little later.
    assert_eq!(due_after(0u32.wrapping_sub(20)), 0);
}

#[test]
fn a_purge_is_due_by_number_or_by_time() {
    const NOW: u32 = 20;
    let is_due = |dirty, used, looked, is_refused| {
        let mut pool = State::new();
        (pool.dirty_slices, pool.used_slices) = (dirty, used);
        let then = NOW.wrapping_sub(looked);
        add_aged(&mut pool, then, &mut Job::none());
        if is_refused {
            pool.policy.pause.tried(false, NOW);
        }
        super::is_due(&pool, NOW)
    };
    for (dirty, used, looked, is_refused, expected) in [
        (0, 0, 1000, false, false),
        (1, 0, 62, false, false),
        (1, 0, 63, false, true),
        (256, 0, 0, false, false),
        (257, 0, 0, false, true),
        (257, 8, 0, false, false),
        (258, 8, 0, false, true),
        (258, 8, 0, true, false),
        (258, 8, 63, true, true),
    ] {
        assert_eq!(is_due(dirty, used, looked, is_refused), expected, "{dirty} {used} {looked}");
    }
}

/// They are looked for less often, too.
#[test]
fn slices_are_kept_longer_if_the_last_ones_were_needed_again() {
    let mut pool = State::new();
    let dirty_since = |pool: &mut State, now| {
        let desc = Desc::stand_in(without_provenance_mut(SUPERSLAB));
        desc.slices.set(Sets { free: 0b1100, dirty: 0b1100 });
        pool.enter(desc, now);
    };
    let due_at = |pool: &mut State, now| {
        let mut job = Job::none();
        add_aged(pool, now, &mut job);
        job.len
    };
    dirty_since(&mut pool, 1000);
    assert_eq!([1249, 1250].map(|now| due_at(&mut pool, now)), [0, 1]);
    assert_eq!([1312, 1313].map(|now| is_time(&pool, now)), [false, true]);
    pool.policy.wanted(1, 1300);
    dirty_since(&mut pool, 2000);
    assert_eq!([2499, 2500].map(|now| due_at(&mut pool, now)), [0, 1]);
    assert_eq!([2625, 2626].map(|now| is_time(&pool, now)), [false, true]);
    // Nobody needs these, nor did the last ones.
    for (now, term) in (4..8).map(|second| (1000 * second, 500)).chain([(8000, 250)]) {
        dirty_since(&mut pool, now);
        assert_eq!([now + term - 1, now + term].map(|now| due_at(&mut pool, now)), [0, 1]);
    }
}

/// In a child, since the pool is the process's. Its clock may go on meanwhile: what is asked about is a time
/// before the slices became dirty.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn whoever_asks_is_told_how_long_slices_are_kept() {
    assert!(os::child::is_so(|| {
        let before = os::now_ms();
        everything();
        assert_eq!(pool::due_in(before), None);
        let span = pool::take_span(2, RUN, |_| None).unwrap();
        // SAFETY: the span is this thread's.
        unsafe { pool::give_span(span.slab, 0b11) };
        assert_eq!(pool::due_in(before), Some(250));
        {
            let pool = lock().unwrap();
            pool.policy.delay.went(2, before);
            pool.policy.delay.wanted(2, before);
        }
        pool::due_in(before) == Some(500)
    }));
}

/// A pool of so many SuperSlabs that are entirely free, and behind them in age, of others that have each
/// of these slices free; all free slices are dirty.
fn pool(whole: usize, others: usize, free: u32, now: u32) -> State {
    let mut pool = State::new();
    let (whole, others) = ([u32::MAX].repeat(whole), [free].repeat(others));
    for free in others.into_iter().chain(whole) {
        let desc = Desc::stand_in(without_provenance_mut(SUPERSLAB));
        desc.slices.set(Sets { free, dirty: free });
        pool.enter(desc, now);
    }
    pool
}

#[test]
fn what_is_beyond_the_allowance_goes_until_an_eighth_of_that_is_free() {
    let now = os::now_ms();
    // SuperSlabs, and how many of them are hidden, how many of these as a whole, and how many slices.
    for (whole, others, free, hidden, hidden_whole, slices) in [
        (7, 1, 0xff, 0, 0, 0),
        (6, 6, !1, 5, 5, 160),
        (2, 10, !1, 5, 2, 157),
        (0, 60, 0b11_1110, BATCH, 0, 5 * BATCH),
    ] {
        let mut pool = pool(whole, others, free, now);
        pool.policy.looked = now;
        let (before, job) = (pool.dirty_slices, due(&mut pool, now));
        let descs = || job.descs.iter().flatten();
        assert_eq!((job.len, descs().count(), job.is_full()), (hidden, hidden, hidden == BATCH));
        assert_eq!(descs().filter(|desc| desc.is_hidden()).count(), hidden_whole);
        assert_eq!((before - pool.dirty_slices, pool.policy.regret.dropped()), (slices, slices));
    }
}

#[test]
fn what_has_been_entirely_free_for_longest_goes_first() {
    let now = os::now_ms();
    let mut pool = State::new();
    // Three are clean, and stay: nothing is won by unmapping them.
    let descs: Vec<DescRef> = (0..43).map(|_| Desc::stand_in(without_provenance_mut(SUPERSLAB))).collect();
    for (i, desc) in descs.iter().enumerate() {
        desc.slices.set(Sets { free: u32::MAX, dirty: if i < 3 { 0 } else { u32::MAX } });
        pool.enter(desc, now);
    }
    for first in [3, 3 + BATCH] {
        let job = due(&mut pool, now);
        let taken = job.descs.iter().flatten().zip(&descs[first..]);
        assert_eq!(taken.filter(|(one, other)| ptr::eq(**one, **other)).count(), BATCH);
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn purged_slices_are_zero_but_for_the_header() {
    let base = os::map_aligned(ptr::null_mut(), SUPERSLAB, SUPERSLAB);
    assert!(!base.is_null());
    let mask = 1 << 31 | 0b1_0111;
    // SAFETY: mapped just now, for this test alone.
    unsafe {
        base.write_bytes(7, SUPERSLAB);
        assert_eq!(purge(base, mask), mask);
        for at in 0..SUPERSLAB {
            let is_kept = at < HEADER || mask >> (at / SLICE) & 1 == 0;
            assert_eq!(*base.add(at), if is_kept { 7 } else { 0 }, "{at:#x}");
        }
        os::discard(base, SUPERSLAB);
    }
}

/// Whoever frees large blocks to caches looks at the pool, too, but not each time.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn who_does_not_change_the_pool_looks_at_it_now_and_then() {
    assert!(os::child::is_so(|| {
        let [_kept, given] = [1, 2].map(|slices| pool::take_span(slices, RUN, |_| None).unwrap());
        // SAFETY: a span that nobody uses, given back once.
        unsafe { pool::give_span(given.slab, 0b11) };
        let dirty = || span_index::with(|pool| pool.dirty_slices).unwrap();
        let (before, now) = (dirty(), os::now_ms());
        let left = |ago: u32, later: u32| {
            TICKED.store(now.wrapping_add(later).wrapping_sub(ago), Relaxed);
            tick(now.wrapping_add(later));
            dirty()
        };
        assert!(before >= 2 && left(TICK, 1) == before, "they are too young");
        assert_eq!(left(TICK - 1, 60_000), before, "it has just looked");
        left(TICK, 60_000) == 0 && TICKED.load(Relaxed) == now.wrapping_add(60_000)
    }));
}

/// It may be stopped, or have no processor to run on.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_background_thread_that_does_not_come_is_not_waited_for() {
    const DELAY: i64 = 250;
    const NOW: u32 = 1 << 20;
    assert!(os::child::is_so(|| {
        let is_watched = |ago| {
            SEEN.store(NOW - ago, Relaxed);
            is_watched(NOW, DELAY)
        };
        waker::WATCHED.store(false, Relaxed);
        let is_absent = !is_watched(0);
        waker::WATCHED.store(true, Relaxed);
        let last = DELAY as u32 + REGRET;
        is_absent && is_watched(0) && is_watched(last) && !is_watched(last + 1)
    }));
}
