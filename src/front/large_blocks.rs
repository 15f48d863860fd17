//! Large blocks, by way of the calling thread's run cache.

use crate::base::misuse::{self, Fault};
use crate::front::heap::Heap;
use crate::front::tls;
use crate::large;
use crate::superslab::pagemap::{self, FOREIGN, RUN};
use crate::superslab::slab::Allocation;
use core::ptr;

/// Takes a large block from the thread's run cache. Null means take the slow path.
#[inline(always)]
pub(crate) fn hit(size: usize) -> *mut u8 {
    let heap = tls::get();
    let Some(pages) = large::run_pages(size, 1) else { return ptr::null_mut() };
    // SAFETY: the calling thread owns the heap, or it is a placeholder, whose run cache never has anything.
    // `has` reads an atomic; the run is taken under the heap's lock, and is ours from then on.
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
/// `heap` is null, or the calling thread owns it.
pub(crate) unsafe fn alloc(heap: *mut Heap, size: usize, align: usize) -> Allocation {
    if let (false, Some(pages)) = (heap.is_null(), large::run_pages(size, align)) {
        // SAFETY: the calling thread owns the heap and enters it, so nobody else uses the run cache.
        let run = unsafe {
            let _entered = Heap::enter(heap);
            (*heap).run_cache.take_run(pages)
        };
        if !run.is_null() {
            // SAFETY: just taken from the run cache, so nobody else has it.
            return unsafe { hand_out(run) };
        }
    }
    large::alloc(size, align)
}

/// Allocates a large block for contents that have outgrown their block and may grow further. Takes the
/// longest run in the run cache and cuts it to the size, so that the pages behind it are free.
///
/// # Safety
///
/// As [`alloc`].
pub(crate) unsafe fn alloc_growing(heap: *mut Heap, size: usize, align: usize) -> Allocation {
    if let (false, Some(pages)) = (heap.is_null(), large::run_pages(size, align)) {
        // SAFETY: the calling thread owns the heap and enters it, so nobody else uses the run cache.
        let run = unsafe {
            let _entered = Heap::enter(heap);
            (*heap).run_cache.take_longest(pages)
        };
        if !run.is_null() {
            // SAFETY: just taken from the run cache, so nobody else has it; from `hand_out` on it is a block
            // in use. Should it keep its length, it merely is longer than it needs to be.
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
///
/// # Safety
///
/// `run` has just been taken from a run cache, and the caller alone has it.
unsafe fn hand_out(run: *mut u8) -> Allocation {
    pagemap::set(run, 1, RUN);
    // The second word may still be the mark of a small block that was once free at this address. A program
    // that copies what it has not written could bring the mark back there later, and a free would look like a
    // double free.
    // SAFETY: the run is the caller's, and at least a page long.
    unsafe { run.cast::<usize>().add(1).write(0) };
    Allocation { ptr: run, zeroed: false }
}

/// Frees a block that is no slab's, or reports misuse on behalf of `function`. Null is fine.
///
/// # Safety
///
/// `heap` is null, or the calling thread owns it. `kind` is the page map's answer for `block`, and no size
/// class. Nobody uses the block any more.
pub(crate) unsafe fn free(heap: *mut Heap, block: *mut u8, kind: u8, function: &str) {
    // SAFETY: the calling thread owns the heap, and puts something into the run cache only once it has
    // entered it. `holds` reads atomics. What `put_freed` does not take is still a block that nobody uses.
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
