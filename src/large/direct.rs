//! Direct mappings: blocks with a mapping of their own.
//!
//! A mapping has at least 64 KiB, so no two begin in the same slice of the page map, and the page map needs
//! to know only where each begins. The map's side table holds the length and the place within the slice.

use crate::base::pause::Pause;
use crate::large::cache;
use crate::large::huge::{self, Mapping};
use crate::os::{self, NotResized, held};
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, DIRECT};
use crate::superslab::slab::Allocation;
use crate::superslab::thp::HUGE_PAGE;
use core::ptr;

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

/// The mapping at `block` that has this entry.
fn mapping(block: *mut u8, entry: u64) -> Mapping {
    let entry = entry as usize;
    Mapping { block, len: entry & !(UNIT - 1), huge: entry & HUGE != 0 }
}

/// The length of the mapping for a block of `size` bytes; `None` if that overflows.
fn length_for(size: usize) -> Option<usize> {
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
            let zero = clear && huge::is_sparse(kept) && unsafe { os::purge(kept.block, kept.len) };
            pagemap::set_direct(kept.block, entry(kept) | if zero { FRESH as u64 } else { 0 });
            return Allocation { ptr: kept.block, zeroed: zero };
        }
        // SAFETY: out of the cache, and not handed out.
        unsafe { cache::keep(kept) };
    }
    Allocation::NONE
}

/// Allocates a block where memory is not kept, or not enough of it. `clear` as for [`alloc_kept`].
pub(super) fn alloc(size: usize, align: usize, clear: bool) -> Allocation {
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
    let huge = huge::wants_huge_mapping(len);
    let block = os::map_aligned(ptr::null_mut(), len, alignment_for(len, align, huge));
    if block.is_null() {
        return Allocation::NONE;
    }
    if !pagemap::prepare_direct(block) {
        // SAFETY: mapped just now with this length, and nobody else knows it.
        unsafe { os::unmap(block, len) };
        return Allocation::NONE;
    }
    if huge {
        // SAFETY: a whole mapping of ours.
        unsafe { os::advise_huge(block, len, true) };
        look_at_earlier(huge::control());
    } else if len >= HUGE_PAGE {
        look_at_earlier(huge::remember(block));
    }
    pagemap::set_direct(block, entry(Mapping { block, len, huge }) | FRESH as u64);
    Allocation { ptr: block, zeroed: true }
}

/// Asks how dense a mapping is that was seen earlier. By now it may be gone, or be another one: it is not
/// accessed.
fn look_at_earlier(block: *mut u8) {
    if pagemap::kind(block) == DIRECT {
        let entry = pagemap::direct(block);
        if entry as usize & FRESH != 0 {
            huge::look(mapping(block, entry), 0);
        }
    }
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

/// Lets the system grow, shrink or move a mapping. Does not move it if that could lose the alignment. Null if
/// it cannot.
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
        // The part that it last grew by: the program has had time to fill that. One with huge pages is looked
        // at when it is freed: at each step that would cost more than growing.
        if !old.huge {
            huge::look(old, (old.len / 2).next_multiple_of(os::page_size()));
        }
        cache::grows_fresh(len - old.len);
    }
    // SAFETY: the caller's mapping, whole, which only we have claimed in the map.
    let moved = unsafe { extend(old, len, align <= os::page_size()) };
    if moved.is_null() {
        pagemap::set_direct(address, before);
    }
    moved
}

/// How long no mapping is moved after the system has refused to move one: at most 65,536 milliseconds.
static MOVES: Pause = Pause::up_to(1 << 16);

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
    // SAFETY: the caller's mapping, which it uses only by way of the result.
    let block = match unsafe { os::remap(old.block, old.len, len) } {
        Ok(()) => old.block,
        // Each move that is refused costs address space: see `os::remap_to`.
        Err(NotResized::NoRoom) if may_move && !MOVES.is_on(os::now_ms()) => {
            // SAFETY: `remap` has failed and changed nothing, so the mapping still is what the caller says.
            unsafe { move_to_new(old, len, huge) }
        }
        Err(_) => ptr::null_mut(),
    };
    if !block.is_null() {
        if becomes_huge {
            // Pages that are present stay as they are.
            // SAFETY: the mapping has this place and length now.
            unsafe { os::advise_huge(block, len, true) };
        }
        pagemap::set_direct(block, entry(Mapping { block, len, huge }));
    }
    block
}

