//! The slabs that one heap owns, by class: where its blocks come from when a magazine is empty.
//!
//! Each class has a current slab, which serves allocations; partial slabs, which have free blocks, fullest
//! first as far as that is cheap to know; and sparse slabs, which have hardly a block in use and serve last,
//! with those of which a part was purged on request ([`partial_purge`](super::partial_purge)). Full slabs are
//! listed only so that they can be found when the thread ends.
//!
//! Everything that changes these lists ([`lists`](super::lists)) runs under the heap's
//! [lock](crate::lockfree::biased_lock). Only [`Bins::alloc`] and [`Bins::push_free`] run without it, and
//! they change no list. The lock says how a visitor learns which slab they may be at ([`Bins::is_named`]).
//! The functions that a visitor calls take pointers, not references, because the owner may be in one of those
//! two meanwhile.

use crate::base::counters::Counters;
use crate::base::list::List;
use crate::base::prefetch::prefetch;
use crate::base::table::{CellTable, Table};
use crate::lockfree::magazine_slots::Slot;
use crate::superslab::layout::SLICE_SHIFT;
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::{Allocation, BY_PAGE, Block, CUT, FREED_FIRST, NO_SLAB, Owner, Slab, ZERO};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicPtr, Node, wrote};
use crate::tiny::classes::Bursts;
use crate::tiny::{free_list, idle};
use core::hint::assert_unchecked;
use core::ptr;

/// The class of 8-byte blocks, which have no room for the mark of a free block.
pub(crate) const UNMARKED: usize = 1;

/// The slabs of one heap.
#[repr(C)]
pub(crate) struct Bins {
    /// The `owner` field of these slabs. Null in a placeholder, which owns none.
    pub(crate) owner: *mut Owner,
    /// Mixed into the marks of free blocks, so that a program's data does not look like a mark.
    pub(crate) secret: usize,
    /// The slab that each class allocates from. [`NO_SLAB`] where there is none, so [`Bins::alloc`] needs no
    /// check. Written under the heap's lock.
    current: CellTable<AtomicPtr<Slab>, KINDS>,
    pub(super) partial: Table<List<Slab>, KINDS>,
    /// Sparse slabs come first, and then purged ones, sparse or not.
    pub(super) sparse: Table<List<Slab>, KINDS>,
    /// Full slabs of all classes.
    pub(super) full: List<Slab>,
    /// By class: how many slabs have nearly emptied since [`Bins::take_sparse`] last reported them.
    pub(super) emptied: Table<u8, KINDS>,
    /// Whether slabs of these bins are [shared](super::shared), so that new ones are from the start.
    pub(crate) shares: bool,
    /// Idle slices that are not yet added to the count of all heaps: see [`idle::tell`].
    pub(super) untold: i16,
    /// Slices of all slabs here.
    pub(super) slices: u32,
    /// Of which classes the owner keeps slabs that are shared, for a while.
    pub(crate) bursts: Bursts,
    /// The classes that have had a slab since their owner gave up all, one bit each.
    pub(super) present: u64,
}

pub(super) const fn no_slab() -> *mut Slab {
    (&raw const NO_SLAB).cast_mut()
}

impl Bins {
    /// No slabs.
    pub(crate) const fn new() -> Self {
        Self {
            current: CellTable::new([const { AtomicPtr::new(no_slab()) }; KINDS]),
            owner: ptr::null_mut(),
            secret: 0,
            partial: Table([const { List::new() }; KINDS]),
            sparse: Table([const { List::new() }; KINDS]),
            full: List::new(),
            emptied: Table([0; KINDS]),
            shares: false,
            untold: 0,
            slices: 0,
            bursts: Bursts::NONE,
            present: 0,
        }
    }

    /// Whether the owner has needed a slab of `class`, or there is one that could not be given up.
    #[inline(always)]
    pub(crate) fn has_had(&self, class: usize) -> bool {
        self.present & 1 << class != 0
    }

    /// Bytes of all slabs here.
    pub(crate) fn bytes(&self) -> usize {
        (self.slices as usize) << SLICE_SHIFT
    }

    /// Forgets all slabs: for a new record, or after all have been [`disown`](super::release::disown)ed.
    pub(crate) fn clear(&mut self) {
        idle::tell(&mut self.untold);
        *self = Bins { owner: self.owner, secret: self.secret, ..Bins::new() };
    }

    /// Takes a block of the current slab of `class`: a freed one first, then untouched memory. Null if it has
    /// neither, or if [`Bins::refill`] or [`Bins::cut_ahead`] comes first: because untouched memory is to be
    /// [cut](CUT) many blocks at a time, or comes [after](FREED_FIRST) what other threads have freed.
    ///
    /// This is the second level behind the magazines, kept short: it serves every burst longer than a
    /// magazine.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, and either holds their heap's lock or has named the class; or they
    /// are a placeholder's. `class` is less than [`KINDS`]. `counters` are those of the same heap.
    #[inline(always)]
    pub(crate) unsafe fn alloc(bins: *mut Bins, class: usize, counters: *const Counters) -> Allocation {
        // SAFETY: the caller's clauses are the same; the slab is the current one.
        unsafe {
            Bins::alloc_unless(bins, class, counters, |slab| {
                let rest = (*slab).rest;
                rest >= CUT
                    && (rest & CUT != 0
                        || (rest & BY_PAGE == 0 || Slab::begins_page(slab))
                            && (*slab).remote.has_chain_of_own())
            })
        }
    }

