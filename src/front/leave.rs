//! What a heap has goes home: when its magazines are emptied, when its thread ends, in the child of a fork.

use super::heap::Heap;
use super::hot::Hot;
use crate::tiny::classes::CLASSES;
use crate::tiny::sparse;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

impl Heap {
    /// Sends the blocks of one magazine home.
    ///
    /// # Safety
    ///
    /// The calling thread has [entered](Heap::enter) the heap.
    pub(super) unsafe fn empty_magazine(heap: *mut Heap, class: usize) {
        // SAFETY: passed on; what a magazine holds was freed as its class.
        unsafe {
            loop {
                let block = Hot::pop(&raw mut (*heap).hot, class);
                if block.is_null() {
                    break;
                }
                (*heap).counters.flushed.add(1);
                Heap::send_home(heap, block, class as u8);
            }
            // A visitor may have left nulls below.
            if (*heap).magazines.gather(&raw mut (*heap).hot, class) {
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
            (*heap).outbox.flush();
            (*heap).shelf.flush();
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
            let _busy = Heap::enter(heap);
            Heap::flush(heap);
            (*heap).bins.trim(&(*heap).counters);
            let bins = &raw mut (*heap).bins;
            loop {
                let chosen = sparse::Chosen::from(bins, ptr::null_mut(), 0);
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
            let _busy = Heap::enter(heap);
            Heap::flush(heap);
            (*heap).bins.abandon(&(*heap).counters);
            (*heap).live.store(false, Relaxed);
        }
    }

    /// Empties the magazines and the shelf of a heap that a fork has left behind. Only the tops and the places are relied on: the
    /// thread may have been stopped anywhere.
    ///
    /// # Safety
    ///
    /// The calling thread alone stands in for the heap's, and has [entered](Heap::enter) `mine`, its own.
    pub(crate) unsafe fn take_over(heap: *mut Heap, mine: *mut Heap) {
        // SAFETY: passed on.
        unsafe { (*heap).shelf.flush() };
        for class in 1..=CLASSES {
            loop {
                // SAFETY: passed on; below the first block there is always a null.
                let block = unsafe { Hot::pop(&raw mut (*heap).hot, class) };
                if block.is_null() {
                    break;
                }
                // SAFETY: a free block of that class.
                unsafe { Heap::send_home(mine, block, class as u8) };
            }
        }
    }
}
