//! Direct mappings: blocks with a mapping of their own.
//!
//! A mapping has at least 64 KiB, so no two begin in the same slice of the page map, and the page map needs
//! to know only where each begins. The map's side table holds the length and the place within the slice.

use crate::base::options;
use crate::large::huge::{self, Mapping};
use crate::large::{batch, cache};
use crate::os::{self, NotResized};
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, DIRECT};
use crate::superslab::slab::Allocation;
use crate::superslab::thp::{self, HUGE_PAGE};
use core::ptr;

mod moved;

/// Unit of the place within the slice: the smallest system page.
const UNIT: usize = os::SMALLEST_PAGE;

/// Bit of the side table's entry: huge pages have been advised.
const HUGE: usize = SLICE / UNIT;
/// Bit of the side table's entry: the mapping was fresh, so whatever of it is resident was touched by this
/// block.
const FRESH: usize = HUGE << 1;

/// The side table's entry: the length (a multiple of the unit); below it the flags, and lowest the place in
/// units.
fn entry(block: Mapping) -> u64 {
    let place = (block.block.addr() & (SLICE - 1)) / UNIT;
    (block.len | place | if block.huge { HUGE } else { 0 }) as u64
}

/// Gives the pages of a mapping back to the system: see [`os::purge`].
///
/// # Safety
///
/// As there, for all of it.
unsafe fn purge(mapping: Mapping) -> bool {
    // SAFETY: the caller's clause is the same.
    unsafe {
        if mapping.huge {
            mapping.split_ends();
        }
        os::purge(mapping.block, mapping.len)
    }
}

/// The mapping at `block` that has this entry.
fn mapping(block: *mut u8, entry: u64) -> Mapping {
    let entry = entry as usize;
    Mapping { block, len: entry & !(UNIT - 1), huge: entry & HUGE != 0, clean: false }
}

/// The length of the mapping for a block of `size` bytes; `None` if that overflows.
pub(super) fn length_for(size: usize) -> Option<usize> {
    size.max(SLICE).checked_next_multiple_of(os::page_size())
}

/// To which multiple a mapping is aligned that shall have huge pages, or not: to theirs if one fits in.
fn alignment_for(len: usize, align: usize, huge: bool) -> usize {
    if huge && len >= HUGE_PAGE { align.max(HUGE_PAGE) } else { align }
}

/// Whether a mapping can move without losing its huge pages: the system splits those that it moves to another
/// offset from a multiple of their size, and new places are such multiples.
fn keeps_huge_pages_when_moved(mapping: Mapping) -> bool {
    !mapping.huge || mapping.block.addr() & (HUGE_PAGE - 1) == 0
}

/// Allocates a block in kept memory, if there is enough. `clear` says that the caller will clear it unless it
/// is known to be zero, `growing` that it may grow further.
pub(super) fn alloc_kept(size: usize, align: usize, clear: bool, growing: bool) -> Allocation {
    let Some(len) = length_for(size) else { return Allocation::NONE };
    if let Some(kept) = cache::take_kept(len, align, growing) {
        // Memory whose front was cut off begins in another slice than before, for which the map may not be
        // prepared.
        if pagemap::prepare_direct(kept.block) {
            // Clearing memory that was hardly touched would make all of it resident.
            // SAFETY: out of the cache, so ours alone, and in whole system pages.
            let purged = || clear && huge::is_better_purged(kept) && unsafe { purge(kept) };
            let zero = kept.clean || purged();
            pagemap::set_direct(kept.block, entry(kept) | if zero { FRESH as u64 } else { 0 });
            return Allocation { ptr: kept.block, zeroed: zero };
        }
        // SAFETY: out of the cache, and not handed out.
        unsafe { cache::keep(kept) };
    }
    Allocation::NONE
}

