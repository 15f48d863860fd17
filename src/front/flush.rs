//! What a heap has goes home: when its magazines are emptied, when its thread ends, in the child of a fork.

use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::superslab::slab::Slab;
use crate::tiny::bins::Bins;
use crate::tiny::classes::CLASSES;
use crate::tiny::{idle, partial_purge};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

impl Heap {
    /// Goes on after [`Freed::Relist`](crate::front::heap::Freed::Relist).
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, and `slab` is its.
    pub(crate) unsafe fn relist(heap: *mut Heap, slab: *mut Slab) {
        // SAFETY: passed on; the class is read before the slab can be gone. That is ours for as long as we name it.
        unsafe {
            let class = (*slab).class as usize;
            let _entered = Heap::enter(heap);
            let bins = &raw mut (*heap).bins;
            Bins::relist(bins, slab);
            if idle::is_due() {
                let chosen = partial_purge::Chosen::from(bins, ptr::null_mut(), partial_purge::NEWEST);
                idle::spend(chosen.purge(bins, ptr::null_mut()));
            }
            if (*heap).bins.are_sparse(class) && (*heap).magazines.may_shrink(class) {
                // A few blocks in the magazine may be all that keeps these slabs: those that become empty are given back, or
                // begin anew with blocks in the order of their addresses.
                Heap::empty_magazine(heap, class);
                (*heap).magazines.shrink(&raw mut (*heap).tops, class);
            }
        }
    }

    /// Sends the blocks of one magazine home.
    ///
    /// # Safety
    ///
    /// The calling thread has [entered](Heap::enter) the heap.
    pub(crate) unsafe fn empty_magazine(heap: *mut Heap, class: usize) {
        // SAFETY: passed on; what a magazine holds was freed as its class.
        unsafe {
            loop {
                let block = MagazineTops::pop(&raw mut (*heap).tops, class);
                if block.is_null() {
                    break;
                }
                (*heap).counters.flushed.add(1);
                Heap::send_home(heap, block, class as u8);
            }
            // A visitor may have left nulls below.
            if (*heap).magazines.gather(&raw mut (*heap).tops, class) {
                Heap::empty_magazine(heap, class);
            }
        }
    }

    /// Sends all cached blocks home.
    ///
    /// # Safety
    ///
    /// The calling thread has [entered](Heap::enter) the heap.
    pub(crate) unsafe fn flush(heap: *mut Heap) {
        // SAFETY: passed on.
        unsafe {
            for class in (*heap).magazines.present() {
                Heap::empty_magazine(heap, class);
            }
            Heap::flush_outbox(heap);
            (*heap).run_cache.flush();
        }
    }

    /// Sends all cached blocks home and gives empty slabs back to the pool.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn trim(heap: *mut Heap) {
        // SAFETY: passed on.
        unsafe {
            let _entered = Heap::enter(heap);
            Heap::flush(heap);
            (*heap).bins.trim(&(*heap).counters);
            let bins = &raw mut (*heap).bins;
            loop {
                let chosen = partial_purge::Chosen::from(bins, ptr::null_mut(), 0);
                if chosen.slabs().is_empty() {
                    break;
                }
                chosen.purge(bins, ptr::null_mut());
            }
        }
    }

    /// Gives everything up. Afterwards the record can serve another thread.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and will not use it again.
    pub(crate) unsafe fn retire(heap: *mut Heap) {
        // SAFETY: passed on.
        unsafe {
            let _entered = Heap::enter(heap);
            Heap::flush(heap);
            (*heap).bins.abandon(&(*heap).counters);
            (*heap).live.store(false, Relaxed);
        }
    }

    /// Empties the magazines and the run cache of a heap that a fork has left behind. Only the tops and the places are relied on: the
    /// thread may have been stopped anywhere.
    ///
    /// # Safety
    ///
    /// The calling thread alone stands in for the heap's, and has [entered](Heap::enter) `mine`, its own.
    pub(crate) unsafe fn take_over(heap: *mut Heap, mine: *mut Heap) {
        // SAFETY: passed on.
        unsafe { (*heap).run_cache.flush() };
        for class in 1..=CLASSES {
            loop {
                // SAFETY: passed on; below the first block there is always a null.
                let block = unsafe { MagazineTops::pop(&raw mut (*heap).tops, class) };
                if block.is_null() {
                    break;
                }
                // SAFETY: a free block of that class.
                unsafe { Heap::send_home(mine, block, class as u8) };
            }
        }
    }
}
