//! All heaps there are, and those that no thread has.

use crate::front::heap::{Heap, NO_HEAP, RECORD};
use crate::lockfree::record_stack::RecordStack;
use crate::os;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

static FREE: RecordStack<Heap> = RecordStack::new();
static ALL: AtomicPtr<Heap> = AtomicPtr::new(NO_HEAP);
/// See [`crate::tiny::bins::Bins::secret`].
static SECRET: AtomicUsize = AtomicUsize::new(0);

/// Heaps given to threads, and given back.
pub(crate) static STARTED: AtomicU64 = AtomicU64::new(0);
/// See [`STARTED`].
pub(crate) static EXITED: AtomicU64 = AtomicU64::new(0);

/// Chooses the secret. Once, before the first heap.
pub(crate) fn init() {
    SECRET.store(os::random(), Ordering::Relaxed);
}

/// A heap for the calling thread, or null when there is no memory.
pub(crate) fn acquire() -> *mut Heap {
    // SAFETY: records are never unmapped.
    let mut heap = unsafe { FREE.pop() };
    let fresh = heap.is_null();
    if fresh {
        heap = os::map_uncounted(RECORD).cast();
        if heap.is_null() {
            return heap;
        }
        // SAFETY: just mapped. Records lie side by side: huge pages would make all of them resident.
        unsafe { os::advise_huge(heap.cast(), RECORD, false) };
    }
    // SAFETY: ours alone.
    unsafe { Heap::reset(heap, SECRET.load(Ordering::Relaxed), fresh, live()) };
    if fresh {
        let mut head = ALL.load(Ordering::Relaxed);
        loop {
            // SAFETY: not yet published.
            unsafe { (*heap).all_next = head };
            // Release: pairs with the acquire in `each`.
            match ALL.compare_exchange_weak(head, heap, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
    }
    STARTED.fetch_add(1, Ordering::Relaxed);
    heap
}

/// Gives up a heap.
///
/// # Safety
///
/// The calling thread owns it and will not use it again.
pub(crate) unsafe fn release_heap(heap: *mut Heap) {
    // SAFETY: passed on.
    unsafe {
        Heap::retire(heap);
        recycle(heap);
    }
}

/// Gives up the heaps of threads that have ended without an exit hook, and had the number `thread` while they lived.
///
/// # Safety
///
/// No thread that has a heap has that number: the calling one may.
pub(crate) unsafe fn release_of(thread: usize) {
    each(|heap| {
        // SAFETY: passed on; records are never unmapped. Nobody else takes a heap for one of this number.
        unsafe {
            if Heap::is_somebodys(heap) && (*heap).thread.load(Ordering::Relaxed) == thread {
                release_heap(heap);
            }
        }
    });
}

/// How many threads have a heap, about.
pub(crate) fn live() -> usize {
    STARTED.load(Ordering::Relaxed).saturating_sub(EXITED.load(Ordering::Relaxed)) as usize
}

/// Makes the record of a retired heap available.
///
/// # Safety
///
/// No thread has it.
pub(crate) unsafe fn recycle(heap: *mut Heap) {
    EXITED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: passed on; records are page-aligned.
    unsafe { FREE.push(heap) };
}

/// Calls `f` with every record, in use or not.
pub(crate) fn each(mut f: impl FnMut(*mut Heap)) {
    let mut heap = ALL.load(Ordering::Acquire);
    while !heap.is_null() {
        f(heap);
        // SAFETY: never unmapped; constant once published.
        heap = unsafe { (*heap).all_next };
    }
}

/// Gives all records back to the system, when nobody can use one any more.
pub(crate) fn unmap() {
    let mut heap = ALL.swap(NO_HEAP, Ordering::Acquire);
    while !heap.is_null() {
        // SAFETY: a record, in which nothing is of use but the link; then it is gone.
        unsafe {
            let next = (*heap).all_next;
            os::unmap_uncounted(heap.cast(), RECORD);
            heap = next;
        }
    }
}