/// Allocates a block where memory is not kept, or not enough of it. `clear` and `growing` as for
/// [`alloc_kept`].
pub(super) fn alloc(size: usize, align: usize, clear: bool, growing: bool) -> Allocation {
    let Some(len) = length_for(size) else { return Allocation::NONE };
    // Not to clear it: that would touch the new part, too.
    let part = if clear || align > os::page_size() { None } else { cache::take_part(len) };
    if let Some(kept) = part {
        // SAFETY: out of the cache, so ours alone.
        let block = unsafe { extend(kept, len, keeps_huge_pages_when_moved(kept)) };
        if !block.is_null() {
            return Allocation { ptr: block, zeroed: false };
        }
        // SAFETY: still ours and unchanged, since `extend` has failed.
        unsafe { cache::keep(kept) };
    }
    if len >= HUGE_PAGE {
        look_at_earlier(huge::newest(), |mapping| {
            huge::look_closely(mapping, 0);
        });
    }
    if len >= huge::SHORTEST {
        look_at_earlier(huge::control(len), huge::look_back);
    }
    let may_share = !growing && align <= os::page_size();
    let total = if may_share { batch::length_for(len) } else { None };
    let wanted = match total {
        Some(total) => huge::wants_huge_batch(len, clear, total / len.max(1)),
        None => huge::wants_huge_mapping(len, clear),
    };
    let earlier = if wanted { huge::earlier_huge(total.is_some()) } else { ptr::null_mut() };
    let wanted = wanted && !look_at_earlier(earlier, huge::holds_little).unwrap_or(false);
    if let Some(first) = total.filter(|_| wanted).and_then(|total| batch::alloc(len, total)) {
        if pagemap::prepare_direct(first.block) {
            huge::remember_huge(first.block, true);
            pagemap::set_direct(first.block, entry(first) | FRESH as u64);
            return Allocation { ptr: first.block, zeroed: true };
        }
        // SAFETY: mapped just now, and not handed out.
        unsafe { cache::keep(first) };
        return Allocation::NONE;
    }
    let wanted = wanted && (total.is_none() || len >= HUGE_PAGE);
    let map = |huge: bool| os::map_aligned(ptr::null_mut(), len, alignment_for(len, align, huge));
    let first = map(wanted);
    // Aligned to huge pages it needs more address space, which may be too much where it is limited.
    let huge = wanted && !first.is_null();
    let block = if wanted && !huge { map(false) } else { first };
    if block.is_null() {
        return Allocation::NONE;
    }
    if !pagemap::prepare_direct(block) {
        // SAFETY: mapped just now with this length, and nobody else knows it.
        unsafe { os::discard(block, len) };
        return Allocation::NONE;
    }
    // Advised against them, too, as SuperSlabs are: the system may give them to everybody. Shorter mappings
    // as well, for they may grow, and neighbours must be alike to be resized as one.
    if huge || thp::refuses() {
        // SAFETY: a whole mapping of ours.
        unsafe { os::advise_huge(block, len, huge) };
    }
    if huge {
        huge::remember_huge(block, false);
    }
    // Shorter than a huge page, only those that could have been part of a batch.
    if !huge && (len >= HUGE_PAGE || len >= huge::SHORTEST && may_share) {
        look_at_earlier(huge::remember(block, len), huge::look_back);
    }
    pagemap::set_direct(block, entry(Mapping { block, len, huge, clean: true }) | FRESH as u64);
    Allocation { ptr: block, zeroed: true }
}

/// Asks how dense a mapping is that was seen earlier. By now it may be gone, or be another one: only the
/// system looks at it.
fn look_at_earlier<T>(block: *mut u8, look: impl FnOnce(Mapping) -> T) -> Option<T> {
    if pagemap::kind(block) != DIRECT || !is_start(block) {
        return None;
    }
    let entry = pagemap::direct(block);
    (entry as usize & FRESH != 0).then(|| look(mapping(block, entry)))
}

/// Whether a mapping begins at `address`, and not elsewhere in its slice.
pub(super) fn is_start(address: *mut u8) -> bool {
    let entry = pagemap::direct(address);
    address.addr() & (SLICE - 1) == (entry as usize & (HUGE - 1)) * UNIT
}

pub(super) fn usable(address: *mut u8) -> usize {
    mapping(address, pagemap::direct(address)).len
}

/// Takes a mapping that is freed out of the page map: it is the caller's alone then. `None` if another thread
/// has just freed it.
///
/// # Safety
///
/// `address` is the start of a direct mapping, which the program does not use any more.
pub(super) unsafe fn claim(address: *mut u8) -> Option<Mapping> {
    let entry = pagemap::direct(address);
    // Cleared in the map first: once the memory is unmapped, the address may be used by anybody.
    if entry == 0 || !pagemap::clear_direct(address, entry) {
        return None;
    }
    let kept = mapping(address, entry);
    if entry as usize & FRESH != 0 {
        huge::look(kept, 0);
    }
    Some(kept)
}

