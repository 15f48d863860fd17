//! C's entries for tools that watch memory, and all that C's interface has beside them.

use super::blocks;
pub use crate::api::c::*;
use crate::os;
use core::ptr;

/// Alignment of blocks.
const MIN_ALIGN: usize = 16;

/// `block`, or null and the right `errno`.
fn or_enomem(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        os::set_errno(libc::ENOMEM);
    }
    block
}

/// `malloc`.
pub fn malloc(size: usize) -> *mut u8 {
    or_enomem(malloc_hit(size))
}

/// `malloc` that leaves `errno` alone.
pub fn malloc_hit(size: usize) -> *mut u8 {
    blocks::alloc(size, MIN_ALIGN, false, None)
}

/// `calloc`.
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    or_enomem(blocks::alloc(count.saturating_mul(size), MIN_ALIGN, true, None))
}

/// `free`.
///
/// # Safety
///
/// `block` is null or a block of this allocator that nobody uses any more.
pub unsafe fn free(block: *mut u8) {
    if !block.is_null() {
        // SAFETY: the caller gives up the block.
        unsafe { blocks::free(block, None, "free") }
    }
}

/// `realloc`. Frees `block` and returns null when `size` is 0.
///
/// # Safety
///
/// `block` is null or a block of this allocator that only the caller uses. After success the caller uses the
/// result instead.
pub unsafe extern "C" fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        return malloc(size);
    }
    // SAFETY: only the caller uses the block.
    unsafe {
        if size == 0 {
            blocks::free(block, None, "realloc");
            return ptr::null_mut();
        }
        or_enomem(blocks::realloc(block, None, MIN_ALIGN, size, None, "realloc"))
    }
}

/// Allocates `size` bytes at a multiple of `align`, a power of two. Null when there is no memory; leaves
/// `errno` alone.
pub extern "C" fn aligned(align: usize, size: usize) -> *mut u8 {
    blocks::alloc(size, align.max(MIN_ALIGN), false, None)
}

/// `malloc_usable_size`: the bytes that were asked for, 0 for null. Reports misuse on behalf of `function`.
///
/// # Safety
///
/// `block` is null or a block of this allocator.
pub unsafe fn usable_size(block: *mut u8, function: &str) -> usize {
    // SAFETY: the caller's clause is the same.
    if block.is_null() { 0 } else { unsafe { blocks::size(block, function) } }
}

/// `free_sized`: `size` is what the program says that it asked for. If that is not so, reports misuse on
/// behalf of `function`.
///
/// # Safety
///
/// As [`free`].
pub unsafe fn free_sized(block: *mut u8, size: usize, function: &str) {
    if !block.is_null() {
        // SAFETY: the caller gives up the block.
        unsafe { blocks::free(block, Some(size), function) }
    }
}

/// `free_aligned_sized`: as [`free_sized`].
///
/// # Safety
///
/// As [`free`].
pub unsafe fn free_aligned_sized(block: *mut u8, size: usize, function: &str) {
    // SAFETY: the caller's clause is the same.
    unsafe { free_sized(block, size, function) }
}
