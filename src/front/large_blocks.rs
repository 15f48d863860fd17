//! Large blocks, by way of the calling thread's run cache.

use crate::base::misuse::{self, Fault};
use crate::front::heap::Heap;
use crate::front::run_cache::RunCache;
use crate::front::{registry, thread, tls};
use crate::superslab::pagemap::{self, FOREIGN, RUN};
use crate::superslab::slab::Allocation;
use crate::{large, sampling};
use core::ptr;

/// Takes a large block from the thread's run cache. Null means take the slow path.
#[inline(always)]
pub(crate) fn hit(size: usize) -> *mut u8 {
    let heap = tls::get();
    // SAFETY: the calling thread owns the heap, or it is a placeholder, whose run cache never has anything:
    // so nobody enters that. `has` reads an atomic.
    unsafe {
        match large::run_slices(size, 1) {
            Some(slices) if (*heap).run_cache.has(slices) => take(heap, slices, RunCache::take_run),
            _ => ptr::null_mut(),
        }
    }
}

/// Takes a run out of the run cache by `choose`, and makes a block of it. Null when there is none.
///
/// # Safety
///
/// The calling thread owns the heap.
#[inline(always)]
unsafe fn take(heap: *mut Heap, slices: usize, choose: impl Fn(&RunCache, usize) -> *mut u8) -> *mut u8 {
    // SAFETY: the calling thread owns the heap and enters it, so nobody else uses the run cache. What was
    // just taken from it, nobody else has.
    unsafe {
        let _entered = Heap::enter(heap);
        let run = choose(&(*heap).run_cache, slices);
        if !run.is_null() {
            hand_out(run);
        }
        run
    }
}

/// Allocates a large block.
///
/// # Safety
///
/// `heap` is null, or the calling thread owns it.
pub(crate) unsafe fn alloc(heap: *mut Heap, size: usize, align: usize) -> Allocation {
    if let (false, Some(slices)) = (heap.is_null(), large::run_slices(size, align)) {
        // SAFETY: not null, so the calling thread owns the heap.
        let run = unsafe { take(heap, slices, RunCache::take_run) };
        if !run.is_null() {
            return Allocation { ptr: run, zeroed: false };
        }
        // SAFETY: the calling thread owns the heap.
        unsafe { follow(heap) };
    }
    seen(large::alloc(size, align), size)
}

/// Allocates a large block for contents that have outgrown their block and may grow further. Where no freed
/// mapping is kept, takes the longest run in the run cache and cuts it to the size, so that the slices behind
/// it are free.
///
/// # Safety
///
/// As [`alloc`].
pub(crate) unsafe fn alloc_growing(heap: *mut Heap, size: usize, align: usize) -> Allocation {
    let no_run = heap.is_null() || large::grows_into_kept();
    if let (false, Some(slices)) = (no_run, large::run_slices(size, align)) {
        // SAFETY: not null, so the calling thread owns the heap. What `take` returns is a block in use.
        // Should it keep its length, it merely is longer than it needs to be.
        unsafe {
            let run = take(heap, slices, RunCache::take_longest);
            if !run.is_null() {
                large::resize(run, RUN, size, align);
                return Allocation { ptr: run, zeroed: false };
            }
        }
    }
    seen(large::alloc_growing(size, align), size)
}

/// Arms or disarms the heap, if its run cache is closed or there is a profile: a thread may need nothing but
/// runs.
///
/// # Safety
///
/// The calling thread owns the heap.
#[inline(always)]
unsafe fn follow(heap: *mut Heap) {
    /// # Safety
    ///
    /// As the function around this.
    #[cold]
    #[inline(never)]
    unsafe fn follow(heap: *mut Heap) {
        // SAFETY: the calling thread owns the heap, by the clause of the function around this.
        unsafe {
            let _entered = Heap::enter(heap);
            if !Heap::follow(heap) {
                (*heap).run_cache.reset(registry::live());
            }
        }
    }
    // SAFETY: the caller's clause is the same.
    unsafe {
        if (*heap).run_cache.is_closed() || Heap::is_gated(heap) {
            follow(heap);
        }
    }
}

/// Shows the profile a large block that was just allocated. Runs from the run cache are not shown: it is
/// closed while there is a profile.
#[inline(always)]
pub(crate) fn seen(allocation: Allocation, size: usize) -> Allocation {
    if sampling::is_on() {
        sampling::allocated_large(allocation.ptr, size, thread::tag());
    }
    allocation
}

/// Makes a block of a run from the run cache.
///
/// # Safety
///
/// `run` has just been taken from a run cache, and the caller alone has it.
unsafe fn hand_out(run: *mut u8) {
    pagemap::set(run, 1, RUN);
    // The second word may still be the mark of a small block that was once free at this address. A program
    // that copies what it has not written could bring the mark back there later, and a free would look like a
    // double free.
    // SAFETY: the run is the caller's, and at least a slice long.
    unsafe { run.cast::<usize>().add(1).write(0) };
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
        // First, since a thread that has its heap but is not armed yet has an open run cache.
        let seen = sampling::is_on();
        if seen {
            sampling::freed_large(block);
        }
        if kind == RUN && !heap.is_null() && !seen {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::large::child;
    use crate::superslab::layout::SLICE;

    /// In the child of a fork, whose thread gets a heap.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_freed_run_is_the_next_block_of_its_length() {
        assert!(child::is_so(|| {
            assert!(hit(2 * SLICE).is_null(), "there is no heap yet");
            let heap = thread::lasting_heap();
            // SAFETY: the calling thread's heap; each block is used as it was allocated, and freed once.
            unsafe {
                let block = alloc(heap, 2 * SLICE, 1).ptr;
                block.cast::<usize>().add(1).write(7);
                free(heap, block, RUN, "free");
                assert_eq!(pagemap::kind(block), FOREIGN, "a second free is one of a foreign pointer");
                assert!((*heap).run_cache.holds(block));
                assert!(hit(SLICE).is_null() && hit(3 * SLICE).is_null());
                assert_eq!(hit(2 * SLICE), block);
                assert_eq!((pagemap::kind(block), block.cast::<usize>().add(1).read()), (RUN, 0));
                assert!(hit(2 * SLICE).is_null());
                // Without a heap it goes back at once.
                free(ptr::null_mut(), block, RUN, "free");
                assert!(!(*heap).run_cache.holds(block));

                // Contents that grow get the longest one, cut to their size.
                let [long, short] = [6, 3].map(|slices| alloc(heap, slices * SLICE, 1).ptr);
                free(heap, short, RUN, "free");
                free(heap, long, RUN, "free");
                assert_eq!(alloc_growing(heap, 2 * SLICE, 1).ptr, long);
                assert_eq!(large::slices_of_run(long), 2);
                free(heap, long, RUN, "free");

                // What a profile has closed opens again when there is none any more.
                (*heap).run_cache.close();
                let block = alloc(heap, 2 * SLICE, 1).ptr;
                assert!(!(*heap).run_cache.is_closed() && !Heap::is_armed(heap));
                // While there is one it sees each block.
                assert!(sampling::begin(1, true, || ()));
                free(heap, block, RUN, "free");
                !(*heap).run_cache.holds(block)
            }
        }));
    }
}
