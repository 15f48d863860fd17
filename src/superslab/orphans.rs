//! Slabs whose owner has exited while blocks of theirs were in use.
//!
//! Who owns an orphan is decided by its remote word alone ([`remote_stack`](crate::lockfree::remote_stack)); the lists here only make orphans findable
//! by class. A slab in a list may therefore have been claimed already by the free that emptied it: that thread is
//! about to unlink it.

use crate::base::list::List;
use crate::base::table::Table;
use crate::lockfree::ready_list::ReadyList;
use crate::lockfree::remote_stack::Chain;
use crate::os::futex::{Inherit, Lock};
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::{Block, LEFT, Slab, VISITED};
use crate::sync::Node;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

struct Lists(Table<List<Slab>, KINDS>);

// SAFETY: only used under the lock.
unsafe impl Send for Lists {}

static LISTS: Lock<Lists> = Lock::new(Lists(Table([const { List::new() }; KINDS])));
/// How many slabs are listed per class: lets a refill that would find none pass by without the lock.
static COUNTS: Table<AtomicUsize, KINDS> = Table([const { AtomicUsize::new(0) }; KINDS]);
/// Slabs that were emptied by threads that could not have the lock: still listed, and to be released by whoever has it next.
static EMPTIED: ReadyList<Slab> = ReadyList::new();

impl Inherit for Lists {
    fn inherit(&mut self, torn: bool) {
        if !torn {
            return;
        }
        for (class, list) in self.0.0.iter_mut().enumerate() {
            // SAFETY: under the lock the lists are ours.
            COUNTS[class].store(unsafe { list.mend() }, Ordering::Relaxed);
        }
    }
}

/// Makes `slab`, with `in_use` blocks outstanding, an orphan. False when something was pushed to it meanwhile, or it is published,
/// or the lists are not to be had soon: then it is still the caller's.
///
/// # Safety
///
/// The caller owns `slab`, and it is in none of the owner's lists.
pub(crate) unsafe fn abandon(slab: *mut Slab, in_use: u32) -> bool {
    let Some(mut lists) = LISTS.lock_soon() else { return false };
    // SAFETY: ours until `orphan` succeeds. Fields first, then the exchange there publishes them; the links are used under
    // the lock only.
    unsafe {
        // Not as a visitor has it that has just taken the slab off the ready list, and will find us in.
        let owner = (*slab).owner.load(Ordering::Relaxed).map_addr(|a| a & !VISITED);
        // Marked, the owner's address equals no heap's, not even that of the thread that will use the record next; and
        // a thread that has just taken the duty to publish can still follow it.
        // Release, here and below: see `Slab::make`.
        (*slab).owner.store(owner.map_addr(|a| a | LEFT), Ordering::Release);
        // Then listed, and only then an orphan, also for the child of a fork: one that is emptied is taken off its list, and one
        // that still has an owner may be listed by whoever disowns it.
        link(&mut lists, slab);
        if !(*slab).remote.orphan(in_use) {
            unlink(&mut lists, slab);
            (*slab).owner.store(owner, Ordering::Release);
            return false;
        }
    }
    true
}

/// Takes `slab` off its list.
fn unlink(lists: &mut Lists, slab: *mut Slab) {
    // SAFETY: listed by its class; links are used under the lock only.
    unsafe {
        let class = (*slab).class as usize;
        lists.0[class].remove(slab);
        COUNTS[class].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Puts `slab` in front of its class's list.
fn link(lists: &mut Lists, slab: *mut Slab) {
    // SAFETY: the caller's, and in no list; links are used under the lock only.
    unsafe {
        let class = (*slab).class as usize;
        lists.0[class].push_front(slab);
        COUNTS[class].fetch_add(1, Ordering::Relaxed);
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

/// Adopts an orphan of `class`, unless the lists are not to be had soon.
pub(crate) fn adopt(class: u8) -> Option<Adopted> {
    if COUNTS[class as usize].load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut lists = LISTS.lock_soon()?;
    let mut slab = lists.0[class as usize].first();
    while !slab.is_null() {
        // SAFETY: listed slabs stay valid while we hold the lock.
        if let Some((chain, in_use)) = unsafe { (*slab).remote.adopt() } {
            unlink(&mut lists, slab);
            return Some(Adopted { slab, chain, in_use });
        }
        // SAFETY: as above.
        slab = unsafe { List::<Slab>::next(slab) };
    }
    None
}

/// Takes a slab that the caller has emptied off its list, and calls `release` with it, and with those that others could not take
/// off theirs. If the lists are not to be had soon, somebody else will do that.
///
/// # Safety
///
/// A push by the caller has answered [`Pushed::Emptied`](crate::lockfree::remote_stack::Pushed::Emptied).
pub(crate) unsafe fn claimed(slab: *mut Slab, release: impl Fn(*mut Slab)) {
    let Some(mut lists) = LISTS.lock_soon() else {
        // SAFETY: passed on: in no ready list, and ours.
        return unsafe { EMPTIED.push(slab) };
    };
    unlink(&mut lists, slab);
    let mut others = if EMPTIED.is_empty() { ptr::null_mut() } else { EMPTIED.take_all() };
    let mut at = others;
    while !at.is_null() {
        unlink(&mut lists, at);
        // SAFETY: taken off, so ours.
        at = unsafe { <Slab as Node>::next(at) };
    }
    drop(lists);
    release(slab);
    while !others.is_null() {
        // SAFETY: as above; the link is read before the slab is gone.
        let next = unsafe { <Slab as Node>::next(others) };
        release(others);
        others = next;
    }
}

/// In the child of a fork: see [`Lock::inherit`].
pub(crate) fn inherit() {
    LISTS.inherit();
}
