//! The way home of a block that leaves a magazine, and the checks that are cheap there because the slab's record is in
//! hand anyway: the block is ours, on its slab's stride, of the class it was freed as, and not already free.

use super::bins::{Bins, UNMARKED};
use crate::misuse::{self, Fault};
use crate::superslab::remote::Pushed;
use crate::superslab::{Block, Owner, Slab, orphans, pagemap};
use core::sync::atomic::Ordering::Relaxed;

/// Marks a block of `class` as free, if it is the start of a block of `slab` and not free already. False, and nothing
/// changed, when not: then [`check_in`] finds out why.
///
/// # Safety
///
/// The calling thread owns `bins`. The page map says that `address` lies in a slab of `class`, `slab` is that slab's record, and
/// the block is nobody's now.
#[inline(always)]
pub(crate) unsafe fn mark(bins: *const Bins, slab: *mut Slab, address: *mut u8, class: usize) -> bool {
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
pub(crate) unsafe fn check_in(bins: &mut Bins, address: *mut u8, class: usize) -> Option<*mut Slab> {
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
            misuse::report("free", address, Fault::Interior);
            return None;
        }
        if class != UNMARKED {
            // A program can have copied the mark out of a block that it never wrote and back into the same place. Where
            // the list can be looked at, it decides.
            if Block::is_marked(block, bins.secret) && (!is_own(slab, bins.owner) || bins.holds(slab, block))
            {
                misuse::report("free", address, Fault::DoubleFree);
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
pub(crate) unsafe fn is_own(slab: *mut Slab, owner: *mut Owner) -> bool {
    // Relaxed: only this thread ever stores this owner, so the answer cannot be stale.
    // SAFETY: passed on.
    unsafe { (*slab).owner.load(Relaxed) == owner }
}

/// Sends a chain of `count` blocks to a slab that another thread owns, or nobody. True when that published the slab.
///
/// # Safety
///
/// As [`crate::superslab::remote::RemoteStack::push`].
pub(crate) unsafe fn send(slab: *mut Slab, head: *mut Block, tail: *mut Block, count: u32) -> bool {
    // SAFETY: passed on.
    unsafe {
        match (*slab).remote.push(head, tail, count) {
            Pushed::Queued => false,
            Pushed::Publish => {
                Slab::publish(slab);
                true
            }
            Pushed::Emptied => {
                orphans::claimed(slab);
                super::leave::release(slab);
                false
            }
        }
    }
}
