//! Slabs with hardly a block in use: their whole free pages are given back.
//!
//! A slab's span is looked at in *granules*, of one page of the system each, or more where a span has too many for the mask.
//! A granule in which no block is in use is *purged*: the blocks that lie in it, or reach into it, leave the list of free
//! blocks, and come back, a run of granules at a time, when the slab has nothing else left ([`revive`]).
//!
//! When: at once, as soon as more memory lies in sparse slabs than is allowed. After the last free of a program there is no
//! further event. Slabs that are empty a moment later are a regret and widen what is allowed for a while. And the cost is bounded: after
//! the first GiB only so much is purged in a second.

use super::bins::Bins;
use super::classes::CLASSES;
use super::leave;
use crate::superslab::granules::{Granules, Run};
use crate::superslab::pagemap::PAGE;
use crate::superslab::{Block, List, Slab, orphans, pool};
use crate::sync::Node;
use crate::table::Table;
use crate::{options, os};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Pages of sparse slabs that always may lie idle: 16 MiB.
const ALLOWED: usize = (16 << 20) / PAGE;
/// Of the pages mapped, this part may do so besides.
const ALLOWED_PART: usize = 64;
/// Slabs that one call looks into.
const BATCH: usize = 8;
/// Slabs of a class that have become sparse last may be on their way to empty, as one after the other is when all that a
/// program has is freed in order.
pub(crate) const NEWEST: usize = 4;
/// How long half of the regret lasts, in milliseconds.
const REGRET: u32 = 1000;
/// Bytes that may be purged before time sets the pace, and how many it earns in a millisecond: 24 MiB in a second. Giving a page
/// back and having it again costs 1.5 microseconds, so a program that always wants again what was purged pays 1% of its time.
const CREDIT: usize = 1 << 30;
/// See [`CREDIT`].
const EARNED: usize = (24 << 20) / 1000;
/// How long a purge can be regretted, in milliseconds: what lives longer than that was well purged.
const MOMENT: u32 = 20;

/// Pages of slabs that are sparse and not purged, but for the few that each heap has not told yet: for a slab that is soon
/// empty or full again an atomic addition would be too much.
static IDLE: AtomicUsize = AtomicUsize::new(0);
/// A heap tells when it is so many pages.
const TELL: i32 = 16;
/// What may be idle besides, for regret, in bytes: most slabs have one page, of which a part at least is in use. Races lose a
/// count at worst, here and below.
static SLACK: AtomicUsize = AtomicUsize::new(0);
/// When the slack was last halved.
static HALVED: AtomicU32 = AtomicU32::new(0);
/// Bytes purged that time has not paid back yet, and when it last did.
static SPENT: AtomicUsize = AtomicUsize::new(0);
/// See [`SPENT`].
static EARNED_AT: AtomicU32 = AtomicU32::new(0);

/// Enters a sparse slab into its ring: at the end when there is nothing left in it to give back.
///
/// # Safety
///
/// `head` is the ring's head; it and the slab, which is in no list, are the caller's.
pub(super) unsafe fn link(bins: *mut Bins, head: *mut *mut Slab, slab: *mut Slab, list: List) {
    // SAFETY: passed on: all in the ring are the caller's.
    unsafe {
        let first = *head;
        if first.is_null() {
            (*slab).next = slab;
            (*slab).prev = slab;
        } else {
            let last = (*first).prev;
            (*slab).next = first;
            (*slab).prev = last;
            (*last).next = slab;
            (*first).prev = slab;
        }
        if first.is_null() || list == List::Sparse {
            *head = slab;
        }
        if list == List::Sparse {
            count(bins, (*slab).pages as i32);
        }
    }
}

/// Counts pages that have become idle, or are so no more.
unsafe fn count(bins: *mut Bins, pages: i32) {
    // SAFETY: passed on.
    unsafe {
        (*bins).idle += pages;
        if (*bins).idle.unsigned_abs() >= TELL.unsigned_abs() {
            tell(&mut *bins);
        }
    }
}

/// Adds what these bins have counted to what all have.
pub(super) fn tell(bins: &mut Bins) {
    let pages = core::mem::take(&mut bins.idle);
    IDLE.fetch_add(pages as isize as usize, Relaxed);
}

/// A slab of so many pages is not idle any more, whose bins cannot count that.
pub(super) fn forget(pages: usize) {
    IDLE.fetch_sub(pages, Relaxed);
}

/// Takes a slab out of its ring.
///
/// # Safety
///
/// As [`link`]; the slab is in that ring.
pub(super) unsafe fn unlink(bins: *mut Bins, head: *mut *mut Slab, slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe {
        let (next, prev) = ((*slab).next, (*slab).prev);
        (*prev).next = next;
        (*next).prev = prev;
        if *head == slab {
            *head = if next == slab { ptr::null_mut() } else { next };
        }
        if (*slab).list == List::Sparse {
            count(bins, -((*slab).pages as i32));
        }
    }
}

