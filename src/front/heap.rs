//! A thread's heap: its magazines, its slabs, its outbox and its run cache.

mod figures;
pub(crate) mod frees;
mod refill;

use crate::base::counters::Counters;
use crate::base::options;
use crate::front::fast_path::MagazineTops;
use crate::front::lease::Gate;
use crate::front::magazine::Magazines;
use crate::front::outbox;
use crate::front::outbox::Outbox;
use crate::front::run_cache::RunCache;
use crate::front::visitor::{self, Seen};
use crate::hardened;
use crate::lockfree::biased_lock::BiasedLock;
use crate::os::generation;
use crate::superslab::slab::Owner;
use crate::sync::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Node, compiler_fence, wrote};
use crate::tiny::bins::Bins;
use core::cell::Cell;
use core::mem::offset_of;
use core::ptr;
use crossbeam_utils::CachePadded;

/// Address space of a record: the heap, the slots of its magazines behind it, and what the outbox has at the
/// end. Resident as far as it is used.
pub(crate) const RECORD: usize = 512 << 10;

/// Where the heap's [`Gate`] lies in its record: behind the slots.
pub(crate) const GATE_AT: usize = RECORD - outbox::BYTES - size_of::<Gate>();

/// A heap.
///
/// Its *owner* is the thread that has acquired the record and not released it. In the child of a fork,
/// whoever stands in for a thread that does not exist there counts as the owner of that thread's heap. All
/// fields are the owner's alone, with these exceptions:
///
/// * Any thread pushes slabs to `owner.ready`.
/// * Any thread reads atomics: for statistics, or to see whether the owner is idle.
/// * A visitor that is let in by `lock` does what the owner does under that lock: it changes the lists of
///   slabs, takes blocks out of magazines, and flushes the run cache.
///
/// So nobody makes a reference to a whole record, and no exclusive one to a field that others read. Records
/// are recycled. They stay mapped until [`registry::unmap`](crate::front::registry::unmap), when nobody can
/// use one any more.
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
    /// Link of the list of all records. Constant once the record is published there.
    pub(crate) all_next: *mut Heap,
    /// Whether it has an owner, in this process or in the one that this was forked from: see
    /// [`Heap::is_somebodys`]. Published by [`Heap::reset`], after the generation. The next two are relaxed:
    /// whoever relies on them has the heap's lock, or is the owner; for others they are hints.
    pub(crate) live: AtomicBool,
    /// The owner's [`os::thread::id`](crate::os::thread::id); 1 more if that has only borrowed it for one
    /// call; 0 for a moment before it is known.
    pub(crate) thread: AtomicUsize,
    /// The [generation](generation::now) of the process in which the owner got it, or survived a fork
    /// with it.
    pub(crate) generation: AtomicU32,
    /// What the owner's samples are charged to: the number of a tag, counted from 1; 0 for none. The owner's.
    pub(crate) tag: Cell<u32>,
    /// What had been freed when giving memory back last did not help an allocation of the owner: see
    /// [`retry`](crate::reclaim::retry).
    pub(crate) fruitless: Cell<(u32, u32)>,
    /// How often the exit hook has run for the owner, and what it saw the last time.
    pub(crate) exit: Exit,
    /// Whether the last owner has left slabs here that it could not give up: see
    /// [`Heap::retire`]. For whoever has the record.
    pub(crate) holds_slabs: Cell<bool>,
    /// Whether its owner's blocks come from the hardened heap: never, in a placeholder.
    pub(crate) is_hardened: Cell<bool>,
    /// Room beyond their shares by which magazines have grown for blocks of other heaps: see
    /// [`Heap::make_room`]. The owner's.
    pub(crate) lent: Cell<u8>,
    /// The lowest bits of the count of others' blocks that the owner had sent home when it last needed a
    /// shared slab: see [`Heap::is_in_burst`]. The owner's.
    pub(super) sent: Cell<u8>,
    /// What the last visitor saw of the owner: see [`idle_heaps`](crate::reclaim::idle_heaps).
    pub(crate) seen: Seen,
    /// Held by the owner whenever it does more than take a block from a slab or put one back: see
    /// [`BiasedLock`].
    pub(crate) lock: BiasedLock,
    owner: CachePadded<Owner>,
}

