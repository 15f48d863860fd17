//! A thread's heap: magazines in front, its slabs behind, an outbox beside.

mod figures;

use crate::base::counters::Counters;
use crate::base::options;
use crate::front::fast_path::MagazineTops;
use crate::front::magazine::Magazines;
use crate::front::outbox;
use crate::front::outbox::Outbox;
use crate::front::run_cache::RunCache;
use crate::front::visitor::{self, Seen};
use crate::large;
use crate::lockfree::biased_lock::BiasedLock;
use crate::os::process;
use crate::superslab::slab::{Allocation, Block, Owner, Slab};
use crate::sync::Node;
use crate::tiny::bins::Bins;
use crate::tiny::free;
use core::cell::Cell;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, compiler_fence};
use crossbeam_utils::CachePadded;

/// Address space of a record: the heap, behind it the slots of its magazines, at its end the outbox; resident as far as
/// they are used.
pub(crate) const RECORD: usize = 512 << 10;

/// A heap. Everything belongs to the owning thread but for `owner.ready`, to which any thread pushes, and what
/// statistics read. Records are recycled and never unmapped.
#[repr(C)]
pub(crate) struct Heap {
    pub(crate) tops: MagazineTops,
    pub(crate) bins: Bins,
    pub(crate) outbox: Outbox,
    pub(crate) counters: Counters,
    pub(crate) magazines: Magazines,
    pub(crate) run_cache: RunCache,
    /// Link of the stack of free records.
    recycle_next: AtomicPtr<Heap>,
    /// Link of the list of all records; constant once published.
    pub(crate) all_next: *mut Heap,
    /// Whether a thread has it, of this process or of the one that it was forked from: see [`Heap::is_somebodys`].
    pub(crate) live: AtomicBool,
    /// The number of the thread that has it ([`os::thread::id`](crate::os::thread::id)); 0 where it is only borrowed.
    pub(crate) thread: AtomicUsize,
    /// The process in which a thread got it, or survived a fork with it.
    pub(crate) generation: AtomicU32,
    /// How things stood when giving memory back did not help an allocation of the owner: see [`retry`](crate::reclaim::retry).
    pub(crate) fruitless: Cell<usize>,
    /// How often the exit hook has run for the thread, and how the magazines stood the last time.
    pub(crate) exit: Exit,
    /// What a visitor that comes round has seen of the owner: see [`idle_heaps`](crate::reclaim::idle_heaps).
    pub(crate) seen: Seen,
    /// Held by the owner wherever more happens than taking a block of a slab and putting one back; see there.
    pub(crate) lock: BiasedLock<Slab>,
    owner: CachePadded<Owner>,
}

const _: () =
    assert!(size_of::<Heap>() <= 4096 - 7 * 64, "the first page holds a thread's first seven magazines");

/// What came of a block that has no room in its magazine.
pub(crate) enum Freed {
    /// It is on its slab's list.
    Done,
    /// The same, and [`Heap::relist`] is to look at the slab.
    Relist(*mut Slab),
    /// It is not: it belongs to this slab of another heap. See [`Heap::free_remote`].
    Remote(*mut Slab),
    /// Nothing was done: the magazine may grow, the heap is a placeholder, or the kind is no class.
    Unserved,
    /// Nothing was done: something is wrong with the block.
    Invalid,
}

/// What came of a block of another heap's slab.
pub(crate) enum RemoteFreed {
    /// It is in the outbox, or sent.
    Done,
    /// The same, and this owner has left so much lying that it should be visited.
    Idle(*mut Owner),
    /// Something is wrong with the block, and nothing was done.
    Invalid,
}

/// What the exit hook remembers between its rounds.
pub(crate) struct Exit {
    pub(crate) rounds: Cell<u32>,
    pub(crate) tops: Cell<usize>,
}

/// Says that the owner of a heap has taken its lock, until dropped.
pub(crate) struct Entered {
    lock: *const BiasedLock<Slab>,
    before: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: a record's, which is never unmapped.
        unsafe { &*self.lock }.leave(self.before);
    }
}

