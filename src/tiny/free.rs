//! The way home of a block that leaves a magazine, and the checks that are cheap there because the slab's record is in
//! hand anyway: the block is ours, on its slab's stride, of the class it was freed as, and not already free.

use crate::base::misuse;
use crate::base::misuse::Fault;
use crate::lockfree::remote_stack::Pushed;
use crate::superslab::slab::{Block, LEFT, Owner, Slab, VISITED};
use crate::superslab::{orphans, pagemap};
use crate::tiny::bins::{Bins, UNMARKED};
use crate::tiny::{partial_purge, release};
use core::ptr;
use core::sync::atomic::Ordering::Acquire;

/// Marks a block of `class` as free, if it is the start of a block of `slab` and not free already. False, and nothing
/// changed, when not: then [`validate`] finds out why.
///
/// # Safety
///
/// The calling thread owns `bins`. The page map says that `address` lies in a slab of `class`, `slab` is that slab's record, and
/// the block is nobody's now.
#[inline(always)]
pub(crate) unsafe fn mark_free(bins: *const Bins, slab: *mut Slab, address: *mut u8, class: usize) -> bool {
    let block = address.cast::<Block>();
    // SAFETY: passed on. Once the address is a block's, that block is ours to write.
    unsafe {
        if !Slab::is_block(slab, address) {
            return false;
        }
        if class != UNMARKED {
            if Block::is_marked(block, (*bins).secret) {
                return false;
            }
            Block::set_mark(block, (*bins).secret, true);
        }
    }
    true
}

/// Checks that `address` can be a block of `class` on its way home and marks it as free. Its slab, or `None` when it
/// is to be left alone after a complaint. `bins` are the calling thread's.
///
/// # Safety
///
/// `address` was freed as a block of `class` and is nobody's now.
pub(crate) unsafe fn validate(bins: &mut Bins, address: *mut u8, class: usize) -> Option<*mut Slab> {
    let kind = pagemap::kind(address);
    if kind as usize != class {
        let fault = if kind == pagemap::FOREIGN { Fault::Foreign } else { Fault::Size };
        misuse::report("free", address, fault);
        return None;
    }
    let block = address.cast::<Block>();
    // SAFETY: the page map says that this is a slab's page. The slab has a block in use (this one), unless the block
    // was freed twice, and then the page at least is still mapped.
    unsafe {
        let slab = Slab::of(address);
        if !Slab::is_block(slab, address) {
            match partial_purge::block_at(slab, address) {
                None => misuse::report("free", address, Fault::Interior),
                Some(true) => misuse::report("free", address, Fault::DoubleFree),
                Some(false) => return marked(bins, slab, block, class),
            }
            return None;
        }
        marked(bins, slab, block, class)
    }
}

/// Marks a block of `slab` as free, or complains that it is so already.
unsafe fn marked(bins: &mut Bins, slab: *mut Slab, block: *mut Block, class: usize) -> Option<*mut Slab> {
    // SAFETY: passed on.
    unsafe {
        if class != UNMARKED {
            // A program can have copied the mark out of a block that it never wrote and back into the same place. Where
            // the list can be looked at, it decides.
            if Block::is_marked(block, bins.secret)
                && (!is_owned_by(slab, bins.owner) || bins.holds(slab, block))
            {
                misuse::report("free", block.cast(), Fault::DoubleFree);
                return None;
            }
            Block::set_mark(block, bins.secret, true);
        }
        Some(slab)
    }
}

/// Whether `slab` belongs to `owner`.
///
/// # Safety
///
/// `slab` is a live slab's record.
#[inline(always)]
pub(crate) unsafe fn is_owned_by(slab: *mut Slab, owner: *mut Owner) -> bool {
    // Only this thread ever stores this owner, so the answer cannot be stale, but for a visitor that puts it back. Acquire:
    // pairs with the release when it does.
    // SAFETY: passed on.
    unsafe { (*slab).owner.load(Acquire) == owner }
}

/// What came of a chain that was sent home.
pub(crate) struct Sent {
    /// It published the slab.
    pub(crate) published: bool,
    /// The slab's owner, if it has left so much lying by now that it should be visited; else null.
    pub(crate) idle: *mut Owner,
}

/// Sends a chain of `count` blocks to a slab that another thread owns, or nobody.
///
/// # Safety
///
/// As [`crate::lockfree::remote_stack::RemoteStack::push`].
pub(crate) unsafe fn push_remote(slab: *mut Slab, head: *mut Block, tail: *mut Block, count: u32) -> Sent {
    // SAFETY: passed on. The slab may be gone once the chain is on it, but for the one who has something to do.
    unsafe {
        // Acquire: the owner may be one that has only just adopted the slab.
        let owner = (*slab).owner.load(Acquire);
        let (stride, last, pages) = ((*slab).stride, (*slab).last, (*slab).pages);
        let (outcome, waiting) = (*slab).remote.push(head, tail, count);
        match outcome {
            Pushed::Queued => {}
            Pushed::Publish => Slab::publish(slab),
            Pushed::Emptied => orphans::claimed(slab, |slab| release::release_slab(slab)),
        }
        let mut sent = Sent { published: outcome == Pushed::Publish, idle: ptr::null_mut() };
        // All blocks wait now.
        if outcome != Pushed::Emptied && owner.addr() & LEFT == 0 && waiting * stride > last {
            let owner = owner.map_addr(|a| a & !VISITED);
            // Owners are never unmapped.
            if (*owner).leave_idle(pages as usize) {
                sent.idle = owner;
            }
        }
        sent
    }
}