const _: () =
    assert!(size_of::<Heap>() <= 4096 - 7 * 64, "the first page holds a thread's first seven magazines");

/// What the exit hook remembers from one round to the next.
pub(crate) struct Exit {
    /// Rounds so far.
    pub(crate) rounds: Cell<u32>,
    /// The [`Heap::activity`] at the last round.
    pub(crate) activity: Cell<usize>,
}

/// The owner holds its heap's lock until this is dropped.
pub(crate) struct Entered {
    lock: &'static BiasedLock,
    /// Whether it held the lock before, too.
    before: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.lock.leave(self.before);
    }
}

// SAFETY: `recycle_next` is an atomic that serves as nothing but this link.
unsafe impl Node for Heap {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: the caller's `node` is valid. The access is atomic, so a record that has just been popped
        // may be read.
        unsafe { (*node).recycle_next.load(Relaxed) }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: the caller's `node` is valid.
        unsafe { (*node).recycle_next.store(next, Relaxed) }
    }
}

impl Heap {
    /// Prepares a record for a `thread`; `threads` is about how many threads there are.
    ///
    /// # Safety
    ///
    /// The record is mapped, all zero when `fresh`, and `live` is false. The calling thread alone has it: it
    /// has just mapped it or taken it from the stack of free records. Slabs that the last owner could not
    /// give up are still in its bins, and become the new owner's.
    pub(crate) unsafe fn reset(heap: *mut Heap, secret: usize, fresh: bool, threads: usize, thread: usize) {
        let options = options::get();
        // SAFETY: the caller is the only owner. A visitor that got in before us leaves again, because `live`
        // is false.
        let _entered = unsafe { Heap::enter(heap) };
        // SAFETY: we have entered the heap, so everything but atomics is ours, and others at most read those.
        // The bins are borrowed exclusively only while the record is fresh, and so known to nobody else. The
        // slots and the bundles lie behind the heap in the same mapping and do not overlap.
        unsafe {
            let bytes = heap.cast::<u8>();
            (*heap).magazines.reset(
                &(*heap).tops,
                options.magazine && !hardened::is_on(),
                bytes.wrapping_add(size_of::<Heap>()),
                bytes.wrapping_add(GATE_AT),
            );
            (*heap).outbox.reset(bytes.wrapping_add(RECORD - outbox::BYTES), options.outbox);
            // Field by field: whoever has sent something to the last owner may still be counting there, and
            // somebody may be looking at the ready list.
            (*Heap::owner(heap)).reset();
            if fresh {
                (*heap).bins.clear();
                (*heap).bins.owner = (&raw mut (*heap).owner).cast();
                (*heap).bins.secret = secret;
            }
            (*heap).bins.share_nothing();
            (*heap).is_hardened.set(hardened::is_on());
            if hardened::is_on() {
                (*heap).tops.classes.set(hardened::C_CLASSES);
                Heap::hardened(heap).begin();
            }
            (*heap).run_cache.reset(threads);
            (*heap).lent.set(0);
            (*heap).exit.rounds.set(0);
            (*heap).tag.set(0);
            Heap::claim(heap);
            (*heap).thread.store(thread, Relaxed);
            wrote(heap);
            // Release: pairs with the acquires in `is_somebodys` and `is_left_behind`, which look at the
            // generation next.
            (*heap).live.store(true, Release);
        }
    }

    /// What the heap has in hardened mode: where it has the slots of magazines otherwise.
    ///
    /// # Safety
    ///
    /// `heap` is a record, which stays mapped, and hardened mode is on. Whoever uses more than atomics of the
    /// result owns the heap.
    pub(crate) unsafe fn hardened<'a>(heap: *mut Heap) -> &'a hardened::State {
        const { assert!(size_of::<Heap>() % align_of::<hardened::State>() == 0) };
        const { assert!(size_of::<Heap>() + size_of::<hardened::State>() <= GATE_AT) };
        // SAFETY: records stay mapped. The state lies behind the heap and before the gate, where there are no
        // slots in hardened mode; all zero is valid.
        unsafe { &*heap.wrapping_add(1).cast::<hardened::State>() }
    }