// SAFETY: the link is an atomic of its own.
unsafe impl Node for Heap {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: passed on.
        unsafe { (*node).recycle_next.load(Relaxed) }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: passed on.
        unsafe { (*node).recycle_next.store(next, Relaxed) }
    }
}

impl Heap {
    /// Makes a record ready for a thread, of about so many threads in all.
    ///
    /// # Safety
    ///
    /// The record is mapped, zeroed when `fresh`, and the caller's alone. Slabs that its last thread could not give up are there,
    /// and are this one's.
    pub(crate) unsafe fn reset(heap: *mut Heap, secret: usize, fresh: bool, threads: usize) {
        let options = options::get();
        // SAFETY: passed on: the record is ours, and a visitor finds nobody there before we leave.
        let _entered = unsafe { Heap::enter(heap) };
        // SAFETY: passed on. Statistics may look on, at atomics only.
        unsafe {
            let bytes = heap.cast::<u8>();
            (*heap).magazines.reset(
                &raw mut (*heap).tops,
                options.magazine,
                bytes.wrapping_add(size_of::<Heap>()),
                bytes.wrapping_add(RECORD - outbox::BYTES),
            );
            (*heap).outbox.reset(bytes.wrapping_add(RECORD - outbox::BYTES), options.outbox);
            // Not written to as a whole: whoever has sent something to the thread that had it may be counting still, or look in
            // vain for something to take in.
            (*Heap::owner(heap)).reset();
            if fresh {
                (*heap).bins.clear();
                (*heap).bins.owner = (&raw mut (*heap).owner).cast();
                (*heap).bins.secret = secret;
            }
            (*heap).run_cache.reset(threads);
            (*heap).exit.rounds.set(0);
            Heap::claim(heap);
            (*heap).thread.store(0, Relaxed);
            (*heap).live.store(true, Relaxed);
        }
    }

    /// The heap's lock.
    ///
    /// # Safety
    ///
    /// A record, which is never unmapped.
    #[inline(always)]
    pub(crate) unsafe fn lock<'a>(heap: *mut Heap) -> &'a BiasedLock<Slab> {
        // SAFETY: passed on; atomics only.
        unsafe { &(*heap).lock }
    }

    /// Takes the heap's lock, for its owner.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    #[inline]
    pub(crate) unsafe fn enter(heap: *mut Heap) -> Entered {
        // SAFETY: passed on; records are never unmapped.
        let lock = unsafe { Heap::lock(heap) };
        Entered { lock, before: lock.enter(visitor::wait) }
    }

    /// Takes a block of `class` when the magazine is empty: from the current slab, or null.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, or it is a placeholder.
    #[inline(always)]
    pub(crate) unsafe fn alloc_from_slab(heap: *mut Heap, class: usize) -> Allocation {
        // SAFETY: passed on. Only a thread's own heap has a block to give.
        unsafe {
            let allocation = Bins::alloc(&raw mut (*heap).bins, class, &raw const (*heap).counters);
            if !allocation.ptr.is_null() {
                (*heap).magazines.on_miss(class);
            }
            allocation
        }
    }

