//! The Rust gate: `GlobalAlloc`'s four calls. A layout gives the class, so neither the page map nor an owner is asked.
//!
//! What is not inlined is `extern "C"`: nothing unwinds out of it, in any profile.

use crate::api::process;
use crate::base::options::Options;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::{Heap, Remote, Way};
use crate::front::{large_blocks, thread, tls};
use crate::large;
use crate::os::held;
use crate::reclaim::retry::or_reclaim;
use crate::reclaim::{background, idle_heaps, retry};
use crate::superslab::pagemap;
use crate::superslab::pagemap::RUN;
use crate::superslab::slab::{Allocation, Slab};
use crate::tiny::classes::{MAX_TABLE, class_of, class_of_rest, stride};
use core::alloc::Layout;
use core::ptr;

/// Whether the table gives the class of a layout, so that the hit path is worth having in line.
#[inline(always)]
const fn in_table(size: usize, align: usize) -> bool {
    size <= MAX_TABLE && align <= 16
}

#[inline(always)]
pub(crate) unsafe fn alloc(layout: Layout, options: &Options) -> *mut u8 {
    let (size, align) = (layout.size(), layout.align());
    if !in_table(size, align) {
        return alloc_rest(size, align, options);
    }
    let class = class_of(size, align);
    let heap = tls::get();
    // SAFETY: the thread's own heap.
    let block = unsafe { MagazineTops::pop(heap.cast(), class as usize) };
    if !block.is_null() { block } else { alloc_slow(heap, class, options) }
}

/// The magazine is empty.
#[cold]
#[inline(never)]
extern "C" fn alloc_slow(heap: *mut Heap, class: u8, options: &Options) -> *mut u8 {
    // SAFETY: the thread's own heap, or a placeholder.
    let block = unsafe { Heap::alloc_from_slab(heap, class as usize) }.ptr;
    if !block.is_null() { block } else { alloc_cold(class, options) }
}

/// So is the current slab.
#[cold]
#[inline(never)]
extern "C" fn alloc_cold(class: u8, options: &Options) -> *mut u8 {
    refill(class, Some(options)).ptr
}

/// A block from behind the current slab.
pub(crate) fn refill(class: u8, options: Option<&Options>) -> Allocation {
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

/// Sizes and alignments that are not in the table.
#[inline(never)]
extern "C" fn alloc_rest(size: usize, align: usize, options: &Options) -> *mut u8 {
    any(size, align, Some(options)).ptr
}

/// A block of any size and alignment, from the magazine if there is one.
pub(crate) fn any(size: usize, align: usize, options: Option<&Options>) -> Allocation {
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
pub(crate) fn any_to_clear(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if large::run_pages(size, align).is_some() || size > isize::MAX as usize {
        return any(size, align, options);
    }
    or_reclaim(size, || process::with_heap(options, |_| large::alloc_to_clear(size, align)))
}

#[inline(always)]
pub(crate) unsafe fn dealloc(block: *mut u8, layout: Layout) {
    let (size, align) = (layout.size(), layout.align());
    if !in_table(size, align) {
        // SAFETY: passed on.
        return unsafe { dealloc_rest(block, size, align) };
    }
    let class = class_of(size, align);
    // SAFETY: passed on.
    unsafe { free_small(block, class) }
}

/// Frees a block of `class`.
#[inline(always)]
pub(crate) unsafe fn free_small(block: *mut u8, class: u8) {
    #[cfg(any(feature = "checked", debug_assertions))]
    super::checked::free(block, class);
    let heap = tls::get();
    // SAFETY: the thread's own heap; the block is free now.
    if !unsafe { MagazineTops::push(heap.cast(), class as usize, block) } {
        // SAFETY: passed on.
        unsafe { free_slow(heap, block, class) }
    }
}

/// The magazine is full.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(heap: *mut Heap, block: *mut u8, class: u8) {
    // SAFETY: passed on; the thread's own heap, or a placeholder.
    unsafe {
        if pagemap::kind_index(block) != class as usize {
            return free_cold(block, class);
        }
        match Heap::free_to_slab(heap, block, class as usize) {
            Way::Done => (),
            Way::Relist(slab) => relist(heap, slab),
            Way::Remote(slab) => free_foreign(heap, block, class, slab),
            Way::Other => free_cold(block, class),
        }
    }
}

/// A block has gone home to a slab that has to be looked at.
#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn relist(heap: *mut Heap, slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe { Heap::relist(heap, slab) }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn free_foreign(heap: *mut Heap, block: *mut u8, class: u8, slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe {
        match Heap::free_remote(heap, slab, block, class as usize) {
            Remote::Done => (),
            Remote::Idle(owner) => idle_heaps::take_in(owner),
            Remote::Wrong => free_cold(block, class),
        }
    }
}

