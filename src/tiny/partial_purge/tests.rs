//! Tests of what is purged on request, with a slab of this thread alone.

use super::*;
use crate::base::counters::Counters;
use crate::base::list::List;
use crate::superslab::slab::Listed;
use crate::tiny::bins::tests::{free, with_slab};
use crate::tiny::classes::stride;
use std::vec::Vec;

/// A class of whole pages: of each block its page can go back.
fn class_of_pages() -> usize {
    (1..=CLASSES).find(|&class| stride(class) as usize == os::page_size()).unwrap()
}

/// Runs `f` with the bins, the only slab in them, which is full, and its blocks.
fn with_full_slab(f: impl FnOnce(*mut Bins, *mut Slab, Vec<*mut u8>, &Counters)) {
    let class = class_of_pages();
    // So many that a granule is one page.
    let slices = (os::page_size() >> 10).min(16);
    with_slab(class, slices, false, |bins, slab, counters| {
        // SAFETY: bins and slab are this thread's alone.
        unsafe {
            let blocks = 0..(*slab).last / (*slab).stride + 1;
            let blocks = blocks.map(|_| Bins::alloc(bins, class, counters).ptr).collect();
            Bins::set_all_aside(bins);
            f(bins, slab, blocks, counters);
        }
    });
}

/// [`with_full_slab`] with a second slab, which is full as well.
fn with_full_slabs(f: impl FnOnce(*mut Bins, [*mut Slab; 2], [Vec<*mut u8>; 2], &Counters)) {
    let class = class_of_pages();
    with_full_slab(|bins, first, blocks, counters| {
        // SAFETY: bins and slabs are this thread's alone; the place of the second is free.
        unsafe {
            let second = Slab::claim(Slab::desc(first), 24, 4, class as u8);
            Slab::make(second, stride(class), false, (*bins).owner);
            (*bins).make_current(second);
            let others = core::iter::from_fn(|| more(bins, counters)).collect();
            Bins::set_all_aside(bins);
            f(bins, [first, second], [blocks, others], counters);
        }
    });
}

/// A block of the current slab, if it has one.
///
/// # Safety
///
/// The bins are this thread's alone.
unsafe fn more(bins: *mut Bins, counters: &Counters) -> Option<*mut u8> {
    // SAFETY: the caller's clause.
    let block = unsafe { Bins::alloc(bins, class_of_pages(), counters).ptr };
    (!block.is_null()).then_some(block)
}

/// Whether something is chosen, after which it is purged.
///
/// # Safety
///
/// The bins are this thread's alone.
unsafe fn request(bins: *mut Bins) -> bool {
    // SAFETY: the caller's clause.
    unsafe {
        let chosen = Chosen::from(bins, ptr::null_mut(), &mut Among::Partial(CLASSES));
        chosen.purge(bins, ptr::null_mut(), false);
        !chosen.slabs().is_empty()
    }
}

#[test]
fn a_partial_slab_is_purged_on_request_if_an_eighth_of_it_is_idle() {
    with_full_slab(|bins, slab, mut blocks, _| {
        // SAFETY: bins, slab and blocks are this thread's alone.
        unsafe {
            let least = Granules::of(slab).count.div_ceil(WORTH);
            let mut give = |count| {
                for _ in 0..count {
                    free(slab, blocks.pop().unwrap());
                    Bins::relist(bins, slab);
                }
                blocks.len() as u32
            };
            let left = give(least - 1);
            assert!((*slab).list == Listed::Partial && left > Slab::few(slab));
            // Left alone: it is not sparse, and at the first request too little of it is idle.
            assert!(Chosen::from(bins, ptr::null_mut(), &mut Among::Sparse(NEWEST)).slabs().is_empty());
            assert!(Chosen::from(bins, ptr::null_mut(), &mut Among::Sparse(0)).slabs().is_empty());
            assert!(request(bins));
            assert!((*slab).list == Listed::Partial && (*slab).purged.load(Relaxed) == 0);
            // It is looked at again after an eighth more, whether something was purged or not.
            let eighth = left.div_ceil(8) as usize;
            let left = give(eighth - 1);
            assert!(!request(bins) && (*slab).list == Listed::Partial);
            let left = left - 1;
            give(1);
            assert!(request(bins) && (*slab).list == Listed::Purged && (*slab).free.is_null());
            let idle = || (*slab).purged.load(Relaxed).count_ones() as usize;
            assert_eq!(idle(), least - 1 + eighth);
            let next = left.div_ceil(8) as usize;
            give(next - 1);
            assert!(!request(bins) && (*slab).list == Listed::Purged);
            give(1);
            assert!(
                (*slab).list == Listed::Partial && !Slab::is_spared(slab) && idle() == least - 1 + eighth
            );
            // Then also what is less than an eighth of the slab.
            assert!(request(bins) && (*slab).list == Listed::Purged);
            assert_eq!(idle(), least - 1 + eighth + next);
            Bins::unlink(bins, slab);
        }
    });
}

