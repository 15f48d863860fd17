//! The gate: a way to see every allocation and free of small blocks, at no cost to hits while nobody looks.
//!
//! While a heap is *armed*, every limit of its magazines is null, so each free finds its magazine full and
//! comes here; and it has no current slab, so each allocation that finds its magazine empty comes here as
//! well. Allocations that find a block in the magazine do not. They need not: between two calls of the gate
//! nothing but such pops moves a top, so how far that has moved tells how many there were. And where one of
//! them must not go unseen, because a *client* has asked for the n-th allocation of the class from here, the
//! gate *cuts* the magazine: it takes the block out of the slot that this allocation would pop, and leaves a
//! null. The owner takes that for the end of the magazine, and comes here.
//!
//! ```text
//!   [ null | block | block | null | block | block |  ...  |       ]
//!                            cut            two pops ^ top         limit (kept in the gate)
//! ```
//!
//! Each thread arms and disarms its own heap, in its slow paths, when it sees that [`EPOCH`] has changed.
//! Whoever changes that may make other threads see it soon by taking away what keeps them from their slow
//! paths: see [`reclaim::idle_heaps::unsettle`](crate::reclaim::idle_heaps::unsettle). What an armed heap has
//! beyond others lies in its record, in a page of its own, which is untouched before. What becomes of
//! allocations and frees there: [`gated`](super::gated).

use crate::front::heap::{GATE_AT, Heap};
use crate::front::lease::{EPOCH, Gate, SLOT};
use crate::front::magazine::ARMED;
use crate::front::registry;
use crate::sampling;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::compiler_fence;
use crate::tiny::bins::Bins;
use crate::tiny::classes::CLASSES;
use core::ptr;

impl Heap {
    /// Whether the heap has to be armed, or to look whether it still has to be.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    #[inline(always)]
    pub(crate) unsafe fn is_gated(heap: *mut Heap) -> bool {
        // SAFETY: the caller's clause is the same.
        EPOCH.load(Relaxed) != 0 || unsafe { Heap::is_armed(heap) }
    }

    /// Whether the heap is armed.
    ///
    /// # Safety
    ///
    /// `heap` is a record that is still mapped, or a placeholder, which is never armed.
    #[inline(always)]
    pub(crate) unsafe fn is_armed(heap: *mut Heap) -> bool {
        // SAFETY: mapped, by the caller's clause; the field is atomic.
        unsafe { (&(*heap).tops.limit)[CLASSES].load(Relaxed).is_null() }
    }

    /// The heap's gate.
    ///
    /// # Safety
    ///
    /// `heap` is a record, and the calling thread owns it or visits it.
    pub(super) unsafe fn gate<'a>(heap: *mut Heap) -> &'a Gate {
        // SAFETY: records stay mapped, and all zero is a valid gate. It consists of cells and atomics; by the
        // heap's lock one thread at a time uses the cells.
        unsafe { &*heap.wrapping_byte_add(GATE_AT).cast::<Gate>() }
    }

