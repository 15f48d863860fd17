//! The outbox: blocks of slabs that other heaps own, collected by slab, so that one compare-and-swap sends
//! many.
//!
//! A block is *set aside* if another slab's bundle has the place of its own. When there are many of
//! these, each evicts the bundle in its way. To send a bundle takes a locked instruction, and a line of
//! the cache that was used long ago. Between two frees, the processor would wait for both before it loads
//! what the program needs next: mostly the block that it is about to free. While blocks are only set
//! aside, several such loads are under way at a time.

use crate::base::counters::Counter;
use crate::base::prefetch::prefetch;
use crate::front::counts;
use crate::front::lease::EPOCH;
use crate::superslab::slab::{Block, Owner, Slab};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU32, Node, compiler_fence};
use core::cell::Cell;
use core::mem::offset_of;
use core::ptr;

mod figures;
mod sending;

/// Open bundles. They are direct-mapped: each slab has one place, and its bundle evicts the one that is
/// there. With too few of them, a thread that frees blocks of many slabs sends them one by one: with 16, it
/// sent 3.4 at a time where 32 would have been possible.
const BUNDLES: usize = 128;
/// Blocks that are set aside at most.
const ASIDE: usize = 32;
/// Blocks in a bundle at most.
const MAX_BLOCKS: u32 = 32;
/// Bytes in a bundle at most.
const MAX_BYTES: u32 = 16 << 10;
/// KiB in all bundles, and of what is set aside, at most. A thread that goes to sleep withholds that much.
const MAX_WAITING: usize = 256;
/// KiB in the outboxes of all threads, about, if each has more than [`LEAST_WAITING`]: so from sixteen
/// threads on there are fewer in each.
const ALL_WAITING: usize = 2 << 10;
/// KiB that may wait in each outbox whatever there is in others: with fewer, bundles would have few blocks.
const LEAST_WAITING: usize = 64;

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
const BUNDLE_BYTES: usize = BUNDLES * size_of::<Bundle>();
/// Bytes of the list of blocks that are set aside, and of the bundles, which lie behind it.
pub(crate) const BYTES: usize = ASIDE * size_of::<*mut Block>() + BUNDLE_BYTES;

