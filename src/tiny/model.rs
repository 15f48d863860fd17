//! Models of slabs that change hands: given up, adopted, freed into, released.

use crate::base::counters::Counters;
use crate::lockfree::ready_list::nodes;
use crate::superslab::model::{figures_agree, ground, level, owner, slices_in_use};
use crate::superslab::slab::{Block, LONG, Listed, Owner, SHARED, Slab};
use crate::superslab::{orphans, pool};
use crate::sync::Ordering::Relaxed;
use crate::sync::loom::{beside, model_of_statics as model, second, spare};
use crate::tiny::bins::{Bins, no_slab};
use crate::tiny::classes::{class_of, slices, stride};
use crate::tiny::free::push_remote;
use crate::tiny::free_list;
use crate::tiny::partial_purge::purge_orphans;
use crate::tiny::release::{part_with, release_emptied};
use loom::thread::JoinHandle;
use std::boxed::Box;
use std::vec::Vec;

/// A class of blocks that have a mark.
const CLASS: u8 = 4;

/// The bins of a thread, with their owner. They stay.
fn bins() -> &'static mut Bins {
    let mut bins = Bins::new();
    bins.owner = owner();
    Box::leak(Box::new(bins))
}

/// A slab of these bins, in no list, with so many blocks in use.
fn slab(bins: &mut Bins, blocks: usize) -> (*mut Slab, Vec<*mut Block>) {
    let counters: &'static Counters = Box::leak(Box::new(Counters::new()));
    // SAFETY: the bins are this thread's, and no other thread knows the span.
    unsafe {
        let span = pool::take_span(1, CLASS, |_| None).unwrap();
        Slab::make(span.slab, stride(CLASS as usize), span.zero, bins.owner);
        bins.make_current(span.slab);
        bins.slices += 1;
        bins.present |= 1 << CLASS;
        let blocks = (0..blocks).map(|_| Bins::alloc(bins, CLASS as usize, counters).ptr.cast()).collect();
        Bins::current(bins, CLASS as usize).store(no_slab(), Relaxed);
        Slab::enlist(span.slab, Listed::None);
        (span.slab, blocks)
    }
}

/// Frees blocks of another thread's slab, one by one.
fn free(slab: *mut Slab, blocks: &[*mut Block]) {
    for &block in blocks {
        // SAFETY: the block is in use, and this thread's.
        unsafe { push_remote(slab, block, block, 1) };
    }
}

/// A thread that does so.
fn freer(slab: *mut Slab, blocks: &[*mut Block]) -> JoinHandle<()> {
    let blocks = blocks.to_vec();
    beside(move || free(slab, &blocks))
}

/// Gives up or releases a slab of this thread's, which is in no list; whether it is another's now.
fn parts_with(bins: &mut Bins, slab: *mut Slab) -> bool {
    // SAFETY: the models pass nothing else.
    unsafe { part_with(&mut bins.slices, slab, true) }
}

/// Takes in what was published to an owner; the blocks in use in `slab` after that.
fn collect(owner: *mut Owner, slab: *mut Slab) -> u32 {
    // SAFETY: the owner's thread, or the only one that is left.
    unsafe {
        nodes((*owner).ready.take_all()).for_each(|published| {
            assert_eq!(published, slab);
            free_list::absorb(slab, (*slab).remote.rearm());
        });
        free_list::drain(slab);
        Slab::in_use(slab)
    }
}

/// A slab is given up while another thread frees both of its blocks: one of the two threads ends up with it.
#[test]
fn a_slab_is_given_up_beside_frees() {
    model(Some(2), || {
        ground();
        let old = bins();
        let (slab, blocks) = slab(old, 2);
        let other = freer(slab, &blocks);
        let gone = parts_with(old, slab);
        other.join().unwrap();
        if !gone {
            assert_eq!(collect(old.owner, slab), 0, "every block is back");
            assert!(parts_with(old, slab));
        }
        // SAFETY: the owner stays.
        assert!(unsafe { (*old.owner).ready.is_empty() });
        assert!(orphans::adopt(CLASS).is_none(), "it is nobody's");
        level();
    });
}

/// An orphan is adopted while another thread frees its blocks. Whatever is published goes to the new owner.
#[test]
fn an_orphan_is_adopted_beside_frees() {
    model(Some(2), || {
        ground();
        let (old, new) = (bins(), bins());
        let (slab, blocks) = slab(old, 2);
        assert!(parts_with(old, slab));
        let other = freer(slab, &blocks);
        let adopted = orphans::adopt(CLASS);
        let ours = adopted.is_some();
        if let Some(adopted) = adopted {
            assert_eq!(adopted.slab, slab);
            // SAFETY: the bins are this thread's, and the slab has just been adopted.
            unsafe { new.install_adopted(adopted) };
        }
        other.join().unwrap();
        // SAFETY: owners stay.
        assert!(unsafe { (*old.owner).ready.is_empty() }, "published to the one that has left");
        if ours {
            assert_eq!(collect(new.owner, slab), 0, "every block is back");
            assert!(parts_with(new, slab));
        }
        assert!(orphans::adopt(CLASS).is_none());
        level();
    });
}

