//! The four calls of `GlobalAlloc`. A layout gives the size class, so the fast path asks neither the page map
//! nor the slab.
//!
//! Functions that are not inlined are `extern "C"`: nothing unwinds out of them, in any profile.

use crate::api::hardened::{self, Said};
use crate::api::{slow_free, slow_path};
use crate::base::misuse::{self, Fault};
use crate::base::options::Options;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::tls;
use crate::superslab::pagemap::{self, HARDENED};
use crate::tiny::classes::{MAX_TABLE, class_of, class_of_rest, stride};
use core::alloc::Layout;
use core::ptr;

/// Whether the table gives the class of a layout, so that it pays to inline the fast path.
#[inline(always)]
const fn in_table(size: usize, align: usize) -> bool {
    size <= MAX_TABLE && align <= 16
}

/// `GlobalAlloc::alloc`.
///
/// # Safety
///
/// As [`GlobalAlloc::alloc`](core::alloc::GlobalAlloc::alloc).
#[inline(always)]
pub(crate) unsafe fn alloc(layout: Layout, options: &Options) -> *mut u8 {
    let (size, align) = (layout.size(), layout.align());
    if !in_table(size, align) {
        return alloc_rest(size, align, options);
    }
    let class = class_of(size, align);
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder; `class_of` gives a size class for a layout in the
    // table.
    let block = unsafe { MagazineTops::pop(heap.cast(), class as usize) };
    if !block.is_null() { block } else { alloc_slow(heap, class, options, size) }
}

/// [`alloc`] when the magazine is empty: from the current slab.
#[cold]
#[inline(never)]
extern "C" fn alloc_slow(heap: *mut Heap, class: u8, options: &Options, size: usize) -> *mut u8 {
    // SAFETY: `alloc` passes the calling thread's heap or a placeholder, and a size class.
    let block = unsafe { Heap::alloc_from_slab(heap, class as usize) }.ptr;
    if !block.is_null() { block } else { alloc_cold(heap, class, options, size) }
}

/// [`alloc`] when the current slab has no block either, or the thread has no heap.
#[cold]
#[inline(never)]
extern "C" fn alloc_cold(heap: *mut Heap, class: u8, options: &Options, size: usize) -> *mut u8 {
    // An alignment for which the size has this class.
    let align = if stride(class as usize) % 16 == 0 { 16 } else { 8 };
    // SAFETY: `alloc` passes the calling thread's heap or a placeholder.
    if unsafe { hardened::serves(heap) } {
        // SAFETY: the calling thread's heap, since that is served.
        let mut block =
            unsafe { hardened::hit(heap, size, align, hardened::class_with_trailer(size, align)) };
        if block.is_null() {
            // SAFETY: the same.
            block = unsafe { hardened::hit_shared(heap, size, align) };
        }
        if !block.is_null() {
            return block;
        }
    }
    slow_path::refill(size, align, class, Some(options)).ptr
}

/// [`alloc`] for sizes and alignments that are not in the table.
#[inline(never)]
extern "C" fn alloc_rest(size: usize, align: usize, options: &Options) -> *mut u8 {
    let class = class_of_rest(size, align) as usize;
    if class != 0 {
        let heap = tls::get();
        // SAFETY: the calling thread's heap or a placeholder; `class` is a size class.
        unsafe {
            let mut block = MagazineTops::pop(heap.cast(), class);
            if block.is_null() {
                block = Heap::alloc_from_slab(heap, class).ptr;
            }
            if !block.is_null() {
                return block;
            }
        }
    }
    alloc_any(size, align, options)
}

/// [`alloc`] when there is no block ready.
#[cold]
#[inline(never)]
extern "C" fn alloc_any(size: usize, align: usize, options: &Options) -> *mut u8 {
    slow_path::alloc(size, align, Some(options)).ptr
}

/// `GlobalAlloc::dealloc`.
///
/// # Safety
///
/// As [`GlobalAlloc::dealloc`](core::alloc::GlobalAlloc::dealloc).
#[inline(always)]
pub(crate) unsafe fn dealloc(block: *mut u8, layout: Layout) {
    let (size, align) = (layout.size(), layout.align());
    if !in_table(size, align) {
        // SAFETY: the caller's clauses are the same.
        return unsafe { dealloc_rest(block, size, align) };
    }
    let class = class_of(size, align);
    // SAFETY: the caller gives up the block, which was allocated with this layout, and so is one of this
    // class.
    unsafe { slow_free::free_small(block, class) }
}

/// [`dealloc`] for sizes and alignments that are not in the table.
///
/// # Safety
///
/// As [`dealloc`], for a layout of that size and alignment.
#[inline(never)]
unsafe extern "C" fn dealloc_rest(block: *mut u8, size: usize, align: usize) {
    let class = class_of_rest(size, align);
    // SAFETY: the caller gives up the block, which was allocated with this layout: as one of this class, or
    // as a large one.
    unsafe {
        if class != 0 {
            slow_free::free_small(block, class)
        } else {
            slow_free::free_large(block, pagemap::kind(block), "dealloc", Said::Size(size))
        }
    }
}

