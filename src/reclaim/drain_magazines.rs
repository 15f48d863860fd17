//! Taking blocks out of another thread's magazines while that thread pops and pushes.
//!
//! The owner pops without a lock: it reads the slot below the top, then lowers the top. It may be stopped
//! between the two, for any length of time. But before it reads slot `i` it has set the top to `i + 1`, when
//! it popped the slot above.
//!
//! So a visitor swaps null into slots that lie at least one block below the top, has every thread execute a
//! barrier, and reads the top again. If the top is still above `i + 1` and the slot is still null, the owner
//! has not read the slot before the swap: otherwise, to get there and back, it would have had to push
//! something into the slot. If not, the owner may have the block. Then the visitor puts it back, unless the
//! slot holds something else by now. If the owner does have the block, the slot lies above its top, where
//! contents mean nothing.
//!
//! The topmost block stays. A null slot looks to the owner like the end of the magazine, until it
//! [compacts](crate::front::magazine::Magazines::grow) the magazine, under its heap's lock. So the visitor
//! may give the pages of the slots below back to the system.

use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::magazine::Magazines;
use crate::lockfree::magazine_slots::{BATCH, Slot, steal};
use crate::os;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::tiny::classes::CLASSES;
use core::{ptr, slice};

/// Returns the blocks in another heap's magazines to their slabs, by way of the heap `mine`.
///
/// # Safety
///
/// The caller visits the heap that `tops` and `magazines` are parts of, and that lasts throughout. `mine` is
/// the calling thread's heap, and another one.
pub(crate) unsafe fn drain(tops: &MagazineTops, magazines: &Magazines, mine: *mut Heap) {
    for class in 1..=CLASSES {
        let Some(first) = magazines.first(tops, class) else { continue };
        let slots_to = |slot: *mut Slot| slot.addr().saturating_sub(first.addr()) / size_of::<Slot>();
        // Acquire: pairs with the release in `MagazineTops::push`, where that has one.
        let top = || slots_to(tops.top[class].load(Acquire));
        // All but the topmost block.
        // SAFETY: the slots lie in the heap's record. They stay this magazine's during the visit, because the
        // owner resizes magazines only inside its lock. All of them below the top have been written, and
        // whoever uses them meanwhile does so atomically.
        let slots = unsafe { slice::from_raw_parts(first, top().saturating_sub(1)) };
        if !slots.is_empty() {
            magazines.set_drained(class);
        }
        for (i, batch) in slots.chunks(BATCH).enumerate() {
            // SAFETY: by this function's contract `mine` is the calling thread's heap.
            let _entered = unsafe { Heap::enter(mine) };
            let top = || top().saturating_sub(i * BATCH);
            // SAFETY: `mine` has been entered. What `steal` hands us is a free block that is nobody else's;
            // it was in a magazine of `class`, so it was freed as one of that class.
            let free = |block| unsafe {
                (*mine).counters.flushed.add(1);
                Heap::send_home(mine, block, class as u8);
            };
            if !steal(batch, top, free) {
                return;
            }
        }
        // SAFETY: all of these have been stolen or put back, and we are still inside.
        unsafe { purge_slots(slots.get(..top().saturating_sub(1)).unwrap_or(slots)) };
    }
}

/// Gives back the whole system pages of slots, if no block is left in these.
///
/// # Safety
///
/// The slots are the lowest of a magazine in a heap that the caller visits. They were below its topmost block
/// when the caller read the top, after a barrier that followed their last theft.
unsafe fn purge_slots(slots: &[Slot]) {
    // The highest one stays: there the owner finds that the magazine ends.
    let Some((end, _)) = slots.split_last() else { return };
    let page = os::page_size();
    let from = slots.as_ptr().cast_mut().cast::<u8>().map_addr(|a| a.next_multiple_of(page));
    let len = (ptr::from_ref(end).addr() & !(page - 1)).saturating_sub(from.addr());
    if len != 0 && slots.iter().all(|slot| slot.load(Relaxed).is_null()) {
        // SAFETY: whole pages of the heap's record. The owner does not come below the highest null outside of
        // its lock, so nobody writes these slots, and a zero is a null.
        unsafe { os::purge(from, len) };
    }
}