    /// Arms or disarms the heap, if it is not as [`EPOCH`] says. Returns whether it is armed.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap and has [entered](Heap::enter) it.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn follow(heap: *mut Heap) -> bool {
        // Acquire: pairs with the release in `set_epoch`, so that the rate is that of this epoch.
        let epoch = EPOCH.load(Acquire);
        // SAFETY: the caller's clause is the same.
        unsafe {
            if Heap::is_armed(heap) {
                if Heap::gate(heap).epoch.get() == epoch {
                    return true;
                }
                Heap::disarm(heap);
            }
            if epoch != 0 {
                Heap::arm(heap, epoch);
            }
        }
        epoch != 0
    }

    /// In the child of a fork: see [`Gate::reseed`].
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, and is the only thread of this process.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) unsafe fn reseed(heap: *mut Heap) {
        // SAFETY: the calling thread owns the heap, and no visitor is in it. Whatever a fork has interrupted
        // goes on with one number or the other.
        unsafe {
            if Heap::is_armed(heap) {
                Heap::gate(heap).reseed();
            }
        }
    }

    /// Arms the heap.
    ///
    /// # Safety
    ///
    /// As [`Heap::follow`]; it is not armed.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    unsafe fn arm(heap: *mut Heap, epoch: u32) {
        // SAFETY: the caller has entered the heap, so gate, magazines and bins are its alone. Limits are
        // written before anybody looks for them in the gate.
        unsafe {
            let (gate, tops) = (Heap::gate(heap), &(*heap).tops);
            gate.epoch.set(epoch);
            gate.random.set(sampling::seed());
            gate.due.set(0);
            Bins::set_all_aside(&raw mut (*heap).bins);
            // Guard pages are for small blocks only.
            if sampling::is_on() {
                (*heap).run_cache.close();
            }
            (*heap).outbox.armed.set(true);
            for class in 1..=CLASSES {
                let limit = &tops.limit[class];
                gate.leases[class].saved.store(ptr::null_mut(), Relaxed);
                gate.notices[class].set((*heap).magazines.replace_notice(class, ARMED));
                gate.limits[class].store(limit.load(Relaxed), Relaxed);
                compiler_fence(Release);
                limit.store(ptr::null_mut(), Relaxed);
                Heap::lease(heap, class, gate.draw(class));
            }
        }
    }

    /// Disarms the heap, if it is armed. Nothing of the gate is left in it.
    ///
    /// # Safety
    ///
    /// As [`Heap::follow`].
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) unsafe fn disarm(heap: *mut Heap) {
        // SAFETY: the caller has entered the heap, so gate and magazines are its alone.
        unsafe {
            if !Heap::is_armed(heap) {
                return;
            }
            let (gate, tops) = (Heap::gate(heap), &(*heap).tops);
            for class in 1..=CLASSES {
                Heap::uncut(heap, class);
                tops.limit[class].store(gate.limits[class].load(Relaxed), Relaxed);
                (*heap).magazines.replace_notice(class, gate.notices[class].get());
            }
            (*heap).outbox.armed.set(false);
            if (*heap).run_cache.is_closed() {
                (*heap).run_cache.reset(registry::live());
            }
        }
    }

    /// Puts back what was cut out of the magazine of `class`, and returns how many allocations are left
    /// before the client's next one. Until [`Heap::lease`] the caller may change the magazine as it likes.
    ///
    /// # Safety
    ///
    /// As [`Heap::follow`]; the heap is armed.
    #[inline(always)]
    pub(super) unsafe fn settle(heap: *mut Heap, class: usize) -> u64 {
        // SAFETY: the caller has entered the heap, so gate and magazines are its alone.
        unsafe {
            Heap::uncut(heap, class);
            let due = Heap::gate(heap).due(class);
            ((Heap::held_bytes(heap, class) - due) / SLOT - 1).max(0) as u64
        }
    }

    /// Bytes of the slots from the first of the magazine of `class` to its top; 0 if it has none.
    ///
    /// # Safety
    ///
    /// As [`Heap::settle`].
    #[inline(always)]
    unsafe fn held_bytes(heap: *mut Heap, class: usize) -> isize {
        // SAFETY: the caller has entered the heap.
        unsafe {
            let (tops, magazines) = (&(*heap).tops, &(*heap).magazines);
            let top = tops.top[class].load(Relaxed).addr();
            magazines.first(tops, class).map_or(0, |first| top.wrapping_sub(first.addr()) as isize)
        }
    }

    /// Puts back what was cut out of the magazine of `class`.
    ///
    /// # Safety
    ///
    /// As [`Heap::settle`].
    #[inline(always)]
    unsafe fn uncut(heap: *mut Heap, class: usize) {
        // SAFETY: the caller has entered the heap. The top is above the cut, since the owner stops there.
        unsafe {
            let lease = &Heap::gate(heap).leases[class];
            let saved = lease.saved.load(Relaxed);
            if saved.is_null() {
                return;
            }
            // In this order a fork in between leaks the block in the child, and what lies below it; the child
            // must not find it in two places.
            lease.saved.store(ptr::null_mut(), Relaxed);
            compiler_fence(Release);
            if let Some(first) = (*heap).magazines.first(&(*heap).tops, class) {
                (*first.wrapping_byte_offset(lease.cut())).store(saved, Relaxed);
            }
        }
    }

    /// Lets the owner make `left` allocations before the client's next one: cuts the magazine of `class`
    /// there, if that is in it.
    ///
    /// # Safety
    ///
    /// As [`Heap::settle`]; the magazine is not cut.
    #[inline(always)]
    pub(super) unsafe fn lease(heap: *mut Heap, class: usize, left: u64) {
        // SAFETY: the caller has entered the heap. What lies from the magazine's first slot to its top was
        // written; visitors are not in, and statistics at most read the slots.
        unsafe {
            let due = Heap::held_bytes(heap, class) - SLOT * (left as isize + 1);
            Heap::gate(heap).set_due(class, due);
            if due < 0 {
                return;
            }
            if let Some(first) = (*heap).magazines.first(&(*heap).tops, class) {
                let cut = first.wrapping_byte_offset(due);
                let block = (*cut).load(Relaxed);
                // Where a visitor has taken a block out the owner stops anyway.
                if !block.is_null() {
                    (*cut).store(ptr::null_mut(), Relaxed);
                    compiler_fence(Release);
                    Heap::gate(heap).leases[class].saved.store(block, Relaxed);
                }
            }
        }
    }

    /// Lets the owner change the magazine of `class` as it likes while `f` runs, whether or not the heap is
    /// armed.
    ///
    /// # Safety
    ///
    /// As [`Heap::follow`].
    #[inline(always)]
    pub(crate) unsafe fn unleased(heap: *mut Heap, class: usize, f: impl FnOnce()) {
        // SAFETY: the caller's clause is the same.
        unsafe {
            if !Heap::is_armed(heap) {
                return f();
            }
            let (left, notice) = (Heap::settle(heap, class), &Heap::gate(heap).notices[class]);
            let magazines = &(*heap).magazines;
            magazines.replace_notice(class, notice.get());
            f();
            notice.set(magazines.replace_notice(class, ARMED));
            Heap::lease(heap, class, left);
        }
    }

    /// Takes the block that was cut out of a magazine of a heap that a fork has left behind, and lets the
    /// magazine go on below. Null when it was not cut there.
    ///
    /// # Safety
    ///
    /// As [`Heap::take_over`], and the slot below the top of `class` is null.
    pub(super) unsafe fn take_saved(heap: *mut Heap, class: usize) -> *mut u8 {
        // SAFETY: we stand in for the owner, who may have been stopped between any two stores: a block that
        // is saved lies nowhere else, and the owner's pops stop at the slot where it lay.
        unsafe {
            if !(&(*heap).tops.limit)[class].load(Relaxed).is_null() {
                return ptr::null_mut();
            }
            let (lease, top) = (&Heap::gate(heap).leases[class], &(&(*heap).tops.top)[class]);
            let below = top.load(Relaxed).wrapping_sub(1);
            let saved = lease.saved.load(Relaxed);
            if !saved.is_null() {
                lease.saved.store(ptr::null_mut(), Relaxed);
                top.store(below, Relaxed);
            }
            saved
        }
    }
}
