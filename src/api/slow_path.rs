//! What Rust's entries and C's do alike when the fast path has no block, or no room for one.
//!
//! A `free` in a straight line: the magazine has room (a hit, in the entry itself), or it has not ([`free_second_level`]) and the
//! block returns to its slab, which is this heap's or another one's ([`free_remote`]); [`free_cold`] is for all else.
//!
//! What is not inlined is `extern "C"`: nothing unwinds out of it, in any profile.

#[cfg(any(feature = "checked", debug_assertions))]
use crate::api::checked;
use crate::api::process;
use crate::base::options::Options;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::{Freed, Heap, RemoteFreed};
use crate::front::{large_blocks, thread, tls};
use crate::large;
use crate::os::held;
use crate::reclaim::retry::{self, or_reclaim};
use crate::reclaim::{background, idle_heaps};
use crate::superslab::pagemap::{self, FOREIGN, RUN};
use crate::superslab::slab::{Allocation, Slab};
use crate::tiny::classes::{CLASSES, class_of, stride};
use core::ptr;

/// The current slab has no block either.
pub(super) fn refill(class: u8, options: Option<&Options>) -> Allocation {
    background::tick();
    or_reclaim(stride(class as usize) as usize, || {
        process::with_heap(options, |heap| {
            if heap.is_null() {
                return Allocation::NONE;
            }
            // SAFETY: the thread's own heap.
            unsafe { Heap::refill(heap, class) }
        })
    })
}

/// A block of any size and alignment, from the magazine if there is one.
pub(super) fn any(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if size > isize::MAX as usize {
        return Allocation::NONE;
    }
    // Size 0 has the alignment that it asks for, too.
    let size = size.max(1);
    let class = class_of(size, align);
    if class == 0 {
        background::tick();
        return or_reclaim(size, || {
            process::with_heap(options, |heap| {
                // SAFETY: the thread's own heap.
                unsafe { large_blocks::alloc(heap, size, align) }
            })
        });
    }
    // SAFETY: the thread's own heap.
    let block = unsafe { MagazineTops::pop(tls::get().cast(), class as usize) };
    if !block.is_null() { Allocation { ptr: block, zeroed: false } } else { refill(class, options) }
}

/// Like [`any`], for a block that will be cleared unless it is known to be zero.
pub(super) fn any_to_clear(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if large::run_pages(size, align).is_some() || size > isize::MAX as usize {
        return any(size, align, options);
    }
    or_reclaim(size, || process::with_heap(options, |_| large::alloc_to_clear(size, align)))
}

/// Frees a block of `class`.
#[inline(always)]
pub(super) unsafe fn free_small(block: *mut u8, class: u8) {
    #[cfg(any(feature = "checked", debug_assertions))]
    checked::free(block, class);
    let heap = tls::get();
    // SAFETY: the thread's own heap; the block is free now.
    if !unsafe { MagazineTops::push(heap.cast(), class as usize, block) } {
        // SAFETY: passed on.
        unsafe { free_slow(heap, block, class) }
    }
}

/// The magazine is full. The layout has said the class; here the page map is asked, too.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(heap: *mut Heap, block: *mut u8, class: u8) {
    // SAFETY: passed on; the thread's own heap, or a placeholder.
    unsafe {
        if pagemap::kind_index(block) != class as usize {
            return free_cold(block, class as usize);
        }
        free_second_level(block, heap, class as usize);
    }
}

/// The magazine of `kind` is full: the block returns to its slab.
///
/// # Safety
///
/// `heap` is the calling thread's, or a placeholder; `kind` is the page map's answer for `block`, which nobody uses any more.
#[inline(always)]
pub(super) unsafe fn free_second_level(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: passed on.
    unsafe {
        match Heap::free_to_slab(heap, block, kind) {
            Freed::Done => (),
            Freed::Relist(slab) => relist(heap, slab),
            Freed::Remote(slab) => free_remote(block, heap, kind, slab),
            Freed::Unserved | Freed::Invalid => free_cold(block, kind),
        }
    }
}

/// A block has gone home to a slab that has to be looked at.
#[cold]
#[inline(never)]
unsafe extern "C" fn relist(heap: *mut Heap, slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe { Heap::relist(heap, slab) }
}

