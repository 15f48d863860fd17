//! Tests of one heap's slabs, on one that stands by itself.

use super::*;
use crate::os;
use crate::superslab::desc::Desc;
use crate::superslab::layout::SUPERSLAB;
use crate::superslab::slab::Listed;
use crate::tiny::classes::{CLASSES, stride};
use crate::tiny::release;
extern crate std;
use std::vec::Vec;

const SECRET: usize = 1 << 63 | 0x5a5a;

/// Runs `f` with bins whose current slab of `class` is a new one, of `slices` slices.
pub(crate) fn with_slab(
    class: usize,
    slices: usize,
    zero: bool,
    f: impl FnOnce(*mut Bins, *mut Slab, &Counters),
) {
    let base = os::map_aligned(ptr::null_mut(), SUPERSLAB, SUPERSLAB);
    assert!(!base.is_null());
    let owner = Owner::new();
    let mut bins = Bins::new();
    (bins.owner, bins.secret, bins.present) = ((&raw const owner).cast_mut(), SECRET, 1 << class);
    // SAFETY: the place for a SuperSlab was just mapped, and nobody else knows it or the bins.
    unsafe {
        let slab = Slab::claim(Desc::stand_in(base), 8, slices, class as u8);
        Slab::make(slab, stride(class), zero, bins.owner);
        bins.make_current(slab);
        f(&raw mut bins, slab, &Counters::new());
        os::discard(base, SUPERSLAB);
    }
}

/// The second word of a block.
///
/// # Safety
///
/// It lies in a slab that the calling thread has.
unsafe fn second(block: *mut u8) -> *mut usize {
    block.cast::<usize>().wrapping_add(1)
}

/// Frees a block as its owner.
///
/// # Safety
///
/// It is in use, and of 16 bytes or more.
pub(crate) unsafe fn free(slab: *mut Slab, block: *mut u8) -> bool {
    // SAFETY: the caller's clause.
    unsafe {
        Block::set_mark(block.cast(), SECRET, true);
        Bins::push_free(slab, block.cast())
    }
}

/// `count` slots.
fn slots(count: usize) -> Vec<Slot> {
    (0..count).map(|_| Slot::new(ptr::null_mut())).collect()
}

/// What is in them.
fn blocks(slots: &[Slot]) -> Vec<*mut u8> {
    slots.iter().map(|slot| slot.load(Relaxed)).collect()
}

#[test]
fn many_blocks_at_a_time_are_freed_ones_and_then_untouched_ones_each_once() {
    let class = 8;
    let size = stride(class) as usize;
    with_slab(class, 1, false, |bins, slab, counters| {
        // SAFETY: bins, slab and blocks are this thread's alone.
        unsafe {
            let start = (*slab).start;
            let at = |n: usize| start.wrapping_add(n * size);
            // An earlier slab has left marks.
            (0..9).for_each(|n| Block::set_mark(at(n).cast(), SECRET, true));
            let first: Vec<_> = (0..4).map(|_| Bins::alloc(bins, class, counters).ptr).collect();
            assert_eq!(first, [at(0), at(1), at(2), at(3)]);
            assert!(first.iter().all(|&block| !Block::is_marked(block.cast(), SECRET)));
            first.iter().for_each(|&block| assert!(!free(slab, block)));
            assert_eq!(Slab::in_use(slab), 0);
            // Fewer than are free: the rest stay.
            let to = slots(2);
            assert_eq!(Bins::alloc_many(bins, class, counters, &to, false), 2);
            assert_eq!(blocks(&to), [at(3), at(2)]);
            assert_eq!(((*slab).free.cast(), Slab::in_use(slab)), (at(1), 2));
            assert_eq!((counters.refill_current.get(), counters.refill_bump.get()), (2, 4));
            // More: then untouched ones, by ascending address from the end.
            let to = slots(5);
            assert_eq!(Bins::alloc_many(bins, class, counters, &to, false), 5);
            assert_eq!(blocks(&to), [at(1), at(0), at(6), at(5), at(4)]);
            assert!((*slab).free.is_null() && (*slab).bump == at(7));
            assert_eq!(
                (Slab::in_use(slab), counters.refill_current.get(), counters.refill_bump.get()),
                (7, 4, 7)
            );
            assert!((0..7).all(|n| !Block::is_marked(at(n).cast(), SECRET)));
            assert!(Block::is_marked(at(7).cast(), SECRET), "not handed out");
            // No freed ones, and hardly any untouched ones.
            let all = ((*slab).last as usize + size) / size;
            let to = slots(all);
            assert_eq!(Bins::alloc_many(bins, class, counters, &to, false), all - 7);
            assert_eq!(to[0].load(Relaxed), at(all - 1));
            assert_eq!((to[all - 8].load(Relaxed), to[all - 7].load(Relaxed)), (at(7), ptr::null_mut()));
            assert_eq!((Slab::in_use(slab) as usize, (*slab).bump), (all, (*slab).end));
            assert_eq!(Bins::alloc_many(bins, class, counters, &to, false), 0);
            assert!(Bins::alloc(bins, class, counters).ptr.is_null());
        }
    });
}

