//! A slab's own list of free blocks, and how it takes in the chains that other threads have pushed to the
//! slab.

use crate::lockfree::remote_stack::Chain;
use crate::superslab::slab::{Block, Slab};
use crate::sync::wrote;

/// Adds a chain that was taken off the remote stack of `slab` to its free blocks.
///
/// # Safety
///
/// The slab is the caller's: it is its owner, or a visitor in the owner's heap and the slab is not current,
/// or it has adopted it. It has just taken the chain off this slab's stack.
pub(super) unsafe fn absorb(slab: *mut Slab, chain: Chain<Block>) {
    // SAFETY: nobody but the caller uses the slab's `free`. The chain belongs to the caller, too: taking it
    // acquired its links.
    unsafe {
        prepend(slab, chain.head);
        Slab::count_waiting(slab, chain.count, 0);
    }
}

/// Takes the chain that other threads have pushed to `slab` and adds it to the free blocks. False if there is
/// none.
///
/// # Safety
///
/// The slab is the caller's, as for [`absorb`], or [`NO_SLAB`](crate::superslab::slab::NO_SLAB).
pub(super) unsafe fn drain(slab: *mut Slab) -> bool {
    // SAFETY: the caller may take the chain of its own slab. Nobody pushes to `NO_SLAB`, so it is not written
    // to.
    unsafe {
        if !(*slab).remote.has_chain() {
            return false;
        }
        let chain = (*slab).remote.take_chain();
        absorb(slab, chain);
        true
    }
}

/// Puts a chain in front of a slab's free blocks.
///
/// # Safety
///
/// The slab is the caller's, as for [`absorb`]; `chain` is null or a chain of free blocks of it, which ends
/// with null and is the caller's, too.
pub(super) unsafe fn prepend(slab: *mut Slab, mut chain: *mut Block) {
    let mut end = &raw mut chain;
    // SAFETY: the blocks of the chain are free and the caller's, so their links can be followed and changed.
    unsafe {
        wrote(slab);
        if (*slab).free.is_null() {
            // Then none of them need be fetched.
            (*slab).free = chain;
            return;
        }
        while !(*end).is_null() {
            end = Block::link(*end);
        }
        *end = (*slab).free;
        (*slab).free = chain;
    }
}
