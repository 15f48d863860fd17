//! Freeing blocks for which the magazine has no room: to a slab of the heap's own, or through the outbox.

use crate::front::counts;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::outbox;
use crate::lockfree::magazine_slots::Slot;
use crate::superslab::pagemap;
use crate::superslab::slab::{Block, Owner, Slab};
use crate::sync::AtomicPtr;
use crate::tiny::bins::Bins;
use crate::tiny::free;

/// Bytes of room beyond their shares for which magazines of all threads grow for blocks of other heaps,
/// about.
const ALL_LENT: usize = 2 << 20;
/// Bytes of such room in a heap at most.
const MAX_LENT: usize = 512 << 10;
/// What a heap [counts](Heap::lent) them in.
const LENT_UNIT: usize = 8 << 10;

/// What a step of so many bytes counts: as much when it is made as when it is undone.
fn lent_units(bytes: usize) -> u8 {
    bytes.div_ceil(LENT_UNIT).min(u8::MAX as usize) as u8
}

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
    #[inline(always)]
    pub(crate) unsafe fn free(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: the calling thread owns the heap and enters it, which is what the magazines and `send_home`
        // ask for.
        unsafe {
            let _entered = Heap::enter(heap);
            if Heap::is_gated(heap) && Heap::follow(heap) {
                return Heap::free_gated(heap, block, class);
            }
            let (tops, c) = (&(*heap).tops, class as usize);
            let has_room = Heap::make_room(heap, block, class, &tops.limit[c]);
            if has_room {
                let pushed = MagazineTops::push(tops, c, block);
                debug_assert!(pushed);
                return;
            }
            Heap::send_home(heap, block, class);
        }
    }

    /// Makes room for a block in the magazine of `class`, which is full, as `Magazines::grow` does. But among
    /// many threads, in a heap that has sent blocks home, a class of which it has needed no slab gets no
    /// magazine: all its blocks are others', and who only frees would withhold what they need. And beyond its
    /// share a magazine does not grow for a block of another heap once magazines have done so [often
    /// enough](counts::share): where many threads send each other many of different sizes, they would lie in
    /// all their magazines, while each thread makes new ones in its slabs.
    ///
    /// # Safety
    ///
    /// As `Magazines::grow`, and nobody uses the block, which was freed as one of `class`, a size class.
    #[inline(always)]
    pub(crate) unsafe fn make_room(
        heap: *mut Heap,
        block: *mut u8,
        class: u8,
        limit: &AtomicPtr<Slot>,
    ) -> bool {
        // SAFETY: the caller's clauses are the same.
        unsafe {
            // Most heaps never have a block of another one, and one that has some soon has a full magazine.
            if (*heap).counters.home_foreign.get() != 0 {
                return Heap::make_room_lending(heap, block, class as usize, limit);
            }
            (*heap).magazines.grow(&(*heap).tops, class as usize, limit, (*heap).bins.bytes())
        }
    }

    /// [`Heap::make_room`] in a heap that has sent blocks to others.
    ///
    /// # Safety
    ///
    /// As [`Heap::make_room`].
    #[inline(never)]
    unsafe fn make_room_lending(
        heap: *mut Heap,
        block: *mut u8,
        class: usize,
        limit: &AtomicPtr<Slot>,
    ) -> bool {
        // SAFETY: where the page map says that the block is one of a slab, the slab's record is there as long
        // as the block, which nobody else frees. The caller has entered the heap, whose magazines these are.
        unsafe {
            let (tops, magazines, lent) = (&(*heap).tops, &(*heap).magazines, &(*heap).lent);
            if !(*heap).bins.has_had(class) && counts::are_many() && magazines.stay_without(class) {
                return false;
            }
            let lends = magazines.has_share(class)
                && pagemap::kind_index(block) == class
                && !free::is_kept_by(Slab::of(block), (*heap).bins.owner);
            if lends && lent.get() as usize * LENT_UNIT >= counts::share(ALL_LENT).min(MAX_LENT) {
                return magazines.close_gaps(tops, class, limit);
            }
            let before = magazines.beyond_share(class);
            let has_room = magazines.grow(tops, class, limit, (*heap).bins.bytes());
            if lends {
                let more = magazines.beyond_share(class).saturating_sub(before);
                lent.set(lent.get().saturating_add(lent_units(more)));
            }
            has_room
        }
    }

    /// A magazine has lost so many bytes of room beyond its share. It may have had them for blocks of the
    /// heap's own: then magazines may grow for others' by so much more.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn has_returned(heap: *mut Heap, bytes: usize) {
        // SAFETY: the owner's.
        let lent = unsafe { &(*heap).lent };
        lent.set(lent.get().saturating_sub(lent_units(bytes)));
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
