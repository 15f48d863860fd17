//! A slab's own list of free blocks, and what other threads have pushed to the slab.

use crate::lockfree::remote_stack::Chain;
use crate::superslab::slab::{Block, Slab};
use crate::sync::Node;

/// Adds a drained chain to the free blocks of `slab`.
pub(super) unsafe fn absorb(slab: *mut Slab, chain: Chain<Block>) {
    // SAFETY: passed on: the slab is ours, and so is the chain.
    unsafe {
        if (*slab).free.is_null() {
            (*slab).free = chain.head;
        } else {
            prepend(slab, chain.head);
        }
        Slab::count_waiting(slab, chain.count, 0);
    }
}

/// Takes the chain that other threads have pushed to `slab`, which has no free blocks. False when there is none.
pub(super) unsafe fn drain(slab: *mut Slab) -> bool {
    // SAFETY: passed on: the slab is ours, or the stand-in, to which nobody pushes.
    unsafe {
        if !(*slab).remote.has_chain() {
            return false;
        }
        let chain = (*slab).remote.take_chain();
        absorb(slab, chain);
        true
    }
}

/// Puts a chain in front of a slab's free blocks; how many blocks it had.
pub(super) unsafe fn prepend(slab: *mut Slab, chain: *mut Block) -> u32 {
    if chain.is_null() {
        return 0;
    }
    let mut count = 1;
    let mut tail = chain;
    // SAFETY: passed on: the chain and the slab are the caller's.
    unsafe {
        loop {
            let next = Block::next(tail);
            if next.is_null() {
                break;
            }
            tail = next;
            count += 1;
        }
        Block::set_next(tail, (*slab).free);
        (*slab).free = chain;
    }
    count
}
