//! The outbox: blocks of other owners' slabs, collected by slab, so that one compare-and-swap sends many.

use crate::base::counters::Counter;
use crate::superslab::layout::PAGE_SHIFT;
use crate::superslab::pagemap;
use crate::superslab::slab::{Block, Owner, Slab};
use crate::sync::Node;
use crate::tiny::free;
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, compiler_fence};

/// Open bundles. A direct-mapped set: a slab has one place, and evicts what is there. Too few of them and a thread that frees
/// what many slabs have given sends its blocks one by one: with 16, 3.4 at a time where 32 could be.
const BUNDLES: usize = 128;
/// Blocks of a bundle at most.
const MAX_BLOCKS: u32 = 32;
/// Bytes of a bundle at most.
const MAX_BYTES: u32 = 16 << 10;
/// Bytes that wait at most, in all bundles: what a thread that goes to sleep withholds.
const MAX_WAITING: u64 = 256 << 10;

/// The owner's alone, but that statistics look at the slab and the count.
struct Bundle {
    /// Null when there are no blocks.
    slab: AtomicPtr<Slab>,
    head: Cell<*mut Block>,
    tail: Cell<*mut Block>,
    count: AtomicU32,
    limit: Cell<u32>,
}

/// Bytes of the bundles: a page of their own, so that a thread that frees nothing of others' does not touch it.
pub(crate) const BYTES: usize = BUNDLES * size_of::<Bundle>();

/// The outbox of a heap. The cells are the owner's alone; what is atomic statistics read, so there is never an exclusive
/// reference to all of it.
pub(crate) struct Outbox {
    /// [`BYTES`] of them, zero until the first block. Null in a placeholder, which sends nothing.
    bundles: Cell<*mut Bundle>,
    bundling: Cell<bool>,
    /// Whether a bundle was ever opened since the bundles were last known to be zero.
    touched: AtomicBool,
    /// Whether one was before that.
    resident: AtomicBool,
    /// Bundles sent.
    pub(crate) pushes: Counter,
    /// Bundles that published their slab.
    pub(crate) publishes: Counter,
    /// Bytes of blocks that wait; goes up and down.
    pub(crate) waiting: Counter,
}

/// The place of a slab: its page in the SuperSlab, and a part for each of four neighbouring SuperSlabs.
#[inline(always)]
fn place(slab: *mut Slab) -> usize {
    let a = slab.addr();
    (((a >> 7) & 31) | ((a >> 21) << 5)) % BUNDLES
}

/// One of two owners that should be visited, either of which may be null. The other one is reported again when it is next given
/// anything.
fn either(one: *mut Owner, other: *mut Owner) -> *mut Owner {
    // SAFETY: owners are never unmapped.
    match unsafe { (one.as_ref(), other.as_ref()) } {
        (Some(first), Some(_)) => {
            first.is_still_idle();
            other
        }
        (Some(_), None) => one,
        _ => other,
    }
}

impl Outbox {
    /// An outbox without room.
    pub(crate) const fn new() -> Self {
        Self {
            bundles: Cell::new(ptr::null_mut()),
            bundling: Cell::new(false),
            touched: AtomicBool::new(false),
            resident: AtomicBool::new(false),
            pushes: Counter::new(),
            publishes: Counter::new(),
            waiting: Counter::new(),
        }
    }

    /// Empties the outbox without sending anything. Its bundles are at `bundles` from now on.
    ///
    /// # Safety
    ///
    /// There are [`BYTES`] bytes, zero unless they have been this outbox's bundles before, and the caller's alone.
    pub(crate) unsafe fn reset(&self, bundles: *mut u8, bundling: bool) {
        self.bundles.set(bundles.cast());
        self.bundling.set(bundling);
        if self.touched.load(Relaxed) {
            for i in 0..BUNDLES {
                // SAFETY: passed on. One by one, because statistics may look on.
                unsafe { self.bundle(i) }.slab.store(ptr::null_mut(), Relaxed);
            }
            self.resident.store(true, Relaxed);
            self.touched.store(false, Relaxed);
        }
        self.waiting.set(0);
    }

    /// One of the bundles.
    ///
    /// # Safety
    ///
    /// The outbox has room; `place` is below [`BUNDLES`].
    #[inline(always)]
    unsafe fn bundle(&self, place: usize) -> &Bundle {
        // SAFETY: passed on.
        unsafe { &*self.bundles.get().add(place) }
    }