#[test]
fn what_was_purged_on_request_is_handed_out_after_all_else() {
    with_full_slabs(|bins, [first, second], [blocks, mut others], counters| {
        let class = class_of_pages() as u8;
        // SAFETY: bins, slabs and blocks are this thread's alone.
        unsafe {
            let (kept, gone) = blocks.split_at(blocks.len() / 2);
            gone.iter().for_each(|&block| _ = free(first, block));
            Bins::relist(bins, first);
            assert!(request(bins) && (*first).list == Listed::Purged);
            let other = others.pop().unwrap();
            free(second, other);
            Bins::relist(bins, second);
            // The one block that is at hand, and then those in purged memory, each once.
            assert_eq!((*bins).refill(class, counters, || false).ptr, other);
            let next =
                || more(bins, counters).unwrap_or_else(|| (*bins).refill(class, counters, || false).ptr);
            let mut again: Vec<_> = gone.iter().map(|_| next()).collect();
            again.sort_unstable();
            assert_eq!(again, gone);
            assert!((*first).purged.load(Relaxed) == 0 && Slab::in_use(first) as usize == blocks.len());
            assert!((*first).inverse.load(Relaxed) != 0 && !kept.is_empty());
            Bins::set_all_aside(bins);
            Bins::unlink(bins, first);
            Bins::unlink(bins, second);
        }
    });
}

#[test]
fn slabs_with_something_to_purge_are_found_wherever_they_are_and_serve_after_others() {
    with_full_slabs(|bins, [first, second], [blocks, others], _| {
        let class = class_of_pages();
        // SAFETY: bins, slabs and blocks are this thread's alone.
        unsafe {
            let give = |slab, blocks: &[*mut u8]| {
                for &block in blocks {
                    free(slab, block);
                    Bins::relist(bins, slab);
                }
            };
            let half = blocks.len() / 2;
            give(first, &blocks[half..]);
            assert!(request(bins) && (*first).list == Listed::Purged);
            // Nothing is gained by one block, and then the slab is spared.
            give(second, &others[..1]);
            let order = || {
                let partial = (&(*bins).partial)[class].first();
                (partial, if partial.is_null() { partial } else { List::<Slab>::next(partial) })
            };
            Slab::spare(second);
            assert!(order() == (second, ptr::null_mut()) && !request(bins));
            // An eighth more of the first: behind the other one, which has nothing purged.
            give(first, &blocks[..half.div_ceil(8)]);
            assert!(order() == (second, first) && !Slab::is_spared(first) && Slab::is_spared(second));
            assert!(request(bins) && (*first).list == Listed::Purged && !request(bins));
            // As it is, whatever was noted when it was in the list before.
            Bins::unlink(bins, second);
            Bins::push(bins, second, Listed::Partial);
            assert!(!Slab::is_spared(second));
            [first, second].into_iter().for_each(|slab| Bins::unlink(bins, slab));
        }
    });
}

/// So that no request looks at it again for nothing.
#[test]
fn an_orphan_is_not_due_until_an_eighth_more_of_it_is_free() {
    let _alone = orphans::ALONE.lock();
    with_full_slab(|bins, slab, mut blocks, _| {
        // SAFETY: bins, slab and blocks are this thread's alone, and so are orphans while we have the lock.
        unsafe {
            let least = Granules::of(slab).count.div_ceil(WORTH);
            let mut give = |count| (0..count).for_each(|_| _ = free(slab, blocks.pop().unwrap()));
            // As an orphan, which is ours again afterwards, in no list.
            let purged = |all| {
                assert!(release::part_with(&mut 1000, slab, false));
                (*bins).present = 0;
                purge_orphans(bins, all);
                assert_eq!((*bins).present, 0, "nobody has needed one");
                let orphan = orphans::adopt((*slab).class).unwrap();
                assert!(orphan.slab == slab);
                (*bins).install_adopted(orphan);
                (*slab).purged.load(Relaxed).count_ones() as usize
            };
            Bins::unlink(bins, slab);
            give(least - 1);
            assert!(Slab::is_due(slab) && purged(true) == 0 && !Slab::is_due(slab));
            let eighth = Slab::in_use(slab).div_ceil(8) as usize;
            give(eighth - 1);
            assert!(!Slab::is_due(slab) && purged(true) == 0);
            give(1);
            assert!(Slab::is_due(slab) && purged(false) == 0, "only sparse ones");
            assert_eq!(purged(true), least - 1 + eighth);
            assert!(!Slab::is_due(slab));
            Bins::push(bins, slab, Listed::Full);
            Bins::unlink(bins, slab);
            assert!(Slab::is_due(slab), "it was listed meanwhile");
        }
    });
}
