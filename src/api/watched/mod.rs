//! The entries in builds for tools that watch memory: the features `asan` and `valgrind` (see
//! `docs/tools.md`, and decision 038). They take the place of [`rust`](super::rust) and [`c`](super::c), and
//! call the allocator below with larger blocks: what lies before and behind the program's bytes is closed to
//! the program, and so is a freed block for as long as it is kept ([`blocks`]).
//!
//! Here Rust's four calls; C's are in [`c`].

mod blocks;
pub mod c;
mod requests;

use crate::base::options::Options;
use core::alloc::Layout;

/// `GlobalAlloc::alloc`.
///
/// # Safety
///
/// None; unsafe because the function that it replaces is.
pub(super) unsafe fn alloc(layout: Layout, options: &Options) -> *mut u8 {
    blocks::alloc(layout.size(), layout.align(), false, Some(options))
}

/// The bytes that were asked for; 0 after reporting misuse on behalf of `function`.
///
/// # Safety
///
/// `block` is one of this allocator.
pub(super) unsafe fn usable(block: *mut u8, function: &str) -> usize {
    // SAFETY: the caller's clause is the same.
    unsafe { blocks::size(block, function) }
}

/// `GlobalAlloc::dealloc`.
///
/// # Safety
///
/// As [`GlobalAlloc::dealloc`](core::alloc::GlobalAlloc::dealloc).
pub(super) unsafe fn dealloc(block: *mut u8, layout: Layout) {
    // SAFETY: the caller gives up the block.
    unsafe { blocks::free(block, Some(layout.size()), "dealloc") }
}

/// `GlobalAlloc::alloc_zeroed`.
pub(super) fn alloc_zeroed(size: usize, align: usize, options: &Options) -> *mut u8 {
    blocks::alloc(size, align, true, Some(options))
}

/// `GlobalAlloc::realloc`.
///
/// # Safety
///
/// As [`GlobalAlloc::realloc`](core::alloc::GlobalAlloc::realloc).
pub(super) unsafe fn realloc(
    block: *mut u8,
    old: usize,
    align: usize,
    size: usize,
    options: &Options,
) -> *mut u8 {
    // SAFETY: only the caller uses the block.
    unsafe { blocks::realloc(block, Some(old), align, size, Some(options), "realloc") }
}