/// Moves the pages of a mapping to a new place that the page map can describe. Null, and nothing changed, on
/// failure.
///
/// # Safety
///
/// As [`extend`].
unsafe fn move_to_new(old: Mapping, len: usize, huge: bool) -> *mut u8 {
    // Only one of the two places counts as held, so only the difference is reserved.
    if !held::reserve_growth(old.len, len) {
        return ptr::null_mut();
    }
    let target = if huge && len >= HUGE_PAGE {
        os::map_aligned_uncounted(len, HUGE_PAGE)
    } else {
        os::map_uncounted(len)
    };
    if !target.is_null() && !pagemap::prepare_direct(target) {
        // SAFETY: mapped just now with this length, and nobody else knows it.
        unsafe { os::unmap_uncounted(target, len) };
    } else if !target.is_null() {
        // SAFETY: the old place is the caller's, and the new one was mapped just now and may be replaced.
        let moved = unsafe { os::remap_to(old.block, old.len, len, target) };
        MOVES.tried(moved, os::now_ms());
        if moved {
            held::release_excess(old.len, len);
            return target;
        }
    }
    held::release_excess(len, old.len);
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frees a mapping, as a program's free does. False if it has been freed.
    ///
    /// # Safety
    ///
    /// As [`claim`].
    unsafe fn free(address: *mut u8) -> bool {
        // SAFETY: this function's contract is the same, and what is claimed is ours alone.
        unsafe { claim(address).map(|kept| cache::keep(kept)).is_some() }
    }

    /// Every place within a slice, with lengths at both ends: nothing of one runs into another.
    #[test]
    fn an_entry_keeps_the_length_and_the_place() {
        let page = os::page_size();
        let lengths = [SLICE, SLICE + page, 1 << 30, (1 << 47) - page, isize::MAX as usize & !(page - 1)];
        for (place, len) in (0..SLICE).step_by(UNIT).flat_map(|place| lengths.map(|len| (place, len))) {
            for (huge, fresh) in [(false, 0), (true, 0), (false, FRESH as u64), (true, FRESH as u64)] {
                let block = ptr::without_provenance_mut((1 << 40) + place);
                let entry = entry(Mapping { block, len, huge }) | fresh;
                let read = mapping(block, entry);
                assert_eq!((read.block, read.len, read.huge), (block, len, huge), "{place:#x} {len:#x}");
                assert_eq!(entry as usize & (HUGE - 1), place / UNIT);
                assert_eq!(entry & FRESH as u64, fresh);
            }
        }
    }

    #[test]
    fn huge_pages_are_aligned_where_one_fits_in() {
        for (len, huge, least) in [
            (SLICE, false, 1),
            (SLICE, true, 1),
            (HUGE_PAGE - 1, true, 1),
            (HUGE_PAGE, false, 1),
            (HUGE_PAGE, true, HUGE_PAGE),
            (HUGE_PAGE + SLICE, true, HUGE_PAGE),
        ] {
            for align in [1, SLICE, HUGE_PAGE, 2 * HUGE_PAGE] {
                assert_eq!(alignment_for(len, align, huge), align.max(least), "{len:#x} {align:#x} {huge}");
            }
        }
    }

    #[test]
    fn huge_pages_stay_whole_when_moved_from_a_multiple_of_their_size() {
        for (place, whole) in [(0, true), (UNIT, false), (SLICE, false), (HUGE_PAGE / 2, false)] {
            let block = ptr::without_provenance_mut((1 << 40) + HUGE_PAGE + place);
            let mapping = |huge| Mapping { block, len: 2 * HUGE_PAGE, huge };
            assert!(keeps_huge_pages_when_moved(mapping(false)));
            assert_eq!(keeps_huge_pages_when_moved(mapping(true)), whole, "{place:#x}");
        }
    }

    /// New, kept and extended mappings: each where and as long as asked for, zero where it says so.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn blocks_are_what_was_asked_for() {
        // Hardly touched, and so purged rather than cleared. At first: dense ones are soon given huge pages.
        for _ in 0..8 {
            let mut allocation = alloc_kept(12 << 20, 1, true, false);
            if allocation.ptr.is_null() {
                allocation = alloc(12 << 20, 1, true);
            }
            // SAFETY: ours, with so many bytes; freed once.
            unsafe {
                assert!(!allocation.zeroed || (0..4096).all(|i| allocation.ptr.add(i).read() == 0));
                allocation.ptr.write_bytes(0x5a, 4096);
                assert!(free(allocation.ptr));
            }
        }
        let mut blocks = Vec::new();
        for round in 0..96 {
            let size = ((1 + round % 5) << 20) + round * 1000;
            let align = [1, 1 << 12, 1 << 16, 1 << 20, 1 << 24][round / 3 % 5];
            let clear = round % 2 == 0;
            let mut allocation = alloc_kept(size, align, clear, round % 7 == 0);
            if allocation.ptr.is_null() {
                allocation = alloc(size, align, clear);
            }
            let block = allocation.ptr;
            assert!(!block.is_null() && block.addr() % align == 0, "{size:#x} {align:#x}");
            assert!(usable(block) >= size && usable(block) < size + (2 << 20), "{size:#x}");
            assert_eq!((pagemap::kind(block), is_start(block)), (DIRECT, true));
            let inside = block.wrapping_add(UNIT);
            assert!(inside.addr() % SLICE == 0 || !is_start(inside));
            // SAFETY: ours, with so many bytes.
            unsafe {
                if allocation.zeroed {
                    let words = core::slice::from_raw_parts(block.cast::<u64>(), size / 8);
                    assert!(words.iter().step_by(64).all(|&word| word == 0), "{size:#x} {clear}");
                }
                block.write_bytes(0x5a, size);
            }
            blocks.push(block);
            if round % 3 != 0 {
                let block = blocks.swap_remove(round % blocks.len());
                // SAFETY: ours, and not used any more.
                assert!(unsafe { free(block) });
            }
        }
        // SAFETY: as in the loop: ours, and not used any more.
        assert!(blocks.into_iter().all(|block| unsafe { free(block) }));
    }

    /// A kept mapping that is too short is made longer, and holds what it held. Other tests use the cache as
    /// well, so it is not there each time.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_kept_mapping_is_made_longer() {
        let is_longer = |round: usize| {
            let size = (8 << 20) + round * SLICE;
            let short = alloc(size, 1, false).ptr;
            assert!(!short.is_null());
            // SAFETY: ours, with more bytes than one; not used any more after that.
            unsafe {
                short.write(round as u8);
                assert!(free(short));
            }
            let long = alloc(size + size / 2, 1, false);
            assert!(!long.ptr.is_null() && usable(long.ptr) >= size + size / 2);
            // SAFETY: ours, and not used any more after that.
            unsafe {
                let kept = !long.zeroed && long.ptr.read() == round as u8;
                assert!(free(long.ptr));
                kept
            }
        };
        assert!((1..=64).any(is_longer));
    }

    /// Around each power of two and at the end of all sizes.
    #[test]
    fn a_length_is_the_next_of_whole_pages() {
        let page = os::page_size();
        for size in
            (0..64).flat_map(|shift| (0..5).map(move |i| (1usize << shift).wrapping_sub(2).wrapping_add(i)))
        {
            // Without a division, in wider numbers.
            let least = (size as u128).max(SLICE as u128);
            let expected = (least + page as u128 - 1) >> page.trailing_zeros() << page.trailing_zeros();
            assert_eq!(
                length_for(size).map(|len| len as u128),
                Some(expected).filter(|&len| len < 1 << 64),
                "{size:#x}"
            );
        }
        assert_eq!(length_for(usize::MAX), None);
        assert_eq!(length_for(usize::MAX - page + 1), Some(usize::MAX - page + 1));
        assert_eq!(length_for(usize::MAX - page + 2), None);
    }
}
