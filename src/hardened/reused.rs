//! What freed large blocks leave serves the next ones: their pages, which need not be faulted in again, and
//! after a while their addresses.
//!
//! Pages are reused at once, but where others lie: they move. So what still points to the freed block points
//! to what cannot be touched.

use crate::base::counters::LARGE_IN_USE;
use crate::base::options::{self, Hardened};
use crate::hardened::kept::{LATER, QUARANTINE, Quarantine, RESIDENT};
use crate::hardened::large::Large;
use crate::hardened::mappings::{hand_out, length, place};
use crate::hardened::unmapping::{
    UNGUARDED, discard, give_back_oldest, give_back_pages, leave_map, put_back, unmap, with_returning,
};
use crate::hardened::{moved, parts};
use crate::large::huge;
use crate::os;
use crate::os::futex::Guard;
use crate::superslab::pagemap;
use crate::superslab::thp::HUGE_PAGE;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// All freed blocks together keep so many bytes of pages, or as many as the large cache may have if that is
/// less; or one in [`PART`] of those in use if that is more; and besides as many as were [`MISSED`].
const MOST: usize = 4 << 20;
/// See [`MOST`].
const PART: usize = 8;
/// Bytes of pages of the last block that was freed and had too many to keep, or for which others had to go.
/// Relaxed, as the next: a figure.
static GONE: AtomicUsize = AtomicUsize::new(0);
/// Bytes of pages of the longest such block after which came one that could have used them, and found none.
/// So what comes and goes is kept, and what a growing table leaves is not.
static MISSED: AtomicUsize = AtomicUsize::new(0);
/// The fewest bytes of pages that move to another block: to move fewer would cost as much as page faults.
const LEAST: usize = 128 << 10;
/// Up to so many bytes of pages wait for a block of the same length, which gets their addresses, too, after a
/// while: that costs less than to move them. As many as wait then are kept; unless all together have more
/// than [`MOST`].
const WAITS: usize = MOST / (LATER + 1);
/// The longest mapping with guard pages whose addresses are used again while its pages are there.
const SAME_PLACE: usize = 2 << 20;

/// Whether a block that is freed keeps its pages. Others that have kept theirs for longer may lose them for
/// it.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn wants_pages(large: &Large) -> bool {
    let options = options::get();
    // A confined process would lose them.
    if options.large_cache == 0 || options.purge_delay == 0 || os::is_confined() {
        return false;
    }
    let mapping = large.mapping(large.freed_size());
    let part = LARGE_IN_USE.load(Relaxed) / PART;
    let most = MOST.max(part).saturating_add(MISSED.load(Relaxed)).min(options.large_cache.max(part));
    if mapping.len > most {
        if !huge::is_sparse(mapping) {
            GONE.store(if mapping.len <= options.large_cache { mapping.len } else { 0 }, Relaxed);
        }
        return false;
    }
    if huge::is_better_purged(mapping) {
        return false;
    }
    while RESIDENT.load(Relaxed) + mapping.len > most {
        GONE.store(mapping.len, Relaxed);
        if !give_back_oldest(os::now_ms(), 0) {
            return false;
        }
    }
    true
}

/// Nobody has wanted what was kept for longest.
pub(super) fn unwanted() {
    MISSED.store(0, Relaxed);
}

