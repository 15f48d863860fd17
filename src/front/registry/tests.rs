//! Tests of the list of all heaps.

use super::*;
use crate::base::misuse::Said;
use crate::base::options::{Hardened, Options};
use crate::os::child;
use crate::superslab::orphans;
use crate::superslab::slab::{self, Slab};
use crate::sync::Ordering::Relaxed;
extern crate std;
use std::vec::Vec;

/// A record that nobody else gets, without an owner.
fn record() -> *mut Heap {
    let heap = acquire();
    assert!(!heap.is_null());
    // SAFETY: a record of ours, in which there is nothing.
    unsafe { Heap::retire(heap, false) };
    heap
}

#[test]
fn a_child_can_use_a_record_that_a_visitor_was_looking_at() {
    // Not beside the test below: a free record of one is the other's next.
    let _alone = orphans::ALONE.lock();
    let heap = record();
    // SAFETY: a record, which stays mapped.
    let lock = unsafe { Heap::lock(heap) };
    // Fails where the system has no barrier, and then nobody visits.
    if lock.visit() {
        inherit();
    }
    assert!(!lock.enter(|| panic!("waits for a visitor that does not exist")));
    lock.leave(false);
    // SAFETY: nobody has the record, and it holds nothing.
    unsafe { recycle(heap) };
}