/// Statistics look at a slab that was made, given up and adopted just now.
#[test]
fn statistics_see_an_adopted_slab_whole() {
    model(Some(2), || {
        ground();
        let (old, new) = (bins(), bins());
        let span = pool::take_span(1, CLASS, |_| None).unwrap();
        let other = beside(move || {
            // SAFETY: the span is this thread's, and so are the bins.
            unsafe {
                Slab::make(span.slab, stride(CLASS as usize), span.zero, old.owner);
                Slab::count_taken(span.slab);
                assert!(part_with(&mut old.slices, span.slab, true));
                new.install_adopted(orphans::adopt(CLASS).unwrap());
            }
        });
        second(move || figures_agree(span.slab, stride(CLASS as usize) as usize));
        other.join().unwrap();
        level();
    });
}

/// One thread frees into an orphan, a second one gives it a new owner, who gives it up again.
#[test]
fn whoever_frees_follows_only_an_owner_who_is_there() {
    model(Some(2), || {
        ground();
        let (old, new) = (bins(), bins());
        let (slab, blocks) = slab(old, 3);
        assert!(parts_with(old, slab));
        let other = freer(slab, &blocks[..2]);
        // SAFETY: the bins are this thread's, and a block of the slab is in use, so it stays an orphan.
        unsafe { new.install_adopted(orphans::adopt(CLASS).unwrap()) };
        collect(new.owner, slab);
        let gone = parts_with(new, slab);
        other.join().unwrap();
        if !gone {
            assert_eq!(collect(new.owner, slab), 1);
            assert!(parts_with(new, slab));
        }
        free(slab, &blocks[2..]);
        assert!(orphans::adopt(CLASS).is_none());
        // SAFETY: owners stay.
        assert!(unsafe { (*old.owner).ready.is_empty() && (*new.owner).ready.is_empty() });
        level();
    });
}

/// An owner releases an empty slab only when whoever has freed its last block is done with it.
#[test]
fn a_slab_is_released_after_its_last_use() {
    model(Some(3), || {
        ground();
        let own = bins();
        let (slab, blocks) = slab(own, 1);
        let other = freer(slab, &blocks);
        let used = collect(own.owner, slab);
        let gone = used == 0 && parts_with(own, slab);
        other.join().unwrap();
        if !gone {
            assert_eq!(collect(own.owner, slab), 0);
        }
        level();
    });
}

/// In the end: no orphan is left, and each slab went back to the pool, once. Who did not have the orphans'
/// lock in time has left that to a later call.
fn is_all_back() -> bool {
    release_emptied();
    orphans::count(CLASS) == 0 && orphans::adopt(CLASS).is_none() && slices_in_use() == 1
}

/// Gives up all that is in some bins; what was about to be published is by then.
fn leave(bins: &mut Bins) {
    // SAFETY: the bins are the calling thread's, and nobody visits them.
    assert!(unsafe { bins.abandon(&Counters::new(), false) });
    assert_eq!(bins.bytes(), 0);
}

/// Two threads empty an orphan each. Both are taken off their list, by one of them or each by its own.
#[test]
fn orphans_are_emptied_beside_each_other() {
    model(Some(4), || {
        ground();
        let old = bins();
        let [(one, its), (two, theirs)] = [(); 2].map(|()| slab(old, 1));
        assert!(parts_with(old, one) && parts_with(old, two) && orphans::count(CLASS) == 2);
        let other = freer(one, &its);
        free(two, &theirs);
        other.join().unwrap();
        assert!(is_all_back());
        level();
    });
}

/// A slab is given up, and adopted by who needs one, while a third thread frees its blocks.
#[test]
fn a_slab_is_given_up_and_adopted_beside_frees() {
    model(Some(2), || {
        ground();
        let (old, new) = (bins(), bins());
        let (slab, blocks) = slab(old, 2);
        let other = freer(slab, &blocks);
        let new = beside(move || {
            if let Some(adopted) = orphans::adopt(CLASS) {
                // SAFETY: the bins are this thread's, and the slab has just been adopted.
                unsafe { new.install_adopted(adopted) };
                if !parts_with(new, slab) {
                    // SAFETY: the slab is still of these bins, and in no list.
                    unsafe { Bins::keep(new, slab) };
                }
            }
            new
        });
        if !parts_with(old, slab) {
            // SAFETY: the slab is nobody else's, as for the new one.
            unsafe { Bins::keep(old, slab) };
        }
        let new = new.join().unwrap();
        other.join().unwrap();
        leave(old);
        leave(new);
        assert!(is_all_back());
        level();
    });
}