    /// Takes a block of `class` when the current slab has none either.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn refill(heap: *mut Heap, class: u8) -> Allocation {
        // SAFETY: passed on.
        unsafe {
            let _entered = Heap::enter(heap);
            let allocation = Heap::alloc_from_slab(heap, class as usize);
            if !allocation.ptr.is_null() {
                return allocation;
            }
            (*heap).run_cache.tick();
            let spans = (*heap).counters.refill_span.get();
            let allocation = (*heap).bins.refill(class, &(*heap).counters);
            if (*heap).counters.refill_span.get() != spans {
                // A refill that went as far as the pool is rare, and a sign of life: time to look at what is kept for reuse.
                large::tick();
            }
            allocation
        }
    }

    /// Frees a block of `kind` when the magazine is full and stays as it is; what else there is to do with it.
    ///
    /// This and [`Heap::alloc_from_slab`] are the second level behind the magazines: they serve every burst longer than those.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, or it is a placeholder. The page map says that `block` lies in a page of `kind`, and
    /// it is nobody's now.
    #[inline(always)]
    pub(crate) unsafe fn free_to_slab(heap: *mut Heap, block: *mut u8, kind: usize) -> Freed {
        // SAFETY: passed on. No kind but a class goes home, and no placeholder's.
        unsafe {
            if !(*heap).magazines.goes_home(kind) {
                return Freed::Unserved;
            }
            let slab = Slab::of(block);
            Heap::lock(heap).name(slab);
            if !free::is_owned_by(slab, (*heap).bins.owner) {
                return Freed::Remote(slab);
            }
            if !free::mark_free(&raw const (*heap).bins, slab, block, kind) {
                return Freed::Invalid;
            }
            (*heap).counters.home_local.add(1);
            if Bins::push_free(slab, block.cast::<Block>()) { Freed::Relist(slab) } else { Freed::Done }
        }
    }

    /// Frees a block of `slab`, for which [`Heap::free_to_slab`] has answered that it is not this heap's.
    ///
    /// # Safety
    ///
    /// As [`Heap::free_to_slab`].
    #[inline(always)]
    pub(crate) unsafe fn free_remote(
        heap: *mut Heap,
        slab: *mut Slab,
        block: *mut u8,
        class: usize,
    ) -> RemoteFreed {
        // SAFETY: passed on.
        unsafe {
            if !free::mark_free(&raw const (*heap).bins, slab, block, class) {
                return RemoteFreed::Invalid;
            }
            (*heap).counters.home_foreign.add(1);
            let idle = (*heap).outbox.add(slab, block.cast::<Block>());
            if idle.is_null() { RemoteFreed::Done } else { RemoteFreed::Idle(idle) }
        }
    }

    /// Frees a block of `class` when the magazine is full.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap; the block was freed as one of `class`.
    pub(crate) unsafe fn free(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: passed on.
        unsafe {
            let _entered = Heap::enter(heap);
            let tops = &raw mut (*heap).tops;
            if (*heap).magazines.grow(tops, class as usize) {
                let pushed = MagazineTops::push(tops, class as usize, block);
                debug_assert!(pushed);
                return;
            }
            Heap::send_home(heap, block, class);
        }
    }

    /// Sends a block back to its slab.
    ///
    /// # Safety
    ///
    /// The calling thread has [entered](Heap::enter) the heap; the block was freed as one of `class`.
    pub(crate) unsafe fn send_home(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: passed on.
        unsafe {
            let bins = &mut (*heap).bins;
            let Some(slab) = free::validate(bins, block, class as usize) else { return };
            if free::is_owned_by(slab, bins.owner) {
                (*heap).counters.home_local.add(1);
                if Bins::push_free(slab, block.cast::<Block>()) {
                    Bins::relist(bins, slab);
                }
            } else {
                (*heap).counters.home_foreign.add(1);
                Heap::leave_idle((*heap).outbox.add(slab, block.cast::<Block>()));
            }
        }
    }

    /// An owner, or null, should be visited, but many blocks are being sent, and nobody shall wait for that here.
    pub(super) fn leave_idle(owner: *mut Owner) {
        // SAFETY: owners are never unmapped.
        if let Some(owner) = unsafe { owner.as_ref() } {
            owner.is_still_idle();
        }
    }

    /// Sends all that is in the outbox.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn flush_outbox(heap: *mut Heap) {
        // SAFETY: passed on.
        Heap::leave_idle(unsafe { (*heap).outbox.flush() });
    }

    /// Whether a thread of this process has the heap. One that is `live` and not that was left behind by a fork.
    ///
    /// # Safety
    ///
    /// A record, which is never unmapped.
    pub(crate) unsafe fn is_somebodys(heap: *mut Heap) -> bool {
        // SAFETY: passed on; atomics.
        unsafe { (*heap).live.load(Relaxed) && (*heap).generation.load(Relaxed) == process::generation() }
    }

    /// Whether the heap's thread was left behind by a fork: it has something, and does not exist in this process.
    ///
    /// # Safety
    ///
    /// As [`Heap::is_somebodys`].
    pub(crate) unsafe fn is_left_behind(heap: *mut Heap) -> bool {
        // SAFETY: passed on; atomics.
        unsafe { (*heap).live.load(Relaxed) && (*heap).generation.load(Relaxed) != process::generation() }
    }

    /// Says that the calling thread has the heap, in this process.
    ///
    /// # Safety
    ///
    /// It does.
    pub(crate) unsafe fn claim(heap: *mut Heap) {
        loop {
            let generation = process::generation();
            // SAFETY: passed on.
            unsafe { (*heap).generation.store(generation, Relaxed) };
            compiler_fence(SeqCst);
            // A signal handler may have forked in between, and this be the child.
            if generation == process::generation() {
                return;
            }
        }
    }

    /// The heap that `owner` is part of.
    pub(crate) fn of(owner: *mut Owner) -> *mut Heap {
        owner.cast::<u8>().wrapping_sub(offset_of!(Heap, owner)).cast()
    }

    /// What slabs of this heap say that they belong to.
    pub(crate) fn owner(heap: *mut Heap) -> *mut Owner {
        // SAFETY: only an address is computed.
        unsafe { (&raw mut (*heap).owner).cast() }
    }

    /// A figure that changes when the owner's magazines do, mostly.
    ///
    /// # Safety
    ///
    /// As [`Heap::each_cached`].
    pub(crate) unsafe fn magazine_figure(heap: *const Heap) -> usize {
        // SAFETY: passed on.
        let tops = unsafe { &(*heap).tops.top.0 };
        tops.iter().fold(0usize, |sum, top| sum.wrapping_add(top.load(Relaxed).addr()))
    }

    /// A figure that changes when the owner allocates or frees: of how its magazines stand, and of what went past them.
    ///
    /// # Safety
    ///
    /// As [`Heap::each_cached`].
    pub(crate) unsafe fn activity(heap: *const Heap) -> usize {
        // SAFETY: passed on.
        unsafe {
            let tops = (*heap).tops.top.0.iter().map(|top| top.load(Relaxed).addr());
            let sum = tops.fold(0usize, |sum, top| sum.rotate_left(5) ^ top);
            let past =
                [&(*heap).counters.home_local, &(*heap).counters.home_foreign, &(*heap).run_cache.frees];
            past.iter().fold(sum, |sum, counter| sum.rotate_left(5) ^ counter.get() as usize)
        }
    }
}

