//! Freeing blocks for which the magazine has no room: to a slab of the heap's own, or through the outbox.

use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::outbox;
use crate::superslab::pagemap;
use crate::superslab::slab::{Block, Owner, Slab};
use crate::tiny::bins::Bins;
use crate::tiny::free;

/// The result of [`Heap::free_to_slab`].
pub(crate) enum Freed {
    /// The block is on its slab's list.
    Done,
    /// The same, and [`Heap::relist`] has to look at the slab.
    Relist(*mut Slab),
    /// Nothing was done: the block belongs to this slab of another heap. [`Heap::free_remote`] frees it.
    Remote(*mut Slab),
    /// Nothing was done: the magazine may grow, the heap is a placeholder, or the kind is no class.
    Unserved,
    /// Nothing was done: something is wrong with the block.
    Invalid,
}

/// The result of [`Heap::free_remote`].
pub(crate) enum RemoteFreed {
    /// The block is in the outbox, or sent.
    Done,
    /// The same, and [`Heap::after_sending`] has to look at this owner.
    Look(*mut Owner),
    /// Nothing was done: something is wrong with the block.
    Invalid,
}

impl Heap {
    /// Frees a block of `kind` to its slab, when the magazine is full and must not grow. The result says what
    /// remains to be done.
    ///
    /// This and [`Heap::alloc_from_slab`] are the second level behind the magazines: they serve every burst
    /// that is longer than a magazine.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, or it is a placeholder. `kind` is the page map's answer for `block`,
    /// which nobody uses any more.
    #[inline(always)]
    pub(crate) unsafe fn free_to_slab(heap: *mut Heap, block: *mut u8, kind: usize) -> Freed {
        // SAFETY: what passes the check is a class in a heap that the calling thread owns.
        unsafe {
            if !(*heap).magazines.frees_to_slab(kind) {
                return Freed::Unserved;
            }
            Heap::return_to_slab(heap, block, kind)
        }
    }

    /// [`Heap::free_to_slab`] without a look at the magazine.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap. `kind` is the page map's answer for `block`, which nobody uses any
    /// more, and a size class.
    #[inline(always)]
    pub(crate) unsafe fn return_to_slab(heap: *mut Heap, block: *mut u8, kind: usize) -> Freed {
        // SAFETY: the slice of `block` belongs to a slab. Once the lock names the block, and the slab is then
        // found to be ours, no visitor touches that until the block is on its list, nor before `relist` if
        // that is called for.
        unsafe {
            let slab = Slab::of(block);
            Heap::lock(heap).name(block);
            if !free::is_owned_by(slab, (*heap).bins.owner) {
                return Freed::Remote(slab);
            }
            if !free::mark_free(&raw const (*heap).bins, slab, block, kind) {
                return Freed::Invalid;
            }
            (*heap).counters.home_local.add(1);
            if Bins::push_free(slab, block.cast::<Block>()) { Freed::Relist(slab) } else { Freed::Done }
        }
    }

    /// Frees a block of another heap's slab, by way of the outbox.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap. [`Heap::free_to_slab`] has just answered [`Freed::Remote`] with
    /// `slab`, for this `block` and this `class`.
    #[inline(always)]
    pub(crate) unsafe fn free_remote(
        heap: *mut Heap,
        slab: *mut Slab,
        block: *mut u8,
        class: usize,
    ) -> RemoteFreed {
        // SAFETY: nobody else has the block, and it keeps its slab in use until it is sent. That answer comes
        // only for a heap with an owner, so the outbox has bundles.
        unsafe {
            if !free::mark_free(&raw const (*heap).bins, slab, block, class) {
                return RemoteFreed::Invalid;
            }
            (*heap).counters.home_foreign.add(1);
            let owner = (*heap).outbox.add(slab, block.cast::<Block>());
            if owner.is_null() { RemoteFreed::Done } else { RemoteFreed::Look(owner) }
        }
    }

