//! Allocations and frees of a heap that is armed: what runs instead of hits behind the
//! [gate](super::gate).

use crate::front::counts;
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::heap::frees::Freed;
use crate::front::lease::{Due, EPOCH};
use crate::front::magazine::{ARMED, MISSED, QUIET};
use crate::front::thread;
use crate::lockfree::magazine_slots::own;
use crate::sampling;
use crate::superslab::slab::{Allocation, Block};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::compiler_fence;
use crate::tiny::bins::{Bins, UNMARKED};
use crate::tiny::classes::stride;

#[cfg(all(test, not(loom)))]
mod tests;

/// The result of [`Heap::push_armed`].
pub(crate) enum Pushed {
    /// The block is in its magazine.
    Done,
    /// Nothing was done: the magazine is full, and the block of no interest.
    Full,
    /// Nothing was done: something has to be looked at.
    Unserved,
    /// Nothing was done: the heap is not armed, or the kind no class.
    Unarmed,
}

/// Blocks that an empty magazine gets from a slab at once, at most.
const BATCH: usize = 64;
/// The same in bytes, but for one block.
const BATCH_BYTES: usize = 8 << 10;
impl Heap {
    /// [`Heap::refill`] for a heap that is gated, and who has asked for the block.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap; `class` is a size class.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) unsafe fn refill_gated(heap: *mut Heap, class: u8) -> (Allocation, Due) {
        // SAFETY: the caller's clauses are the same.
        unsafe {
            let allocation = Heap::refill_as(heap, class, true);
            (allocation, Heap::take_due(heap))
        }
    }

    /// [`Heap::refill_gated`] for a heap that is armed, and entered.
    ///
    /// # Safety
    ///
    /// As [`Heap::settle`]; `class` is a size class.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn alloc_gated(heap: *mut Heap, class: u8) -> Allocation {
        let c = class as usize;
        // SAFETY: the caller has entered the heap, which is what everything here asks for.
        unsafe {
            let gate = Heap::gate(heap);
            let mut left = Heap::settle(heap, c);
            let allocation = Heap::take_behind_gate(heap, class);
            if !allocation.ptr.is_null() {
                if left == 0 {
                    gate.due.set(gate.clients(c));
                    left = gate.draw(c);
                } else if gate.is_inherited(c) {
                    // Each allocation is as likely as any other to be the next one, whatever was before.
                    left = gate.draw(c);
                } else {
                    left -= 1;
                }
            }
            Heap::lease(heap, c, left);
            allocation
        }
    }

    /// Takes a block of `class`: from the magazine if there is one, else from a slab, with some more for the
    /// magazine.
    ///
    /// # Safety
    ///
    /// As [`Heap::alloc_gated`]; the heap is armed, and the magazine is not cut.
    unsafe fn take_behind_gate(heap: *mut Heap, class: u8) -> Allocation {
        let c = class as usize;
        // SAFETY: the caller has entered the heap. What the slab hands out goes to the magazine's free slots.
        unsafe {
            let (tops, magazines) = (&(*heap).tops, &(*heap).magazines);
            let popped = |block| Allocation { ptr: block, zeroed: false };
            let mut block = MagazineTops::pop(tops, c);
            if block.is_null() && magazines.gather(tops, c) {
                block = MagazineTops::pop(tops, c);
            }
            if !block.is_null() {
                return popped(block);
            }
            Heap::gate(heap).notices[c].set(MISSED);
            magazines.begin(tops, c);
            (*heap).run_cache.give_back_old();
            let bins = &raw mut (*heap).bins;
            let counters = &raw const (*heap).counters;
            let allocation = (*bins).refill(class, &*counters, counts::are_many);
            if !allocation.ptr.is_null() {
                let most = BATCH.min(BATCH_BYTES / stride(c).max(1) as usize);
                // As `free` leaves them there: a profile sees every free.
                let marked = thread::is_in_c() && !sampling::is_on();
                Heap::take_more(heap, c, magazines.limit(tops, c), most, marked);
            }
            Bins::set_aside(bins, c);
            allocation
        }
    }

    /// Pushes a block into a magazine of an armed heap that has room.
    ///
    /// # Safety
    ///
    /// As [`Heap::settle`]; the magazine is not cut, its top is below its end, and the block is one of the
    /// class that the caller alone has.
    #[inline(always)]
    unsafe fn push_unseen(heap: *mut Heap, class: usize, block: *mut u8) {
        // SAFETY: the slot at the top is free, and ours. As in `magazine_slots::push`, the block is stored
        // before the top moves; no visitor is in.
        unsafe {
            let top = MagazineTops::top(heap.cast(), class);
            let at = own(top);
            (*at).store(block, Release);
            compiler_fence(Release);
            top.store(at.wrapping_add(1), Release);
        }
    }

    /// Frees a block to its magazine, if the heap is armed and that is all there is to do. This is what each
    /// free costs that would be a hit without a client, so it is kept short.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, or it is a placeholder. `kind` is the page map's answer for `block`,
    /// which nobody uses any more.
    #[inline(always)]
    pub(crate) unsafe fn push_armed(heap: *mut Heap, block: *mut u8, kind: usize) -> Pushed {
        // SAFETY: a heap that is armed is a record, which the calling thread owns. The rest is that of
        // `push_unseen`. Outside of the heap's lock the owner may change what only it uses.
        unsafe {
            if !(*heap).magazines.is_armed(kind) {
                return Pushed::Unarmed;
            }
            if sampling::may_matter(block.addr()) {
                return Pushed::Unserved;
            }
            let gate = Heap::gate(heap);
            if own(MagazineTops::top(heap.cast(), kind)) >= own(gate.limits.get_unchecked(kind)) {
                return Pushed::Full;
            }
            // The push moves the slot of the client's next allocation up, into the magazine perhaps.
            let pushes = gate.pushes.get_unchecked(kind);
            pushes.set(pushes.get().wrapping_sub(1));
            if pushes.get() < 0 {
                return Pushed::Unserved;
            }
            Heap::push_unseen(heap, kind, block);
            Pushed::Done
        }
    }

    /// Frees a block that [`Heap::push_armed`] has not served, because its magazine is full, or something has
    /// to be looked at. [`Freed::Unserved`] if that takes more than this, or the heap is not armed.
    ///
    /// # Safety
    ///
    /// As [`Heap::push_armed`].
    #[inline(always)]
    pub(crate) unsafe fn free_armed(heap: *mut Heap, block: *mut u8, kind: usize) -> Freed {
        // SAFETY: as in `push_armed`.
        unsafe {
            if !(*heap).magazines.is_armed(kind) {
                return Freed::Unserved;
            }
            let gate = Heap::gate(heap);
            let matters = || gate.epoch.get() != EPOCH.load(Relaxed) || sampling::may_hold(block);
            if sampling::may_matter(block.addr()) && matters() {
                return Freed::Unserved;
            }
            if (&(*heap).tops.top)[kind].load(Relaxed) >= gate.limits[kind].load(Relaxed) {
                let is_quiet = gate.notices[kind].get() == QUIET;
                return if is_quiet { Heap::return_to_slab(heap, block, kind) } else { Freed::Unserved };
            }
            // The cut may move up by a slot.
            let _entered = Heap::enter(heap);
            let left = Heap::settle(heap, kind);
            Heap::push_unseen(heap, kind, block);
            Heap::lease(heap, kind, left);
            Freed::Done
        }
    }

    /// [`Heap::free_armed`] after the answer [`Pushed::Full`].
    ///
    /// # Safety
    ///
    /// As [`Heap::push_armed`].
    #[inline(always)]
    pub(crate) unsafe fn free_armed_full(heap: *mut Heap, block: *mut u8, kind: usize) -> Freed {
        // SAFETY: as in `push_armed`; the heap is armed.
        unsafe {
            if Heap::gate(heap).notices.get_unchecked(kind).get() != QUIET {
                return Freed::Unserved;
            }
            Heap::return_to_slab(heap, block, kind)
        }
    }

    /// Whether a block that [`Heap::push_armed`] has not taken goes to its slab, and so must not look free.
    ///
    /// # Safety
    ///
    /// As [`Heap::push_armed`].
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) unsafe fn returns_to_slab(heap: *mut Heap, kind: usize) -> bool {
        // SAFETY: a heap that is armed is a record, which the calling thread owns.
        unsafe {
            if !(*heap).magazines.is_armed(kind) {
                return false;
            }
            let gate = Heap::gate(heap);
            let is_full = (&(*heap).tops.top)[kind].load(Relaxed) >= gate.limits[kind].load(Relaxed);
            is_full && gate.notices[kind].get() == QUIET
        }
    }

    /// [`Heap::free`] for a heap that is armed.
    ///
    /// # Safety
    ///
    /// As [`Heap::free`], and the calling thread has [entered](Heap::enter) the heap.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) unsafe fn free_gated(heap: *mut Heap, block: *mut u8, class: u8) {
        let c = class as usize;
        // SAFETY: the caller has entered the heap, which is what everything here asks for.
        unsafe {
            if sampling::may_hold(block) {
                sampling::freed(block);
            }
            let left = Heap::settle(heap, c);
            let (gate, tops, magazines) = (Heap::gate(heap), &(*heap).tops, &(*heap).magazines);
            let limit = &gate.limits[c];
            let has_room = || tops.top[c].load(Relaxed) < limit.load(Relaxed);
            if !has_room() {
                let notice = &gate.notices[c];
                magazines.replace_notice(c, notice.get());
                Heap::make_room(heap, block, class, limit);
                notice.set(magazines.replace_notice(c, ARMED));
            }
            if has_room() {
                Heap::push_unseen(heap, c, block);
            } else {
                Heap::send_home(heap, block, class);
            }
            Heap::lease(heap, c, left);
        }
    }

    /// Takes back a block that [`Heap::alloc_gated`] has just allocated and nobody has used.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, which is armed, and alone has the block, which is one of `class`.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) unsafe fn take_back(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: the calling thread owns the heap and enters it. Between the two nothing disarms it. The
        // block has a second word, unless blocks of its class have room for none.
        unsafe {
            let _entered = Heap::enter(heap);
            // As `free` would leave it: it may have been freed before.
            if thread::is_in_c() && !sampling::is_on() && class as usize != UNMARKED {
                Block::set_half_mark(block.cast(), (*heap).bins.secret);
            }
            Heap::free_gated(heap, block, class);
        }
    }

    /// Who has asked for the block that the calling thread has just allocated. Only once.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    unsafe fn take_due(heap: *mut Heap) -> Due {
        // SAFETY: an armed heap is a record, and its gate the owner's.
        unsafe {
            if !Heap::is_armed(heap) {
                return Due::NONE;
            }
            Due(Heap::gate(heap).due.replace(0))
        }
    }
}
