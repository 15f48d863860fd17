//! Bundles leave the outbox.

use super::{BUNDLES, Bundle, Outbox, either};
use crate::lockfree::waker;
use crate::superslab::orphans;
use crate::superslab::slab::{Block, Owner, Slab};
use crate::sync::Ordering::Relaxed;
use crate::tiny::free;
use core::ptr;

impl Outbox {
    /// Sends a bundle, unless it is empty. Returns an owner for whom so much waits that somebody should visit
    /// its heap, or null.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap; `bundle` is one of this outbox.
    #[inline(never)]
    pub(super) unsafe fn send(&self, bundle: &Bundle) -> *mut Owner {
        let slab = bundle.slab.load(Relaxed);
        if slab.is_null() {
            return ptr::null_mut();
        }
        let count = bundle.count.load(Relaxed);
        // The blocks leave the bundle before they are sent: the child of a fork in between loses them, but
        // never has them twice.
        bundle.slab.store(ptr::null_mut(), Relaxed);
        // SAFETY: the bundle is a chain of `count` free blocks of its slab, from `head` to `tail`. They count
        // as used there, and nobody else has them. The slab stays until they are sent.
        unsafe {
            self.waiting.add((count as u64 * (*slab).stride as u64).wrapping_neg());
            self.push(slab, bundle.head.get(), bundle.tail.get(), count)
        }
    }

    /// Sends a chain of `count` blocks, which are not counted as waiting. Returns what [`Outbox::send`] does.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap. The chain is of free blocks of the slab, from `head` to `tail`. They
    /// count as used there, and the caller alone has them.
    #[inline(always)]
    pub(super) unsafe fn push(
        &self,
        slab: *mut Slab,
        head: *mut Block,
        tail: *mut Block,
        count: u32,
    ) -> *mut Owner {
        self.pushes.add(1);
        // SAFETY: by the caller's clause.
        let sent = unsafe { free::push_remote(slab, head, tail, count) };
        self.publishes.add(sent.published as u64);
        if sent.to_orphan {
            orphans::note_change();
        }
        // The owner may sleep, and there may be none.
        waker::notify();
        sent.visit
    }

    /// Sends everything. Returns what [`Outbox::send`] does.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn flush(&self) -> *mut Owner {
        let mut visit = ptr::null_mut();
        if self.waiting.get() != 0 {
            // SAFETY: something waits, so there are bundles.
            visit = unsafe { self.take_up() };
            for i in 0..BUNDLES {
                // SAFETY: something waits, so there are bundles; they are the calling thread's.
                unsafe {
                    let bundle = self.bundle(i);
                    if !bundle.slab.load(Relaxed).is_null() {
                        visit = either(visit, self.send(bundle));
                    }
                }
            }
        }
        visit
    }
}
