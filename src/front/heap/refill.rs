//! Refills: a block when magazine and current slab have none.

use crate::front::heap::Heap;
use crate::large;
use crate::superslab::slab::Allocation;

impl Heap {
    /// Takes a block of `class` when the current slab has none either: from another slab, which becomes the
    /// current one. Null when there is no memory.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, which is not [gated](Heap::is_gated); `class` is a size class.
    #[inline(always)]
    pub(crate) unsafe fn refill(heap: *mut Heap, class: u8) -> Allocation {
        // SAFETY: the caller's clauses are the same.
        unsafe { Heap::refill_as(heap, class, false) }
    }

    /// [`Heap::refill`] of any heap: behind the gate if it is `gated` and stays so.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap; `class` is a size class.
    #[inline(always)]
    pub(in crate::front) unsafe fn refill_as(heap: *mut Heap, class: u8, gated: bool) -> Allocation {
        // SAFETY: the calling thread owns the heap and enters it, so nobody else uses bins and run cache
        // until the end of the block. `refill` borrows the bins exclusively: no visitor is in, and no other
        // thread reads them without the lock.
        unsafe {
            let entered = Heap::enter(heap);
            let spans = (*heap).counters.refill_span.get();
            let allocation = if gated && Heap::follow(heap) {
                Heap::alloc_gated(heap, class)
            } else {
                let allocation = Heap::alloc_from_slab(heap, class as usize);
                if !allocation.ptr.is_null() {
                    return allocation;
                }
                (*heap).run_cache.give_back_old();
                (*heap).bins.refill(class, &(*heap).counters)
            };
            if (*heap).counters.refill_span.get() != spans {
                // A refill that had to ask the pool is rare, and the thread is at work: a good moment to look
                // at what magazines and the cache of large blocks keep.
                if (*heap).magazines.has_much() {
                    Heap::halve_surplus(heap);
                }
                drop(entered);
                large::tick();
            }
            allocation
        }
    }
}
