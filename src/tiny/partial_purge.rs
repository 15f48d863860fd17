//! Partial purge: in slabs with hardly a block in use, and on request in all others, the system pages that
//! are free as a whole are given back.
//!
//! A slab's span is divided into *granules*, of one system page each, or more where the span has too many for
//! the mask. A granule in which no block is in use is *purged*: the blocks that lie in it, or reach into it,
//! leave the list of free blocks. They come back, a run of granules at a time, when the slab has nothing else
//! left ([`revive`]).
//!
//! This happens as soon as more memory lies idle in sparse slabs than is allowed, because after a program's
//! last free there is no further event. A slab that becomes empty a moment after its purge is a regret, and
//! widens the allowance for a while. The cost is bounded: after the first GiB only a limited amount is purged
//! in a second ([`idle`]).

mod chosen;

pub(crate) use chosen::{Among, BATCH, Chosen};

use crate::base::table::Table;
use crate::os;
use crate::superslab::granules::{Granules, Run};
use crate::superslab::slab::{Block, Slab, ZERO};
use crate::superslab::{orphans, pool};
use crate::sync::Ordering::Relaxed;
use crate::sync::{Node, wrote};
use crate::tiny::bins::Bins;
use crate::tiny::classes::CLASSES;
use crate::tiny::{free_list, idle, release};
use chosen::NEWEST;
use core::ptr;

/// Of a slab with more blocks in use, of which no part is purged yet, one granule in so many has to be idle.
/// What is less is not worth that its SuperSlab loses its huge pages, and that frees into the slab are
/// checked by a division.
const WORTH: usize = 8;

/// Purges some sparse slabs if too much lies idle in those of all heaps.
///
/// # Safety
///
/// The calling thread owns the heap that `bins` are part of, and has entered its lock.
pub(crate) unsafe fn purge_excess(bins: *mut Bins) {
    if idle::is_due() {
        let nobody = ptr::null_mut();
        // SAFETY: the caller holds the lock as the heap's owner.
        idle::spend(unsafe {
            Chosen::from(bins, nobody, &mut Among::Sparse(NEWEST)).purge(bins, nobody, true)
        });
    }
}

/// Releases orphans that have been emptied, and purges what is idle in sparse ones, or with `all` in the
/// others, too. `bins` adopt them for a moment. Returns the bytes given back by the latter.
///
/// # Safety
///
/// The calling thread owns the heap that `bins` are part of, and has entered its lock.
pub(crate) unsafe fn purge_orphans(bins: *mut Bins, all: bool) -> usize {
    let mut bytes = 0;
    release::release_emptied();
    for class in 1..=CLASSES as u8 {
        // One at a time: the others can be had by who needs a block meanwhile.
        for _ in 0..orphans::count(class) {
            let Some(orphan) = orphans::adopt_last(class) else { break };
            let slab = orphan.slab;
            // SAFETY: the bins are this thread's, and the orphan was adopted just now: so it is ours, and in
            // no list of `bins`. We hold the lock, so no visitor is at it.
            unsafe {
                let present = (*bins).present;
                (*bins).install_adopted(orphan);
                let used = Slab::in_use(slab);
                if used != 0 && (used <= Slab::few(slab) || all && Slab::is_due(slab)) {
                    bytes += purge(slab, false);
                    Slab::not_due(slab);
                }
                if release::part_with(&mut (*bins).slices, slab, false) {
                    // It was not needed.
                    (*bins).present = present;
                } else {
                    Bins::keep(bins, slab);
                }
            }
        }
    }
    bytes
}

