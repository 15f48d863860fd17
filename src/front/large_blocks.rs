//! Large blocks, by way of the calling thread's run cache.

use crate::base::misuse::{self, Fault};
use crate::front::heap::Heap;
use crate::front::tls;
use crate::large;
use crate::superslab::pagemap::{self, FOREIGN, RUN};
use crate::superslab::slab::Allocation;
use core::ptr;

/// A block of more than the largest class from the thread's run cache, or null.
#[inline(always)]
pub(crate) fn hit(size: usize) -> *mut u8 {
    let heap = tls::get();
    let Some(pages) = large::run_pages(size, 1) else { return ptr::null_mut() };
    // SAFETY: the thread's own heap, or a placeholder, whose run cache is empty and not written to.
    unsafe {
        if !(*heap).run_cache.has(pages) {
            return ptr::null_mut();
        }
        let _entered = Heap::enter(heap);
        let run = (*heap).run_cache.take_run(pages);
        if run.is_null() { run } else { hand_out(run).ptr }
    }
}

/// Allocates a large block.
///
/// # Safety
///
/// `heap` is null or the calling thread's.
pub(crate) unsafe fn alloc(heap: *mut Heap, size: usize, align: usize) -> Allocation {
    if let (false, Some(pages)) = (heap.is_null(), large::run_pages(size, align)) {
        // SAFETY: passed on.
        let run = unsafe {
            let _entered = Heap::enter(heap);
            (*heap).run_cache.take_run(pages)
        };
        if !run.is_null() {
            // SAFETY: a run from the run cache.
            return unsafe { hand_out(run) };
        }
    }
    large::alloc(size, align)
}

/// Allocates a large block that another one grows into, and that may grow further: the longest run there is, cut to the
/// size, so that what is cut off lies free behind it.
///
/// # Safety
///
/// As [`alloc`].
pub(crate) unsafe fn alloc_growing(heap: *mut Heap, size: usize, align: usize) -> Allocation {
    if let (false, Some(pages)) = (heap.is_null(), large::run_pages(size, align)) {
        // SAFETY: passed on.
        let run = unsafe {
            let _entered = Heap::enter(heap);
            (*heap).run_cache.take_longest(pages)
        };
        if !run.is_null() {
            // SAFETY: a run from the run cache; nobody has it yet. That it stays as long as it is would do no harm.
            return unsafe {
                let allocation = hand_out(run);
                large::resize(run, RUN, size, align);
                allocation
            };
        }
    }
    large::alloc_growing(size, align)
}

/// Makes a block of a run from the run cache.
unsafe fn hand_out(run: *mut u8) -> Allocation {
    pagemap::set(run, 1, RUN);
    // SAFETY: passed on. Nothing of the block that was here before comes to the next that is cut from it.
    unsafe { run.cast::<usize>().add(1).write(0) };
    Allocation { ptr: run, zeroed: false }
}

/// Frees a block that is no slab's, or complains.
///
/// # Safety
///
/// As [`large::free`]; `heap` is null or the calling thread's.
pub(crate) unsafe fn free(heap: *mut Heap, block: *mut u8, kind: u8, function: &str) {
    // SAFETY: passed on.
    unsafe {
        if kind == RUN && !heap.is_null() {
            let _entered = Heap::enter(heap);
            if (*heap).run_cache.put_freed(block) {
                return;
            }
        }
        if kind == FOREIGN && !heap.is_null() && (*heap).run_cache.holds(block) {
            misuse::report(function, block, Fault::DoubleFree);
        }
        large::free(block, kind, function);
    }
}
