//! Frees that say how large the block is.

use crate::api::c::{MIN_ALIGN, free};
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
#[inline(never)]
pub unsafe fn free_sized(block: *mut u8, size: usize, function: &str) {
    if !block.is_null() {
        let kind = pagemap::kind(block);
        // Too small for the block's class: neither `malloc` nor a `realloc` in place makes such a block.
        let stride = stride(kind as usize) as usize;
        if stride != 0 && size <= stride / 2 && class_of(size.max(1), MIN_ALIGN) != kind {
            misuse::report(function, block, Fault::FreedSize);
        }
    }
    // SAFETY: the caller's clause is the same.
    unsafe { free_aligned_sized(block, size, function) }
}

/// `free_aligned_sized`: as [`free_sized`], but the block may be of any larger class, because of its
/// alignment.
///
/// # Safety
///
/// As [`free`].
pub unsafe fn free_aligned_sized(block: *mut u8, size: usize, function: &str) {
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
