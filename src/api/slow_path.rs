//! The slow paths that Rust's entries and C's share when the fast path has no block. When it has no room for
//! one: [`slow_free`](super::slow_free).
//!
//! Functions that are not inlined are `extern "C"`: nothing unwinds out of them, in any profile.

use crate::api::hardened::{self, Said};
use crate::api::slow_free::{free_large, free_small};
use crate::api::{guard, process, profile, profile_file, request};
use crate::base::misuse::{self, Fault};
use crate::base::options::Options;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::{large_blocks, tls};
use crate::large;
use crate::reclaim::background;
use crate::reclaim::retry::{self, or_reclaim};
use crate::sampling;
use crate::superslab::pagemap::HARDENED;
use crate::superslab::slab::Allocation;
use crate::tiny::classes::{class_of, stride};
use core::ptr;

/// Allocates a block of `class` when neither the magazine nor the current slab has one. `size` and `align`
/// are what was asked for, or have at least the same class. In this order they stay in C's registers.
pub(super) fn refill(size: usize, align: usize, class: u8, options: Option<&Options>) -> Allocation {
    request::look();
    background::tick();
    or_reclaim(stride(class as usize) as usize, 1, || {
        process::with_heap(options, |heap| {
            if heap.is_null() {
                return Allocation::NONE;
            }
            // SAFETY: `with_heap` passes a heap that the calling thread owns; the callers pass a size class.
            unsafe {
                // Only here: the options may have been read just now.
                if Heap::is_gated(heap) || hardened::is_on() {
                    return guard::refill(heap, class, size, align, options);
                }
                Heap::refill(heap, class)
            }
        })
    })
}

/// Allocates a block of any size and alignment.
pub(super) fn alloc(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if size > isize::MAX as usize {
        return Allocation::NONE;
    }
    // A block of size 0 has the alignment that was asked for, too.
    let size = size.max(1);
    let class = class_of(size, align);
    if class == 0 {
        // SAFETY: the calling thread's heap.
        return large_block(size, align, options, |heap| unsafe { large_blocks::alloc(heap, size, align) });
    }
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder; `class` is a size class.
    let block = unsafe { MagazineTops::pop(heap.cast(), class as usize) };
    if !block.is_null() {
        return Allocation { ptr: block, zeroed: false };
    }
    // SAFETY: the calling thread's heap or a placeholder; `class` is a size class.
    let allocation = unsafe { Heap::alloc_from_slab(heap, class as usize) };
    if allocation.ptr.is_null() { refill(size, align, class, options) } else { allocation }
}

/// A large block of at least `size` bytes by `allocate`, which gets the calling thread's heap; in hardened
/// mode one of its own.
fn large_block(
    size: usize,
    align: usize,
    options: Option<&Options>,
    allocate: impl Fn(*mut Heap) -> Allocation,
) -> Allocation {
    if hardened::is_on() {
        return hardened::alloc(size, align, options);
    }
    request::look();
    background::tick();
    profile_file::tick_if_on();
    or_reclaim(size, align, || {
        process::with_heap(options, |heap| {
            if hardened::is_on() {
                // SAFETY: `with_heap` passes null or a heap that the calling thread owns.
                return unsafe { hardened::alloc_from(heap, size, align, false) };
            }
            allocate(heap)
        })
    })
}

/// Like [`alloc`], for a block that will be cleared unless it is known to be zero.
pub(super) fn alloc_to_clear(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if hardened::is_on() {
        return hardened::alloc_zeroed(size, align, options);
    }
    if large::run_slices(size, align).is_some() || size > isize::MAX as usize {
        let allocation = alloc(size, align, options);
        // This may have been the first call, which has read the options: then not all that came on other ways
        // than the one above is zero.
        return Allocation { zeroed: allocation.zeroed && !hardened::is_on(), ..allocation };
    }
    large_block(size, align, options, |_| large_blocks::seen(large::alloc_to_clear(size, align), size))
}

/// Clears a block, unless it is null or known to be zero.
///
/// # Safety
///
/// The block, if there is one, has at least `size` bytes, and nobody else uses it.
#[inline(always)]
pub(super) unsafe fn cleared(allocation: Allocation, size: usize) -> *mut u8 {
    if !allocation.zeroed && !allocation.ptr.is_null() {
        // SAFETY: not null; the rest is the caller's clause.
        unsafe { allocation.ptr.write_bytes(0, size) };
    }
    allocation.ptr
}

