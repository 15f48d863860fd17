//! Slabs with hardly a block in use: their whole free pages are given back.
//!
//! A slab's span is looked at in *granules*, of one page of the system each, or more where a span has too many for the mask.
//! A granule in which no block is in use is *purged*: the blocks that lie in it, or reach into it, leave the list of free
//! blocks, and come back, a run of granules at a time, when the slab has nothing else left ([`revive`]).
//!
//! When: at once, as soon as more memory lies in sparse slabs than is allowed. After the last free of a program there is no
//! further event. Slabs that are empty a moment later are a regret and widen what is allowed for a while. And the cost is bounded: after
//! the first GiB only so much is purged in a second.

use crate::base::list::List;
use crate::base::table::Table;
use crate::os;
use crate::superslab::granules::{Granules, Run};
use crate::superslab::slab::{Block, Listed, Slab};
use crate::superslab::{orphans, pool};
use crate::sync::Node;
use crate::tiny::bins::Bins;
use crate::tiny::classes::CLASSES;
use crate::tiny::{free_list, idle, release};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

/// Slabs that one call looks into.
const BATCH: usize = 8;
/// Slabs of a class that have become sparse last may be on their way to empty, as one after the other is when all that a
/// program has is freed in order.
pub(crate) const NEWEST: usize = 4;
/// Some sparse slabs with something to give back.
pub(crate) struct Chosen {
    slabs: [*mut Slab; BATCH],
    count: usize,
}

impl Chosen {
    /// Chooses some of those in `bins`, but not `skip`, nor the `newest` few of each class.
    ///
    /// # Safety
    ///
    /// The calling thread owns the bins or visits them.
    pub(crate) unsafe fn from(bins: *mut Bins, skip: *mut Slab, newest: usize) -> Chosen {
        let mut chosen = Chosen { slabs: [ptr::null_mut(); BATCH], count: 0 };
        for class in 1..=CLASSES {
            // SAFETY: passed on: the lists are the caller's, and what is in them stays.
            unsafe {
                let (mut slab, mut seen) = ((&(*bins).sparse)[class].first(), 0);
                while !slab.is_null() && (*slab).list == Listed::Sparse {
                    let Some(place) = chosen.slabs.get_mut(chosen.count) else { return chosen };
                    seen += 1;
                    if slab != skip && seen > newest {
                        *place = slab;
                        chosen.count += 1;
                    }
                    slab = List::<Slab>::next(slab);
                }
            }
        }
        chosen
    }

    /// Those chosen.
    pub(crate) fn slabs(&self) -> &[*mut Slab] {
        self.slabs.get(..self.count).unwrap_or_default()
    }

    /// Gives back what lies idle in them, but for `skip`. How many bytes.
    ///
    /// # Safety
    ///
    /// As [`Bins::accept_published`] for each of them.
    pub(crate) unsafe fn purge(&self, bins: *mut Bins, skip: *mut Slab) -> usize {
        idle::fade(os::now_ms());
        let mut bytes = 0;
        for &slab in self.slabs().iter().filter(|&&slab| slab != skip) {
            // SAFETY: passed on.
            unsafe {
                Bins::unlink(bins, slab);
                bytes += purge(slab);
                Bins::push(bins, slab, Listed::Purged);
            }
        }
        bytes
    }
}

/// Gives back what lies idle in sparse slabs of nobody. How many bytes.
///
/// # Safety
///
/// The calling thread has entered the heap that `bins` are part of, of which they hold some for a moment.
pub(crate) unsafe fn purge_orphans(bins: *mut Bins) -> usize {
    let mut bytes = 0;
    for class in 1..=CLASSES as u8 {
        // Each of a class is adopted before the first is abandoned again, or the same one would come each time.
        let mut adopted = List::<Slab>::new();
        while let Some(orphan) = orphans::adopt(class) {
            let slab = orphan.slab;
            // SAFETY: ours now, and in no list.
            unsafe {
                (*bins).install_adopted(orphan);
                adopted.push_front(slab);
            }
        }
        // SAFETY: ours.
        while let Some(slab) = unsafe { adopted.pop_front() } {
            // SAFETY: as above.
            unsafe {
                let used = Slab::in_use(slab);
                if used <= Slab::few(slab) {
                    bytes += purge(slab);
                }
                // What others have freed meanwhile has published it: then it stays with us until it arrives.
                if !(*slab).remote.is_armed() || used != 0 && !orphans::abandon(slab, used) {
                    Bins::push(bins, slab, Listed::Full);
                } else if used == 0 {
                    release::release_slab(slab);
                }
            }
        }
    }
    bytes
}