/// Where another thread than the one that forked is the first to notice, records are not repaired before they
/// are used.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_that_nobody_repairs_can_use_such_a_record() {
    let _alone = orphans::ALONE.lock();
    assert!(child::is_so(|| {
        let heap = record();
        // SAFETY: a record, which stays mapped; and nobody has it, and it holds nothing.
        let lock = unsafe {
            recycle(heap);
            Heap::lock(heap)
        };
        core::mem::forget(visitor::lock());
        let visits = lock.visit();
        visitor::look_who_was_stopped();
        // This would wait for the visitor.
        let next = acquire();
        visits && next == heap && !lock.enter(|| panic!("waits for a visitor that does not exist"))
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn slabs_that_a_thread_could_not_give_up_are_given_up_later() {
    // The record is free for a moment, and any thread's that begins then.
    if !child::is_alone() {
        return;
    }
    let heap = acquire();
    assert!(!heap.is_null());
    // SAFETY: a record of ours. Its slab stays, because a block of it is in use for good.
    unsafe {
        let slab = Slab::of(Heap::refill(heap, 1).ptr);
        let is_orphan = || (*slab).owner.load(Relaxed).addr() & slab::LEFT != 0;
        let held = orphans::hold();
        release_heap(heap);
        assert!(!is_orphan() && (*heap).holds_slabs.get(), "nobody waits for a lock of its own");
        give_up_rest(false);
        assert!(!is_orphan() && (*heap).holds_slabs.get(), "in vain, and the record is back");
        drop(held);
        give_up_rest(false);
        assert!(is_orphan() && !(*heap).holds_slabs.get());
        assert_eq!(HOLDING.load(Relaxed), 0);
    }
}

/// A record of ours that is taken, in the child of a fork.
fn taken_one() -> *mut Heap {
    let heap = acquire();
    assert!(!heap.is_null());
    heap
}

fn is_live(heap: *mut Heap) -> bool {
    // SAFETY: a record, which stays mapped.
    unsafe { (*heap).live.load(Relaxed) }
}

/// The free records, which are free again afterwards.
fn free_ones() -> Vec<*mut Heap> {
    let next = || {
        // SAFETY: no record is unmapped meanwhile.
        let heap = unsafe { FREE.pop() };
        (!heap.is_null()).then_some(heap)
    };
    let all: Vec<_> = core::iter::from_fn(next).collect();
    // SAFETY: just taken.
    all.iter().rev().for_each(|&heap| unsafe { FREE.push(heap) });
    all
}

/// How often a record is in the list of all.
fn listed(heap: *mut Heap) -> usize {
    let (mut all, mut times) = (0, 0);
    each(|other| {
        all += 1;
        times += usize::from(other == heap);
        assert!(all < 100_000, "the list has no end");
    });
    times
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn each_secret_is_another_one_with_an_upper_half() {
    assert!(child::is_so(|| {
        let secrets = [(); 9].map(|()| {
            init();
            SECRET.load(Relaxed)
        });
        secrets.iter().all(|secret| secret >> 63 == 1)
            && secrets.windows(2).all(|two| two[0] as u32 != two[1] as u32)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn heaps_count_but_for_those_that_were_borrowed() {
    let _alone = orphans::ALONE.lock();
    assert!(child::is_so(|| {
        // As the survivor's.
        let own = taken_one();
        let counts = || (STARTED.load(Relaxed), EXITED.load(Relaxed), live());
        let (started, exited, threads) = counts();
        let (one, borrowed) = (taken_one(), borrow());
        assert_eq!(counts(), (started + 1, exited, threads + 1));
        assert!(is_live(borrowed) && listed(borrowed) == 1);
        // SAFETY: ours, and not used any more.
        unsafe { return_heap(borrowed, false) };
        assert_eq!(counts(), (started + 1, exited, threads + 1));
        assert!(!is_live(borrowed) && is_live(one));
        let next = taken_one();
        assert!(next == borrowed && is_live(next) && listed(next) == 1 && listed(one) == 1);
        // SAFETY: a record of ours, not used any more.
        unsafe { release_heap(next) };
        assert_eq!(counts(), (started + 2, exited + 1, threads + 1));
        assert!(!is_live(next) && free_ones()[0] == next);
        // A fork has left all behind; or all but one.
        left_behind(0);
        assert_eq!(live(), 0);
        left_behind(1);
        assert_eq!(live(), 1);
        // SAFETY: ours, and not used any more.
        unsafe {
            Heap::retire(one, false);
            recycle_left(one);
        }
        assert_eq!(counts(), (started + 2, exited + 2, 1));
        // One that had not been counted yet when the fork came.
        let uncounted = taken_one();
        STARTED.fetch_sub(1, Relaxed);
        left_behind(u64::MAX);
        let threads = live();
        // SAFETY: ours, and not used any more.
        unsafe {
            Heap::retire(uncounted, false);
            recycle_left(uncounted);
        }
        assert_eq!(live(), threads);
        assert!(taken_one() == uncounted && live() == threads + 1);
        // SAFETY: the same.
        unsafe { release_heap(uncounted) };
        is_live(own) && free_ones()[..2] == [one, next]
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn no_heap_without_memory() {
    // Set where test.sh emulates other page sizes: the emulator cannot be without memory.
    if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
        return;
    }
    let _alone = orphans::ALONE.lock();
    assert!(child::is_so(|| {
        while !free_ones().is_empty() {
            acquire();
        }
        let started = STARTED.load(Relaxed);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &none) }, 0);
        acquire().is_null() && STARTED.load(Relaxed) == started
    }));
}

/// Who has a record has its slabs, and those that have none lose none.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn records_that_hold_slabs_are_counted() {
    let _alone = orphans::ALONE.lock();
    assert!(child::is_so(|| {
        let holding = || HOLDING.load(Relaxed);
        let (heap, other) = (taken_one(), taken_one());
        // SAFETY: records of ours.
        unsafe {
            assert!(!Heap::refill(heap, 1).ptr.is_null());
            HOLDING.store(5, Relaxed);
            let held = orphans::hold();
            release_heap(heap);
            assert!(holding() == 6 && (*heap).holds_slabs.get());
            assert!(taken_one() == heap && holding() == 5 && !(*heap).holds_slabs.get());
            release_heap(other);
            assert!(taken_one() == other && holding() == 5);
            // Others have the rest, or no longer exist: what there is comes to an end.
            release_heap(other);
            release_heap(heap);
            drop(held);
        }
        let free = free_ones();
        assert!(holding() == 6 && free[..2] == [heap, other]);
        give_up_rest(false);
        // SAFETY: a record, which is free.
        holding() == 0 && free_ones() == free && !unsafe { (*heap).holds_slabs.get() }
    }));
}

/// In hardened mode: the memory that listed what was in quarantine, and first what is there still.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_listed_the_quarantine_of_a_free_record_goes_back() {
    let _alone = orphans::ALONE.lock();
    assert!(child::is_so(|| {
        forget_free();
        hardened::inherit();
        hardened::init(&Options::new().hardened(Hardened::ON), os::random());
        let heap = taken_one();
        // SAFETY: a record of ours.
        let state = unsafe { Heap::hardened(heap) };
        let free_some = |count: usize| {
            for _ in 0..count {
                let block = hardened::alloc(state, 100, 16, false).ptr;
                // SAFETY: freed once.
                unsafe { hardened::free(Some(state), block, Said::Nothing, "free") };
            }
        };
        free_some(10_000);
        let most = state.written();
        // SAFETY: of ours, and nobody uses it any more.
        unsafe { release_heap(heap) };
        let page = os::page_size();
        let at = |offset: usize| (size_of::<Heap>() + offset).next_multiple_of(page);
        let idle = state.idle().unwrap();
        let (from, to) = (at(idle.start), at(idle.end));
        let resident = || {
            // SAFETY: whole pages of a record.
            unsafe { os::resident_pages(heap.cast::<u8>().wrapping_add(from), to - from) }
        };
        assert_eq!(resident(), Some((to - from) / page));
        purge_free();
        // Set where test.sh emulates other page sizes: what is resident is not told by those there.
        assert!(std::env::var_os("EXPECT_PAGE_SIZE").is_some() || resident() == Some(0));
        assert!(most >= state.written() + (60 << 10) && state.idle().is_none());

        // Who has borrowed it may leave something there, just before.
        let keeping = KEEPING.load(Relaxed);
        assert_eq!(taken_one(), heap);
        free_some(1);
        // SAFETY: a record of ours, which nobody uses any more.
        unsafe { return_heap(heap, true) };
        assert!(state.keeps_any() && KEEPING.load(Relaxed) == keeping + 1);
        purge_free();
        !state.keeps_any() && KEEPING.load(Relaxed) == keeping
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn heaps_are_found_by_their_owners() {
    let _alone = orphans::ALONE.lock();
    assert!(child::is_so(|| {
        const THREAD: usize = 8;
        let heaps = [(); 3].map(|()| taken_one());
        let [mine, theirs, free] = heaps;
        let generation = |heap: *mut Heap| {
            // SAFETY: a record, which stays mapped.
            unsafe { &(*heap).generation }
        };
        let now = generation(mine).load(Relaxed);
        let [stale, older] = [1, 2].map(|forks| now.wrapping_sub(forks));
        // SAFETY: records of ours.
        unsafe {
            (*mine).thread.store(THREAD, Relaxed);
            (*theirs).thread.store(2 * THREAD, Relaxed);
            (*free).thread.store(THREAD, Relaxed);
            Heap::retire(free, false);
        }
        let owned = || {
            let mut found = Vec::new();
            each_owned(|heap| found.push(heap));
            heaps.map(|heap| found.contains(&heap))
        };
        assert_eq!(owned(), [true, true, false]);
        heaps.iter().for_each(|&heap| generation(heap).store(stale, Relaxed));
        assert_eq!(owned(), [false; 3], "a fork has left them behind");
        generation(mine).store(older, Relaxed);
        assert_eq!(
            claim_of(THREAD, true),
            0,
            "or one before, in the child of which another thread had that id"
        );
        generation(mine).store(stale, Relaxed);
        assert_eq!(claim_of(THREAD, true), 1);
        assert_eq!(heaps.map(|heap| generation(heap).load(Relaxed)), [now, stale, stale]);
        assert_eq!(owned(), [true, false, false]);
        generation(theirs).store(now, Relaxed);
        let exited = EXITED.load(Relaxed);
        // SAFETY: as if their threads had ended.
        unsafe { release_of(THREAD) };
        assert_eq!((heaps.map(is_live), EXITED.load(Relaxed)), ([false, true, false], exited + 1));
        free_ones()[0] == mine
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn all_records_are_unmapped_in_the_end() {
    let _alone = orphans::ALONE.lock();
    assert!(child::is_so(|| {
        let (heap, other) = (record(), taken_one());
        let is_mapped = |heap: *mut Heap| {
            // SAFETY: of a page boundary, and short.
            unsafe { os::resident_pages(heap.cast(), RECORD) }.is_some()
        };
        assert!(is_mapped(heap) && is_mapped(other));
        // One that is free, and one whose memory has gone back.
        let free = [acquire(), acquire()];
        for heap in free {
            // SAFETY: of ours, and nobody uses it any more.
            unsafe { release_heap(heap) };
        }
        purge_free();
        // SAFETY: the same.
        unsafe { release_heap(acquire()) };
        unmap();
        let mut none = true;
        each(|_| none = false);
        none &= !is_mapped(heap) && !is_mapped(other);
        // Who still allocates gets a new one.
        let fresh = acquire();
        none && listed(fresh) == 1 && free_ones().is_empty()
    }));
}
