//! Blocks: what an allocation returns, and what a free one holds.

use crate::sync::Node;
use core::ptr;

/// The result of an allocation.
pub(crate) struct Allocation {
    /// The block; null if there is no memory.
    pub(crate) ptr: *mut u8,
    /// Whether every byte of it is known to be zero.
    pub(crate) zeroed: bool,
}

impl Allocation {
    /// No block: there is no memory.
    pub(crate) const NONE: Allocation = Allocation { ptr: ptr::null_mut(), zeroed: false };
}

/// A free block. Its first word is the link. Blocks of 16 bytes and more carry a mark in the second word
/// while they are on a slab's list or on the way there: so a second `free` of the block is noticed.
#[repr(C)]
pub(crate) struct Block {
    next: *mut Block,
    mark: usize,
}

// SAFETY: the link is the first word of a free block. Every block has at least 8 bytes, and a free one is
// used by nobody but the thread that has it or the list it is on.
unsafe impl Node for Block {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: by the trait's contract `node` is valid, its link was written, and nobody writes it now.
        unsafe { (*node).next }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: by the trait's contract `node` is valid and the caller's alone.
        unsafe { (*node).next = next }
    }
}

impl Block {
    /// Where the link is.
    ///
    /// # Safety
    ///
    /// `block` points to mapped memory of a block.
    pub(crate) unsafe fn link(block: *mut Self) -> *mut *mut Self {
        // SAFETY: nothing is read: this computes an address inside the block.
        unsafe { &raw mut (*block).next }
    }
    /// Whether the block carries the mark of a free block.
    ///
    /// # Safety
    ///
    /// `block` is the start of a block of at least 16 bytes, in a slab whose memory stays mapped, and no
    /// other thread writes to it.
    #[inline(always)]
    pub(crate) unsafe fn is_marked(block: *mut Self, secret: usize) -> bool {
        // SAFETY: the second word lies inside the block. The memory comes from the system, which has
        // initialised it, even if the program has not.
        unsafe { (&raw const (*block).mark).read() == block.addr() ^ secret }
    }
    /// Marks or unmarks the block.
    ///
    /// # Safety
    ///
    /// `block` is a free block of at least 16 bytes, and the caller's alone.
    #[inline(always)]
    pub(crate) unsafe fn set_mark(block: *mut Self, secret: usize, free: bool) {
        // SAFETY: the second word lies inside the block, which the caller alone uses.
        unsafe { (*block).mark = if free { block.addr() ^ secret } else { 0 } }
    }
}