    /// The heap's lock.
    ///
    /// # Safety
    ///
    /// `heap` is a record or a placeholder, which stay mapped.
    #[inline(always)]
    pub(crate) unsafe fn lock(heap: *mut Heap) -> &'static BiasedLock {
        // SAFETY: it stays mapped. The lock consists of atomics, so any thread may refer to it.
        unsafe { &(*heap).lock }
    }

    /// Enters the heap: takes its lock, for the owner, until the result is dropped. May be nested.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    #[inline]
    pub(crate) unsafe fn enter(heap: *mut Heap) -> Entered {
        // SAFETY: what has an owner is a record.
        let lock = unsafe { Heap::lock(heap) };
        Entered { lock, before: lock.enter(visitor::wait) }
    }

    /// Whether a thread of this process owns the heap. One that is `live` without that was left behind by a
    /// fork.
    ///
    /// # Safety
    ///
    /// `heap` is a record that is still mapped.
    pub(crate) unsafe fn is_somebodys(heap: *mut Heap) -> bool {
        // Acquire: pairs with the release in `reset`.
        // SAFETY: mapped, by the caller's clause; both fields are atomic.
        unsafe { (*heap).live.load(Acquire) && (*heap).generation.load(Relaxed) == generation::now() }
    }

    /// Whether a fork has left the heap behind: it has an owner, and that does not exist in this process.
    ///
    /// # Safety
    ///
    /// As [`Heap::is_somebodys`].
    pub(crate) unsafe fn is_left_behind(heap: *mut Heap) -> bool {
        // Acquire: pairs with the release in `reset`.
        // SAFETY: mapped, by the caller's clause; both fields are atomic.
        unsafe { (*heap).live.load(Acquire) && (*heap).generation.load(Relaxed) != generation::now() }
    }

    /// Notes that the owner exists in this process.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn claim(heap: *mut Heap) {
        loop {
            let generation = generation::now();
            // SAFETY: what has an owner is a record, which stays mapped; the field is atomic.
            unsafe { (*heap).generation.store(generation, Relaxed) };
            compiler_fence(SeqCst);
            // A signal handler may have forked between the load and the store, and this may be the child.
            if generation == generation::now() {
                return;
            }
        }
    }

    /// The heap that `owner` is part of.
    pub(crate) fn of(owner: *mut Owner) -> *mut Heap {
        owner.cast::<u8>().wrapping_sub(offset_of!(Heap, owner)).cast()
    }

    /// What the slabs of this heap, a record or a placeholder, name as their owner.
    pub(crate) fn owner(heap: *mut Heap) -> *mut Owner {
        // SAFETY: only an address inside the record is computed.
        unsafe { (&raw mut (*heap).owner).cast() }
    }
}

/// A heap that has nothing and can keep nothing: every path goes on to the slow path, where a thread gets a
/// real one.
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
        tag: Cell::new(0),
        fruitless: Cell::new((0, 0)),
        exit: Exit { rounds: Cell::new(0), activity: Cell::new(0) },
        holds_slabs: Cell::new(false),
        is_hardened: Cell::new(false),
        lent: Cell::new(0),
        sent: Cell::new(0),
        seen: Seen::new(),
        lock: BiasedLock::new(),
        owner: CachePadded::new(Owner::new()),
    }
}

// SAFETY: only the two statics below need this. Nothing of them is written but an atomic, the lock's name:
// they have no block to hand out and no room for one, and the slow path tells them from a thread's own heap.
// Records are reached through raw pointers; `Heap` says who may touch what in them.
unsafe impl Sync for Heap {}

/// Stands in for the heap of a thread that has none yet.
pub(crate) static EMPTY: Heap = placeholder();
/// Stands in for the heap of a thread whose exit hook has run.
pub(crate) static AFTER_EXIT: Heap = placeholder();

/// Null, as a heap.
pub(crate) const NO_HEAP: *mut Heap = ptr::null_mut();

#[cfg(test)]
mod tests;
