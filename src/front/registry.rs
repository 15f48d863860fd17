//! All heaps, and a stack of the records that are free.

use crate::front::counts::LEFT;
use crate::front::heap::{Heap, NO_HEAP, RECORD};
use crate::front::visitor;
use crate::hardened;
use crate::lockfree::ready_list::nodes;
use crate::lockfree::record_stack::RecordStack;
use crate::os::{self, generation};
use crate::sync::{AtomicPtr, AtomicUsize, Node, Ordering, reads, wrote};

pub(crate) use crate::front::counts::{EXITED, STARTED, left_behind, live};

/// Records without an owner.
static FREE: RecordStack<Heap> = RecordStack::new();
/// More of them, of which only the first page has memory; in hardened mode, what does not list blocks.
static PURGED: RecordStack<Heap> = RecordStack::new();
/// The list of all records, linked by `all_next`. It only grows.
static ALL: AtomicPtr<Heap> = AtomicPtr::new(NO_HEAP);
/// How many free records hold slabs that their last owners could not give up. Relaxed: a hint.
static HOLDING: AtomicUsize = AtomicUsize::new(0);
/// How many free records have blocks in quarantine. Relaxed: a hint.
static KEEPING: AtomicUsize = AtomicUsize::new(0);
/// See [`crate::tiny::bins::Bins::secret`].
static SECRET: AtomicUsize = AtomicUsize::new(0);

/// Chooses the secret. Called once, before the first heap is made.
pub(crate) fn init() {
    // Relaxed: `options::init` publishes it, by its own release and acquire.
    // Its upper half is not 0, for the marks of blocks.
    SECRET.store(os::random() | 1 << 63, Ordering::Relaxed);
}

/// Stands beside the [id](os::thread::id) of a thread that has only borrowed a heap, in [`Heap::thread`].
const BORROWED: usize = 1;

/// Makes the calling thread the owner of a heap. Null when there is no memory.
pub(crate) fn acquire() -> *mut Heap {
    let heap = take(0);
    if !heap.is_null() {
        STARTED.fetch_add(1, Ordering::Relaxed);
    }
    heap
}

/// [`acquire`], for one call: the caller gives it back by [`return_heap`], and does not count meanwhile.
pub(crate) fn borrow() -> *mut Heap {
    let heap = take(os::thread::id() | BORROWED);
    if !heap.is_null() {
        // Once more after `reset`: a signal handler may have forked since, and this may be the child, which
        // then did not find the heap.
        // SAFETY: the calling thread has just got it.
        unsafe { Heap::claim(heap) };
    }
    heap
}

/// The secret of all heaps' marks.
pub(crate) fn secret() -> usize {
    SECRET.load(Ordering::Relaxed)
}

/// Takes a record that nobody has; null if there is none.
fn pop(records: &RecordStack<Heap>) -> *mut Heap {
    // SAFETY: all records that were ever pushed are still mapped, until `unmap`.
    let heap = unsafe { records.pop() };
    if !heap.is_null() && visitor::was_stopped() {
        // The fork that made this process may have stopped that visitor while it looked whether this one has
        // an owner, and then nobody has freed its lock.
        // SAFETY: a record that is the caller's alone; nobody visits here any more.
        unsafe { Heap::lock(heap).inherit() };
    }
    heap
}