/// A shared slab that was used up is passed on when it was published, and adopted by who needs a block, while
/// another thread frees.
#[test]
fn a_shared_slab_is_passed_on_beside_frees() {
    model(Some(3), || {
        ground();
        let (old, new) = (bins(), bins());
        let (slab, blocks) = slab(old, 3);
        // SAFETY: the slab is of these bins, and in no list.
        unsafe {
            (*slab).rest |= SHARED;
            Bins::push(old, slab, Listed::Full);
        }
        let other = freer(slab, &blocks[..2]);
        let old = second(move || {
            // SAFETY: the bins are this thread's.
            unsafe { old.collect(&Counters::new()) };
            old
        });
        if let Some(adopted) = orphans::adopt(CLASS) {
            // SAFETY: the bins are this thread's, and the slab has just been adopted.
            unsafe {
                new.install_adopted(adopted);
                Bins::push(new, slab, Listed::Full);
            }
        }
        other.join().unwrap();
        free(slab, &blocks[2..]);
        leave(old);
        leave(new);
        assert!(is_all_back());
        level();
    });
}

/// Orphans are purged, for which a thread adopts them for a moment, while another one frees the blocks of
/// one, and so may empty it.
#[test]
fn orphans_are_purged_beside_frees() {
    // There is a count for each class.
    spare(128);
    model(Some(3), || {
        ground();
        let (old, new) = (bins(), bins());
        let (slab, blocks) = slab(old, 2);
        assert!(parts_with(old, slab));
        let other = freer(slab, &blocks);
        // SAFETY: the bins are this thread's, and nobody visits them.
        unsafe { purge_orphans(new, false) };
        other.join().unwrap();
        leave(new);
        assert!(is_all_back());
        level();
    });
}

/// Two threads look for an orphan, of which there is one, while its last block is freed.
#[test]
fn an_orphan_is_adopted_by_one() {
    model(Some(2), || {
        ground();
        let (old, new) = (bins(), bins());
        let (slab, blocks) = slab(old, 1);
        assert!(parts_with(old, slab));
        let freer = freer(slab, &blocks);
        let take = move |bins: &mut Bins| {
            let adopted = orphans::adopt(CLASS)?;
            // SAFETY: the bins are the calling thread's, and the slab has just been adopted.
            unsafe {
                bins.install_adopted(adopted);
                Bins::keep(bins, slab);
            }
            Some(())
        };
        let other = beside(move || (take(new).is_some(), new));
        let ours = take(old).is_some();
        let (theirs, new) = other.join().unwrap();
        freer.join().unwrap();
        assert!(!(ours && theirs));
        leave(old);
        leave(new);
        assert!(is_all_back());
        level();
    });
}

/// Another thread frees into a slab of long blocks that is the current one, or becomes that again meanwhile.
/// What it frees comes before untouched memory if it comes in time, but a refill always finds a block.
fn a_long_block_is_had_beside_frees(is_current: bool) {
    const LONG_CLASS: u8 = class_of(LONG as usize + 1, 8);
    model(Some(3), move || {
        ground();
        let (bins, counters) = (bins(), &*Box::leak(Box::new(Counters::new())));
        let alloc = |bins: &mut Bins| {
            // SAFETY: the bins are this thread's, and nobody visits them.
            unsafe { Bins::alloc(bins, LONG_CLASS as usize, counters) }.ptr.cast::<Block>()
        };
        // SAFETY: as above; the span is theirs alone.
        unsafe {
            let slab = pool::take_span(slices(LONG_CLASS), LONG_CLASS, |_| None).unwrap().slab;
            Slab::make(slab, stride(LONG_CLASS as usize), false, bins.owner);
            bins.make_current(slab);
            bins.slices += slices(LONG_CLASS) as u32;
            bins.present |= 1 << LONG_CLASS;
            let theirs = alloc(bins);
            if !is_current {
                Bins::set_aside(bins, LONG_CLASS as usize);
            }
            let other = freer(slab, &[theirs]);
            let mut ours = alloc(bins);
            if ours.is_null() {
                ours = bins.refill(LONG_CLASS, counters, || false).ptr.cast();
                assert!(!ours.is_null() && (!is_current || ours == theirs));
            }
            assert!(Slab::of(ours.cast()) == slab);
            other.join().unwrap();
            if Bins::push_free(slab, ours) {
                Bins::relist(bins, slab);
            }
        }
        leave(bins);
        assert!(is_all_back());
        level();
    });
}

#[test]
fn a_long_block_is_had_beside_frees_into_the_current_slab() {
    a_long_block_is_had_beside_frees(true);
}

#[test]
fn a_long_block_is_had_beside_frees_into_the_next_slab() {
    a_long_block_is_had_beside_frees(false);
}
