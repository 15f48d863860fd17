//! Slabs whose owner has exited while blocks of theirs were in use.
//!
//! Who owns an orphan is decided by its remote word alone ([`super::remote`]); the lists here only make orphans findable
//! by class. A slab in a list may therefore have been claimed already by the free that emptied it: that thread is
//! about to unlink it.

use super::pagemap::KINDS;
use super::remote::Chain;
use super::slab::{Block, LEFT, Slab, VISITED};
use crate::os::futex::Lock;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

struct Lists([*mut Slab; KINDS]);

// SAFETY: only used under the lock.
unsafe impl Send for Lists {}

static LISTS: Lock<Lists> = Lock::new(Lists([ptr::null_mut(); KINDS]));
/// How many slabs are listed per class: lets a refill that would find none pass by without the lock.
static COUNTS: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

/// Makes `slab`, with `in_use` blocks outstanding, an orphan. False when something was pushed to it meanwhile or it is
/// published: then it is still the caller's.
///
/// # Safety
///
/// The caller owns `slab`, and it is in none of the owner's lists.
pub(crate) unsafe fn abandon(slab: *mut Slab, in_use: u32) -> bool {
    let mut lists = LISTS.lock();
    // SAFETY: ours until `orphan` succeeds. Fields first, then the exchange there publishes them; the links are used under
    // the lock only, which we hold until they are set.
    unsafe {
        // Not as a visitor has it that has just taken the slab off the ready list, and will find us in.
        let owner = (*slab).owner.load(Ordering::Relaxed).map_addr(|a| a & !VISITED);
        // Marked, the owner's address equals no heap's, not even that of the thread that will use the record next; and
        // a thread that has just taken the duty to publish can still follow it.
        // Release, here and below: see `Slab::make`.
        (*slab).owner.store(owner.map_addr(|a| a | LEFT), Ordering::Release);
        if !(*slab).remote.orphan(in_use) {
            (*slab).owner.store(owner, Ordering::Release);
            return false;
        }
        link(&mut lists, slab);
    }
    true
}

fn unlink(lists: &mut Lists, slab: *mut Slab) {
    // SAFETY: listed, and links are used under the lock only.
    unsafe {
        let (next, prev, class) = ((*slab).next, (*slab).prev, (*slab).class as usize);
        if prev.is_null() {
            lists.0[class] = next;
        } else {
            (*prev).next = next;
        }
        if !next.is_null() {
            (*next).prev = prev;
        }
        COUNTS[class].fetch_sub(1, Ordering::Relaxed);
    }
}

/// An adopted slab: what came with it and how many of its blocks are still in use.
pub(crate) struct Adopted {
    /// The slab; its owner is not set yet.
    pub(crate) slab: *mut Slab,
    /// Blocks that were freed while it had no owner.
    pub(crate) chain: Chain<Block>,
    /// Blocks in use.
    pub(crate) in_use: u32,
}

/// Adopts an orphan of `class`.
pub(crate) fn adopt(class: u8) -> Option<Adopted> {
    if COUNTS[class as usize].load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut lists = LISTS.lock();
    let mut slab = lists.0[class as usize];
    while !slab.is_null() {
        // SAFETY: listed slabs stay valid while we hold the lock.
        if let Some((chain, in_use)) = unsafe { (*slab).remote.adopt() } {
            unlink(&mut lists, slab);
            return Some(Adopted { slab, chain, in_use });
        }
        // SAFETY: as above.
        slab = unsafe { (*slab).next };
    }
    None
}

/// Takes a slab that the caller has emptied off its list.
///
/// # Safety
///
/// A push by the caller has answered [`super::remote::Pushed::Emptied`].
pub(crate) unsafe fn claimed(slab: *mut Slab) {
    unlink(&mut LISTS.lock(), slab);
}

/// In the child of a fork: forgets who is listed. A thread of the parent may have been about to unlink a slab that it had
/// emptied, so the lists are made anew with [`relink`].
pub(crate) fn forget() {
    LISTS.lock().0 = [ptr::null_mut(); KINDS];
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// Lists an orphan, in the child of a fork.
///
/// # Safety
///
/// `slab` is an orphan in no list, and no other thread exists.
pub(crate) unsafe fn relink(slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe { link(&mut LISTS.lock(), slab) }
}

/// Puts `slab` in front of its class's list.
unsafe fn link(lists: &mut Lists, slab: *mut Slab) {
    // SAFETY: passed on; links are used under the lock only.
    unsafe {
        let class = (*slab).class as usize;
        let head = lists.0[class];
        (*slab).prev = ptr::null_mut();
        (*slab).next = head;
        if !head.is_null() {
            (*head).prev = slab;
        }
        lists.0[class] = slab;
        COUNTS[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// For the time across a fork.
pub(crate) fn acquire() {
    LISTS.acquire();
}

/// See [`acquire`].
pub(crate) fn release(child: bool) {
    if child { LISTS.reset_in_child() } else { LISTS.release() }
}
