//! Returning what a heap holds: when a magazine is emptied, when the thread ends, in the child of a fork.

use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::hardened;
use crate::os;
use crate::superslab::slab::Slab;
use crate::sync::Ordering::Relaxed;
use crate::tiny::bins::Bins;
use crate::tiny::classes::CLASSES;
use crate::tiny::partial_purge::{self, Among, Chosen};
use core::ptr;

impl Heap {
    /// Moves a slab to the list where it belongs now, purges sparse slabs if that is due, and shrinks the
    /// magazine if several slabs of the class are nearly empty. What
    /// [`Freed::Relist`](crate::front::heap::frees::Freed::Relist) asks for.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap. [`Heap::free_to_slab`] has just returned `slab`.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe extern "C" fn relist(heap: *mut Heap, slab: *mut Slab) {
        // SAFETY: the heap's lock still names the block, and the slab is due to change its list: by
        // `Bins::is_named` visitors leave it alone, so its record stays. Once we have entered, no visitor is
        // in, and the lists are ours to change; `relist` may release the slab, so the class is read first.
        unsafe {
            let class = (*slab).class as usize;
            let _entered = Heap::enter(heap);
            let bins = &raw mut (*heap).bins;
            Bins::relist(bins, slab);
            partial_purge::purge_excess(bins);
            if (*heap).bins.take_sparse(class) && (*heap).magazines.may_shrink(class) {
                // A few blocks in the magazine may be all that keeps these slabs in use. Without them they
                // are released, or start over and hand out their blocks in address order.
                Heap::shrink_magazine(heap, class);
            }
        }
    }

    /// Empties the magazine of `class` and halves it.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and has [entered](Heap::enter) it; the magazine
    /// [may shrink](crate::front::magazine::Magazines::shrink).
    pub(super) unsafe fn shrink_magazine(heap: *mut Heap, class: usize) {
        // SAFETY: the caller has entered the heap, and the magazine is empty when it shrinks.
        unsafe {
            Heap::unleased(heap, class, || {
                Heap::empty_uncut(heap, class);
                let before = (*heap).magazines.beyond_share(class);
                (*heap).magazines.shrink(&(*heap).tops, class);
                Heap::has_returned(heap, before.saturating_sub((*heap).magazines.beyond_share(class)));
            });
        }
    }

    /// Empties and halves magazines that have much room, if the process needs more memory than ever before:
    /// then what they hold should be used first.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and has [entered](Heap::enter) it.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn halve_surplus(heap: *mut Heap) {
        // SAFETY: the caller has entered the heap. A magazine is empty when it shrinks.
        unsafe {
            // Relaxed: a figure.
            for class in (*heap).magazines.surplus(os::MAPPED_PEAK.load(Relaxed)) {
                Heap::shrink_magazine(heap, class);
            }
        }
    }

    /// Returns the blocks of one magazine to their slabs.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and has [entered](Heap::enter) it; `class` is a size class.
    pub(crate) unsafe fn empty_magazine(heap: *mut Heap, class: usize) {
        // SAFETY: the caller's clauses are the same.
        unsafe { Heap::unleased(heap, class, || Heap::empty_uncut(heap, class)) }
    }

    /// [`Heap::empty_magazine`] for a magazine that is not cut.
    ///
    /// # Safety
    ///
    /// As [`Heap::empty_magazine`].
    unsafe fn empty_uncut(heap: *mut Heap, class: usize) {
        // SAFETY: the caller has entered the heap. Every block in the magazine of a class was freed as one of
        // that class, and the caller's alone once it has been popped.
        unsafe {
            loop {
                let block = MagazineTops::pop(&(*heap).tops, class);
                if block.is_null() {
                    break;
                }
                (*heap).counters.flushed.add(1);
                Heap::send_home(heap, block, class as u8);
            }
            // Where a visitor has left nulls, there may be more blocks below.
            if (*heap).magazines.gather(&(*heap).tops, class) {
                Heap::empty_uncut(heap, class);
            }
        }
    }

    /// Returns all cached blocks and runs, and sends what is in the outbox.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and has [entered](Heap::enter) it.
    pub(crate) unsafe fn flush(heap: *mut Heap) {
        // SAFETY: the caller has entered the heap, which is all that these ask for.
        unsafe {
            for class in (*heap).magazines.present() {
                Heap::empty_magazine(heap, class);
            }
            Heap::flush_outbox(heap);
            (*heap).run_cache.flush();
        }
    }

    /// Flushes the heap, gives empty slabs back to the pool, and purges sparse ones, or with `all` the
    /// others, too.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn trim(heap: *mut Heap, all: bool) {
        // SAFETY: the calling thread owns the heap, so it may enter it; then the bins are its own as well.
        unsafe {
            let _entered = Heap::enter(heap);
            Heap::flush(heap);
            if hardened::is_on() {
                // A few blocks in quarantine may keep all of the slabs.
                Heap::hardened(heap).retire();
            }
            (*heap).bins.trim(&(*heap).counters);
            let (bins, nobody) = (&raw mut (*heap).bins, ptr::null_mut());
            // What is purged first serves first, and what has hardly a block in use may become empty.
            let partial = all.then_some(Among::PARTIAL);
            for mut among in partial.into_iter().chain([Among::Sparse(0)]) {
                loop {
                    let chosen = Chosen::from(bins, nobody, &mut among);
                    if chosen.slabs().is_empty() {
                        break;
                    }
                    chosen.purge(bins, nobody, false);
                }
            }
        }
    }

    /// Gives up all that the heap has, but for slabs that cannot be given up now: false if there are some. It
    /// may keep what is in quarantine. Afterwards the record can serve another thread.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and will not use it again.
    pub(crate) unsafe fn retire(heap: *mut Heap, keeps_quarantine: bool) -> bool {
        // SAFETY: the calling thread owns the heap, so it may enter it; then the bins are its own as well.
        unsafe {
            let _entered = Heap::enter(heap);
            Heap::disarm(heap);
            Heap::flush(heap);
            if hardened::is_on() && !keeps_quarantine {
                Heap::hardened(heap).retire();
            }
            let all = (*heap).bins.abandon(&(*heap).counters, true);
            // Relaxed: a visitor that finds nobody in has acquired this through the lock.
            (*heap).live.store(false, Relaxed);
            all
        }
    }

    /// Empties the magazines and the run cache of a heap that a fork has left behind, by way of the heap
    /// `mine`. Relies on nothing but the tops of the magazines and the places of the run cache: the thread
    /// may have been stopped anywhere.
    ///
    /// # Safety
    ///
    /// The thread of `heap` does not exist in this process, and the calling thread alone stands in for it.
    /// The calling thread owns `mine` and has [entered](Heap::enter) it.
    pub(crate) unsafe fn take_over(heap: *mut Heap, mine: *mut Heap) {
        // SAFETY: nobody else uses the run cache of a thread that does not exist.
        unsafe { (*heap).run_cache.flush() };
        for class in 1..=CLASSES {
            loop {
                // SAFETY: we stand in for the owner. A null lies below every magazine's first block, wherever
                // `grow` and `shrink` were stopped: they store it before they move the top.
                let mut block = unsafe { MagazineTops::pop(&(*heap).tops, class) };
                if block.is_null() {
                    // SAFETY: as above; the slot below the top is null.
                    block = unsafe { Heap::take_saved(heap, class) };
                }
                if block.is_null() {
                    break;
                }
                // SAFETY: what lay below the top is a free block of that class; once it is popped, it is ours
                // alone.
                unsafe { Heap::send_home(mine, block, class as u8) };
            }
        }
    }
}
