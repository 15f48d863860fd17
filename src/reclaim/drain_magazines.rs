//! Taking blocks out of another thread's magazines, in which that thread pops and pushes at will.
//!
//! The owner pops without a lock: it reads the slot below the top, then lowers the top. It may have been stopped between the
//! two, for as long as it likes. But before it reads slot `i` it has set the top to `i + 1`, when it popped the slot above.
//! So a visitor swaps a null into the slots that lie at least one block below the top, has every thread execute a
//! barrier, and looks at the top again. Is it still above `i + 1`, and is the slot still null, then the owner has not read
//! the slot before the swap: to get there and back it would have had to push something into it. If not, the owner may
//! have the block, and the visitor puts it back where it was, unless something is there: if the owner has it, then that slot
//! lies above its top, and what is in it means nothing.
//!
//! The topmost block stays. To the owner the slots look like the end of the magazine, until it is made to
//! [pull itself together](crate::front::magazine::Magazines::grow).

use crate::front::fast_path::{MagazineTops, Slot};
use crate::front::heap::Heap;
use crate::front::magazine::Magazines;
use crate::lockfree::steal::{BATCH, steal};
use crate::tiny::classes::CLASSES;
use core::slice;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Acquire;

/// Sends the blocks in another heap's magazines home, by way of `mine`.
///
/// # Safety
///
/// The caller visits the heap whose parts these are; `mine` is the calling thread's.
pub(crate) unsafe fn drain(tops: *mut MagazineTops, magazines: *const Magazines, mine: *mut Heap) {
    for class in 1..=CLASSES {
        // SAFETY: passed on; the array stays while the owner is kept out, and all below the top is initialised.
        unsafe {
            let Some(first) = Magazines::first(magazines, tops, class) else { continue };
            let slots_to = |slot: *mut Slot| slot.addr().saturating_sub(first.addr()) / size_of::<Slot>();
            // Acquire: pairs with the release in `MagazineTops::push`, where that has one.
            let top = || slots_to((&(*tops).top)[class].load(Acquire));
            // The topmost is not for us.
            let slots = slice::from_raw_parts(first.cast::<AtomicPtr<u8>>(), top().saturating_sub(1));
            if !slots.is_empty() {
                Magazines::set_drained(magazines, class);
            }
            for (i, batch) in slots.chunks(BATCH).enumerate() {
                let _entered = Heap::enter(mine);
                let top = || top().saturating_sub(i * BATCH);
                let home = |block| {
                    (*mine).counters.flushed.add(1);
                    Heap::send_home(mine, block, class as u8);
                };
                if !steal(batch, top, home) {
                    return;
                }
            }
        }
    }
}