#[test]
fn what_is_in_blocks_stays_where_there_is_no_mark() {
    // Blocks of 8 bytes, whose second word is another block; and memory that is said to be zero.
    for (class, zero) in [(UNMARKED, false), (UNMARKED, true), (8, true)] {
        let size = stride(class) as usize;
        with_slab(class, 1, zero, |bins, slab, counters| {
            // SAFETY: bins, slab and blocks are this thread's alone.
            unsafe {
                let at = |n: usize| (*slab).start.wrapping_add(n * size);
                let all = || (0..12).map(|n| *second(at(n)));
                (0..12).for_each(|n| *second(at(n)) = n + 1000);
                let taken = [(); 2].map(|()| Bins::alloc(bins, class, counters));
                assert!(taken.iter().all(|block| block.zeroed == zero));
                let to = slots(3);
                assert_eq!(Bins::cut_ahead(bins, class, counters, &to, false), 3);
                assert_eq!(blocks(&to), [at(4), at(3), at(2)]);
                assert_eq!(Bins::alloc_many(bins, class, counters, &to, false), 3);
                assert!(all().eq(1000..1012));
                if class == UNMARKED {
                    // The link of each lies where the second word of the one before it is.
                    for n in [1, 3, 5, 7] {
                        *second(at(n)) = 77;
                        assert!(!Bins::push_free(slab, at(n).cast()));
                    }
                    assert_eq!(Bins::alloc(bins, class, counters).ptr, at(7));
                    assert_eq!(Bins::alloc_many(bins, class, counters, &to, false), 3);
                    assert!([1, 3, 5, 7].iter().all(|&n| *second(at(n)) == 77));
                }
            }
        });
    }
}