/// Takes a record, as the heap of `thread`: see [`Heap::thread`].
fn take(thread: usize) -> *mut Heap {
    let mut heap = pop(&FREE);
    if heap.is_null() {
        heap = pop(&PURGED);
    }
    let fresh = heap.is_null();
    if fresh {
        heap = os::map_uncounted(RECORD).cast();
        if heap.is_null() {
            return heap;
        }
        // Records lie side by side: huge pages would make all of them resident.
        // SAFETY: just mapped, with that length.
        unsafe { os::advise_huge(heap.cast(), RECORD, false) };
    }
    // SAFETY: just mapped, and zero then, or just taken from the stack, which gives each record to one thread
    // only. `retire` or the kernel has left `live` false.
    unsafe {
        takes_slabs(heap);
        if keeps_any(heap) {
            fewer(&KEEPING, 1);
        }
        Heap::reset(heap, secret(), fresh, live(), thread);
    }
    if fresh {
        let mut head = ALL.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours, and nobody reads the link before the record is in the list.
            unsafe { (*heap).all_next = head };
            wrote(heap);
            // Release: pairs with the acquire in `each`, and publishes the link and what `reset` has written.
            match ALL.compare_exchange_weak(head, heap, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
    }
    heap
}

/// Gives up a heap and makes its record available.
///
/// # Safety
///
/// The calling thread owns the heap and will not use it again.
pub(crate) unsafe fn release_heap(heap: *mut Heap) {
    // SAFETY: the calling thread owns the heap until `retire` has returned; then nobody does.
    unsafe {
        retire(heap, false);
        recycle(heap);
    }
}

/// Gives up a heap that was borrowed: no thread counts as ended. It may keep what is in quarantine.
///
/// # Safety
///
/// As [`release_heap`]; it is from [`borrow`].
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn return_heap(heap: *mut Heap, keeps_quarantine: bool) {
    // SAFETY: as in `release_heap`, and for the push as in `recycle`.
    unsafe {
        retire(heap, keeps_quarantine);
        if keeps_any(heap) {
            KEEPING.fetch_add(1, Ordering::Relaxed);
        }
        FREE.push(heap);
    }
}

/// Gives up what a heap has, with the quarantine or without, and notes whether slabs stay.
///
/// # Safety
///
/// As [`Heap::retire`].
unsafe fn retire(heap: *mut Heap, keeps_quarantine: bool) {
    // SAFETY: the caller's clauses are the same; and the record is still the caller's alone.
    unsafe {
        if !Heap::retire(heap, keeps_quarantine) {
            (*heap).holds_slabs.set(true);
            HOLDING.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Notes that somebody has a record now, and so the slabs in it. Returns whether there were some.
///
/// # Safety
///
/// The calling thread alone has the record.
unsafe fn takes_slabs(heap: *mut Heap) -> bool {
    // SAFETY: the record is the caller's alone.
    let held = unsafe { (*heap).holds_slabs.replace(false) };
    if held {
        fewer(&HOLDING, 1);
    }
    held
}

/// Whether there are blocks in quarantine in a record.
///
/// # Safety
///
/// As [`takes_slabs`].
unsafe fn keeps_any(heap: *mut Heap) -> bool {
    // SAFETY: the record is the caller's alone.
    hardened::is_on() && unsafe { Heap::hardened(heap) }.keeps_any()
}

/// Takes `by` from a count of free records, which other threads may change in another order than they pass
/// the records on.
fn fewer(records: &AtomicUsize, by: usize) {
    let less = |count: usize| Some(count.saturating_sub(by));
    let _ = records.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Gives up the slabs that threads which have ended could not give up, and with `all` what those that had
/// borrowed a heap have left in quarantine there, and the memory of all free records but their first page (in
/// hardened mode, that of their quarantines).
/// Without this the next owners of the records would have to come for them. Threads that start meanwhile may
/// need new records.
pub(crate) fn give_up_rest(all: bool) {
    let (mut holding, mut popped) = (HOLDING.load(Ordering::Relaxed), NO_HEAP);
    let mut keeping = if all { KEEPING.load(Ordering::Relaxed) } else { 0 };
    // SAFETY: no record is unmapped meanwhile. What is popped is ours alone, like an owner's, until it is
    // pushed; so its link is ours as well, and who still reads it has come too late and does not use it.
    unsafe {
        while holding > 0 || keeping > 0 {
            let heap = pop(&FREE);
            if heap.is_null() {
                // The rest are somebody else's meanwhile, or a fork has cut off who had them.
                fewer(&HOLDING, holding);
                fewer(&KEEPING, keeping);
                break;
            }
            if takes_slabs(heap) {
                retire(heap, true);
                holding = holding.saturating_sub(1);
            }
            if keeping > 0 && keeps_any(heap) {
                Heap::hardened(heap).retire();
                fewer(&KEEPING, 1);
                keeping -= 1;
            }
            Heap::set_next(heap, popped);
            popped = heap;
        }
        nodes(popped).for_each(|heap| FREE.push(heap));
        if all {
            purge_free();
        }
    }
}

/// Gives back the memory of all free records as far as nobody needs it. One by one, so that threads that
/// start meanwhile find the others; and no more than there are, since threads may end as fast.
fn purge_free() {
    let mut most = 0;
    each(|_| most += 1);
    // SAFETY: as in `give_up_rest`.
    unsafe {
        for _ in 0..most {
            let heap = FREE.pop();
            if heap.is_null() {
                return;
            }
            if (*heap).holds_slabs.get() {
                // Whoever gives these up finds it there.
                FREE.push(heap);
                return;
            }
            if keeps_any(heap) {
                // Of who has borrowed it meanwhile. From here on nobody would look for it.
                Heap::hardened(heap).retire();
                if !keeps_any(heap) {
                    fewer(&KEEPING, 1);
                }
            }
            Heap::purge_record(heap);
            PURGED.push(heap);
        }
    }
}

/// In the child of a fork that has stopped a visitor: frees the locks of all records. The visitor may have
/// been looking whether a free one has an owner.
pub(crate) fn inherit() {
    each(|heap| {
        // SAFETY: the record is mapped. There is no other thread.
        unsafe { Heap::lock(heap).inherit() };
    });
}

/// In the child of a fork by the thread with this [id](os::thread::id): claims what it has borrowed, and, if
/// its own TLS knows of no heap, its own. A signal handler may have forked while the thread was giving that
/// up, or was using the other. Returns how many it has of those that count.
pub(crate) fn claim_of(thread: usize, own: bool) -> u64 {
    let (mut count, parents) = (0, generation::now().wrapping_sub(1));
    each(|heap| {
        // SAFETY: the record is mapped, and these are atomics. There is no other thread, and of the parent's
        // none that ended before had this id later: so the heap is the calling thread's. That it had one
        // of this id tells nothing of heaps that the parent itself was left with.
        unsafe {
            let (live, its) = ((*heap).live.load(Ordering::Relaxed), (*heap).thread.load(Ordering::Relaxed));
            let live = live && (*heap).generation.load(Ordering::Relaxed) == parents;
            if live && (its == thread | BORROWED || own && its == thread) {
                Heap::claim(heap);
                count += u64::from(its == thread);
            }
        }
    });
    count
}

/// Gives up the heaps of threads that have ended without an exit hook and had the [id](os::thread::id)
/// `thread`.
///
/// # Safety
///
/// The calling thread has that id, and no heap.
pub(crate) unsafe fn release_of(thread: usize) {
    each_owned(|heap| {
        // SAFETY: the record is mapped. Of the threads that exist only the calling one has this id, and it
        // has no heap: so the owner has ended, and the calling thread alone stands in for it. What the owner
        // wrote is visible here because the C library, or the kernel, synchronises the end of a thread with
        // whoever gets its control block next.
        unsafe {
            if (*heap).thread.load(Ordering::Relaxed) == thread {
                release_heap(heap);
            }
        }
    });
}

/// [`recycle`], for a heap that was left behind.
///
/// # Safety
///
/// As [`recycle`].
pub(crate) unsafe fn recycle_left(heap: *mut Heap) {
    // SAFETY: this function's contract is that of `recycle`, and for the push as there.
    unsafe {
        if (*heap).thread.load(Ordering::Relaxed) & BORROWED != 0 {
            return FREE.push(heap);
        }
        if LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            // The fork came after its thread had got it, and before that was counted.
            STARTED.fetch_add(1, Ordering::Relaxed);
        }
        recycle(heap);
    }
}

/// In the child of a fork: the next heaps have new records.
#[cfg(test)]
pub(crate) fn forget_free() {
    // SAFETY: no record is unmapped meanwhile.
    while !unsafe { FREE.pop() }.is_null() {}
    // SAFETY: the same.
    while !unsafe { PURGED.pop() }.is_null() {}
}

/// Makes the record of a retired heap available.
///
/// # Safety
///
/// The caller has retired the heap, or taken all that it had. Nobody owns it any more.
pub(crate) unsafe fn recycle(heap: *mut Heap) {
    EXITED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: records are aligned to a page and stay mapped until `unmap`; nobody else pushes a record
    // without an owner.
    unsafe { FREE.push(heap) };
}

/// Calls `f` with every record, whether it has an owner or not.
pub(crate) fn each(f: impl FnMut(*mut Heap)) {
    // Acquire: pairs with the release in `acquire`, for all records in the list: each exchange there extends
    // the release sequence of the one before.
    walk(ALL.load(Ordering::Acquire), f);
}

/// Calls `f` with every record that a thread of this process owns.
pub(crate) fn each_owned(mut f: impl FnMut(*mut Heap)) {
    each(|heap| {
        // SAFETY: the record is mapped until `unmap`.
        if unsafe { Heap::is_somebodys(heap) } {
            f(heap);
        }
    });
}

/// Calls `f` with `heap` and every record behind it in the list. `f` may unmap it.
fn walk(mut heap: *mut Heap, mut f: impl FnMut(*mut Heap)) {
    while !heap.is_null() {
        reads(heap);
        // SAFETY: not unmapped yet, and the link is constant once the record is in the list.
        let next = unsafe { (*heap).all_next };
        f(heap);
        heap = next;
    }
}

/// Gives all records back to the system, when nobody can use one any more.
///
/// The C library calls destructors and `atexit` functions of the same library after our `fini`; one that
/// allocates gets a new record.
pub(crate) fn unmap() {
    // SAFETY: the caller makes sure that no other thread has a heap or asks for one.
    unsafe {
        FREE.clear();
        PURGED.clear();
    }
    // Acquire: as in `each`.
    walk(ALL.swap(NO_HEAP, Ordering::Acquire), |heap| {
        // SAFETY: a record from `acquire`, mapped with that length.
        unsafe { os::discard_uncounted(heap.cast(), RECORD) };
    });
}

#[cfg(test)]
mod tests;