/// Gives back the granules of a slab in which no block is in use, if they are [worth](WORTH) it. Returns the
/// bytes given back. `excess`: because too much lies idle, which may be regretted.
///
/// # Safety
///
/// The slab is the caller's: it owns it, or visits its heap, with the duties of [`Chosen::purge`]. It is not
/// current.
unsafe fn purge(slab: *mut Slab, excess: bool) -> usize {
    // SAFETY: the caller has the rights of the owner: it may take the chain, which belongs to the slab's free
    // blocks then, and alone uses the list of these and the fields.
    let (granules, idle, least) = unsafe {
        wrote(slab);
        free_list::drain(slab);
        let (granules, before) = (Granules::of(slab), (*slab).purged.load(Relaxed));
        let any = before != 0 || Slab::in_use(slab) <= Slab::few(slab);
        let least = if any { 1 } else { granules.count.div_ceil(WORTH) };
        let idle = if Slab::free_bytes(slab) < least << granules.shift {
            // Not even if all that is free lay side by side: the list need not be walked.
            0
        } else {
            idle_granules(slab, &granules, before)
        };
        let idle = if (idle.count_ones() as usize) < least { 0 } else { idle };
        if idle != 0 {
            unlist(slab, &granules, idle);
            let (bump, end) = ((*slab).bump, (*slab).end);
            let edge = if bump == end { 0 } else { granules.touching(bump, bump.wrapping_add(1)) & idle };
            if let Some(run) = Run::each(edge).next() {
                Slab::set_bump(slab, granules.window(run).1.min(end));
            }
            let now = os::now_ms();
            (*slab).purged_at = if excess { now } else { idle::before_regret(now) };
            (*slab).purged.store(before | idle, Relaxed);
            (*slab).inverse.store(0, Relaxed);
            pool::not_filled(slab);
        }
        (granules, idle, least)
    };
    // SAFETY: the caller has the rights of the owner.
    let mut bytes = if excess { 0 } else { unsafe { purge_fresh(slab, &granules, least) } };
    for run in Run::each(idle) {
        let len = (run.count as usize) << granules.shift;
        // SAFETY: whole system pages of the slab's span. No block in use or on a list touches them, and none
        // is handed out of them before `revive`.
        if unsafe { os::purge(granules.range(run).0, len) } {
            bytes += len;
        }
    }
    bytes
}

/// Gives back what lies above `bump`, if it may be resident (it is left over from another slab or a large
/// block, or a huge page brought it) and has at least so many granules. Returns the bytes given back.
///
/// # Safety
///
/// As [`purge`].
unsafe fn purge_fresh(slab: *mut Slab, granules: &Granules, least: usize) -> usize {
    // SAFETY: the caller has the rights of the owner. Unless memory was revived, no block has been handed out
    // above `bump`.
    unsafe {
        let from = (*slab).bump.map_addr(|a| a.next_multiple_of(1 << granules.shift));
        let to = granules.span.wrapping_add(granules.count << granules.shift);
        let len = to.addr().saturating_sub(from.addr());
        if len < least << granules.shift || (*slab).revived || (*slab).fresh_purged || !pool::was_dirty(slab)
        {
            return 0;
        }
        pool::not_filled(slab);
        (*slab).fresh_purged = os::purge(from, len);
        if (*slab).fresh_purged { len } else { 0 }
    }
}

/// The granules of a slab that consist of free memory, were not purged `before`, and do not lie above `bump`
/// as a whole. A block that is in use, or on its way back from another thread, is not on the slab's list, so
/// no granule with a part of it is among them.
///
/// # Safety
///
/// As [`purge`].
unsafe fn idle_granules(slab: *mut Slab, granules: &Granules, before: u64) -> u64 {
    // SAFETY: the caller has the rights of the owner, so these fields do not change meanwhile.
    let (start, stride, last, bump, end, mut block) = unsafe {
        let (stride, last) = ((*slab).stride as usize, (*slab).last as usize);
        ((*slab).start, stride, last, (*slab).bump, (*slab).end, (*slab).free)
    };
    // Memory above `bump` is free, but beyond its granule it need not be told from memory that was never
    // touched.
    let edge = bump.map_addr(|a| a.next_multiple_of(1 << granules.shift)).min(end);
    let fresh = if edge == end { 0 } else { granules.touching(edge, end) };
    // Bytes of free memory in each granule.
    let mut free = Table([0u32; 64]);
    let mut add = |from: *mut u8, to: *mut u8| {
        let (mut at, end) = (from.addr() - granules.span.addr(), to.addr() - granules.span.addr());
        while at < end {
            let next = ((at >> granules.shift) + 1) << granules.shift;
            free[at >> granules.shift] += (next.min(end) - at) as u32;
            at = next;
        }
    };
    while !block.is_null() {
        add(block.cast(), block.cast::<u8>().wrapping_add(stride));
        // SAFETY: a block of the slab's list, which only the owner uses.
        block = unsafe { Block::next(block) };
    }
    add(bump, edge);
    // Free, too, are the rest behind the last block and the ends of blocks that reach out of purged granules.
    let rest = start.wrapping_add(last + stride);
    add(rest, granules.span.wrapping_add(granules.count << granules.shift));
    for run in Run::each(before) {
        let (window, (from, to)) = (granules.window(run), granules.range(run));
        // Behind the last block the window is empty: no block reaches into such granules or out of them.
        if window.0 < window.1 {
            add(window.0, from);
            add(to, window.1);
        }
    }
    let whole = (0..granules.count).filter(|&i| free[i] == 1 << granules.shift);
    whole.fold(0, |idle, i| idle | 1 << i) & !(before | fresh)
}

