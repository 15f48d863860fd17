//! Blocks: what an allocation returns, and what a free one holds.

use crate::sync::{Node, reads, wrote};
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
/// while they are on a slab's list or on the way there: so a second `free` of the block is noticed. Where C's
/// `free` has put a block into a magazine, that word holds the *lower half* of the mark and zeros, and C's
/// `malloc` clears it. So the lower half tells of either, and the whole word where the block is.
#[repr(C)]
pub(crate) struct Block {
    next: *mut Block,
    mark: usize,
}

// SAFETY: the link is the first word of a free block. Every block has at least 8 bytes, and a free one is
// used by nobody but the thread that has it or the list it is on.
unsafe impl Node for Block {
    unsafe fn next(node: *mut Self) -> *mut Self {
        reads(node);
        // SAFETY: by the trait's contract `node` is valid, its link was written, and nobody writes it now.
        unsafe { (*node).next }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        wrote(node);
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
    /// Whether the block carries the mark of a free block or its lower half alone. Now and then data of the
    /// program looks like that.
    ///
    /// # Safety
    ///
    /// As [`Block::is_marked`].
    #[inline(always)]
    pub(crate) unsafe fn looks_free(block: *mut Self, secret: usize) -> bool {
        // SAFETY: as in `is_marked`.
        unsafe { (&raw const (*block).mark).read() as u32 == (block.addr() ^ secret) as u32 }
    }
    /// Whether the block carries the lower half of the mark alone, as one does that C has put into a
    /// magazine.
    ///
    /// # Safety
    ///
    /// As [`Block::is_marked`].
    pub(crate) unsafe fn is_half_marked(block: *mut Self, secret: usize) -> bool {
        // SAFETY: as in `is_marked`.
        unsafe { (&raw const (*block).mark).read() == Block::half_mark(block, secret) }
    }
    /// Gives the block the lower half of the mark, unless it [looks free](Block::looks_free): then returns
    /// false, and has done nothing.
    ///
    /// # Safety
    ///
    /// `block` lies in a slab of blocks of at least 16 bytes, and the program has freed it: if it is a block
    /// in use, it is the caller's alone now.
    #[inline(always)]
    pub(crate) unsafe fn half_mark_once(block: *mut Self, secret: usize) -> bool {
        // SAFETY: the second word lies inside the block, and so in mapped memory.
        unsafe {
            let mark = Block::half_mark(block, secret);
            if (&raw const (*block).mark).read() as u32 == mark as u32 {
                return false;
            }
            (*block).mark = mark;
        }
        true
    }
    /// Gives the block the lower half of the mark alone, as a block of a magazine.
    ///
    /// # Safety
    ///
    /// As [`Block::set_mark`].
    #[inline(always)]
    pub(crate) unsafe fn set_half_mark(block: *mut Self, secret: usize) {
        // SAFETY: the second word lies inside the block, which the caller alone uses.
        unsafe { (*block).mark = Block::half_mark(block, secret) }
    }
    /// [`Block::set_half_mark`] in a loop, which the compiler sees through.
    ///
    /// # Safety
    ///
    /// As [`Block::set_half_mark`].
    #[inline(always)]
    pub(crate) unsafe fn set_half_mark_of_many(block: *mut Self, secret: usize) {
        // SAFETY: as in `set_half_mark`.
        unsafe { (*block).mark = (block.addr() ^ secret) & u32::MAX as usize }
    }
    /// The lower half of the block's mark. Its upper half would not be 0: that of the secret never is, and no
    /// address has the highest bit.
    #[inline(always)]
    fn half_mark(block: *mut Self, secret: usize) -> usize {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            // An instruction on the lower half clears the upper one; the compiler would do that once more.
            let mut mark = secret;
            // SAFETY: only computes.
            unsafe {
                core::arch::asm!("xor {0:e}, {1:e}", inout(reg) mark, in(reg) block.addr(), options(pure, nomem, nostack));
            }
            mark
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            (secret ^ block.addr()) as u32 as usize
        }
    }
    /// Removes the mark, or what the program has left in its place.
    ///
    /// # Safety
    ///
    /// `block` has at least 16 bytes, and is the caller's alone.
    #[inline(always)]
    pub(crate) unsafe fn unmark(block: *mut Self) {
        // SAFETY: the second word lies inside the block, which the caller alone uses.
        unsafe { (*block).mark = 0 }
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