/// A block in a mapping that was freed, if there is one of the right length.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn again(size: usize, align: usize, huge: bool) -> Option<*mut u8> {
    let len = length(size, align, false, huge)?;
    let mut kept = QUARANTINE.lock_soon()?;
    let moves = len > SAME_PLACE && parts::has(Hardened::GUARD);
    let old = if moves { None } else { kept.reuse(len, huge) };
    let (record, is_aside) = match old {
        Some(record) => (record, false),
        None => (kept.reuse_aside(len, huge)?, true),
    };
    drop(kept);
    // SAFETY: it was kept, so freed, and is ours alone now.
    unsafe {
        // The system may have refused, too, to make it inaccessible.
        if is_aside && (*record).guarded.get() {
            if !os::close((*record).base.get(), (*record).len.get()) {
                unmap(record);
                return None;
            }
            (*record).resident.store(false, Relaxed);
        }
        // All of it is inaccessible now, or else it is not guarded.
        let (base, len, page) = ((*record).base.get(), (*record).len.get(), os::page_size());
        let block = place(base, len, (*record).huge.get(), size, align);
        let before = block.map_addr(|at| at & !(page - 1));
        let pages = (block.addr() + size.max(1)).next_multiple_of(page) - before.addr();
        let (from, bytes) = if (*record).guarded.get() { (before, pages) } else { (base, len) };
        if !pagemap::prepare_direct(block) || !os::protect(from, bytes, true) {
            unmap(record);
            return None;
        }
        leave_map(&*record);
        if (*record).resident.load(Relaxed) {
            before.write_bytes(0, pages);
            // What is left of the last block counts as if nobody had touched it; without guard pages it can
            // be read, too.
            let (old, all) = ((*record).first_page().addr(), (*record).kept());
            let (end, last) = (before.addr() + pages, base.addr() + len);
            for (from, to) in [(base.addr(), before.addr()), (end, last)] {
                let (from, to) = (from.max(old), to.min(old + all));
                let purged = from >= to || os::purge(base.with_addr(from), to - from);
                if !purged && !(*record).guarded.get() {
                    base.with_addr(from).write_bytes(0, to - from);
                }
            }
        }
        if !(*record).guarded.get() {
            UNGUARDED.fetch_add(1, Relaxed);
        }
        (*record).grows.set(false);
        hand_out(record, block, size, align);
        Some(block)
    }
}

/// Whether a block of `size` bytes can have the huge pages of one that was freed.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn has_huge(size: usize) -> bool {
    let fits = |old: &Large| {
        old.guarded.get() && old.huge.get() && old.kept() == size.next_multiple_of(os::page_size())
    };
    RESIDENT.load(Relaxed) != 0 && QUARANTINE.lock_soon().is_some_and(|kept| kept.has(fits))
}

/// Gives a new mapping, for a block of `size` bytes, the pages of one that was freed, if there are any that
/// fit. They are zero then. False if the mapping is lost, and has been given back.
///
/// # Safety
///
/// No block was handed out of it, and it is the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn take_pages(record: *mut Large, size: usize) -> bool {
    // SAFETY: the caller's.
    let new = unsafe { &*record };
    let (to, pages) = (new.first_page(), new.pages(size));
    if pages < LEAST {
        return true;
    }
    let right = pages / 2..=2 * pages;
    let least = if RESIDENT.load(Relaxed) > MOST { LEAST } else { WAITS };
    let fits = |old: &Large| {
        // Huge pages would be split where they do not lie on huge pages.
        let whole = !new.huge.get() || (old.first_page().addr().wrapping_sub(to.addr())) % HUGE_PAGE == 0;
        let fits = old.kept() >= least && right.contains(&old.kept());
        old.guarded.get() && old.huge.get() == new.huge.get() && whole && fits
    };
    let kept = if new.guarded.get() && moved::may_try() { QUARANTINE.lock_soon() } else { None };
    let Some((index, large)) = kept.and_then(|mut kept| kept.take_newest(fits)) else {
        let gone = GONE.load(Relaxed);
        if right.contains(&gone) {
            GONE.store(0, Relaxed);
            MISSED.fetch_max(gone, Relaxed);
        }
        // What is as long but cannot move, or not well, is of no use beside this one.
        let as_long = |old: &Large| old.guarded.get() && old.kept() > WAITS && right.contains(&old.kept());
        let take = |mut kept: Guard<'_, Quarantine>| kept.take_newest(as_long).map(with_returning);
        if let Some(((index, large), _returning)) = QUARANTINE.lock_soon().and_then(take) {
            // SAFETY: it was kept, so freed, and is ours alone until it is back.
            unsafe { give_back_pages(index, large) };
        }
        return true;
    };
    // SAFETY: it was kept, so freed, and is ours alone until it is back.
    unsafe {
        let old = &*large;
        let (from, bytes) = (old.first_page(), old.kept().min(pages));
        if !moved::can_transfer(from, bytes, new) {
            put_back(index, large);
            return true;
        }
        let moved = moved::transfer(old, from, bytes, record);
        if !moved {
            put_back(index, large);
            return false;
        }
        let is_open = os::protect(to, pages, true);
        old.resident.store(false, Relaxed);
        if moved::reclaim(old, from, bytes) {
            put_back(index, large);
        }
        if !is_open {
            discard(record);
            return false;
        }
        to.write_bytes(0, bytes);
    }
    true
}