    /// Arms the heap, if that is due, and returns the owner whose heap somebody should visit, or null.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, for which [`Heap::free_remote`] has just answered with `owner`.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn after_sending(heap: *mut Heap, owner: *mut Owner) -> *mut Owner {
        let (late, owner) = outbox::late(owner);
        if late {
            // SAFETY: the calling thread owns the heap.
            unsafe {
                let _entered = Heap::enter(heap);
                Heap::follow(heap);
            }
        }
        owner
    }

    /// Frees a block of `class` when the magazine is full: grows the magazine, or returns the block to its
    /// slab.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap. `class` is a size class; the block was freed as one of it, and
    /// nobody uses it.
    pub(crate) unsafe fn free(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: the calling thread owns the heap and enters it, which is what the magazines and `send_home`
        // ask for.
        unsafe {
            let _entered = Heap::enter(heap);
            if Heap::is_gated(heap) && Heap::follow(heap) {
                return Heap::free_gated(heap, block, class);
            }
            let (tops, magazines, c) = (&(*heap).tops, &(*heap).magazines, class as usize);
            let has_room = if Heap::goes_home(heap, block, class) {
                magazines.close_gaps(tops, c, &tops.limit[c])
            } else {
                magazines.grow(tops, c, &tops.limit[c], (*heap).bins.bytes())
            };
            if has_room {
                let pushed = MagazineTops::push(tops, c, block);
                debug_assert!(pushed);
                return;
            }
            Heap::send_home(heap, block, class);
        }
    }

    /// Whether a block is not worth a larger magazine: it is one of another heap, and magazines [have
    /// lent](crate::front::magazine::Magazines::have_lent) enough room to such blocks. Where many threads
    /// send each other many of different sizes, they would lie in all their magazines, while each thread
    /// makes new ones in its slabs.
    ///
    /// # Safety
    ///
    /// As [`Heap::send_home`].
    #[inline(always)]
    pub(crate) unsafe fn goes_home(heap: *mut Heap, block: *mut u8, class: u8) -> bool {
        let c = class as usize;
        // SAFETY: where the page map says that the block is one of a slab, the slab's record is there as long
        // as the block, which nobody else frees.
        unsafe {
            // Most heaps never have such a block, and one that has some soon has a full magazine.
            (*heap).counters.home_foreign.get() != 0
                && (*heap).magazines.has_least(c)
                && pagemap::kind_index(block) == c
                && !free::is_owned_by(Slab::of(block), (*heap).bins.owner)
                && (*heap).magazines.have_lent()
        }
    }

    /// Returns a block to its slab: directly, or through the outbox if another heap owns the slab.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and has [entered](Heap::enter) it. The block was freed as one of
    /// `class`, and nobody uses it.
    pub(crate) unsafe fn send_home(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: the caller has entered the heap, so no visitor is in, and no other thread reads the bins
        // without the lock: they may be borrowed exclusively. `validate` has checked that the slab's record
        // is valid and that the block belongs to it.
        unsafe {
            let bins = &mut (*heap).bins;
            let Some(slab) = free::validate(bins, block, class as usize) else { return };
            if free::is_owned_by(slab, bins.owner) {
                (*heap).counters.home_local.add(1);
                if Bins::push_free(slab, block.cast::<Block>()) {
                    Bins::relist(bins, slab);
                }
            } else {
                (*heap).counters.home_foreign.add(1);
                Heap::put_off_visit((*heap).outbox.add(slab, block.cast::<Block>()));
            }
        }
    }

    /// Puts off the visit that `owner` should get, if it is not null: the next thread whose push leaves every
    /// block of one of its slabs waiting is told to visit. For callers that send many blocks and cannot stop
    /// for a visit.
    pub(super) fn put_off_visit(owner: *mut Owner) {
        // SAFETY: owners are parts of records, which stay mapped, and consist of atomics.
        if let Some(owner) = unsafe { outbox::late(owner).1.as_ref() } {
            owner.put_off_visit();
        }
    }

    /// Sends all that is in the outbox.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn flush_outbox(heap: *mut Heap) {
        // SAFETY: the outbox is the owner's alone, whether or not it has entered the heap.
        Heap::put_off_visit(unsafe { (*heap).outbox.flush() });
    }
}
