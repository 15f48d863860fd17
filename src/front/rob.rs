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
//! [pull itself together](super::magazine::Magazines::grow).

use super::heap::Heap;
use super::hot::{Hot, Slot, shared};
use super::magazine::Magazines;
use crate::os::barrier;
use crate::tiny::classes::CLASSES;
use core::ptr;
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// Slots handled between two barriers.
const BATCH: usize = 64;

/// Sends the blocks in another heap's magazines home, by way of `mine`.
///
/// # Safety
///
/// The caller visits the heap whose parts these are; `mine` is the calling thread's.
pub(super) unsafe fn magazines(hot: *mut Hot, magazines: *const Magazines, mine: *mut Heap) {
    for class in 1..=CLASSES {
        // SAFETY: passed on; the array stays while the owner is kept out.
        unsafe {
            let Some(first) = Magazines::first(magazines, hot, class) else { continue };
            let top = &(&(*hot).top)[class];
            let end = top.load(Acquire);
            let mut from = first;
            Magazines::set_robbed(magazines, class);
            // The topmost is not for us.
            while from.addr() + size_of::<Slot>() < end.addr() {
                let to = from.wrapping_add(BATCH).min(end.wrapping_sub(1));
                if !slots(top, from, to, class as u8, mine) {
                    return;
                }
                from = to;
            }
        }
    }
}

/// Empties the slots from `from` to `to`. False when the system has no barrier, and all is as it was.
unsafe fn slots(top: &AtomicPtr<Slot>, from: *mut Slot, to: *mut Slot, class: u8, mine: *mut Heap) -> bool {
    let mut blocks = [ptr::null_mut::<u8>(); BATCH];
    let slot = |i: usize| from.wrapping_add(i);
    let count = (to.addr() - from.addr()) / size_of::<Slot>();
    // SAFETY: passed on. Acquire: pairs with the release of the push, after which the block is free. Release: pairs with
    // nothing but the swap; a null says nothing.
    unsafe {
        for (i, block) in blocks[..count].iter_mut().enumerate() {
            *block = shared(slot(i)).swap(ptr::null_mut(), AcqRel);
        }
        let barrier = barrier::heavy();
        let end = top.load(Acquire);
        // Where stores are not seen in order, the top may be newer than what was pushed before it moved.
        let barrier = barrier && barrier::heavy();
        let _busy = Heap::enter(mine);
        for (i, &block) in blocks[..count].iter().enumerate() {
            if block.is_null() {
                continue;
            }
            let far = end.addr() > slot(i).wrapping_add(1).addr();
            if barrier && far && shared(slot(i)).load(Relaxed).is_null() {
                Heap::send_home(mine, block, class);
            } else {
                // What is there now is the owner's; failing is as good.
                let _ = shared(slot(i)).compare_exchange(ptr::null_mut(), block, Release, Relaxed);
            }
        }
        barrier
    }
}
