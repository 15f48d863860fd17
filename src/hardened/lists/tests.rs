//! Tests of slabs that wait for a thread.

use super::*;
extern crate std;
use crate::base::list::Linked;
use crate::hardened::{child, growth};
use crate::lockfree::waker::WAKER;
use crate::sync::Ordering::SeqCst;
use crate::tiny::classes::{self, CLASSES};

/// Whether a look gives this slab back, which is counted as empty.
fn goes(slab: &Slab) -> bool {
    give_back_idle();
    slab.place.load(SeqCst) == DEAD
}

#[test]
#[cfg_attr(miri, ignore)]
fn what_was_empty_since_the_last_look_goes() {
    let _alone = ALONE.lock();
    const CLASS: usize = 5;
    let slab = Slab::make(CLASS).unwrap();
    drop_current(slab);
    assert_eq!(spare(), slab.slices() * SLICE);
    // Before, nothing was: so this one has become empty since.
    assert!(!goes(slab));
    // It was wanted, and is empty again.
    assert!(core::ptr::eq(take(CLASS).unwrap(), slab));
    drop_current(slab);
    assert!(!goes(slab));
    // It may be wanted again soon.
    SLACK.store(1000, Relaxed);
    assert!(!goes(slab));
    SLACK.store(0, Relaxed);
    assert!(goes(slab));
    assert_eq!(spare(), 0);
    // A count that a fork has left, of what is not there.
    EMPTY.store(3, Relaxed);
    assert!(!give_back_and_is_right() && give_back_and_is_right());
}

fn give_back_and_is_right() -> bool {
    give_back_idle();
    EMPTY.load(Relaxed) == 0
}

/// Whether `f` says so in the child of a fork, where nothing is listed yet but what `f` lists.
fn is_so(f: impl FnOnce() -> bool) -> bool {
    let _alone = ALONE.lock();
    child::is_so(|| {
        crate::hardened::inherit();
        purge();
        for figure in [&EMPTY, &LOWEST, &SLACK] {
            figure.store(0, Relaxed);
        }
        f()
    })
}

/// A slab of the class for this thread alone, whose record says that so many blocks are free.
fn slab_with(class: usize, free: usize) -> &'static Slab {
    let slab = Slab::make_usual(class).unwrap();
    slab.free.store(free as i32, SeqCst);
    slab
}

/// A slab that is listed, and counted as empty where so little is.
fn empty(class: usize) -> &'static Slab {
    let slab = Slab::make_usual(class).unwrap();
    drop_current(slab);
    slab
}

fn place(slab: &Slab) -> u8 {
    slab.place.load(SeqCst)
}

fn is_counted(slab: &Slab) -> bool {
    slab.counted.load(Relaxed)
}

fn dead<const N: usize>(slabs: [&Slab; N]) -> usize {
    slabs.into_iter().filter(|slab| place(slab) == DEAD).count()
}

const CLASS: usize = 20;