/// Cuts off what a mapping has beyond `size` bytes, if that is enough to be kept, and most of it was touched:
/// a buffer that is filled again would fault all of it in. What was never touched the system takes back at no
/// cost, and keeping it would only drop memory that is of use. Returns it: the caller's alone, and the rest
/// stays a block.
///
/// # Safety
///
/// `address` is the start of a direct mapping in use, and the caller's, which does not use what is beyond
/// `size` bytes any more.
pub(super) unsafe fn cut(address: *mut u8, size: usize) -> Option<Mapping> {
    let before = pagemap::direct(address);
    let old = mapping(address, before);
    let len = length_for(size)?;
    let tail = Mapping { block: address.wrapping_add(len), len: old.len.checked_sub(len)?, ..old };
    let options = options::get();
    let is_kept = options.large_cache != 0 && options.purge_delay != 0;
    if !is_kept || tail.len < SLICE || !huge::is_touched(tail) || !pagemap::clear_direct(address, before) {
        return None;
    }
    pagemap::set_direct(address, entry(Mapping { len, ..old }));
    Some(tail)
}

/// Lets the system grow, shrink or move a mapping. Does not move it if that could lose the alignment. Null if
/// it cannot grow; one that cannot shrink, because that would make one mapping too many, stays as long as it
/// is and gives back the pages.
///
/// # Safety
///
/// `address` is the start of a direct mapping in use, and the caller's.
pub(super) unsafe fn resize(address: *mut u8, size: usize, align: usize) -> *mut u8 {
    let before = pagemap::direct(address);
    let old = mapping(address, before);
    let Some(len) = length_for(size) else { return ptr::null_mut() };
    if len == old.len {
        return address;
    }
    // Not in the map while it may move: as soon as it has moved, the old address may be used by anybody.
    if !pagemap::clear_direct(address, before) {
        return ptr::null_mut();
    }
    if len > old.len {
        if let Some(more) = cache::take_behind(address.wrapping_add(old.len), len - old.len, old.huge) {
            pagemap::set_direct(address, entry(Mapping { len: old.len + more, ..old }));
            return address;
        }
        // The part that it last grew by: the program has had time to fill that. Not at each step of one that
        // grows by a page, which would cost more than growing; with huge pages only where that may allow
        // longer ones to have them.
        if huge::is_step(old.len, len) && (!old.huge || huge::is_longest(old.len)) {
            huge::look(old, (old.len / 2).next_multiple_of(os::page_size()));
        }
        cache::grows_fresh(len - old.len);
    }
    // SAFETY: the caller's mapping, whole, which only we have claimed in the map.
    let moved = unsafe { extend(old, len, align <= os::page_size()) };
    if !moved.is_null() {
        return moved;
    }
    let stays = len < old.len;
    if stays {
        let tail = Mapping { block: address.wrapping_add(len), len: old.len - len, ..old };
        // SAFETY: the end of the caller's mapping, in whole system pages, which the caller does not use any
        // more.
        unsafe { purge(tail) };
    }
    pagemap::set_direct(address, before);
    if stays { address } else { ptr::null_mut() }
}

/// Resizes a mapping that is not in the map, in place or, if `may_move` says so, by moving it, and enters it
/// there. Null, and nothing changed, if neither is possible.
///
/// # Safety
///
/// The mapping is whole, and the caller's alone. After success only the result may be used.
unsafe fn extend(old: Mapping, len: usize, may_move: bool) -> *mut u8 {
    if !pagemap::prepare_direct(old.block) {
        return ptr::null_mut();
    }
    let becomes_huge = len > old.len && !old.huge && huge::wants_huge_grown(len);
    let huge = old.huge || becomes_huge;
    if huge && len < old.len {
        // SAFETY: the end of the caller's mapping, which goes.
        unsafe { Mapping { block: old.block.wrapping_add(len), len: old.len - len, ..old }.split_ends() };
    }
    // SAFETY: the caller's mapping, which it uses only by way of the result.
    let block = match unsafe { os::remap(old.block, old.len, len) } {
        Ok(()) => old.block,
        Err(NotResized::NoRoom) if may_move && len > old.len => {
            // SAFETY: `remap` has failed and changed nothing, so the mapping still is what the caller says.
            unsafe { moved::to_new(old, len, huge) }
        }
        Err(_) => ptr::null_mut(),
    };
    if !block.is_null() {
        if becomes_huge {
            // Pages that are present stay as they are.
            // SAFETY: the mapping has this place and length now.
            unsafe { os::advise_huge(block, len, true) };
        }
        pagemap::set_direct(block, entry(Mapping { block, len, huge, clean: false }));
    }
    block
}

#[cfg(test)]
mod tests;