    /// [`Bins::alloc`] of whatever there is.
    ///
    /// # Safety
    ///
    /// As [`Bins::alloc`].
    #[inline(always)]
    pub(super) unsafe fn alloc_any(bins: *mut Bins, class: usize, counters: *const Counters) -> Allocation {
        // SAFETY: the caller's clauses are the same.
        unsafe { Bins::alloc_unless(bins, class, counters, |_| false) }
    }

    /// [`Bins::alloc`], where untouched memory is taken unless `waits`.
    ///
    /// # Safety
    ///
    /// As [`Bins::alloc`].
    #[inline(always)]
    unsafe fn alloc_unless(
        bins: *mut Bins,
        class: usize,
        counters: *const Counters,
        waits: impl Fn(*mut Slab) -> bool,
    ) -> Allocation {
        // SAFETY: `class` is an index of `current`. The current slab belongs to these bins. Visitors leave it
        // alone while the class is named, so only this thread writes its owner's line. Blocks on `free` and
        // memory from `bump` on belong to nobody else. `NO_SLAB` has neither, so nothing is written to it.
        unsafe {
            let slab = (*(&raw const (*bins).current).cast::<AtomicPtr<Slab>>().add(class)).load(Relaxed);
            let block = (*slab).free;
            if !block.is_null() {
                let next = Block::next(block);
                (*slab).free = next;
                wrote(slab);
                prefetch(next);
                if class != UNMARKED {
                    Block::set_mark(block, (*bins).secret, false);
                }
                Slab::count_taken(slab);
                (*counters).refill_current.add(1);
                return Allocation { ptr: block.cast(), zeroed: false };
            }
            let block = (*slab).bump;
            if block != (*slab).end {
                // The compiler does not see that a slab's memory is nowhere near null.
                assert_unchecked(!block.is_null());
                if waits(slab) {
                    return Allocation::NONE;
                }
                let is_zero = (*slab).rest & ZERO != 0;
                if !is_zero && class != UNMARKED {
                    // An earlier slab in this place may have left a mark.
                    Block::set_mark(block.cast(), (*bins).secret, false);
                }
                wrote(slab);
                Slab::set_bump(slab, block.wrapping_add((*slab).stride as usize));
                Slab::count_taken(slab);
                (*counters).refill_bump.add(1);
                return Allocation { ptr: block, zeroed: is_zero };
            }
        }
        Allocation::NONE
    }

    /// Takes as many blocks of the current slab of `class` as it has and as there is room for in `to`, and
    /// returns how many. Who takes them from the end of `to` gets untouched memory by ascending address. If
    /// they are for a magazine whose blocks are `marked`, they get the lower half of the mark where memory is
    /// not untouched: so that C's `free` finds that they have been freed before.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins and holds their heap's lock. `class` is a size class. `counters`
    /// are those of the same heap. Nobody else uses the slots.
    #[inline(always)]
    pub(crate) unsafe fn alloc_many(
        bins: *mut Bins,
        class: usize,
        counters: *const Counters,
        to: &[Slot],
        marked: bool,
    ) -> usize {
        // SAFETY: as in `alloc`; no visitor is in.
        unsafe {
            let slab = Bins::current(bins, class).load(Relaxed);
            let unmark = |block: *mut Block| {
                if class != UNMARKED && marked {
                    Block::set_half_mark(block, (*bins).secret);
                } else if class != UNMARKED {
                    Block::set_mark(block, (*bins).secret, false);
                }
            };
            let (mut block, mut listed) = ((*slab).free, 0);
            for slot in to {
                if block.is_null() {
                    break;
                }
                let next = Block::next(block);
                prefetch(next);
                unmark(block);
                slot.store(block.cast(), Relaxed);
                (block, listed) = (next, listed + 1);
            }
            if listed != 0 {
                (*slab).free = block;
                (*counters).refill_current.add(listed as u64);
            }
            let untouched = Bins::cut(bins, slab, counters, to.get(listed..).unwrap_or_default(), marked);
            if listed != 0 {
                Slab::count(slab, listed as i32);
            }
            listed + untouched
        }
    }

