//! What statistics read of a heap. Other threads ask: so nothing but atomics, and no reference to the whole of it.

use crate::front::heap::{Heap, RECORD};
use crate::front::magazine::Magazines;
use crate::front::outbox;
use crate::front::outbox::Outbox;
use crate::os;
use crate::tiny::classes::CLASSES;
use core::sync::atomic::Ordering::Relaxed;

impl Heap {
    /// Calls `f` with classes and numbers of free blocks in magazines and outbox: exact when the owner does nothing
    /// meanwhile, else a glimpse. A class may come several times.
    ///
    /// # Safety
    ///
    /// The record is one of those that are never unmapped.
    pub(crate) unsafe fn each_cached(heap: *const Heap, mut f: impl FnMut(usize, usize)) {
        // SAFETY: passed on.
        unsafe {
            if !(*heap).live.load(Relaxed) {
                return;
            }
            for class in 1..=CLASSES {
                match Magazines::held(&raw const (*heap).magazines, &raw const (*heap).tops, class) {
                    0 => {}
                    blocks => f(class, blocks),
                }
            }
            let bundles = heap.cast::<u8>().wrapping_add(RECORD - outbox::BYTES);
            Outbox::each_bundle(&raw const (*heap).outbox, bundles, |kind, blocks| {
                if (1..=CLASSES).contains(&(kind as usize)) {
                    f(kind as usize, blocks);
                }
            });
        }
    }

    /// Bytes of the record that are resident: those in whose system page something was written.
    ///
    /// # Safety
    ///
    /// As [`Heap::each_cached`].
    pub(crate) unsafe fn resident_bytes(heap: *const Heap) -> usize {
        // SAFETY: passed on.
        let (most, outbox) = unsafe {
            (
                Magazines::most(&raw const (*heap).magazines).addr(),
                Outbox::is_resident(&raw const (*heap).outbox),
            )
        };
        let front = most.saturating_sub(heap.addr()).max(size_of::<Heap>());
        let whole = |bytes: usize| bytes.next_multiple_of(os::page_size());
        (whole(front) + if outbox { whole(outbox::BYTES) } else { 0 }).min(RECORD)
    }
}
