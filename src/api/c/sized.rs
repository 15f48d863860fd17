//! Frees that say how large the block is.

use crate::api::c::resized::some_stayed;
use crate::api::c::{MIN_ALIGN, free, free_of_kind};
use crate::api::hardened::{self, Said};
use crate::api::slow_path;
use crate::base::misuse::{self, Fault};
use crate::superslab::pagemap::{self, HARDENED};
use crate::tiny::classes::{class_of, stride};

/// `free_sized`: `size` is what the program says that it asked for. If the block cannot be one of that size,
/// reports misuse on behalf of `function`.
///
/// # Safety
///
/// As [`free`].
#[inline(always)]
pub unsafe fn free_sized(block: *mut u8, size: usize, function: &str) {
    let kind = pagemap::kind_index(block);
    // Kinds that are no classes have no bytes, and so no size that would do.
    let stride = stride(kind) as usize;
    // SAFETY: the caller's clause is the same; `kind` is the page map's answer.
    unsafe {
        if size <= stride && size > stride / 2 {
            free_of_kind(block, kind)
        } else {
            free_sized_rest(block, size, function)
        }
    }
}

/// [`free_sized`] of a block that is no small one, or of a size that another class would fit better.
///
/// # Safety
///
/// As [`free_sized`].
#[cold]
#[inline(never)]
unsafe fn free_sized_rest(block: *mut u8, size: usize, function: &str) {
    if !block.is_null() {
        let kind = pagemap::kind(block);
        // Too small for the block's class: neither `malloc` nor a `realloc` in place makes such a block, if
        // there is memory.
        let stride = stride(kind as usize) as usize;
        let too_small = stride != 0 && size <= stride / 2 && class_of(size.max(1), MIN_ALIGN) != kind;
        if too_small && !some_stayed() {
            misuse::report(function, block, Fault::FreedSize);
        }
    }
    // SAFETY: the caller's clause is the same.
    unsafe { free_aligned_sized_rest(block, size, function) }
}

/// `free_aligned_sized`: as [`free_sized`], but the block may be of any larger class, because of its
/// alignment.
///
/// # Safety
///
/// As [`free`].
#[inline(always)]
pub unsafe fn free_aligned_sized(block: *mut u8, size: usize, function: &str) {
    let kind = pagemap::kind_index(block);
    // SAFETY: the caller's clause is the same; `kind` is the page map's answer.
    unsafe {
        // As above. A size of 0 is left to the rest.
        if size.wrapping_sub(1) < stride(kind) as usize {
            free_of_kind(block, kind)
        } else {
            free_aligned_sized_rest(block, size, function)
        }
    }
}

/// [`free_aligned_sized`] of a block that is no small one, or smaller than `size`.
///
/// # Safety
///
/// As [`free_aligned_sized`].
#[cold]
#[inline(never)]
unsafe fn free_aligned_sized_rest(block: *mut u8, size: usize, function: &str) {
    if !block.is_null() {
        let kind = pagemap::kind(block);
        if kind == HARDENED {
            // SAFETY: the caller's clause is the same.
            return unsafe { hardened::free(block, Said::Size(size), function) };
        }
        let usable = slow_path::usable(block, kind, function);
        if usable < size {
            if usable == 0 {
                return;
            }
            misuse::report(function, block, Fault::FreedSize);
        }
    }
    // SAFETY: the caller's clause is the same.
    unsafe { free(block) }
}
