//! The outbox: blocks of other owners' slabs, collected by slab, so that one compare-and-swap sends many.

use crate::stats::Counter;
use crate::superslab::{Block, Slab};
use crate::sync::Node;
use crate::tiny::home;
use core::ptr;

/// Open bundles. A direct-mapped set: a slab has one place, and evicts what is there.
const BUNDLES: usize = 16;
/// Blocks of a bundle at most.
const MAX_BLOCKS: u32 = 32;
/// Bytes of a bundle at most: what a thread that goes to sleep withholds.
const MAX_BYTES: u32 = 16 << 10;

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

/// The outbox of a heap.
pub(crate) struct Outbox {
    bundles: [Bundle; BUNDLES],
    bundling: bool,
    /// Bundles sent.
    pub(crate) pushes: Counter,
    /// Bundles that published their slab.
    pub(crate) publishes: Counter,
    /// Bytes of blocks that wait; goes up and down.
    pub(crate) waiting: Counter,
}

/// The place of a slab: its page in the SuperSlab, stirred with the SuperSlab's address.
fn place(slab: *mut Slab) -> usize {
    let a = slab.addr();
    ((a >> 7) ^ (a >> 21).wrapping_mul(11)) % BUNDLES
}

impl Outbox {
    /// An empty outbox.
    pub(crate) const fn new() -> Self {
        Self {
            bundles: [NONE; BUNDLES],
            bundling: false,
            pushes: Counter::new(),
            publishes: Counter::new(),
            waiting: Counter::new(),
        }
    }

    /// Empties the outbox without sending anything.
    pub(crate) fn reset(&mut self, bundling: bool) {
        self.bundles = [NONE; BUNDLES];
        self.bundling = bundling;
        self.waiting.set(0);
    }

    /// Adds a block; sends a bundle that is full or in the way.
    ///
    /// # Safety
    ///
    /// `block` is a checked-in block of `slab`, which another thread owns, or nobody.
    #[inline]
    pub(crate) unsafe fn add(&mut self, slab: *mut Slab, block: *mut Block) {
        let i = place(slab);
        // SAFETY: the block is ours, and constant fields of its slab may be read.
        unsafe {
            if self.bundles[i].slab != slab {
                self.send(i);
                let limit = if self.bundling { (MAX_BYTES / (*slab).stride).clamp(1, MAX_BLOCKS) } else { 1 };
                Block::set_next(block, ptr::null_mut());
                self.bundles[i] = Bundle { slab, head: block, tail: block, count: 1, limit };
            } else {
                let bundle = &mut self.bundles[i];
                Block::set_next(block, bundle.head);
                bundle.head = block;
                bundle.count += 1;
            }
            self.waiting.add((*slab).stride as u64);
            if self.bundles[i].count >= self.bundles[i].limit {
                self.send(i);
            }
        }
    }

    unsafe fn send(&mut self, i: usize) {
        let bundle = core::mem::replace(&mut self.bundles[i], NONE);
        if bundle.count != 0 {
            self.pushes.add(1);
            // SAFETY: a bundle is a chain of blocks of its slab, which lives until they are sent.
            unsafe {
                self.waiting.add((bundle.count as u64 * (*bundle.slab).stride as u64).wrapping_neg());
                let published = home::send(bundle.slab, bundle.head, bundle.tail, bundle.count);
                self.publishes.add(published as u64);
            }
        }
    }

    /// Sends every bundle.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn flush(&mut self) {
        for i in 0..BUNDLES {
            // SAFETY: passed on.
            unsafe { self.send(i) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_reached_from_every_superslab() {
        for superslab in 0..64usize {
            let mut seen = [false; BUNDLES];
            for page in 0..32usize {
                seen[place(ptr::without_provenance_mut((superslab << 21) + page * 128))] = true;
            }
            assert_eq!(seen, [true; BUNDLES]);
        }
        // The same page of neighbouring SuperSlabs does not always meet.
        let mut seen = [false; BUNDLES];
        for superslab in 0..16usize {
            seen[place(ptr::without_provenance_mut(superslab << 21))] = true;
        }
        assert_eq!(seen, [true; BUNDLES]);
    }
}
