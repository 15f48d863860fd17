//! What statistics read of a heap. They run on any thread while the owner goes on, so all reads are atomic,
//! and no reference to a whole heap is made.

use crate::front::heap::{GATE_AT, Heap, RECORD};
use crate::front::lease::Gate;
use crate::front::outbox;
use crate::hardened;
use crate::lockfree::magazine_slots::{Slot, own};
use crate::os;
use crate::sync::AtomicPtr;
use crate::sync::Ordering::Relaxed;
use crate::tiny::classes::CLASSES;
use core::ops::Range;

impl Heap {
    /// Calls `f` with classes and numbers of free blocks in the magazines and the outbox. Exact if the owner
    /// does nothing meanwhile, otherwise approximate. A class may come several times.
    ///
    /// # Safety
    ///
    /// `heap` is a record that is still mapped.
    pub(crate) unsafe fn each_cached(heap: *const Heap, mut f: impl FnMut(usize, usize)) {
        // SAFETY: the record is mapped; the references are to what other threads may read.
        let (live, tops, magazines, outbox) =
            unsafe { (&(*heap).live, &(*heap).tops, &(*heap).magazines, &(*heap).outbox) };
        if !live.load(Relaxed) {
            return;
        }
        for class in 1..=CLASSES {
            let slots = heap.wrapping_add(1).addr()..heap.addr() + RECORD - outbox::BYTES;
            // SAFETY: parts of this record, whose slots lie behind the heap.
            let blocks = unsafe { magazines.held(tops, class, slots) };
            if blocks != 0 {
                f(class, blocks);
            }
        }
        outbox.each_waiting(|kind, blocks| {
            if (1..=CLASSES).contains(&(kind as usize)) {
                f(kind as usize, blocks);
            }
        });
    }

    /// Bytes of the record that are resident: the system pages in which something was ever written.
    ///
    /// # Safety
    ///
    /// As [`Heap::each_cached`].
    pub(crate) unsafe fn resident_bytes(heap: *const Heap) -> usize {
        // SAFETY: the caller's clause is the same.
        let (front, behind) = unsafe { Heap::written(heap) };
        front + behind.map(|part| part.len()).into_iter().sum::<usize>()
    }

    /// The end of the system pages at the beginning of the record in which something was ever written, and
    /// where others are.
    ///
    /// # Safety
    ///
    /// As [`Heap::each_cached`].
    unsafe fn written(heap: *const Heap) -> (usize, [Range<usize>; 2]) {
        // SAFETY: the record is mapped; the references are to what other threads may read.
        let (magazines, outbox) = unsafe { (&(*heap).magazines, &(*heap).outbox) };
        let front = if hardened::is_on() {
            // SAFETY: the record is mapped, and statistics may look at what is referred to.
            size_of::<Heap>() + unsafe { Heap::hardened(heap.cast_mut()) }.written()
        } else {
            magazines.most().addr().saturating_sub(heap.addr()).max(size_of::<Heap>())
        };
        let whole = |bytes: usize| bytes.next_multiple_of(os::page_size());
        let page = |at: usize| at & !(os::page_size() - 1);
        // From the end of the record downwards: the outbox, then the gate.
        let outbox_at = RECORD - outbox::BYTES;
        let outbox_from = match outbox.resident_bytes() {
            0 => RECORD,
            bytes => page(RECORD - bytes),
        };
        // SAFETY: the gate lies in the record, and all zero is a valid one; the field is atomic. A heap that
        // was never armed has nothing there, and a page that is only read takes no memory.
        let gate = unsafe { &*heap.wrapping_byte_add(GATE_AT).cast::<Gate>() };
        let was_armed = !gate.limits[1].load(Relaxed).is_null();
        let front = whole(front);
        let gate_end = if was_armed { whole(outbox_at).min(outbox_from) } else { 0 };
        (front, [page(GATE_AT).max(front)..gate_end, outbox_from.max(front)..RECORD])
    }

    /// Gives back what [`Heap::resident_bytes`] finds beside the first page; in hardened mode, of what lies
    /// there in front, the memory of the quarantine.
    ///
    /// # Safety
    ///
    /// The calling thread alone has the record, which nobody owns, as [`Heap::reset`] says.
    #[unsafe(link_section = "hakmem_rare")]
    pub(crate) unsafe fn purge_record(heap: *mut Heap) {
        let page = os::page_size();
        // SAFETY: the caller's clause. Without an owner nothing there is used, but for what hardened mode has
        // in quarantine; all zero is valid for what the next owner reads there.
        unsafe {
            let (front, [gate, outbox]) = Heap::written(heap);
            let purge = |range: Range<usize>| {
                range.is_empty() || os::purge(heap.cast::<u8>().wrapping_add(range.start), range.len())
            };
            if hardened::is_on() {
                let state = Heap::hardened(heap);
                if let Some(idle) = state.idle() {
                    // Behind it nothing is in use up to the gate.
                    let whole = |at: usize| (size_of::<Heap>() + at).next_multiple_of(page);
                    if purge(whole(idle.start)..whole(idle.end)) {
                        state.purged();
                    }
                }
            } else if purge(page..front) {
                (*heap).magazines.forget_most();
            }
            if purge(gate) && purge(outbox) {
                (*heap).outbox.forget_resident();
            }
        }
    }

    /// A hash of the magazines' tops and of the counters of blocks and runs that went past the magazines:
    /// mostly another one when the owner has allocated or freed meanwhile.
    ///
    /// # Safety
    ///
    /// As [`Heap::each_cached`].
    pub(crate) unsafe fn activity(heap: *const Heap) -> usize {
        // SAFETY: the caller's clause is the same.
        unsafe { Heap::hash(heap, |top| top.load(Relaxed)) }
    }

    /// The same for the owner, whose reads of the tops need not be atomic. Every thread that ends does this.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn own_activity(heap: *const Heap) -> usize {
        // SAFETY: the calling thread's own heap is mapped, and nobody else writes its tops.
        unsafe { Heap::hash(heap, |top| own(top)) }
    }

    /// What [`Heap::activity`] returns; `read` reads a top.
    ///
    /// # Safety
    ///
    /// As [`Heap::activity`].
    #[inline(always)]
    unsafe fn hash(heap: *const Heap, read: impl Fn(&AtomicPtr<Slot>) -> *mut Slot) -> usize {
        // SAFETY: mapped, by the caller's clause; the references are to atomics only.
        unsafe {
            let tops = (*heap).tops.top.iter().map(|top| read(top).addr());
            let sum = tops.fold(0usize, |sum, top| sum.rotate_left(5) ^ top);
            let past =
                [&(*heap).counters.home_local, &(*heap).counters.home_foreign, &(*heap).run_cache.frees];
            past.iter().fold(sum, |sum, counter| sum.rotate_left(5) ^ counter.get() as usize)
        }
    }
}