/// Bytes of free blocks in each granule.
struct Free(Table<u32, 64>);

impl Free {
    /// Counts the bytes from `from` to `to` as free.
    fn add(&mut self, granules: &Granules, from: *mut u8, to: *mut u8) {
        let (mut at, end) = (from.addr() - granules.span.addr(), to.addr() - granules.span.addr());
        while at < end {
            let next = ((at >> granules.shift) + 1) << granules.shift;
            self.0[at >> granules.shift] += (next.min(end) - at) as u32;
            at = next;
        }
    }
}

/// Gives back the granules of a slab in which no block is in use. How many bytes.
///
/// # Safety
///
/// The slab is the caller's, and not the current one.
unsafe fn purge(slab: *mut Slab) -> usize {
    // SAFETY: passed on: all that is done to the record and to free blocks is the owner's to do.
    unsafe {
        if (*slab).remote.has_chain() {
            let chain = (*slab).remote.take_chain();
            free_list::absorb(slab, chain);
        }
        let granules = Granules::of(slab);
        let stride = (*slab).stride as usize;
        let before = (*slab).purged.load(Relaxed);
        // What lies above `bump`, as far as it is of no use to look at: never touched, or left over from another slab.
        let (bump, end) = ((*slab).bump, (*slab).end);
        let fresh = if bump == end { 0 } else { granules.touching(bump, end) };
        let mut free = Free(Table([0; 64]));
        let mut block = (*slab).free;
        while !block.is_null() {
            let start = block.cast::<u8>();
            free.add(&granules, start, start.wrapping_add(stride));
            block = Block::next(block);
        }
        // The rest behind the last block, and the ends of blocks that reach out of what is purged already.
        let last = (*slab).start.wrapping_add((*slab).last as usize + stride);
        free.add(&granules, last, granules.span.wrapping_add(granules.count << granules.shift));
        for run in Run::each(before) {
            let (window, (from, to)) = (granules.window(slab, run), granules.range(run));
            // Where no block reaches, behind the last one, nothing reaches out of it either.
            if window.0 < window.1 && window.0 < from {
                free.add(&granules, window.0, from);
            }
            if window.0 < window.1 && window.1 > to {
                free.add(&granules, to, window.1);
            }
        }
        let mut idle = 0;
        for i in 0..granules.count {
            idle |= u64::from(free.0[i] == 1 << granules.shift) << i;
        }
        idle &= !(before | fresh) & granules.all();
        if idle == 0 {
            return 0;
        }
        // First out of the list, while its links can still be followed.
        let mut link = &raw mut (*slab).free;
        while !(*link).is_null() {
            let block = *link;
            let start = block.cast::<u8>();
            if granules.touching(start, start.wrapping_add(stride)) & idle != 0 {
                *link = Block::next(block);
            } else {
                link = Block::link(block);
            }
        }
        (*slab).purged_at = os::now_ms();
        (*slab).purged.store(before | idle, Relaxed);
        (*slab).inverse.store(0, Relaxed);
        pool::not_filled(slab);
        let mut bytes = 0;
        for run in Run::each(idle) {
            let len = (run.count as usize) << granules.shift;
            if os::purge(granules.range(run).0, len) {
                bytes += len;
            }
        }
        bytes
    }
}

/// Makes a run of purged granules of a slab, which has nothing else left, memory to hand out again. False when there is none.
///
/// # Safety
///
/// The slab is the caller's, or the stand-in.
pub(super) unsafe fn revive(slab: *mut Slab) -> bool {
    // SAFETY: passed on; of the stand-in, which has nothing purged, nothing is written.
    unsafe {
        let purged = (*slab).purged.load(Relaxed);
        let Some(run) = Run::each(purged).next() else { return false };
        debug_assert!((*slab).free.is_null() && (*slab).bump == (*slab).end);
        let granules = Granules::of(slab);
        let (from, to) = granules.window(slab, run);
        let rest = purged & !run.mask();
        (*slab).purged.store(rest, Relaxed);
        // A block at either end may reach into memory that was not purged.
        (*slab).zero = false;
        Slab::set_revived(slab, from, to);
        if rest == 0 {
            (*slab).inverse.store(Slab::inverse_of((*slab).stride), Relaxed);
        }
        from != to
    }
}

/// Whether `address` is the start of a block of a slab, of which a part may be purged, and whether that block lies in what
/// is purged: then it is free.
///
/// # Safety
///
/// `slab` is the record of a live slab with at least one block in use.
pub(crate) unsafe fn block_at(slab: *mut Slab, address: *mut u8) -> Option<bool> {
    // SAFETY: passed on. Constant fields, and the mask, of which the bits of a block in use do not change.
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
