//! Blocks with a mapping of their own.
//!
//! A mapping has at least 64 KiB, so no two begin in the same page of the page map, and the page map needs to know only
//! where they begin. Its side table holds the length, and the place within the page.

use crate::base::pause::Pause;
use crate::large::cache;
use crate::os;
use crate::os::{NotResized, held};
use crate::superslab::layout::PAGE;
use crate::superslab::pagemap;
use crate::superslab::pagemap::DIRECT;
use crate::superslab::slab::Allocation;
use crate::superslab::thp::{self, HUGE_PAGE, Mapping};
use core::ptr;

/// Unit of the place within the page: the smallest page size there is.
const UNIT: usize = os::SMALLEST_PAGE;

/// Bits of the side table's entry: huge pages have been advised; the mapping is fresh, so that what is resident of it
/// has been touched by this block.
const HUGE: usize = PAGE / UNIT;
const FRESH: usize = HUGE << 1;

/// The side table's entry: the length (a multiple of the unit) and, below it, the place and the advice.
fn entry(block: Mapping) -> u64 {
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

/// A block; `clear` says that it will be cleared unless it is known to be zero.
pub(super) fn alloc(size: usize, align: usize, clear: bool) -> Allocation {
    let Some(len) = length_for(size) else { return Allocation::NONE };
    if let Some(kept) = cache::take_kept(len, align) {
        // What was cut off the front of a mapping may end in a part of the map that nothing has begun in yet.
        if pagemap::prepare_direct(kept.block) {
            // Clearing what was hardly touched would make all of it resident.
            // SAFETY: just taken.
            let zero = clear && thp::is_sparse(kept) && unsafe { os::purge(kept.block, kept.len) };
            pagemap::set_direct(kept.block, entry(kept) | if zero { FRESH as u64 } else { 0 });
            return Allocation { ptr: kept.block, zeroed: zero };
        }
        // SAFETY: just taken.
        unsafe { cache::keep(kept) };
        return Allocation::NONE;
    }
    // Clearing would touch the part that is new, too.
    let part = if clear || align > os::page_size() { None } else { cache::take_part(len) };
    if let Some(kept) = part {
        let block = stretch(kept, len);
        if !block.is_null() {
            return Allocation { ptr: block, zeroed: false };
        }
    }
    let huge = thp::wants_huge_mapping(len);
    let place = if huge && len >= HUGE_PAGE { align.max(HUGE_PAGE) } else { align };
    let block = if place <= os::page_size() { os::map(len) } else { os::map_aligned(len, place) };
    if block.is_null() {
        return Allocation::NONE;
    }
    if !pagemap::prepare_direct(block) {
        // SAFETY: just mapped, known to nobody.
        unsafe { os::unmap(block, len) };
        return Allocation::NONE;
    }
    if huge {
        // SAFETY: ours.
        unsafe { os::advise_huge(block, len, true) };
        look_at_earlier(thp::control());
    } else if len >= HUGE_PAGE {
        look_at_earlier(thp::remember(block));
    }
    pagemap::set_direct(block, entry(Mapping { block, len, huge }) | FRESH as u64);
    Allocation { ptr: block, zeroed: true }
}

/// Makes a block of memory that was kept and is too short. Null, and it is kept again, when the system refuses.
fn stretch(kept: Mapping, len: usize) -> *mut u8 {
    let mut huge = kept.huge;
    let mut block = ptr::null_mut();
    if pagemap::prepare_direct(kept.block) {
        // Huge pages that do not move to the same place in another huge page are cut up.
        let may_move = !huge || kept.block.addr() & (HUGE_PAGE - 1) == 0;
        // SAFETY: just taken.
        block = unsafe { extend(kept.block, kept.len, len, may_move, huge) };
    }
    if block.is_null() {
        // SAFETY: as above.
        unsafe { cache::keep(kept) };
        return block;
    }
    if !huge && thp::wants_huge_grown(len) {
        huge = true;
        // SAFETY: ours. Pages that are there stay as they are.
        unsafe { os::advise_huge(block, len, true) };
    }
    pagemap::set_direct(block, entry(Mapping { block, len, huge }));
    block
}

/// Looks at a mapping that may not be there any more, or be another one by now: it is only looked at.
fn look_at_earlier(block: *mut u8) {
    if pagemap::kind(block) == DIRECT {
        let entry = pagemap::direct(block);
        if entry as usize & FRESH != 0 {
            thp::look(Mapping { block, len: length(entry), huge: is_huge(entry) }, 0);
        }
    }
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
    let kept = Mapping { block: address, len: length(entry), huge: is_huge(entry) };
    if entry as usize & FRESH != 0 {
        thp::look(kept, 0);
    }
    // SAFETY: passed on; we alone claimed it.
    unsafe { cache::keep(kept) };
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
    let mut huge = is_huge(old);
    if len > before {
        let block = Mapping { block: address, len: before, huge };
        if let Some(more) = cache::take_behind(address.wrapping_add(before), len - before, huge) {
            pagemap::set_direct(address, entry(Mapping { len: before + more, ..block }));
            return address;
        }
        // The part that it grew by last time, which the program has had the time to fill.
        thp::look(block, (before / 2).next_multiple_of(os::page_size()));
    }
    // SAFETY: passed on; the whole mapping.
    let moved =
        unsafe { extend(address, before, len, align <= os::page_size(), huge || thp::wants_huge_grown(len)) };
    if moved.is_null() {
        pagemap::set_direct(address, old);
        return moved;
    }
    if len > before && !huge && thp::wants_huge_grown(len) {
        huge = true;
        // SAFETY: ours. Pages that are there stay as they are.
        unsafe { os::advise_huge(moved, len, true) };
    }
    pagemap::set_direct(moved, entry(Mapping { block: moved, len, huge }));
    moved
}

/// The system has refused to move a mapping.
static MOVES: Pause = Pause::up_to(1 << 16);

/// Resizes a mapping in place, or moves it where it may be. Null, and nothing changed, when neither can be done.
unsafe fn extend(address: *mut u8, before: usize, len: usize, may_move: bool, huge: bool) -> *mut u8 {
    // SAFETY: passed on.
    match unsafe { os::remap(address, before, len) } {
        Ok(()) => address,
        // Each move that is refused costs address space: see `os::remap_to`.
        Err(NotResized::NoRoom) if may_move && !MOVES.is_on(os::now_ms()) => {
            // SAFETY: as above.
            unsafe { move_to_new(address, before, len, huge) }
        }
        Err(_) => ptr::null_mut(),
    }
}

/// Moves the pages of a mapping to a place that the page map can describe; null, and nothing changed, when there is none.
unsafe fn move_to_new(address: *mut u8, before: usize, len: usize, huge: bool) -> *mut u8 {
    // Held is one of the two: only the difference counts.
    if !held::reserve_growth(before, len) {
        return ptr::null_mut();
    }
    let target = if huge && len >= HUGE_PAGE {
        os::map_aligned_uncounted(len, HUGE_PAGE)
    } else {
        os::map_uncounted(len)
    };
    if !target.is_null() {
        if !pagemap::prepare_direct(target) {
            // SAFETY: just mapped and known to nobody.
            unsafe { os::unmap_uncounted(target, len) };
        } else {
            // SAFETY: as above; the old place is the caller's.
            let moved = unsafe { os::remap_to(address, before, len, target) };
            MOVES.tried(moved, os::now_ms());
            if moved {
                held::resized(before, len);
                return target;
            }
        }
    }
    held::not_resized(before, len);
    ptr::null_mut()
}
