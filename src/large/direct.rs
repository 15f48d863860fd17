//! Blocks with a mapping of their own.
//!
//! A mapping has at least 64 KiB, so no two begin in the same page of the page map, and the page map needs to know only
//! where they begin. Its side table holds the length, and the place within the page.

use super::cache::{self, Kept};
use crate::options::{self, Thp};
use crate::os;
use crate::superslab::Fresh;
use crate::superslab::pagemap::{self, PAGE};
use core::ptr;

/// Unit of the place within the page: the smallest page size there is.
const UNIT: usize = 4096;

/// Bit of the side table's entry: huge pages have been advised.
const HUGE: usize = PAGE / UNIT;

/// The side table's entry: the length (a multiple of the unit) and, below it, the place and the advice.
fn entry(block: Kept) -> u64 {
    let place = (block.block.addr() & (PAGE - 1)) / UNIT;
    (block.len | place | if block.huge { HUGE } else { 0 }) as u64
}

fn length(entry: u64) -> usize {
    entry as usize & !(UNIT - 1)
}

fn is_huge(entry: u64) -> bool {
    entry as usize & HUGE != 0
}

fn length_for(size: usize) -> Option<usize> {
    size.max(PAGE).checked_next_multiple_of(os::page_size())
}

pub(super) fn alloc(size: usize, align: usize) -> Fresh {
    let Some(len) = length_for(size) else { return Fresh::NONE };
    if let Some(kept) = cache::take(len, align) {
        // What was cut off the front of a mapping may end in a part of the map that nothing has begun in yet.
        if pagemap::prepare_direct(kept.block) {
            pagemap::set_direct(kept.block, entry(kept));
            return Fresh { block: kept.block, zero: false };
        }
        // SAFETY: just taken.
        unsafe { cache::give(kept) };
        return Fresh::NONE;
    }
    let block = if align <= os::page_size() { os::map(len) } else { os::map_aligned(len, align) };
    if block.is_null() {
        return Fresh::NONE;
    }
    if !pagemap::prepare_direct(block) {
        // SAFETY: just mapped, known to nobody.
        unsafe { os::unmap(block, len) };
        return Fresh::NONE;
    }
    let huge = options::get().thp == Thp::Always;
    if huge {
        // SAFETY: ours.
        unsafe { os::advise_huge(block, len, true) };
    }
    pagemap::set_direct(block, entry(Kept { block, len, huge }));
    Fresh { block, zero: true }
}

pub(super) fn is_start(address: *mut u8) -> bool {
    let entry = pagemap::direct(address);
    address.addr() & (PAGE - 1) == (entry as usize & (HUGE - 1)) * UNIT
}

pub(super) fn usable(address: *mut u8) -> usize {
    length(pagemap::direct(address))
}

/// Frees a mapping. False when another thread has just freed it.
pub(super) unsafe fn free(address: *mut u8) -> bool {
    let entry = pagemap::direct(address);
    // Out of the map first: once unmapped, the address can be anybody's.
    if entry == 0 || !pagemap::clear_direct(address, entry) {
        return false;
    }
    // SAFETY: passed on; we alone claimed it.
    unsafe { cache::give(Kept { block: address, len: length(entry), huge: is_huge(entry) }) };
    true
}

/// Lets the system grow, shrink or move the mapping; not move if that could lose the alignment. Null when it cannot.
pub(super) unsafe fn resize(address: *mut u8, size: usize, align: usize) -> *mut u8 {
    let old = pagemap::direct(address);
    let (Some(len), before) = (length_for(size), length(old)) else { return ptr::null_mut() };
    if len == before {
        return address;
    }
    // Out of the map while it may move: the old address can be somebody else's the moment it has.
    if !pagemap::clear_direct(address, old) {
        return ptr::null_mut();
    }
    let huge = is_huge(old);
    if len > before
        && let Some(more) = cache::take_behind(address.wrapping_add(before), len - before, huge)
    {
        pagemap::set_direct(address, entry(Kept { block: address, len: before + more, huge }));
        return address;
    }
    // SAFETY: passed on; the whole mapping.
    let mut moved = unsafe { os::remap(address, before, len) };
    if moved.is_null() && align <= os::page_size() {
        // SAFETY: as above.
        unsafe { moved = move_to_new(address, before, len) };
    }
    if moved.is_null() {
        pagemap::set_direct(address, old);
        return moved;
    }
    pagemap::set_direct(moved, entry(Kept { block: moved, len, huge }));
    moved
}

/// Moves the pages of a mapping to a place that the page map can describe; null, and nothing changed, when there is none.
unsafe fn move_to_new(address: *mut u8, before: usize, len: usize) -> *mut u8 {
    let target = os::map(len);
    if target.is_null() {
        return target;
    }
    // SAFETY: the target was just mapped and is known to nobody; the old place is the caller's.
    unsafe {
        if pagemap::prepare_direct(target) && os::remap_to(address, before, len, target) {
            return target;
        }
        os::unmap(target, len);
    }
    ptr::null_mut()
}