/// A heap that has nothing and can keep nothing, so that every path goes on to where a thread gets a real one.
const fn placeholder() -> Heap {
    Heap {
        tops: MagazineTops::without(),
        bins: Bins::new(),
        outbox: Outbox::new(),
        counters: Counters::new(),
        magazines: Magazines::none(),
        run_cache: RunCache::none(),
        recycle_next: AtomicPtr::new(NO_HEAP),
        all_next: NO_HEAP,
        live: AtomicBool::new(false),
        thread: AtomicUsize::new(0),
        generation: AtomicU32::new(0),
        fruitless: Cell::new(0),
        exit: Exit { rounds: Cell::new(0), tops: Cell::new(0) },
        seen: Seen::new(),
        lock: BiasedLock::new(),
        owner: CachePadded::new(Owner::new()),
    }
}

// SAFETY: the placeholders are never written to.
unsafe impl Sync for Heap {}

/// Stands in for the heap of a thread that has none yet.
pub(crate) static EMPTY: Heap = placeholder();
/// Stands in for the heap of a thread whose exit hook has run.
pub(crate) static EXITED: Heap = placeholder();

/// Null, as a heap.
pub(crate) const NO_HEAP: *mut Heap = ptr::null_mut();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superslab::pagemap::KINDS;
    use crate::tiny::classes::CLASSES;

    #[test]
    fn placeholders_are_empty_and_full() {
        for heap in [&EMPTY, &EXITED] {
            let heap = ptr::from_ref(heap).cast_mut();
            for kind in 0..KINDS {
                // SAFETY: nothing is written to a magazine that is full.
                unsafe {
                    assert!(MagazineTops::pop(heap.cast(), kind).is_null());
                    assert!(!MagazineTops::push(heap.cast(), kind, ptr::without_provenance_mut(8)));
                }
            }
            for class in 1..=CLASSES {
                // SAFETY: nothing is written to the slab that is none.
                assert!(unsafe { Heap::alloc_from_slab(heap, class) }.ptr.is_null());
            }
        }
    }
}
