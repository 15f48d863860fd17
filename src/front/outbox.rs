//! The outbox: blocks of slabs that other heaps own, collected by slab, so that one compare-and-swap sends
//! many.

use crate::base::counters::Counter;
use crate::front::lease::EPOCH;
use crate::superslab::layout::SLICE_SHIFT;
use crate::superslab::pagemap;
use crate::superslab::slab::{Block, Owner, Slab};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Node, compiler_fence};
use crate::tiny::free;
use core::cell::Cell;
use core::ptr;

/// Open bundles. They are direct-mapped: each slab has one place, and its bundle evicts the one that is
/// there. With too few of them, a thread that frees blocks of many slabs sends them one by one: with 16, it
/// sent 3.4 at a time where 32 would have been possible.
const BUNDLES: usize = 128;
/// Blocks in a bundle at most.
const MAX_BLOCKS: u32 = 32;
/// Bytes in a bundle at most.
const MAX_BYTES: u32 = 16 << 10;
/// Bytes in all bundles together at most. A thread that goes to sleep withholds that much.
const MAX_WAITING: u64 = 256 << 10;

/// A mark on the owner that [`Outbox::add`] returns, which may be null then: heaps are to be armed, and this
/// one is not. A thread that frees what others allocate, and has full magazines that may not grow, needs no
/// other slow path than the one that opens a bundle.
const LATE: usize = 1;

/// Splits what [`Outbox::add`] returns, if it is not null, into whether the heap has to be armed, and the
/// owner to visit, or null.
pub(crate) fn late(owner: *mut Owner) -> (bool, *mut Owner) {
    (owner.addr() & LATE != 0, owner.map_addr(|a| a & !LATE))
}

/// Blocks of one slab. The owner's alone, but statistics read the slab and the count.
struct Bundle {
    /// Null when the bundle is empty.
    slab: AtomicPtr<Slab>,
    head: Cell<*mut Block>,
    tail: Cell<*mut Block>,
    count: AtomicU32,
    /// The count at which the bundle is sent.
    limit: Cell<u32>,
}

/// Bytes of the bundles. They have a page of their own, which a thread that frees no remote blocks never
/// touches.
pub(crate) const BYTES: usize = BUNDLES * size_of::<Bundle>();

/// The outbox of a heap. The cells are the owner's alone. Statistics read the atomics, so nobody makes an
/// exclusive reference to the whole. They need no order, so all accesses are relaxed.
pub(crate) struct Outbox {
    /// [`BUNDLES`] of them, zero until the first block. Null in a placeholder, which sends nothing.
    bundles: AtomicPtr<Bundle>,
    /// Blocks in a bundle at most: [`MAX_BLOCKS`], or 1 if each is sent at once.
    most: Cell<u32>,
    /// Whether a bundle was ever opened, under any owner.
    resident: AtomicBool,
    /// Whether one was opened since the last [`Outbox::reset`].
    opened: Cell<bool>,
    /// Whether the heap is armed: see [`LATE`].
    pub(super) armed: Cell<bool>,
    /// Bundles sent.
    pub(crate) pushes: Counter,
    /// Bundles that published their slab.
    pub(crate) publishes: Counter,
    /// Bytes of the blocks in the bundles. Goes up and down.
    pub(crate) waiting: Counter,
}

/// The place of a slab's bundle: by its slice in the SuperSlab, so that the slabs of four neighbouring
/// SuperSlabs all have different places.
#[inline(always)]
fn place(slab: *mut Slab) -> usize {
    let a = slab.addr();
    (((a >> 7) & 31) | ((a >> 21) << 5)) % BUNDLES
}

/// One of two owners that should be visited, either of which may be null. If neither is, the visit to the
/// first is put off: see [`Owner::put_off_visit`].
fn either(one: *mut Owner, other: *mut Owner) -> *mut Owner {
    // SAFETY: owners are parts of records, which stay mapped, and consist of atomics.
    match unsafe { (one.as_ref(), other.as_ref()) } {
        (Some(first), Some(_)) if one != other => {
            first.put_off_visit();
            other
        }
        (Some(_), None) => one,
        _ => other,
    }
}

impl Outbox {
    /// An outbox without bundles.
    pub(crate) const fn new() -> Self {
        Self {
            bundles: AtomicPtr::new(ptr::null_mut()),
            most: Cell::new(1),
            resident: AtomicBool::new(false),
            opened: Cell::new(false),
            armed: Cell::new(false),
            pushes: Counter::new(),
            publishes: Counter::new(),
            waiting: Counter::new(),
        }
    }

    /// Empties the outbox without sending anything. From now on its bundles are at `bundles`.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that this is part of. At `bundles` there are [`BYTES`] bytes of that
    /// heap's record, which are zero or have been this outbox's bundles before.
    pub(crate) unsafe fn reset(&self, bundles: *mut u8, bundling: bool) {
        self.bundles.store(bundles.cast(), Relaxed);
        self.most.set(if bundling { MAX_BLOCKS } else { 1 });
        if self.opened.get() {
            for i in 0..BUNDLES {
                // One by one, because statistics may be reading.
                // SAFETY: the outbox has bundles, as of now.
                unsafe { self.bundle(i) }.slab.store(ptr::null_mut(), Relaxed);
            }
            self.opened.set(false);
        }
        self.waiting.set(0);
        self.armed.set(false);
    }

