//! What other threads may know of an outbox. The owner may be using it meanwhile.

use super::{ASIDE, BUNDLE_BYTES, BUNDLES, BYTES, Outbox, place};
use crate::superslab::layout::SLICE_SHIFT;
use crate::superslab::pagemap;
use crate::superslab::slab::{Block, Slab};
use crate::sync::Ordering::Relaxed;

impl Outbox {
    /// Calls `f` with the class and the number of blocks of every bundle, and with those of each block that
    /// is set aside. Exact for the owner, approximate for other threads.
    pub(crate) fn each_waiting(&self, mut f: impl FnMut(u8, usize)) {
        if self.waiting.get() == 0 {
            return;
        }
        for i in 0..BUNDLES {
            // SAFETY: something was waiting, so there are bundles, in a record that stays mapped. Only the
            // atomics are used.
            let bundle = unsafe { self.bundle(i) };
            let slab = bundle.slab.load(Relaxed);
            if !slab.is_null() {
                // The class comes from the page map: if the owner has just sent the bundle, the slab's record
                // may be gone.
                let slice = Slab::base(slab).wrapping_add(Slab::index(slab) << SLICE_SHIFT);
                f(pagemap::kind(slice), bundle.count.load(Relaxed) as usize);
            }
        }
        for index in 0..self.aside.load(Relaxed) as usize {
            // SAFETY: something waits, so there are bundles. The address there is not followed.
            f(pagemap::kind(unsafe { self.place_aside(index) }.load(Relaxed).cast()), 1);
        }
    }

    /// Whether a block of the slab may be in the outbox: whether a bundle of the slab is open, or the block
    /// set aside. Of another thread's outbox, what was so a moment ago.
    pub(crate) fn may_hold(&self, slab: *mut Slab, block: *mut Block) -> bool {
        if self.waiting.get() == 0 {
            return false;
        }
        let aside = ASIDE.min(self.aside.load(Relaxed) as usize);
        // SAFETY: something was waiting, so there are bundles, in a record that stays mapped. Only the
        // atomics are used, and nothing that is there is followed.
        unsafe {
            self.bundle(place(slab)).slab.load(Relaxed) == slab
                || (0..aside).any(|index| self.place_aside(index).load(Relaxed) == block)
        }
    }

    /// The memory of what is here has been given back to the system, and is zero. For who has the record
    /// alone.
    pub(crate) fn forget_resident(&self) {
        self.opened.set(false);
        // In the child of a fork, of a thread that it does not have, something may have been left here.
        self.aside.store(0, Relaxed);
        self.resident.store(0, Relaxed);
    }

    /// Bytes at the end of the record that were ever written to.
    pub(crate) fn resident_bytes(&self) -> usize {
        match self.resident.load(Relaxed) {
            0 => 0,
            1 => BUNDLE_BYTES,
            _ => BYTES,
        }
    }
}
