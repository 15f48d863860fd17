//! The outbox: blocks of other owners' slabs, collected by slab, so that one compare-and-swap sends many.

use super::visit;
use crate::stats::Counter;
use crate::superslab::{Block, Slab};
use crate::sync::Node;
use crate::tiny::home;
use core::ptr;
use core::sync::atomic::{Ordering::Release, compiler_fence};

/// Open bundles. A direct-mapped set: a slab has one place, and evicts what is there. Too few of them and a thread that frees
/// what many slabs have given sends its blocks one by one: with 16, 3.4 at a time where 32 could be.
const BUNDLES: usize = 128;
/// Blocks of a bundle at most.
const MAX_BLOCKS: u32 = 32;
/// Bytes of a bundle at most.
const MAX_BYTES: u32 = 16 << 10;
/// Bytes that wait at most, in all bundles: what a thread that goes to sleep withholds.
const MAX_WAITING: u64 = 256 << 10;

#[derive(Clone, Copy)]
struct Bundle {
    slab: *mut Slab,
    head: *mut Block,
    tail: *mut Block,
    count: u32,
    limit: u32,
}

const NONE: Bundle =
    Bundle { slab: ptr::null_mut(), head: ptr::null_mut(), tail: ptr::null_mut(), count: 0, limit: 0 };

/// Bytes of the bundles: a page of their own, so that a thread that frees nothing of others' does not touch it.
pub(crate) const BYTES: usize = BUNDLES * size_of::<Bundle>();

/// The outbox of a heap.
pub(crate) struct Outbox {
    /// [`BYTES`] of them, zero until the first block. Null in a placeholder, which sends nothing.
    bundles: *mut Bundle,
    bundling: bool,
    /// Whether a bundle was ever opened since the bundles were last known to be zero.
    touched: bool,
    /// Bundles sent.
    pub(crate) pushes: Counter,
    /// Bundles that published their slab.
    pub(crate) publishes: Counter,
    /// Bytes of blocks that wait; goes up and down.
    pub(crate) waiting: Counter,
}

/// The place of a slab: its page in the SuperSlab, and a part for each of four neighbouring SuperSlabs.
#[inline(always)]
fn place(slab: *mut Slab) -> usize {
    let a = slab.addr();
    (((a >> 7) & 31) | ((a >> 21) << 5)) % BUNDLES
}

impl Outbox {
    /// An outbox without room.
    pub(crate) const fn new() -> Self {
        Self {
            bundles: ptr::null_mut(),
            bundling: false,
            touched: false,
            pushes: Counter::new(),
            publishes: Counter::new(),
            waiting: Counter::new(),
        }
    }

    /// Empties the outbox without sending anything. Its bundles are at `bundles` from now on.
    ///
    /// # Safety
    ///
    /// There are [`BYTES`] bytes, zero unless they have been this outbox's bundles before, and the caller's alone.
    pub(crate) unsafe fn reset(&mut self, bundles: *mut u8, bundling: bool) {
        self.bundles = bundles.cast();
        self.bundling = bundling;
        if self.touched {
            // SAFETY: passed on.
            unsafe { bundles.write_bytes(0, BYTES) };
            self.touched = false;
        }
        self.waiting.set(0);
    }

    /// Adds a block; sends a bundle that is full or in the way, and all of them when much waits.
    ///
    /// # Safety
    ///
    /// `block` is a checked-in block of `slab`, which another thread owns, or nobody. The outbox has room.
    #[inline(always)]
    pub(crate) unsafe fn add(&mut self, slab: *mut Slab, block: *mut Block) {
        // SAFETY: the block is ours, constant fields of its slab may be read, and the place is one of the bundles.
        unsafe {
            let bundle = self.bundles.add(place(slab));
            let waiting = self.waiting.get() + (*slab).stride as u64;
            if (*bundle).slab != slab || waiting > MAX_WAITING {
                return self.open(bundle, slab, block);
            }
            Block::set_next(block, (*bundle).head);
            (*bundle).head = block;
            (*bundle).count += 1;
            self.waiting.set(waiting);
            if (*bundle).count >= (*bundle).limit {
                self.send(bundle);
            }
        }
    }

    /// Opens a bundle with its first block, after sending what is in its place, or everything when much waits.
    #[cold]
    #[inline(never)]
    unsafe fn open(&mut self, bundle: *mut Bundle, slab: *mut Slab, block: *mut Block) {
        // SAFETY: passed on.
        unsafe {
            let stride = (*slab).stride;
            if self.waiting.get() + stride as u64 > MAX_WAITING {
                self.flush();
            }
            self.send(bundle);
            let limit = if self.bundling { (MAX_BYTES / stride).clamp(1, MAX_BLOCKS) } else { 1 };
            Block::set_next(block, ptr::null_mut());
            // First, or a fork in between could leave its child a bundle that `reset` passes over.
            self.touched = true;
            compiler_fence(Release);
            *bundle = Bundle { slab, head: block, tail: block, count: 1, limit };
            self.waiting.add(stride as u64);
            if limit == 1 {
                self.send(bundle);
            }
        }
    }

    #[inline(never)]
    unsafe fn send(&mut self, bundle: *mut Bundle) {
        // SAFETY: passed on. A bundle is a chain of blocks of its slab, which lives until they are sent. Out of the bundle
        // first: in the child of a fork in between they are lost.
        unsafe {
            let full = bundle.replace(NONE);
            if full.count != 0 {
                self.pushes.add(1);
                self.waiting.add((full.count as u64 * (*full.slab).stride as u64).wrapping_neg());
                let sent = home::send(full.slab, full.head, full.tail, full.count);
                self.publishes.add(sent.published as u64);
                if !sent.idle.is_null() {
                    visit::owner(sent.idle);
                }
            }
        }
    }

    /// Sends every bundle.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn flush(&mut self) {
        if self.waiting.get() == 0 {
            return;
        }
        for i in 0..BUNDLES {
            // SAFETY: passed on; something waits, so there are bundles.
            unsafe { self.send(self.bundles.add(i)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_of_four_neighbouring_superslabs_never_meet() {
        for first in 0..64usize {
            let mut seen = [false; BUNDLES];
            for slab in 0..4 * 32usize {
                let record = ((first + slab / 32) << 21) + slab % 32 * size_of::<Slab>();
                assert!(!core::mem::replace(&mut seen[place(ptr::without_provenance_mut(record))], true));
            }
        }
    }
}