/// The magazine is full and may grow, or the thread has no heap, or something is wrong with the block.
#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn free_cold(block: *mut u8, class: u8) {
    thread::with_heap(None, |heap| {
        if !heap.is_null() {
            // SAFETY: the thread's own heap.
            unsafe { Heap::free(heap, block, class) }
        }
        // Without memory for a heap the block is lost; the next attempt may find some.
    });
}

#[inline(never)]
unsafe extern "C" fn dealloc_rest(block: *mut u8, size: usize, align: usize) {
    let class = class_of_rest(size, align);
    // SAFETY: passed on.
    unsafe {
        if class != 0 { free_small(block, class) } else { free_large(block, pagemap::kind(block), "dealloc") }
    }
}

/// Frees a block that is no slab's, or complains on behalf of `function`.
pub(crate) unsafe fn free_large(block: *mut u8, kind: u8, function: &str) {
    // SAFETY: passed on; the thread's own heap.
    unsafe { large_blocks::free(thread::own_heap(), block, kind, function) }
}

pub(crate) extern "C" fn alloc_zeroed(size: usize, align: usize, options: &Options) -> *mut u8 {
    // SAFETY: fresh from the gate.
    unsafe { cleared(any_to_clear(size, align, Some(options)), size) }
}

/// Clears a block, unless it is null or known to be zero.
#[inline(always)]
pub(crate) unsafe fn cleared(allocation: Allocation, size: usize) -> *mut u8 {
    if !allocation.zeroed && !allocation.ptr.is_null() {
        // SAFETY: the block has at least `size` bytes and is ours.
        unsafe { allocation.ptr.write_bytes(0, size) };
    }
    allocation.ptr
}

/// Resizes a block of `old` bytes.
pub(crate) unsafe extern "C" fn realloc(
    block: *mut u8,
    old: usize,
    align: usize,
    size: usize,
    options: &Options,
) -> *mut u8 {
    let (from, to) = (class_of(old, align), class_of(size, align));
    if from == to {
        if from != 0 {
            return block;
        }
        // SAFETY: passed on: a large block before and after.
        let moved = unsafe { resize(block, size, align) };
        if !moved.is_null() {
            return moved;
        }
    }
    let new = if size > old { grown(size, align, Some(options)) } else { any(size, align, Some(options)) };
    if new.ptr.is_null() && size <= old && to == 0 {
        // A large block that cannot shrink by moving stays what it is, which is enough.
        return block;
    }
    if !new.ptr.is_null() {
        // SAFETY: two blocks of ours with at least that many bytes; then the old one is free.
        unsafe {
            ptr::copy_nonoverlapping(block, new.ptr, old.min(size));
            match from {
                0 if new.zeroed => free_replaced(block, new.ptr),
                0 => free_large(block, pagemap::kind(block), "realloc"),
                class => free_small(block, class),
            }
        }
    }
    new.ptr
}

/// Frees a large block whose contents have moved to `new`, which was fresh memory.
pub(crate) unsafe fn free_replaced(block: *mut u8, new: *mut u8) {
    let kind = pagemap::kind(block);
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
pub(crate) fn grown(size: usize, align: usize, options: Option<&Options>) -> Allocation {
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
pub(crate) unsafe fn resize(block: *mut u8, size: usize, align: usize) -> *mut u8 {
    if size > isize::MAX as usize {
        return ptr::null_mut();
    }
    let kind = pagemap::kind(block);
    // SAFETY: passed on.
    let moved = unsafe { large::resize(block, kind, size, align) };
    if !moved.is_null() || !held::limited() {
        return moved;
    }
    // SAFETY: passed on.
    unsafe { retry::resize(block, kind, size, align) }
}

/// The bytes that a block has, given its kind; 0 after a complaint on behalf of `function`.
pub(crate) fn usable(block: *mut u8, kind: u8, function: &str) -> usize {
    match stride(kind as usize) {
        0 => large::usable_checked(block, kind, function),
        stride => stride as usize,
    }
}
