//! How blocks come to a heap behind its magazines: from its slabs, one at a time or many.

use crate::front::counts;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::thread;
use crate::large;
use crate::lockfree::magazine_slots::Slot;
use crate::superslab::slab::Allocation;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicPtr, compiler_fence};
use crate::tiny::bins::Bins;
use crate::tiny::classes::{Bursts, stride};
use core::{ptr, slice};

/// Blocks that are [cut ahead](Heap::cut_ahead) at most.
const MAX_CUT: usize = 63;
/// For fewer than these the way through [`Heap::refill`] is too long.
const MIN_CUT: usize = 8;
/// Bytes of further blocks that a magazine gets from a slab that is shared, or one block: otherwise a thread
/// would need the slab for each.
pub(super) const MORE_BYTES: usize = 4 << 10;

impl Heap {
    /// Takes a block of `class` from the current slab, when the magazine is empty. Null when that slab has
    /// none either, or [`Bins::alloc`] says that [`Heap::refill`] comes first: that is next.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, or it is a placeholder; `class` is a size class.
    #[inline(always)]
    pub(crate) unsafe fn alloc_from_slab(heap: *mut Heap, class: usize) -> Allocation {
        // SAFETY: the bins are the caller's, or a placeholder's, which have no block. So only the owner
        // reaches `on_miss`. What placeholders are told to name nobody reads.
        unsafe {
            Heap::lock(heap).name(ptr::without_provenance_mut(class));
            let allocation = Bins::alloc(&raw mut (*heap).bins, class, &raw const (*heap).counters);
            if !allocation.ptr.is_null() {
                (*heap).magazines.on_miss(class);
            }
            allocation
        }
    }

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
                if Bins::is_cut(&raw mut (*heap).bins, class as usize) {
                    let block = Heap::cut_ahead(heap, class as usize);
                    if !block.is_null() {
                        return Allocation { ptr: block, zeroed: false };
                    }
                }
                (*heap).run_cache.give_back_old();
                (*heap).bins.refill(class, &(*heap).counters, counts::are_many)
            };
            let bins = &raw mut (*heap).bins;
            if (*heap).counters.refill_span.get() != spans {
                // A refill that had to ask the pool is rare, and the thread is at work: a good moment to look
                // at what magazines and the cache of large blocks keep.
                if (*heap).magazines.has_much() {
                    Heap::halve_surplus(heap);
                }
                if (*heap).magazines.widen(&(*heap).tops, class as usize) {
                    Bins::set_cut(bins, class as usize, true);
                }
                if (*bins).shares {
                    Heap::leave_shared(heap, class as usize);
                }
                drop(entered);
                large::tick();
            } else if (*bins).shares {
                Heap::leave_shared(heap, class as usize);
            }
            allocation
        }
    }

    /// Gives up the current slab of `class`, if it is [shared](crate::superslab::slab::SHARED), with some
    /// more blocks for the magazine.
    ///
    /// # Safety
    ///
    /// The calling thread has entered the heap, which it owns; `class` is a size class.
    #[inline(never)]
    unsafe fn leave_shared(heap: *mut Heap, class: usize) {
        // SAFETY: the caller's clauses are the same.
        unsafe {
            let bins = &raw mut (*heap).bins;
            if !Bins::is_shared(bins, class, counts::are_many) || Heap::is_in_burst(heap, class) {
                return;
            }
            let more = MORE_BYTES / (stride(class) as usize).clamp(1, MORE_BYTES);
            (*heap).magazines.begin_with(&(*heap).tops, class, more);
            // A pop sees nothing below a gap that a visitor has left.
            (*heap).magazines.gather(&(*heap).tops, class);
            Heap::take_more(heap, class, &(&(*heap).tops.limit)[class], more, thread::is_in_c());
            Bins::leave(bins, class, &(*heap).counters);
        }
    }

    /// Whether the owner has needed shared slabs of `class` so [often](Bursts) that it keeps those which it
    /// gets, and in between has freed no block of others that its magazines had no room for: it is making
    /// many blocks, and may free them itself, which is quicker where their slabs are its own.
    ///
    /// # Safety
    ///
    /// The calling thread has entered the heap, which it owns, and has just needed one.
    pub(super) unsafe fn is_in_burst(heap: *mut Heap, class: usize) -> bool {
        // SAFETY: the owner's, and no visitor is in.
        let (bursts, sent, now) =
            unsafe { (&mut (*heap).bins.bursts, &(*heap).sent, (*heap).counters.home_foreign.get() as u8) };
        if sent.replace(now) != now {
            *bursts = Bursts::NONE;
        }
        bursts.note(class)
    }

    /// Takes up to `most` blocks from the current slab of `class` to the magazine, which ends at `limit`, and
    /// whose blocks are [`marked`](Bins::alloc_many).
    ///
    /// # Safety
    ///
    /// As [`Heap::leave_shared`].
    pub(in crate::front) unsafe fn take_more(
        heap: *mut Heap,
        class: usize,
        limit: &AtomicPtr<Slot>,
        most: usize,
        marked: bool,
    ) {
        // SAFETY: the caller has entered the heap. The slots from the top to the limit are free, and nobody
        // looks at them before the top has moved.
        unsafe {
            let top = &(&(*heap).tops.top)[class];
            let first = top.load(Relaxed);
            let room = limit.load(Relaxed).addr().saturating_sub(first.addr()) / size_of::<Slot>();
            let to = slice::from_raw_parts(first, room.min(most));
            let got = Bins::alloc_many(&raw mut (*heap).bins, class, &raw const (*heap).counters, to, marked);
            // As in `magazine_slots::push`, the blocks are stored before the top moves.
            compiler_fence(Release);
            top.store(first.wrapping_add(got), Release);
        }
    }

    /// Takes a block of `class` from a current slab that is to be [cut](crate::superslab::slab::CUT), and has
    /// no freed one: with many more for the magazine, which is empty. Null if the slab has nothing left.
    ///
    /// # Safety
    ///
    /// As [`Heap::refill`], and the calling thread has entered the heap, which is not armed.
    #[cold]
    #[inline(never)]
    unsafe fn cut_ahead(heap: *mut Heap, class: usize) -> *mut u8 {
        // SAFETY: the caller has entered the heap, which is what everything here asks for. The slots from
        // the top to the limit are free, and nobody looks at them before the top has moved.
        unsafe {
            let (bins, counters) = (&raw mut (*heap).bins, &raw const (*heap).counters);
            // Below a gap that a visitor has left may be some.
            if (*heap).magazines.gather(&(*heap).tops, class) {
                let block = MagazineTops::pop(heap.cast(), class);
                if !block.is_null() {
                    return block;
                }
            }
            let (top, limit) = (&(&(*heap).tops.top)[class], &(&(*heap).tops.limit)[class]);
            let first = top.load(Relaxed);
            let room = limit.load(Relaxed).addr().saturating_sub(first.addr()) / size_of::<Slot>();
            if room < MIN_CUT {
                // The magazine has been emptied and halved.
                Bins::set_cut(bins, class, false);
                return Heap::alloc_from_slab(heap, class).ptr;
            }
            let to = slice::from_raw_parts(first, room.min(MAX_CUT));
            let got = Bins::cut_ahead(bins, class, counters, to, thread::is_in_c());
            // As in `magazine_slots::push`, the blocks are stored before the top moves.
            compiler_fence(Release);
            top.store(first.wrapping_add(got), Release);
            (*heap).magazines.on_miss(class);
            MagazineTops::pop(heap.cast(), class)
        }
    }
}