/// Whether `block` is a large block, as its layout says; false after a complaint on behalf of `function`.
/// `kind` is the page map's answer for it.
pub(super) fn is_large(block: *mut u8, kind: u8, function: &str) -> bool {
    if stride(kind as usize) != 0 {
        misuse::report(function, block, Fault::Size);
        return false;
    }
    large::usable_checked(block, kind, function) != 0
}

/// Resizes a block of `old` bytes and of `kind` to `size` bytes. `kind` is a size class, or for a large block
/// the page map's answer. A large block that stays large is resized in place if possible, any other is
/// copied.
///
/// Null, and nothing changed, when there is no memory. But if a large block should shrink then, it stays as
/// it is and is returned, provided that it `may_stay`.
///
/// # Safety
///
/// The block has at least `old` bytes, and only the caller uses it. After success the caller uses the result
/// instead.
pub(super) unsafe fn reallocate(
    block: *mut u8,
    kind: u8,
    old: usize,
    align: usize,
    size: usize,
    may_stay: bool,
    options: Option<&Options>,
) -> *mut u8 {
    let is_large = stride(kind as usize) == 0;
    let stays_large = is_large && class_of(size, align) == 0 && size <= isize::MAX as usize;
    if stays_large {
        // As if it were allocated: a program may need nothing else for long.
        request::look();
        profile_file::tick_if_on();
        // SAFETY: a large block of that kind, which only the caller uses.
        let moved = seen_by_profile(block, size, || unsafe { retry::resize(block, kind, size, align) });
        if !moved.is_null() {
            return moved;
        }
    }
    let new = if size > old { alloc_growing(size, align, options) } else { alloc(size, align, options) };
    if new.ptr.is_null() {
        if is_large && size <= old && may_stay {
            return block;
        }
        if stays_large && size > old {
            // SAFETY: as above, and it is still unchanged.
            return seen_by_profile(block, size, || unsafe {
                retry::resize_at_last(block, kind, size, align)
            });
        }
        return ptr::null_mut();
    }
    if is_large && sampling::is_on() {
        sampling::freed_large(block);
    }
    // SAFETY: two different blocks, of at least `old` and `size` bytes. After the copy nobody uses the old
    // one, and its kind says how it is freed.
    unsafe {
        ptr::copy_nonoverlapping(block, new.ptr, old.min(size));
        if !is_large {
            free_small(block, kind);
        } else if !new.zeroed || !large::free_replaced(block, kind, new.ptr) {
            free_large(block, kind, "realloc", Said::Nothing);
        }
    }
    new.ptr
}

/// Runs `resize`, which resizes a large block to `size` bytes or returns null, and tells a heap profile.
pub(super) fn seen_by_profile(block: *mut u8, size: usize, resize: impl FnOnce() -> *mut u8) -> *mut u8 {
    let lifted = if sampling::is_on() { sampling::lift(block) } else { None };
    let moved = resize();
    if let Some(lifted) = lifted {
        sampling::put_down(lifted, moved.is_null());
    }
    if !moved.is_null() && sampling::is_on() {
        profile::resized(moved, size);
    }
    moved
}

/// Allocates a block of `size` bytes for contents that have outgrown their block. A large one lies where it
/// can grow further, if there is such a place.
pub(super) fn alloc_growing(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if size > isize::MAX as usize || class_of(size, align) != 0 {
        return alloc(size, align, options);
    }
    // SAFETY: the calling thread's heap.
    large_block(size, align, options, |heap| unsafe { large_blocks::alloc_growing(heap, size, align) })
}

/// The bytes that a block of `kind` has, a size class or the page map's answer. 0 after reporting misuse on
/// behalf of `function`, when that is no block.
pub(super) fn usable(block: *mut u8, kind: u8, function: &str) -> usize {
    match stride(kind as usize) {
        0 => usable_rest(block, kind, function),
        stride => stride as usize,
    }
}

/// [`usable`] of what lies in no slab, but perhaps in the hardened heap.
#[inline(never)]
fn usable_rest(block: *mut u8, kind: u8, function: &str) -> usize {
    if kind == HARDENED {
        return hardened::usable(block, function);
    }
    large::usable_checked(block, kind, function)
}