#[test]
fn a_slab_that_is_to_be_cut_serves_freed_blocks_and_is_known_by_a_bit() {
    for zero in [false, true] {
        with_slab(8, 1, zero, |bins, slab, counters| {
            let rest = if zero { ZERO } else { 0 };
            // SAFETY: bins, slab and blocks are this thread's alone.
            unsafe {
                let block = Bins::alloc(bins, 8, counters).ptr;
                assert!(!Bins::is_cut(bins, 8) && (*slab).rest == rest);
                for _ in 0..2 {
                    Bins::set_cut(bins, 8, true);
                    assert!(Bins::is_cut(bins, 8) && (*slab).rest == rest | CUT);
                }
                assert!(Bins::alloc(bins, 8, counters).ptr.is_null());
                free(slab, block);
                assert_eq!(Bins::alloc(bins, 8, counters).ptr, block);
                // Another thread's free comes first only where that is to be.
                (*slab).remote.push(block.cast::<Block>(), block.cast::<Block>(), 1);
                assert!(Bins::is_cut(bins, 8));
                (*slab).rest |= FREED_FIRST;
                assert!(!Bins::is_cut(bins, 8) && Bins::alloc(bins, 8, counters).ptr.is_null());
                assert_eq!((*bins).refill(8, counters, || false).ptr, block);
                assert!(Bins::is_cut(bins, 8));
                (*slab).rest &= !FREED_FIRST;
                for _ in 0..2 {
                    Bins::set_cut(bins, 8, false);
                    assert!(!Bins::is_cut(bins, 8) && (*slab).rest == rest);
                }
                // When it becomes the current one again, that begins anew, and what it has is as zero as
                // before.
                Bins::set_cut(bins, 8, true);
                Bins::set_aside(bins, 8);
                assert!((*slab).list == Listed::Partial && Bins::current(bins, 8).load(Relaxed) == no_slab());
                Bins::set_aside(bins, 8);
                Bins::unlink(bins, slab);
                (*bins).make_current(slab);
                assert!(!Bins::is_cut(bins, 8) && (*slab).rest == rest);
            }
        });
    }
}

#[test]
fn a_slab_is_named_by_its_class_while_it_is_current_and_by_its_blocks() {
    with_slab(8, 2, false, |bins, slab, counters| {
        let name = |n: usize| ptr::without_provenance_mut(n);
        // SAFETY: bins, slab and blocks are this thread's alone; names are not followed.
        unsafe {
            let taken: Vec<_> = (0..9).map(|_| Bins::alloc(bins, 8, counters).ptr).collect();
            assert!(Bins::is_named(slab, name(8)) && !Bins::is_named(slab, name(7)));
            Bins::set_aside(bins, 8);
            assert!(!Bins::is_named(slab, name(8)) && !Bins::is_named(slab, name(0)));
            let (base, end) = ((*slab).start, (*slab).start.wrapping_add(2 << SLICE_SHIFT));
            assert!(Bins::is_named(slab, base) && Bins::is_named(slab, end.wrapping_sub(8)));
            assert!(!Bins::is_named(slab, base.wrapping_sub(8)) && !Bins::is_named(slab, end));
            assert!(!Bins::is_named(slab, name(KINDS)));
            // A block that is put names it no longer, another one does.
            (*slab).low = 6;
            assert!(!free(slab, taken[4]));
            assert!(!Bins::is_named(slab, taken[4]) && Bins::is_named(slab, taken[5]));
            // But if the slab is to change its list for that block, its owner is not done.
            assert!(!free(slab, taken[5]) && free(slab, taken[6]));
            assert!(!Bins::is_named(slab, taken[5].wrapping_sub(1 << 20)) && Bins::is_named(slab, taken[6]));
            (*slab).low = 7;
            assert!(Bins::is_named(slab, taken[6]));
        }
    });
}

#[test]
fn what_is_on_a_slabs_list_or_on_its_way_there_is_found() {
    with_slab(8, 1, false, |bins, slab, counters| {
        // SAFETY: bins, slab and blocks are this thread's alone.
        unsafe {
            let taken: Vec<_> = (0..6).map(|_| Bins::alloc(bins, 8, counters).ptr).collect();
            let bins = &mut *bins;
            assert!(!bins.holds(slab, taken[0].cast()));
            (0..2).for_each(|n| assert!(!free(slab, taken[n])));
            let (head, tail) = (taken[2].cast::<Block>(), taken[3].cast::<Block>());
            Block::set_next(head, tail);
            (*slab).remote.push(head, tail, 2);
            let held: Vec<_> = taken.iter().map(|&block| bins.holds(slab, block.cast())).collect();
            assert_eq!(held, [true, true, true, true, false, false]);
            let untouched = (*slab).bump;
            assert!(untouched < (*slab).end && bins.holds(slab, untouched.cast()));
            assert!(!bins.holds(slab, (*slab).end.cast()));
            assert_eq!(Slab::in_use(slab), 2);
        }
    });
}