    /// Cuts as many blocks from the untouched memory of a slab as it has and as there is room for in `to`,
    /// and returns how many. Who takes them from the end of `to` gets them by ascending address. Where an
    /// earlier slab may have left marks, all get the lower half if the magazine's blocks are `marked`: the
    /// program may still free for the second time what it has freed there. To look first would take longer.
    ///
    /// # Safety
    ///
    /// As [`Bins::alloc_many`]; the slab is the current one of a size class, or `NO_SLAB`.
    #[inline(always)]
    unsafe fn cut(
        bins: *mut Bins,
        slab: *mut Slab,
        counters: *const Counters,
        to: &[Slot],
        marked: bool,
    ) -> usize {
        // SAFETY: as in `alloc`; no visitor is in.
        unsafe {
            let (start, stride) = ((*slab).bump, (*slab).stride as usize);
            let count = (*slab).end.addr().wrapping_sub(start.addr()).checked_div(stride).unwrap_or(0);
            let count = count.min(to.len());
            if count == 0 {
                return 0;
            }
            let unmark = (*slab).rest & ZERO == 0 && (*slab).class as usize != UNMARKED;
            wrote(slab);
            Slab::set_bump(slab, start.wrapping_add(count * stride));
            let (mut block, secret) = (start, (*bins).secret);
            for slot in to.get(..count).unwrap_or_default().iter().rev() {
                if unmark && marked {
                    Block::set_half_mark_of_many(block.cast(), secret);
                } else if unmark {
                    Block::set_mark(block.cast(), secret, false);
                }
                slot.store(block, Relaxed);
                block = block.wrapping_add(stride);
            }
            (*counters).refill_bump.add(count as u64);
            Slab::count(slab, count as i32);
            count
        }
    }

    /// Whether blocks of `class` are to be [cut ahead](Bins::cut_ahead): not before what other threads have
    /// freed, where that [comes first](FREED_FIRST).
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins and holds their heap's lock.
    #[inline(always)]
    pub(crate) unsafe fn is_cut(bins: *mut Bins, class: usize) -> bool {
        // SAFETY: the current slab is ours, or `NO_SLAB`.
        unsafe {
            let slab = Bins::current(bins, class).load(Relaxed);
            let rest = (*slab).rest;
            rest & CUT != 0 && (rest & FREED_FIRST == 0 || !(*slab).remote.has_chain_of_own())
        }
    }

    /// From now on, or not any more, blocks of `class` are [cut ahead](Bins::cut_ahead) from its current
    /// slab.
    ///
    /// # Safety
    ///
    /// As [`Bins::is_cut`]; there is a current slab.
    pub(crate) unsafe fn set_cut(bins: *mut Bins, class: usize, cut: bool) {
        // SAFETY: the current slab is ours.
        unsafe {
            let slab = Bins::current(bins, class).load(Relaxed);
            (*slab).rest = (*slab).rest & !CUT | if cut { CUT } else { 0 };
        }
    }

    /// [Cuts](Bins::cut) blocks from the current slab of `class`, for a magazine whose blocks are `marked` or
    /// not.
    ///
    /// # Safety
    ///
    /// As [`Bins::alloc_many`].
    pub(crate) unsafe fn cut_ahead(
        bins: *mut Bins,
        class: usize,
        counters: *const Counters,
        to: &[Slot],
        marked: bool,
    ) -> usize {
        // SAFETY: the caller's clauses are the same; no visitor is in.
        unsafe { Bins::cut(bins, Bins::current(bins, class).load(Relaxed), counters, to, marked) }
    }

    /// The current slab of `class`. For the holder of the heap's lock.
    ///
    /// # Safety
    ///
    /// `bins` are part of a heap's record.
    pub(super) unsafe fn current<'a>(bins: *mut Bins, class: usize) -> &'a AtomicPtr<Slab> {
        // Relaxed wherever it is accessed: the lock orders the accesses, and in `alloc` the barriers do.
        // SAFETY: records stay mapped, and only atomics are referred to.
        unsafe { &(&(*bins).current)[class] }
    }

    /// Puts a free block onto its slab's list. Returns whether the slab has to be [relisted](Bins::relist).
    ///
    /// # Safety
    ///
    /// The calling thread owns `slab`, and either holds its heap's lock or had named the block before it
    /// found that it owns the slab. `block` is a block of the slab that was in use until now, and carries the
    /// mark of a free block.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn push_free(slab: *mut Slab, block: *mut Block) -> bool {
        // SAFETY: `free` and `used` are the owner's, and lock or name keeps visitors away; the block is free,
        // so its link is ours. In this order a fork in between leaks the block in the child, until the slab
        // is empty, and does no harm.
        unsafe {
            Block::set_next(block, (*slab).free);
            wrote(slab);
            let relist = Slab::count(slab, -1) as i32 <= (*slab).low;
            // Last, since it ends the use of the slab. Release: pairs with the acquire in `is_named`.
            AtomicPtr::from_ptr(&raw mut (*slab).free).store(block, Release);
            relist
        }
    }

    /// Whether `block` is among the free blocks of `slab`: those that other threads have pushed, too, and
    /// those that were not handed out since the slab was made, which may have a mark of an earlier one.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, holds their heap's lock, and `slab` belongs to them.
    #[cold]
    pub(crate) unsafe fn holds(&mut self, slab: *mut Slab, block: *mut Block) -> bool {
        // SAFETY: the slab's owner, that is this thread, may take the chain; the blocks of the list are free
        // and linked.
        unsafe {
            if ((*slab).bump..(*slab).end).contains(&block.cast()) {
                return true;
            }
            free_list::drain(slab);
            let mut at = (*slab).free;
            while !at.is_null() && at != block {
                at = Block::next(at);
            }
            !at.is_null()
        }
    }
}

mod visited;

#[cfg(test)]
pub(super) mod tests;