    /// Adds a block; sends a bundle that is full or in the way, and all of them when much waits. Returns an owner that has left so
    /// much lying that it should be visited, or null.
    ///
    /// # Safety
    ///
    /// `block` is a checked-in block of `slab`, which another thread owns, or nobody. The outbox has room.
    #[inline(always)]
    pub(crate) unsafe fn add(&self, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: the block is ours, constant fields of its slab may be read, and the place is one of the bundles.
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

    /// Opens a bundle with its first block, after sending what is in its place, or everything when much waits.
    #[cold]
    #[inline(never)]
    unsafe fn open(&self, bundle: &Bundle, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: passed on.
        unsafe {
            let stride = (*slab).stride;
            let mut idle = ptr::null_mut();
            if self.waiting.get() + stride as u64 > MAX_WAITING {
                idle = self.flush();
            }
            idle = either(idle, self.send(bundle));
            let limit =
                if self.bundling.get() { (MAX_BYTES / stride.max(1)).clamp(1, MAX_BLOCKS) } else { 1 };
            Block::set_next(block, ptr::null_mut());
            // First, or a fork in between could leave its child a bundle that `reset` passes over.
            self.touched.store(true, Relaxed);
            compiler_fence(Release);
            bundle.slab.store(slab, Relaxed);
            bundle.head.set(block);
            bundle.tail.set(block);
            bundle.count.store(1, Relaxed);
            bundle.limit.set(limit);
            self.waiting.add(stride as u64);
            if limit == 1 { either(idle, self.send(bundle)) } else { idle }
        }
    }

    #[inline(never)]
    unsafe fn send(&self, bundle: &Bundle) -> *mut Owner {
        // SAFETY: passed on. A bundle is a chain of blocks of its slab, which lives until they are sent. Out of the bundle
        // first: in the child of a fork in between they are lost.
        unsafe {
            let slab = bundle.slab.load(Relaxed);
            if slab.is_null() {
                return ptr::null_mut();
            }
            let count = bundle.count.load(Relaxed);
            bundle.slab.store(ptr::null_mut(), Relaxed);
            self.pushes.add(1);
            self.waiting.add((count as u64 * (*slab).stride as u64).wrapping_neg());
            let sent = free::push_remote(slab, bundle.head.get(), bundle.tail.get(), count);
            self.publishes.add(sent.published as u64);
            sent.idle
        }
    }

    /// Sends every bundle. Returns what [`Outbox::add`] does.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap.
    pub(crate) unsafe fn flush(&self) -> *mut Owner {
        let mut idle = ptr::null_mut();
        if self.waiting.get() != 0 {
            for i in 0..BUNDLES {
                // SAFETY: passed on; something waits, so there are bundles.
                idle = either(idle, unsafe { self.send(self.bundle(i)) });
            }
        }
        idle
    }

    /// Calls `f` with the class and the number of blocks of every bundle of the outbox whose bundles are at `bundles`: exact
    /// for the owner, a glimpse for others.
    ///
    /// # Safety
    ///
    /// Both are parts of one heap's record, which is never unmapped.
    pub(crate) unsafe fn each_bundle(
        outbox: *const Outbox,
        bundles: *const u8,
        mut f: impl FnMut(u8, usize),
    ) {
        // SAFETY: passed on; these fields are atomic.
        unsafe {
            if (*outbox).waiting.get() == 0 {
                return;
            }
            for i in 0..BUNDLES {
                let bundle = bundles.cast::<Bundle>().add(i);
                let slab = (*bundle).slab.load(Relaxed);
                // By the page map: when the owner has just sent the bundle, the slab's record may be gone.
                let page = Slab::base(slab).wrapping_add(Slab::index(slab) << PAGE_SHIFT);
                if !slab.is_null() {
                    f(pagemap::kind(page), (*bundle).count.load(Relaxed) as usize);
                }
            }
        }
    }

    /// Whether the memory of the bundles was ever written to.
    ///
    /// # Safety
    ///
    /// As [`Outbox::each_bundle`].
    pub(crate) unsafe fn is_resident(outbox: *const Outbox) -> bool {
        // SAFETY: passed on; these fields are atomic.
        unsafe { (*outbox).resident.load(Relaxed) || (*outbox).touched.load(Relaxed) }
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