#[test]
fn bins_that_are_cleared_keep_who_they_are() {
    let mut bins = Bins::new();
    (bins.owner, bins.secret, bins.slices) = (ptr::without_provenance_mut(4096), SECRET, 3);
    (bins.present, bins.emptied[5]) = (6, 7);
    assert_eq!(bins.bytes(), 3 << SLICE_SHIFT);
    bins.clear();
    assert_eq!(
        (bins.owner.addr(), bins.secret, bins.bytes(), bins.present, bins.emptied[5]),
        (4096, SECRET, 0, 0, 0)
    );
}

#[test]
fn a_slab_moves_to_where_it_belongs_as_its_blocks_come_back() {
    let class = 8;
    with_slab(class, 1, false, |bins, slab, counters| {
        // SAFETY: bins, slab and blocks are this thread's alone, but for the count of idle slices.
        unsafe {
            let all = (*slab).last / (*slab).stride + 1;
            let few = Slab::few(slab);
            assert!(few >= 2 && few * 4 < all);
            let mut taken: Vec<_> = (0..all).map(|_| Bins::alloc(bins, class, counters).ptr).collect();
            assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Current);
            Bins::set_aside(bins, class);
            assert!((*slab).list == Listed::Full && (*bins).full.first() == slab && (*slab).filled);
            assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Full);
            assert!(!Bins::has_more(slab));
            assert!(free(slab, taken.pop().unwrap()) && Bins::has_more(slab));
            assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Partial);
            assert!((*bins).full.first().is_null() && (&(*bins).partial)[class].first() == slab);
            while taken.len() as u32 > few + 1 {
                assert!(!free(slab, taken.pop().unwrap()));
            }
            assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Partial);
            assert_eq!((&(*bins).emptied)[class], 0);
            assert!(free(slab, taken.pop().unwrap()));
            assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Sparse);
            assert!((&(*bins).partial)[class].first().is_null() && (&(*bins).sparse)[class].first() == slab);
            assert_eq!(((&(*bins).emptied)[class], (*bins).untold), (1, 1));
            // As if it had been purged with all of its blocks in use.
            Bins::unlink(bins, slab);
            assert_eq!((*bins).untold, 0);
            (*slab).used.store(4, Relaxed);
            Bins::push(bins, slab, Listed::Purged);
            assert_eq!(((*bins).untold, (*slab).low), (0, 2));
            (*slab).used.store(3, Relaxed);
            assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Purged);
            (*slab).used.store(2, Relaxed);
            assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Sparse);
            assert_eq!(((&(*bins).emptied)[class], (*bins).untold), (1, 1), "it has been counted before");
            // From full to sparse, as when another thread returns nearly all.
            for count in 2..=4 {
                assert!(!(*bins).take_sparse(class));
                Bins::unlink(bins, slab);
                Bins::push(bins, slab, Listed::Full);
                assert!(!Bins::relist(bins, slab) && (*slab).list == Listed::Sparse);
                assert_eq!(((&(*bins).emptied)[class], (*bins).untold), (count, 1));
            }
            assert!((*bins).take_sparse(class) && !(*bins).take_sparse(class));
            assert!((&(*bins).emptied)[class] == 0);
            Bins::unlink(bins, slab);
            assert!((*slab).list == Listed::None && (*bins).untold == 0);
        }
    });
}