/// As if nothing had been given back or regretted for long.
fn long_ago() -> u32 {
    os::now_ms().wrapping_sub(100 * SOON)
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn an_eighth_of_what_is_in_use_may_be_empty_and_what_is_regretted() {
    assert!(is_so(|| {
        let allowance_of = |in_use: usize, regretted: usize| {
            spans::IN_USE.store(in_use, Relaxed);
            SLACK.store(regretted, Relaxed);
            REGRETTED.store(os::now_ms(), Relaxed);
            allowance()
        };
        assert_eq!([allowance_of(0, 0), allowance_of(FEW * PART, 0), allowance_of(3, 0)], [256; 3]);
        assert_eq!([allowance_of(8000, 0), allowance_of(8000, 11), allowance_of(8, 7)], [1000, 1011, 263]);
        assert_eq!([-1, 0, 1].map(allowance_with), [usize::MAX, 0, 263], "never; at once; in a while");
        // Nothing was regretted for a while: once it is half, and then for as long.
        allowance_of(0, 100);
        REGRETTED.store(long_ago(), Relaxed);
        assert_eq!((slack(), slack()), (50, 50));
        true
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn memory_that_is_wanted_soon_after_some_went_is_regretted() {
    assert!(is_so(|| {
        // Its own count would be lowered when the slab goes, which none does here.
        let in_use = &spans::IN_USE;
        let made_after = |given: u32, regretted: usize| {
            let slab = slab_with(CLASS, 0);
            in_use.store(100, Relaxed);
            GIVEN.store(given, Relaxed);
            REGRETTED.store(long_ago(), Relaxed);
            SLACK.store(regretted, Relaxed);
            let before = REGRETTED.load(Relaxed);
            made(slab);
            let more = SLACK.load(Relaxed) - regretted;
            assert_eq!(REGRETTED.load(Relaxed) != before, more > 0);
            more == slab.slices()
        };
        let now = os::now_ms();
        assert!(made_after(now, 0) && made_after(now, 99), "soon");
        assert!(!made_after(now, 100), "more than there is would not help");
        assert!(!made_after(long_ago(), 0));
        // Who finds none that waits makes one.
        SLACK.store(0, Relaxed);
        GIVEN.store(os::now_ms(), Relaxed);
        let slab = take_or_make(CLASS, &Cursor::default()).unwrap();
        SLACK.load(Relaxed) == slab.slices()
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_slab_waits_for_a_thread_when_it_has_enough_free_blocks() {
    assert!(is_so(|| {
        let slab = slab_with(CLASS, 0);
        let (enough, blocks) = (slab.enough(), slab.blocks() as i32);
        assert!(1 < enough && enough < blocks - 1);
        // It is used up, but for what others have freed just now.
        for free in 0..=enough + 1 {
            slab.place.store(CURRENT, SeqCst);
            slab.free.store(free, SeqCst);
            assert_eq!(drop_used_up(slab), free < enough, "{free}");
            assert_eq!(place(slab), if free < enough { FULL } else { CURRENT });
        }
        let listed = || LISTS[CLASS].lock_soon().unwrap().0.first().cast_const();
        // Its thread ends.
        slab.free.store(enough - 1, SeqCst);
        drop_current(slab);
        assert!(place(slab) == FULL && listed().is_null());
        // Others free its blocks.
        slab.free.store(enough, SeqCst);
        freed(slab, enough - 1);
        assert!(place(slab) == FULL && listed().is_null());
        freed(slab, enough);
        assert!(place(slab) == LISTED && core::ptr::eq(listed(), slab));
        // Once.
        slab.free.store(blocks, SeqCst);
        freed(slab, enough + 1);
        assert!(!is_counted(slab), "the last free will");
        freed(slab, blocks);
        assert!(is_counted(slab) && EMPTY.load(Relaxed) == slab.slices());
        freed(slab, blocks);
        assert_eq!(EMPTY.load(Relaxed), slab.slices());
        slab.thread.store(0, Relaxed);
        assert!(core::ptr::eq(take(CLASS).unwrap(), slab) && take(CLASS).is_none());
        assert!(place(slab) == CURRENT && slab.thread.load(Relaxed) == thread::id());
        assert!(!is_counted(slab) && EMPTY.load(Relaxed) == 0);
        // One that was not counted takes nothing from the count.
        let slab = slab_with(CLASS, enough as usize);
        drop_current(slab);
        assert!(place(slab) == LISTED && !is_counted(slab));
        EMPTY.store(100, Relaxed);
        assert!(core::ptr::eq(take(CLASS).unwrap(), slab));
        EMPTY.load(Relaxed) == 100
    }));
}

/// So that classes that fill their slabs get big ones.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_slab_that_is_used_up_is_noted_as_filled() {
    assert!(is_so(|| {
        assert!(!growth::wants_big(CLASS));
        // More than sixteen slices, however many each has.
        for _ in 0..16 {
            drop_used_up(slab_with(CLASS, 0));
        }
        growth::wants_big(CLASS)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_all_have_left_is_found_by_a_free_that_came_before_the_last() {
    assert!(is_so(|| {
        let slab = slab_with(CLASS, 0);
        drop_used_up(slab);
        slab.free.store(slab.blocks() as i32, SeqCst);
        freed(slab, slab.enough());
        place(slab) == LISTED && is_counted(slab)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn an_empty_slab_is_counted_while_few_are_and_else_goes() {
    assert!(is_so(|| {
        let slab = slab_with(CLASS, 0);
        let slices = slab.slices();
        // A thread has it, or it is not empty, or was taken meanwhile.
        slab.free.store(slab.blocks() as i32, SeqCst);
        assert_eq!((emptied(slab, true), place(slab)), (0, CURRENT));
        slab.free.store(slab.enough(), SeqCst);
        drop_current(slab);
        assert_eq!((emptied(slab, true), emptied(slab, false), place(slab)), (0, 0, LISTED));
        slab.free.store(slab.blocks() as i32, SeqCst);
        let held = LISTS[CLASS].lock_soon();
        assert_eq!((emptied(slab, true), place(slab)), (0, LISTED));
        drop(held);
        EMPTY.store(FEW - 1, Relaxed);
        WAKER.reset();
        assert!(WAKER.arm());
        assert_eq!((emptied(slab, false), EMPTY.load(Relaxed)), (0, FEW - 1 + slices));
        assert!(is_counted(slab) && !WAKER.is_asleep(), "the background thread looks");
        assert_eq!((emptied(slab, false), EMPTY.load(Relaxed)), (0, FEW - 1 + slices), "it is counted");
        // As many as may be are there.
        let next = slab_with(CLASS, slab.blocks() - 1);
        drop_current(next);
        next.free.store(slab.blocks() as i32, SeqCst);
        EMPTY.store(FEW, Relaxed);
        GIVEN.store(long_ago(), Relaxed);
        assert_eq!((emptied(next, false), place(next)), (slices * SLICE, DEAD));
        assert_eq!((place(slab), EMPTY.load(Relaxed)), (LISTED, FEW));
        os::now_ms().wrapping_sub(GIVEN.load(Relaxed)) < 50 * SOON
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn others_go_with_a_slab_that_goes_while_there_are_too_many() {
    assert!(is_so(|| {
        // Of four that are counted so many go with another one.
        let gone = |count: usize| {
            purge();
            EMPTY.store(0, Relaxed);
            let slabs = [(); 4].map(|()| empty(CLASS));
            assert!(slabs.iter().all(|slab| is_counted(slab)));
            EMPTY.store(count, Relaxed);
            let last = empty(CLASS);
            assert_eq!(place(last), DEAD);
            dead(slabs)
        };
        let slices = slab_with(CLASS, 0).slices();
        assert_eq!([gone(FEW), gone(FEW + 1), gone(FEW + slices)], [0, 1, 1]);
        assert_eq!([gone(FEW + slices + 1), gone(FEW + 9 * slices)], [2, 2]);
        // They are looked for among the first ones, of which others are not empty.
        let gone_behind = |others: usize| {
            purge();
            EMPTY.store(0, Relaxed);
            let counted = empty(CLASS);
            for _ in 0..others {
                drop_current(slab_with(CLASS, counted.blocks() - 1));
            }
            EMPTY.store(FEW + 1, Relaxed);
            empty(CLASS);
            let is_gone = dead([counted]) == 1;
            // Nobody has those.
            let listed = (0..others).all(|_| take(CLASS).is_some());
            assert!(listed);
            is_gone
        };
        gone_behind(1) && gone_behind(LOOKS - 1) && !gone_behind(LOOKS)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn no_more_goes_than_was_empty_all_the_time() {
    assert!(is_so(|| {
        let two = |class: &usize| classes::slices(*class as u8) == 2;
        let wide = (1..=CLASSES).find(two).unwrap();
        let (one, other) = (empty(wide), empty(wide));
        let idle = |slices: usize| {
            LOWEST.store(slices, Relaxed);
            give_back_idle();
            (dead([one, other]), EMPTY.load(Relaxed))
        };
        // One that is listed and not empty, and one that is empty and not counted.
        let [used, current] = [(); 2].map(|()| slab_with(wide, one.blocks() - 1));
        drop_current(used);
        drop_current(current);
        current.free.store(one.blocks() as i32, SeqCst);
        assert_eq!(idle(1), (0, 4), "a slab has more");
        assert_eq!(idle(2), (1, 2));
        assert_eq!(idle(9), (2, 0));
        assert_eq!((place(used), place(current)), (LISTED, LISTED));
        // Shorter ones go one by one, too.
        let short = (1..=CLASSES).find(|&class| classes::slices(class as u8) == 1).unwrap();
        let slabs = [(); 3].map(|()| empty(short));
        LOWEST.store(1, Relaxed);
        give_back_idle();
        assert_eq!((dead(slabs), EMPTY.load(Relaxed)), (1, 2));
        purge();
        // There are fewer than counted, but some go.
        let last = empty(wide);
        EMPTY.store(9, Relaxed);
        LOWEST.store(2, Relaxed);
        give_back_idle();
        assert_eq!((place(last), EMPTY.load(Relaxed)), (DEAD, 7));
        LOWEST.store(7, Relaxed);
        give_back_idle();
        (EMPTY.load(Relaxed), LOWEST.load(Relaxed)) == (0, 0)
    }));
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_purge_gives_back_all_that_nobody_uses() {
    assert!(is_so(|| {
        let (counted, lost) = (empty(CLASS), slab_with(CLASS, 0));
        assert!(has_empty());
        let blocks = lost.blocks() as i32;
        let [few, used, current] = [(); 3].map(|()| slab_with(CLASS, 0));
        // Whoever freed the last of them did not get the lock.
        for (slab, free) in [(lost, blocks), (few, few.enough() - 1), (used, used.enough())] {
            slab.place.store(FULL, SeqCst);
            slab.free.store(free, SeqCst);
        }
        current.free.store(blocks, SeqCst);
        assert_eq!(purge(), (counted.slices() + lost.slices()) * SLICE);
        assert_eq!([counted, lost, few, used, current].map(place), [DEAD, DEAD, FULL, LISTED, CURRENT]);
        assert_eq!(purge(), 0);
        !has_empty()
    }));
}

/// A list whose lock another thread had is mended; what was idle is not known.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_has_its_lists_and_knows_of_nothing_idle() {
    let _alone = ALONE.lock();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let held = LISTS[CLASS].lock_soon();
            barrier.wait();
            barrier.wait();
            assert!(held.is_some());
        });
        barrier.wait();
        let is_so = child::is_so(|| {
            LOWEST.store(5, Relaxed);
            assert!(LISTS[CLASS].try_lock().is_none());
            inherit();
            LISTS[CLASS].try_lock().is_some() && LOWEST.load(Relaxed) == 0
        });
        barrier.wait();
        assert!(is_so);
    });
}

/// A fork may have come when a slab was taken out forwards, and not yet backwards.
#[test]
fn a_torn_list_is_mended_backwards() {
    for torn in [true, false] {
        // SAFETY: all zero is valid for what a list needs of a record.
        let records = [(); 3].map(|()| unsafe { Box::<Slab>::new_zeroed().assume_init() });
        let [first, out, last] = records.map(Box::into_raw);
        let mut listed = Listed(List::new());
        // SAFETY: records of ours, each in this list only.
        unsafe {
            [last, out, first].into_iter().for_each(|slab| listed.0.push_front(slab));
            Slab::links(first).next.set(last);
            listed.inherit(torn);
            listed.0.remove(last);
            assert_eq!(List::next(first).is_null(), torn);
            [first, out, last].into_iter().for_each(|slab| drop(Box::from_raw(slab)));
        }
    }
}
