//! `GlobalAlloc`'s four calls. A layout gives the class, so neither the page map nor an owner is asked.
//!
//! What is not inlined is `extern "C"`: nothing unwinds out of it, in any profile.

use crate::api::slow_path;
use crate::base::options::Options;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::tls;
use crate::superslab::pagemap;
use crate::tiny::classes::{MAX_TABLE, class_of, class_of_rest};
use core::alloc::Layout;

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
    slow_path::refill(class, Some(options)).ptr
}

/// Sizes and alignments that are not in the table.
#[inline(never)]
extern "C" fn alloc_rest(size: usize, align: usize, options: &Options) -> *mut u8 {
    slow_path::any(size, align, Some(options)).ptr
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
    unsafe { slow_path::free_small(block, class) }
}

#[inline(never)]
unsafe extern "C" fn dealloc_rest(block: *mut u8, size: usize, align: usize) {
    let class = class_of_rest(size, align);
    // SAFETY: passed on.
    unsafe {
        if class != 0 {
            slow_path::free_small(block, class)
        } else {
            slow_path::free_large(block, pagemap::kind(block), "dealloc")
        }
    }
}

pub(crate) extern "C" fn alloc_zeroed(size: usize, align: usize, options: &Options) -> *mut u8 {
    // SAFETY: fresh from the gate.
    unsafe { slow_path::cleared(slow_path::any_to_clear(size, align, Some(options)), size) }
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
    if from == to && from != 0 {
        return block;
    }
    // A block that is to be of a class cannot stay a large one: `dealloc` gets the class from the layout.
    let may_stay = to == 0;
    let kind = if from == 0 { pagemap::kind(block) } else { from };
    // SAFETY: passed on.
    unsafe { slow_path::reallocate(block, kind, old, align, size, may_stay, Some(options)) }
}