/// What has nothing of its own may have something on the way, or purged memory.
#[test]
fn a_slab_has_more_wherever_that_is() {
    with_slab(8, 1, false, |bins, slab, counters| {
        // SAFETY: bins, slab and blocks are this thread's alone.
        unsafe {
            assert!(Bins::has_more(slab));
            let mut last = ptr::null_mut();
            while let block @ 1.. = Bins::alloc(bins, 8, counters).ptr.addr() {
                last = (*slab).start.with_addr(block);
            }
            assert!(!Bins::has_more(slab));
            (*slab).purged.store(4, Relaxed);
            assert!(Bins::has_more(slab));
            (*slab).purged.store(0, Relaxed);
            (*slab).remote.push(last.cast(), last.cast(), 1);
            assert!(Bins::has_more(slab));
            Bins::holds(&mut *bins, slab, last.cast());
            assert!(!(*slab).remote.has_chain() && Bins::has_more(slab));
        }
    });
}

#[test]
fn sparse_slabs_that_were_purged_come_last() {
    with_slab(8, 1, false, |bins, first, _| {
        // SAFETY: bins and slabs are this thread's alone.
        unsafe {
            let desc = Slab::desc(first);
            let more = [10, 12].map(|index| {
                let slab = Slab::claim(desc, index, 1, 8);
                Slab::make(slab, stride(8), false, (*bins).owner);
                slab
            });
            Bins::unlink(bins, first);
            for (slab, list) in
                [(first, Listed::Sparse), (more[0], Listed::Purged), (more[1], Listed::Sparse)]
            {
                Bins::push(bins, slab, list);
            }
            let mut seen = [ptr::null_mut(); 3];
            seen[0] = (&(*bins).sparse)[8].first();
            (seen[1], seen[2]) =
                (List::<Slab>::next(seen[0]), List::<Slab>::next(List::<Slab>::next(seen[0])));
            assert_eq!(seen, [more[1], first, more[0]]);
            assert_eq!((*bins).untold, 2);
            seen.iter().for_each(|&slab| Bins::unlink(bins, slab));
        }
    });
}

#[test]
fn slices_below_what_was_handed_out_are_dirty() {
    let class = CLASSES;
    let size = stride(class) as usize;
    for (index, slices) in [(0, 3), (8, 1), (8, 4), (0, 32)] {
        with_slab(class, 1, false, |bins, other, _| {
            // SAFETY: the records and the memory are this thread's alone.
            unsafe {
                let slab = Slab::claim(Slab::desc(other), index, slices, class as u8);
                Slab::make(slab, size as u32, false, (*bins).owner);
                let header = (*slab).start.addr() & 0xffff;
                let all = (1u64 << slices) - 1;
                assert_eq!(release::dirty(slab), 0, "nothing was handed out");
                for blocks in 1..=((*slab).end.addr() - (*slab).start.addr()) / size {
                    (*slab).bump = (*slab).start.wrapping_add(blocks * size);
                    let touched = (header + blocks * size).div_ceil(1 << SLICE_SHIFT);
                    assert_eq!(release::dirty(slab) as u64, (1 << touched) - 1, "{index} {slices} {blocks}");
                }
                (*slab).bump = (*slab).start;
                (*slab).revived = true;
                assert_eq!(release::dirty(slab) as u64, all);
            }
        });
    }
}

#[test]
fn an_owner_that_takes_in_what_was_published_or_was_visited_is_back() {
    with_slab(8, 1, false, |bins, slab, counters| {
        // SAFETY: bins, slab and blocks are this thread's alone.
        unsafe {
            let [block, _] = [(); 2].map(|()| Bins::alloc(bins, 8, counters).ptr.cast::<Block>());
            let owner = &*(*bins).owner;
            let collected = |idle| {
                owner.idle.store(idle, Relaxed);
                (*bins).collect(counters);
                owner.idle.load(Relaxed)
            };
            assert_eq!(collected(5), 5, "there was nothing");
            owner.visited.store(1, Relaxed);
            assert_eq!((collected(5), owner.visited.load(Relaxed)), (0, 0));
            (*slab).remote.push(block, block, 1);
            Slab::publish(slab);
            assert_eq!((collected(5), counters.refill_ready.get(), Slab::in_use(slab)), (0, 1, 1));
            assert!(owner.ready.is_empty() && (*slab).remote.is_armed());
        }
    });
}
