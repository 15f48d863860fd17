//! Memory is mapped. First of what the system has not taken back: see `left.rs`.

use crate::os::memory::{ACCESSIBLE, count_map, map_raw, page_size, trim, try_unmap};
use crate::os::{held, left};
use core::ptr;

/// Maps `len` bytes (a multiple of the page size) of zeroed, private memory for blocks, at a multiple of
/// `align` (a power of two). Asks for the address `hint`, if that is not null. Null when the system or a
/// limit refuses.
pub(crate) fn map_aligned(hint: *mut u8, len: usize, align: usize) -> *mut u8 {
    map_held(hint, len, align, ACCESSIBLE)
}

/// Like [`map_aligned`], but nothing of it can be touched until [`protect`](super::protect) says otherwise.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn reserve_aligned(len: usize, align: usize) -> *mut u8 {
    map_held(ptr::null_mut(), len, align, libc::PROT_NONE)
}

fn map_held(hint: *mut u8, len: usize, align: usize, access: libc::c_int) -> *mut u8 {
    if !held::reserve(len) {
        return ptr::null_mut();
    }
    let p = map_aligned_at(hint, len, align, access);
    if p.is_null() {
        held::release(len);
    }
    p
}

/// Maps `len` bytes of zeroed, private memory that no limit counts: for the allocator's own records, or for
/// bytes that are reserved already. Null when the system refuses.
pub(crate) fn map_uncounted(len: usize) -> *mut u8 {
    let left = left::take(len, page_size(), true);
    if left.is_null() { counted(map_raw(ptr::null_mut(), len, ACCESSIBLE), len) } else { left }
}

fn counted(p: *mut u8, len: usize) -> *mut u8 {
    if !p.is_null() {
        count_map(len);
    }
    p
}

/// Whether the system would map `len` bytes now, regardless of our limits.
pub(crate) fn could_map(len: usize) -> bool {
    let len = len.next_multiple_of(page_size());
    let p = map_raw(ptr::null_mut(), len, ACCESSIBLE);
    if p.is_null() {
        return false;
    }
    // SAFETY: just mapped; no other code has the address.
    if !unsafe { try_unmap(p, len) } {
        left::put(counted(p, len), len, true);
    }
    true
}

/// Like [`map_uncounted`], at a multiple of `align` (a power of two).
pub(crate) fn map_aligned_uncounted(len: usize, align: usize) -> *mut u8 {
    map_aligned_at(ptr::null_mut(), len, align, ACCESSIBLE)
}

fn map_aligned_at(hint: *mut u8, len: usize, align: usize, access: libc::c_int) -> *mut u8 {
    let is_open = access == ACCESSIBLE;
    let left = left::take(len, align.max(page_size()), is_open);
    if !left.is_null() {
        return left;
    }
    let first = counted(map_raw(hint, len, access), len);
    if first.is_null() || first.addr() & (align - 1) == 0 {
        return first;
    }
    // SAFETY: the mapping just made; no other code has the address.
    unsafe { drop_fresh(first, len, is_open) };
    let Some(total) = len.checked_add(align) else { return ptr::null_mut() };
    let base = counted(map_raw(ptr::null_mut(), total, access), total);
    if base.is_null() {
        return base;
    }
    // The upper one of two: systems map downwards, so the new range lies against the one before it, and is
    // one mapping with that for the system, which limits their number.
    let head = align - (base.addr() & (align - 1));
    let start = base.wrapping_add(head);
    let end = start.wrapping_add(len);
    // SAFETY: parts of our new mapping, below and above the aligned range, together `align` bytes, or all
    // that is left of it; no other code has their addresses.
    unsafe {
        // At its limit of mappings the system refuses what would leave a hole. Where what is beside the block
        // is lost then, nobody gets that: all of it can still be unmapped as it was mapped.
        if !drop_fresh(end, align - head, is_open) {
            drop_fresh(base, total, is_open);
            return ptr::null_mut();
        }
        if !drop_fresh(base, head, is_open) {
            drop_fresh(base, head + len, is_open);
            return ptr::null_mut();
        }
    }
    start
}

/// Unmaps what was just mapped, or keeps it for whoever maps memory next. False if it is neither: then it is
/// lost, unless it goes with what is beside it.
///
/// # Safety
///
/// As [`unmap_uncounted`](super::unmap_uncounted), and nothing of it was touched.
unsafe fn drop_fresh(p: *mut u8, len: usize, is_open: bool) -> bool {
    // SAFETY: this function's contract has that of `trim`.
    len == 0 || unsafe { trim(p, len) } || left::put(p, len, is_open)
}