/// Whether more lies idle in sparse slabs than is allowed.
pub(crate) fn is_due() -> bool {
    // What heaps have not told yet may make it negative.
    let idle = (IDLE.load(Relaxed) as isize).max(0) as usize;
    idle > ALLOWED && idle > allowed() && options::get().purge_delay >= 0 && has_credit()
}

fn allowed() -> usize {
    ALLOWED + os::MAPPED.load(Relaxed) / PAGE / ALLOWED_PART + SLACK.load(Relaxed) / PAGE
}

/// Pays back what time has earned since the last look; whether there is credit.
fn has_credit() -> bool {
    if SPENT.load(Relaxed) < CREDIT {
        return true;
    }
    let now = os::now_ms();
    let elapsed = os::elapsed(EARNED_AT.swap(now, Relaxed), now) as usize;
    let spent = SPENT.load(Relaxed).saturating_sub(elapsed.saturating_mul(EARNED));
    SPENT.store(spent, Relaxed);
    spent < CREDIT
}

/// `bytes` bytes were purged because there was too much of them, not because somebody asked for it.
pub(crate) fn spend(bytes: usize) {
    SPENT.fetch_add(bytes, Relaxed);
}

fn widen(bytes: usize, now: u32) {
    let most = os::MAPPED.load(Relaxed);
    SLACK.store((SLACK.load(Relaxed) + bytes).min(most), Relaxed);
    HALVED.store(now, Relaxed);
}

/// A slab without blocks in use is about to be given back. If a part of it was purged a moment ago, then all are on their way
/// to empty: the purge was for nothing, and so will be the next.
///
/// # Safety
///
/// The slab is the caller's.
pub(super) unsafe fn on_release(slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe {
        let purged = (*slab).purged.load(Relaxed);
        if purged != 0 {
            let now = os::now_ms();
            if os::elapsed((*slab).purged_at, now) < MOMENT {
                let bytes = (purged.count_ones() as usize) << Granules::of(slab).shift;
                widen(bytes, now);
            }
        }
    }
}

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
                let head = (&raw mut (*bins).sparse).cast::<*mut Slab>().add(class).read();
                let (mut slab, mut seen) = (head, 0);
                while !slab.is_null() && (*slab).list == List::Sparse {
                    let Some(place) = chosen.slabs.get_mut(chosen.count) else { return chosen };
                    seen += 1;
                    if slab != skip && seen > newest {
                        *place = slab;
                        chosen.count += 1;
                    }
                    slab = (*slab).next;
                    if slab == head {
                        break;
                    }
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
    /// As [`Bins::arrive`] for each of them.
    pub(crate) unsafe fn purge(&self, bins: *mut Bins, skip: *mut Slab) -> usize {
        let now = os::now_ms();
        if os::elapsed(HALVED.load(Relaxed), now) >= REGRET {
            HALVED.store(now, Relaxed);
            SLACK.store(SLACK.load(Relaxed) / 2, Relaxed);
        }
        let mut bytes = 0;
        for &slab in self.slabs().iter().filter(|&&slab| slab != skip) {
            // SAFETY: passed on.
            unsafe {
                Bins::unlink(bins, slab);
                bytes += purge(slab);
                Bins::push(bins, slab, List::Purged);
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
        let mut adopted = ptr::null_mut::<Slab>();
        while let Some(orphan) = orphans::adopt(class) {
            let slab = orphan.slab;
            // SAFETY: ours now, and in no list.
            unsafe {
                (*bins).welcome(orphan);
                (*slab).next = adopted;
            }
            adopted = slab;
        }
        while !adopted.is_null() {
            let slab = adopted;
            // SAFETY: as above.
            unsafe {
                adopted = (*slab).next;
                let used = Slab::in_use(slab);
                if used <= Slab::few(slab) {
                    bytes += purge(slab);
                }
                // What others have freed meanwhile has published it: then it stays with us until it arrives.
                if !(*slab).remote.is_armed() || used != 0 && !orphans::abandon(slab, used) {
                    Bins::push(bins, slab, List::Full);
                } else if used == 0 {
                    leave::release(slab);
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
            let chain = (*slab).remote.take();
            Bins::absorb(slab, chain);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_purged_is_bounded_by_time() {
        SPENT.store(0, Relaxed);
        assert!(has_credit());
        spend(CREDIT - 1);
        assert!(has_credit());
        spend(CREDIT + 1);
        EARNED_AT.store(os::now_ms(), Relaxed);
        assert!(!has_credit(), "for that it takes most of a minute");
        SPENT.store(CREDIT, Relaxed);
        EARNED_AT.store(os::now_ms().wrapping_sub(1000), Relaxed);
        assert!(has_credit());
        let left = SPENT.load(Relaxed);
        assert!(left <= CREDIT - 1000 * EARNED && left > CREDIT / 2, "{left}");
        SPENT.store(0, Relaxed);
    }
}
