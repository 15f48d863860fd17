//! Tests of what is purged on request, with a slab of this thread alone.

use super::*;
use crate::base::counters::Counters;
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

/// Whether something is chosen, after which it is purged.
///
/// # Safety
///
/// The bins are this thread's alone.
unsafe fn request(bins: *mut Bins, since: u32) -> bool {
    // SAFETY: the caller's clause.
    unsafe {
        let chosen = Chosen::from(bins, ptr::null_mut(), Among::Partial(since));
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
            let since = os::now_ms();
            let left = give(least - 1);
            assert!((*slab).list == Listed::Partial && left > Slab::few(slab));
            // Left alone: it is not sparse, and at the first request too little of it is idle.
            assert!(Chosen::from(bins, ptr::null_mut(), Among::EXCESS).slabs().is_empty());
            assert!(Chosen::from(bins, ptr::null_mut(), Among::Sparse(0)).slabs().is_empty());
            assert!(request(bins, since));
            assert!((*slab).list == Listed::Partial && (*slab).purged.load(Relaxed) == 0);
            assert!(!request(bins, since), "it has been looked at");
            let left = give(1);
            assert!(!request(bins, since));
            assert!(request(bins, os::now_ms().wrapping_add(1)), "another request");
            assert!((*slab).list == Listed::Purged && (*slab).free.is_null());
            assert_eq!((*slab).purged.load(Relaxed).count_ones() as usize, least);
            assert!(!request(bins, os::now_ms().wrapping_add(1)), "it is in another list");
            // After an eighth more it is looked at again.
            let eighth = left.div_ceil(8);
            give(eighth as usize - 1);
            assert!((*slab).list == Listed::Purged);
            give(1);
            assert!((*slab).list == Listed::Partial && (*slab).purged.load(Relaxed) != 0);
            assert!(request(bins, os::now_ms().wrapping_add(1)));
            assert!((*slab).list == Listed::Purged);
            assert_eq!((*slab).purged.load(Relaxed).count_ones(), least as u32 + eighth);
            Bins::unlink(bins, slab);
        }
    });
}

#[test]
fn what_was_purged_on_request_is_handed_out_after_all_else() {
    with_full_slab(|bins, first, blocks, counters| {
        // SAFETY: bins, slabs and blocks are this thread's alone.
        unsafe {
            let class = class_of_pages();
            let second = Slab::claim(Slab::desc(first), 24, 4, class as u8);
            Slab::make(second, stride(class), false, (*bins).owner);
            (*bins).make_current(second);
            let more = || Some(Bins::alloc(bins, class, counters).ptr).filter(|block| !block.is_null());
            let mut others: Vec<_> = core::iter::from_fn(more).collect();
            Bins::set_all_aside(bins);
            let (kept, gone) = blocks.split_at(blocks.len() / 2);
            let since = os::now_ms();
            gone.iter().for_each(|&block| _ = free(first, block));
            Bins::relist(bins, first);
            assert!(request(bins, since) && (*first).list == Listed::Purged);
            let other = others.pop().unwrap();
            free(second, other);
            Bins::relist(bins, second);
            // The one block that is at hand, and then those in purged memory, each once.
            assert_eq!((*bins).refill(class as u8, counters).ptr, other);
            let next = || more().unwrap_or_else(|| (*bins).refill(class as u8, counters).ptr);
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