    /// One of the bundles.
    ///
    /// # Safety
    ///
    /// The outbox has bundles; `place` is below [`BUNDLES`]. Only the heap's owner uses the bundle's cells.
    #[inline(always)]
    unsafe fn bundle(&self, place: usize) -> &Bundle {
        // SAFETY: in the array, by the caller's clauses. Zero or written by the owner, it is a valid bundle;
        // what other threads read of it is atomic.
        unsafe { &*self.bundles.load(Relaxed).add(place) }
    }

    /// Adds a block to its slab's bundle. Sends that if it is full, what was in its place before, and all
    /// bundles when too much waits. Returns an owner for whom so much waits that somebody should visit its
    /// heap, or null; it may be marked: see [`late`].
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, and the outbox has bundles. `block` is a block of `slab`, has been
    /// marked as free, still counts as used there, and the caller alone has it.
    #[inline(always)]
    pub(crate) unsafe fn add(&self, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: places are below `BUNDLES`. The block is ours to link. As long as it counts as used, its
        // slab stays, and with it the constant fields of the record.
        unsafe {
            let bundle = self.bundle(place(slab));
            let waiting = self.waiting.get() + (*slab).stride as u64;
            if bundle.slab.load(Relaxed) != slab || waiting > MAX_WAITING {
                return self.open(bundle, slab, block);
            }
            Block::set_next(block, bundle.head.get());
            bundle.head.set(block);
            let count = bundle.count.load(Relaxed) + 1;
            bundle.count.store(count, Relaxed);
            self.waiting.set(waiting);
            if count >= bundle.limit.get() { self.send(bundle) } else { ptr::null_mut() }
        }
    }

    /// Opens a bundle with its first block, after sending the one in its place, or all of them when too much
    /// waits. Returns what [`Outbox::add`] does.
    ///
    /// # Safety
    ///
    /// As [`Outbox::add`]; `bundle` is the one in the slab's place.
    #[cold]
    #[inline(never)]
    unsafe fn open(&self, bundle: &Bundle, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: the block is ours to link, and keeps its slab in use until it is sent: with the bundle that
        // it begins.
        unsafe {
            let stride = (*slab).stride;
            let mut visit = ptr::null_mut();
            if self.waiting.get() + stride as u64 > MAX_WAITING {
                visit = self.flush();
            }
            visit = either(visit, self.send(bundle));
            let limit = (MAX_BYTES / stride.max(1)).min(self.most.get()).max(1);
            Block::set_next(block, ptr::null_mut());
            // First: otherwise a fork in between could leave its child a bundle that `reset` does not clear.
            self.opened.set(true);
            self.resident.store(true, Relaxed);
            compiler_fence(Release);
            bundle.slab.store(slab, Relaxed);
            bundle.head.set(block);
            bundle.tail.set(block);
            bundle.count.store(1, Relaxed);
            bundle.limit.set(limit);
            self.waiting.add(stride as u64);
            if limit == 1 {
                visit = either(visit, self.send(bundle));
            }
            let late = EPOCH.load(Relaxed) != 0 && !self.armed.get();
            visit.map_addr(|a| a | if late { LATE } else { 0 })
        }
    }

    /// Sends a bundle, unless it is empty. Returns what [`Outbox::add`] does.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap; `bundle` is one of this outbox.
    #[inline(never)]
    unsafe fn send(&self, bundle: &Bundle) -> *mut Owner {
        let slab = bundle.slab.load(Relaxed);
        if slab.is_null() {
            return ptr::null_mut();
        }
        let count = bundle.count.load(Relaxed);
        // The blocks leave the bundle before they are sent: the child of a fork in between loses them, but
        // never has them twice.
        bundle.slab.store(ptr::null_mut(), Relaxed);
        self.pushes.add(1);
        // SAFETY: the bundle is a chain of `count` free blocks of its slab, from `head` to `tail`. They count
        // as used there, so the slab stays until they are sent. Nobody else has them.
        let sent = unsafe {
            self.waiting.add((count as u64 * (*slab).stride as u64).wrapping_neg());
            free::push_remote(slab, bundle.head.get(), bundle.tail.get(), count)
        };
        self.publishes.add(sent.published as u64);
        sent.visit
    }

    /// Sends every bundle. Returns what [`Outbox::add`] does.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn flush(&self) -> *mut Owner {
        let mut visit = ptr::null_mut();
        if self.waiting.get() != 0 {
            for i in 0..BUNDLES {
                // SAFETY: something waits, so there are bundles; they are the calling thread's.
                visit = either(visit, unsafe { self.send(self.bundle(i)) });
            }
        }
        visit
    }

    /// Calls `f` with the class and the number of blocks of every bundle. Exact for the owner, approximate
    /// for other threads.
    pub(crate) fn each_bundle(&self, mut f: impl FnMut(u8, usize)) {
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
    }

    /// Whether the memory of the bundles was ever written to.
    pub(crate) fn is_resident(&self) -> bool {
        self.resident.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_of_four_neighbouring_superslabs_never_meet() {
        for first in 0..64usize {
            let mut seen = [false; BUNDLES];
            for slab in 0..4 * 32usize {
                let record = ((first + slab / 32) << 21) + slab % 32 * size_of::<Slab>();
                assert!(!core::mem::replace(&mut seen[place(ptr::without_provenance_mut(record))], true));
            }
        }
    }
}
