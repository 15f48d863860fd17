//! What statistics read of a heap. They run on any thread while the owner goes on, so all reads are atomic,
//! and no reference to a whole heap is made.

use crate::front::heap::{Heap, RECORD};
use crate::front::magazine::Magazines;
use crate::front::outbox;
use crate::front::outbox::Outbox;
use crate::os;
use crate::sync::Ordering::Relaxed;
use crate::tiny::classes::CLASSES;

impl Heap {
    /// Calls `f` with classes and numbers of free blocks in the magazines and the outbox. Exact if the owner
    /// does nothing meanwhile, otherwise approximate. A class may come several times.
    ///
    /// # Safety
    ///
    /// `heap` is a record that is still mapped.
    pub(crate) unsafe fn each_cached(heap: *const Heap, mut f: impl FnMut(usize, usize)) {
        // SAFETY: the record is mapped, and `live` is atomic.
        if !unsafe { (*heap).live.load(Relaxed) } {
            return;
        }
        for class in 1..=CLASSES {
            // SAFETY: both are parts of this record, whose slots lie behind the heap.
            let blocks = unsafe {
                let slots = heap.wrapping_add(1).addr()..heap.addr() + RECORD - outbox::BYTES;
                Magazines::held(&raw const (*heap).magazines, &raw const (*heap).tops, class, slots)
            };
            if blocks != 0 {
                f(class, blocks);
            }
        }
        let bundles = heap.cast::<u8>().wrapping_add(RECORD - outbox::BYTES);
        // SAFETY: `bundles` is where `Heap::reset` has put the bundles of this record's outbox.
        unsafe {
            Outbox::each_bundle(&raw const (*heap).outbox, bundles, |kind, blocks| {
                if (1..=CLASSES).contains(&(kind as usize)) {
                    f(kind as usize, blocks);
                }
            });
        }
    }

    /// Bytes of the record that are resident: the system pages in which something was ever written.
    ///
    /// # Safety
    ///
    /// As [`Heap::each_cached`].
    pub(crate) unsafe fn resident_bytes(heap: *const Heap) -> usize {
        // SAFETY: both are parts of a record that is still mapped.
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