/// The outbox of a heap. The cells are the owner's alone. Statistics read the atomics, so nobody makes an
/// exclusive reference to the whole. They need no order, so all accesses are relaxed.
pub(crate) struct Outbox {
    /// [`BUNDLES`] of them, zero until the first block. Null in a placeholder, which sends nothing. Before
    /// them lie the blocks that are set aside, the first one last.
    bundles: AtomicPtr<Bundle>,
    /// KiB that may wait, as of when a bundle was opened or a block set aside.
    room: Cell<u16>,
    /// Blocks in a bundle at most: [`MAX_BLOCKS`], or 1 if each is sent at once.
    most: Cell<u8>,
    /// 0; 1 if a bundle was ever opened, under any owner; 2 if a block was ever set aside.
    resident: AtomicU8,
    /// How many blocks are set aside.
    aside: AtomicU8,
    /// Whether a bundle was opened since the last [`Outbox::reset`].
    opened: Cell<bool>,
    /// Whether the heap is armed: see [`LATE`].
    pub(super) armed: Cell<bool>,
    /// Bundles sent.
    pub(crate) pushes: Counter,
    /// Bundles that published their slab.
    pub(crate) publishes: Counter,
    /// Bytes of the blocks in the bundles and of those that are set aside. Goes up and down.
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
            room: Cell::new(0),
            most: Cell::new(1),
            resident: AtomicU8::new(0),
            aside: AtomicU8::new(0),
            opened: Cell::new(false),
            armed: Cell::new(false),
            pushes: Counter::new(),
            publishes: Counter::new(),
            waiting: Counter::new(),
        }
    }

    /// Empties the outbox without sending anything. From now on what it has is at `bytes`.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that this is part of. At `bytes` there are [`BYTES`] bytes of that
    /// heap's record, which are zero or have been this outbox's before.
    pub(crate) unsafe fn reset(&self, bytes: *mut u8, bundling: bool) {
        self.bundles.store(bytes.wrapping_add(BYTES - BUNDLE_BYTES).cast(), Relaxed);
        self.most.set(if bundling { MAX_BLOCKS as u8 } else { 1 });
        if self.opened.get() {
            for i in 0..BUNDLES {
                // One by one, because statistics may be reading.
                // SAFETY: the outbox has bundles, as of now.
                unsafe { self.bundle(i) }.slab.store(ptr::null_mut(), Relaxed);
            }
            self.aside.store(0, Relaxed);
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

    /// Where the block is that was set aside after `index` others, which are fewer than [`ASIDE`].
    ///
    /// # Safety
    ///
    /// The outbox has bundles.
    #[inline(always)]
    unsafe fn place_aside(&self, index: usize) -> &AtomicPtr<Block> {
        debug_assert!(index < ASIDE);
        // SAFETY: the words lie before the bundles in the same record, which stays mapped; each is null or
        // what the owner has written, and atomic.
        unsafe { &*self.bundles.load(Relaxed).cast::<AtomicPtr<Block>>().sub(index + 1) }
    }

    /// Adds a block to its slab's bundle, sets it aside, or sends it alone if it is so long that a bundle has
    /// one. Sends a bundle that is full or in the way, and everything when too much waits. Returns an owner
    /// for whom so much waits that somebody should visit its heap, or null; it may be marked: see [`late`].
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, and the outbox has bundles. `block` is a block of `slab`, has been
    /// marked as free, still counts as used there, and the caller alone has it.
    #[inline(always)]
    pub(crate) unsafe fn add(&self, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: places are below `BUNDLES`. As long as the block counts as used, its slab stays, and with
        // it the constant fields of the record.
        unsafe {
            let bundle = self.bundle(place(slab));
            let waiting = self.waiting.get() + (*slab).stride as u64;
            if bundle.slab.load(Relaxed) != slab || waiting >> 10 >= self.room.get() as u64 {
                return self.add_elsewhere(bundle, slab, block);
            }
            self.waiting.set(waiting);
            self.join(bundle, block)
        }
    }

    /// Adds a block to the bundle of its slab, and sends that if it is full. Returns what [`Outbox::send`]
    /// does.
    ///
    /// # Safety
    ///
    /// As [`Outbox::add`]. The bundle is the slab's, and the block is counted as waiting.
    #[inline(always)]
    unsafe fn join(&self, bundle: &Bundle, block: *mut Block) -> *mut Owner {
        // SAFETY: the block is ours to link, and the bundle ours to send.
        unsafe {
            Block::set_next(block, bundle.head.get());
            bundle.head.set(block);
            let count = bundle.count.load(Relaxed) + 1;
            bundle.count.store(count, Relaxed);
            if count >= bundle.limit.get() { self.send(bundle) } else { ptr::null_mut() }
        }
    }

    /// Opens a bundle with its first block, or sets that aside if its place is taken, after sending
    /// everything when too much waits. Returns what [`Outbox::add`] does.
    ///
    /// # Safety
    ///
    /// As [`Outbox::add`]; `bundle` is the one in the slab's place.
    #[cold]
    #[inline(never)]
    unsafe fn add_elsewhere(&self, bundle: &Bundle, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: as in `add`.
        let visit = unsafe {
            if (*slab).stride > MAX_BYTES / 2 {
                // A bundle of its own, which would be sent at once.
                Block::set_next(block, ptr::null_mut());
                self.push(slab, block, block, 1)
            } else {
                self.wait(bundle, slab, block)
            }
        };
        let late = EPOCH.load(Relaxed) != 0 && !self.armed.get();
        visit.map_addr(|a| a | if late { LATE } else { 0 })
    }

    /// Opens a bundle with its first block, or sets that aside. Returns what [`Outbox::send`] does.
    ///
    /// # Safety
    ///
    /// As [`Outbox::add`]; `bundle` is the one in the slab's place.
    #[inline(always)]
    unsafe fn wait(&self, bundle: &Bundle, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: as in `add`.
        unsafe {
            let stride = (*slab).stride as u64;
            let mut visit = ptr::null_mut();
            let room = counts::share(ALL_WAITING).clamp(LEAST_WAITING, MAX_WAITING);
            self.room.set(room as u16);
            if self.waiting.get() + stride > (room as u64) << 10 {
                visit = self.flush();
            } else if self.aside.load(Relaxed) as usize >= ASIDE {
                // Here, where there has to be room, and not when it became full: the child of a fork by a
                // signal handler may go on from in between.
                visit = self.take_up();
            }
            self.waiting.add(stride);
            let now = bundle.slab.load(Relaxed);
            if now.is_null() {
                visit = either(visit, self.open(bundle, slab, block));
            } else if now == slab {
                visit = either(visit, self.join(bundle, block));
            } else {
                let index = self.aside.load(Relaxed) as usize;
                self.place_aside(index).store(block, Relaxed);
                self.resident.store(2, Relaxed);
                compiler_fence(Release);
                self.aside.store(index as u8 + 1, Relaxed);
            }
            visit
        }
    }

    /// Adds what is set aside to its bundles, and sends what is in their places. Returns what
    /// [`Outbox::send`] does.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, and the outbox has bundles.
    unsafe fn take_up(&self) -> *mut Owner {
        let count = self.aside.load(Relaxed) as usize;
        // First: the child of a fork in between loses the blocks, but never has them twice.
        self.aside.store(0, Relaxed);
        compiler_fence(Release);
        // SAFETY: so many blocks are set aside, which `add` was told are ours; as in `add`.
        unsafe {
            let ours = |index| {
                let block = self.place_aside(index).load(Relaxed);
                let slab = Slab::of(block.cast());
                (block, slab, self.bundle(place(slab)))
            };
            for index in 0..count {
                let evicted = ours(index).2.slab.load(Relaxed);
                prefetch(evicted.wrapping_byte_add(offset_of!(Slab, remote)));
            }
            let mut visit = ptr::null_mut();
            for index in 0..count {
                let (block, slab, bundle) = ours(index);
                let sent = if bundle.slab.load(Relaxed) == slab {
                    self.join(bundle, block)
                } else {
                    either(self.send(bundle), self.open(bundle, slab, block))
                };
                visit = either(visit, sent);
            }
            visit
        }
    }

    /// Blocks at which a bundle of the slab is sent.
    ///
    /// # Safety
    ///
    /// A block of the slab is in use, so that the slab stays.
    #[inline(always)]
    unsafe fn limit(&self, slab: *mut Slab) -> u32 {
        // SAFETY: by the caller's clause; the stride is constant.
        (MAX_BYTES / unsafe { (*slab).stride }.max(1)).min(self.most.get() as u32).max(1)
    }

    /// Opens a bundle, which is empty, with its first block. Returns what [`Outbox::send`] does.
    ///
    /// # Safety
    ///
    /// As [`Outbox::add`]; `bundle` is the one in the slab's place, and the block is counted as waiting.
    unsafe fn open(&self, bundle: &Bundle, slab: *mut Slab, block: *mut Block) -> *mut Owner {
        // SAFETY: the block is ours to link, and keeps its slab in use until it is sent: with the bundle that
        // it begins.
        unsafe {
            let limit = self.limit(slab);
            Block::set_next(block, ptr::null_mut());
            // First: otherwise a fork in between could leave its child a bundle that `reset` does not clear.
            self.opened.set(true);
            if self.resident.load(Relaxed) == 0 {
                self.resident.store(1, Relaxed);
            }
            bundle.head.set(block);
            bundle.tail.set(block);
            bundle.count.store(1, Relaxed);
            bundle.limit.set(limit);
            compiler_fence(Release);
            // Last: if a signal handler forks in between, its child may free blocks of the same slab.
            bundle.slab.store(slab, Relaxed);
            if limit == 1 { self.send(bundle) } else { ptr::null_mut() }
        }
    }
}

#[cfg(test)]
mod tests;