/// `GlobalAlloc::alloc_zeroed`.
pub(crate) extern "C" fn alloc_zeroed(size: usize, align: usize, options: &Options) -> *mut u8 {
    if in_table(size, align) {
        // SAFETY: the calling thread's heap or a placeholder; `class_of` gives a size class for a layout in
        // the table. The block has at least that many bytes.
        unsafe {
            let block = MagazineTops::pop(tls::get().cast(), class_of(size, align) as usize);
            if !block.is_null() {
                block.write_bytes(0, size);
                return block;
            }
        }
    }
    alloc_zeroed_rest(size, align, options)
}

/// [`alloc_zeroed`] when the magazine is empty, or the layout is not in the table.
#[inline(never)]
extern "C" fn alloc_zeroed_rest(size: usize, align: usize, options: &Options) -> *mut u8 {
    // SAFETY: just allocated for that many bytes, or null.
    unsafe { slow_path::cleared(slow_path::alloc_to_clear(size, align, Some(options)), size) }
}

/// `GlobalAlloc::realloc`, for a block of a layout of `old` bytes.
///
/// # Safety
///
/// As [`GlobalAlloc::realloc`](core::alloc::GlobalAlloc::realloc).
pub(crate) unsafe extern "C" fn realloc(
    block: *mut u8,
    old: usize,
    align: usize,
    size: usize,
    options: &Options,
) -> *mut u8 {
    if !in_table(old, align) || !in_table(size, align) || hardened::is_on() {
        // SAFETY: the caller's clauses are the same.
        return unsafe { realloc_rest(block, old, align, size, options) };
    }
    let (from, to) = (class_of(old, align), class_of(size, align));
    if from == to {
        return block;
    }
    // SAFETY: the calling thread's heap or a placeholder; `class_of` gives a size class for a layout in the
    // table. The caller's clauses are the same.
    unsafe {
        let new = MagazineTops::pop(tls::get().cast(), to as usize);
        if new.is_null() {
            return realloc_rest(block, old, align, size, options);
        }
        moved(block, new, old.min(size), from)
    }
}

/// Moves `bytes` of contents from `block` to `new`, which is the result, and frees it as one of class `from`.
/// What stays where it is is not told here, so that it needs no stack frame.
///
/// # Safety
///
/// Both have so many bytes, and are the caller's alone. `block` is one of that class.
#[inline(never)]
unsafe extern "C" fn moved(block: *mut u8, new: *mut u8, bytes: usize, from: u8) -> *mut u8 {
    // SAFETY: the caller's clauses; nobody uses the old block after the copy.
    unsafe {
        ptr::copy_nonoverlapping(block, new, bytes);
        slow_free::free_small(block, from);
    }
    new
}

/// [`realloc`] when there is no block ready, or a layout is not in the table.
///
/// # Safety
///
/// As [`realloc`].
#[inline(never)]
unsafe extern "C" fn realloc_rest(
    block: *mut u8,
    old: usize,
    align: usize,
    size: usize,
    options: &Options,
) -> *mut u8 {
    if hardened::is_on() {
        if pagemap::kind(block) != HARDENED {
            misuse::report("realloc", block, Fault::Foreign);
            return ptr::null_mut();
        }
        // SAFETY: only the caller uses the block.
        return unsafe { hardened::realloc(block, Some(old), size, align, Some(options)) };
    }
    let (from, to) = (class_of(old, align), class_of(size, align));
    if from == to && from != 0 {
        return block;
    }
    if from != 0 && to != 0 {
        // SAFETY: the calling thread's heap or a placeholder; `class_of` gives size classes. The blocks have
        // at least `old` and `size` bytes, and nobody uses the old one after the copy.
        return unsafe {
            let mut new = MagazineTops::pop(tls::get().cast(), to as usize);
            if new.is_null() {
                new = alloc_any(size, align, options);
            }
            if new.is_null() { new } else { moved(block, new, old.min(size), from) }
        };
    }
    // If the new layout has a class, the block cannot stay a large one: `dealloc` gets the class from the
    // layout.
    let may_stay = to == 0;
    let kind = if from == 0 { pagemap::kind(block) } else { from };
    if from == 0 && !slow_path::is_large(block, kind, "realloc") {
        return ptr::null_mut();
    }
    // SAFETY: only the caller uses the block, which was allocated with the old layout: `kind` is its
    // class, or for a large one the page map's answer, and it has at least `old` bytes.
    unsafe { slow_path::reallocate(block, kind, old, align, size, may_stay, Some(options)) }
}