/// The block is another heap's.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_remote(block: *mut u8, heap: *mut Heap, kind: usize, slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe {
        match Heap::free_remote(heap, slab, block, kind) {
            RemoteFreed::Done => (),
            RemoteFreed::Idle(owner) => idle_heaps::take_in(owner),
            RemoteFreed::Invalid => free_cold(block, kind),
        }
    }
}

/// The magazine may grow, the thread has no heap, the block is a large one, or something is wrong with it.
///
/// # Safety
///
/// Nobody uses the block any more.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn free_cold(block: *mut u8, kind: usize) {
    if kind == FOREIGN as usize || kind > CLASSES {
        // SAFETY: passed on.
        return unsafe { free_large(block, kind as u8, "free") };
    }
    thread::with_heap(None, |heap| {
        if !heap.is_null() {
            // SAFETY: the thread's own heap.
            unsafe { Heap::free(heap, block, kind as u8) }
        }
        // Without memory for a heap the block is lost; the next attempt may find some.
    });
}

/// Frees a block that is no slab's, or complains on behalf of `function`.
pub(super) unsafe fn free_large(block: *mut u8, kind: u8, function: &str) {
    // SAFETY: passed on; the thread's own heap.
    unsafe { large_blocks::free(thread::own_heap(), block, kind, function) }
}

/// Clears a block, unless it is null or known to be zero.
#[inline(always)]
pub(super) unsafe fn cleared(allocation: Allocation, size: usize) -> *mut u8 {
    if !allocation.zeroed && !allocation.ptr.is_null() {
        // SAFETY: the block has at least `size` bytes and is ours.
        unsafe { allocation.ptr.write_bytes(0, size) };
    }
    allocation.ptr
}

/// Gives a block of `old` bytes and of `kind` (a class, or the page map's kind of a large one) `size` bytes: in place if it is large
/// and stays so, else by copying. Null, and nothing changed, when there is no memory; but a large block that should shrink then
/// stays what it is if it `may_stay`.
///
/// # Safety
///
/// The block is the caller's, and after success only the result is.
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
    if is_large && class_of(size, align) == 0 {
        // SAFETY: passed on.
        let moved = unsafe { resize(block, kind, size, align) };
        if !moved.is_null() {
            return moved;
        }
    }
    let new = if size > old { grown(size, align, options) } else { any(size, align, options) };
    if new.ptr.is_null() {
        return if is_large && size <= old && may_stay { block } else { ptr::null_mut() };
    }
    // SAFETY: two blocks of ours with at least that many bytes; then the old one is free.
    unsafe {
        ptr::copy_nonoverlapping(block, new.ptr, old.min(size));
        if !is_large {
            free_small(block, kind);
        } else if new.zeroed {
            free_replaced(block, kind, new.ptr);
        } else {
            free_large(block, kind, "realloc");
        }
    }
    new.ptr
}

/// Frees a large block whose contents have moved to `new`, which was fresh memory.
unsafe fn free_replaced(block: *mut u8, kind: u8, new: *mut u8) {
    // SAFETY: passed on.
    unsafe {
        if kind == RUN && pagemap::kind(new) == RUN && large::is_worth_purging(block) {
            large::free_replaced(block)
        } else {
            free_large(block, kind, "realloc")
        }
    }
}

/// A block of `size` bytes for one that grows.
pub(super) fn grown(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if size > isize::MAX as usize || class_of(size, align) != 0 {
        return any(size, align, options);
    }
    let attempt = || {
        process::with_heap(options, |heap| {
            // SAFETY: the thread's own heap.
            unsafe { large_blocks::alloc_growing(heap, size, align) }
        })
    };
    or_reclaim(size, attempt)
}

/// Resizes a large block in place or by moving pages; null when it must be copied.
unsafe fn resize(block: *mut u8, kind: u8, size: usize, align: usize) -> *mut u8 {
    if size > isize::MAX as usize {
        return ptr::null_mut();
    }
    // SAFETY: passed on.
    let moved = unsafe { large::resize(block, kind, size, align) };
    if !moved.is_null() || !held::limited() {
        return moved;
    }
    // SAFETY: passed on.
    unsafe { retry::resize(block, kind, size, align) }
}

/// The bytes that a block has, given its kind; 0 after a complaint on behalf of `function`.
pub(super) fn usable(block: *mut u8, kind: u8, function: &str) -> usize {
    match stride(kind as usize) {
        0 => large::usable_checked(block, kind, function),
        stride => stride as usize,
    }
}