/// Takes the blocks that touch granules in the mask `idle` off the slab's list, while its links can still be
/// followed.
///
/// # Safety
///
/// As [`purge`].
unsafe fn unlist(slab: *mut Slab, granules: &Granules, idle: u64) {
    // SAFETY: the list and its blocks are used by nobody but the owner, whose rights the caller has.
    unsafe {
        let stride = (*slab).stride as usize;
        let mut link = &raw mut (*slab).free;
        while !(*link).is_null() {
            let block = *link;
            let start = block.cast::<u8>();
            if granules.touching(start, start.wrapping_add(stride)) & idle != 0 {
                *link = Block::next(block);
                wrote(block);
            } else {
                link = Block::link(block);
            }
        }
    }
}

/// Makes a run of purged granules memory to hand out again, in a slab that has nothing else left. False if
/// none is purged.
///
/// # Safety
///
/// The calling thread owns the slab and holds its heap's lock, or it is
/// [`NO_SLAB`](crate::superslab::slab::NO_SLAB).
#[inline]
pub(super) unsafe fn revive(slab: *mut Slab) -> bool {
    // SAFETY: only the owner writes the mask. The caller's clauses are those of `revive_run`.
    unsafe {
        let purged = (*slab).purged.load(Relaxed);
        purged != 0 && revive_run(slab, purged)
    }
}

/// [`revive`] for a slab in which the granules of `purged` are purged, at least one.
///
/// # Safety
///
/// As [`revive`]; so the slab is not `NO_SLAB`, which has nothing purged.
#[cold]
unsafe fn revive_run(slab: *mut Slab, purged: u64) -> bool {
    let Some(run) = Run::each(purged).next() else { return false };
    // SAFETY: only the owner writes these fields.
    unsafe {
        debug_assert!((*slab).free.is_null() && (*slab).bump == (*slab).end);
        let granules = Granules::of(slab);
        let (from, to) = granules.window(run);
        let rest = purged & !run.mask();
        (*slab).purged.store(rest, Relaxed);
        // A block at either end may reach into memory that was not purged, and so may not be zero.
        (*slab).rest &= !ZERO;
        Slab::set_revived(slab, from, to);
        if rest == 0 {
            (*slab).inverse.store(Slab::inverse_of((*slab).stride), Relaxed);
        }
        from != to
    }
}

/// `None` if `address` is not the start of a block of the slab. Otherwise, whether the block touches purged
/// granules: then it is free. Unlike [`Slab::is_block`], this works while part of the slab is purged.
///
/// # Safety
///
/// `slab` is the record of a live slab with at least one block in use.
pub(crate) unsafe fn block_at(slab: *mut Slab, address: *mut u8) -> Option<bool> {
    // SAFETY: the block in use keeps the slab, so the fields read plainly are constant. The mask is atomic:
    // its owner may change it meanwhile, but the bits of granules with a block in use stay 0.
    unsafe {
        let stride = (*slab).stride as usize;
        let offset = address.addr().wrapping_sub((*slab).start.addr());
        if offset > (*slab).last as usize || offset % stride.max(1) != 0 {
            return None;
        }
        let purged = (*slab).purged.load(Relaxed);
        Some(Granules::of(slab).touching(address, address.wrapping_add(stride)) & purged != 0)
    }
}

#[cfg(test)]
mod tests;
