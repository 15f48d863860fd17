//! What the pool knows of each SuperSlab: its descriptor, in atomics.

use crate::base::list::{Linked, Links};
use crate::lockfree::page_sets::{Pages, Sets};
use crate::os;
use crate::superslab::layout::PAGE;
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::Ordering::{self, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};

/// Bytes of memory that descriptors are made of at a time.
pub(super) const CHUNK: usize = PAGE;
/// The last such piece; each knows the one before. Never unmapped.
static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());

/// Memory for descriptors, zero at first. They follow this.
struct Chunk {
    before: *mut Chunk,
    /// How many have ever been in use; more than fit when somebody has looked in vain.
    used: AtomicUsize,
}

/// Descriptors of a chunk.
const FIT: usize = (CHUNK - size_of::<Chunk>()) / size_of::<Desc>();

/// A SuperSlab as the pool sees it. All zero is one that is not in use. Never unmapped.
///
/// In the child of a fork every thread of the parent has stopped between two stores. So what they do is ordered such that pages
/// between two owners belong to neither: then they are lost to the child, but never with two.
pub(crate) struct Desc {
    /// Address of the SuperSlab; null where there is none.
    pub(super) base: AtomicPtr<u8>,
    /// Whether somebody has this descriptor for a SuperSlab. Changed by exchange.
    pub(super) taken: AtomicBool,
    /// Whether huge pages have been advised.
    pub(crate) huge: AtomicBool,
    /// The SuperSlab is about to be unmapped as a whole, or has been.
    pub(super) unmapping: AtomicBool,
    /// Pages that are being given back: not free meanwhile. Of the thread that does it.
    pub(super) job: AtomicU32,
    /// Which thread that is.
    pub(super) job_of: AtomicUsize,
    /// Which pages are free, and which are dirty.
    pub(crate) pages: Pages,
    /// The rest is the index's, under the lock. When the oldest of the free dirty pages became so, in milliseconds.
    pub(crate) since: Cell<u32>,
    /// The last purge of everything that came by.
    pub(crate) visited: Cell<u32>,
    /// Free pages, and purgeable ones, as indexed.
    pub(super) free_pages: Cell<u8>,
    pub(super) purgeable_pages: Cell<u8>,
    /// In its bucket.
    bucket: Links<Desc>,
    /// In the list of SuperSlabs with purgeable pages.
    dirt: Links<Desc>,
}

/// A descriptor: they are never unmapped.
pub(crate) type DescRef = &'static Desc;

// SAFETY: the cells are used under the pool's lock only.
unsafe impl Sync for Desc {}

/// The list of the SuperSlabs with the same number of free pages.
pub(super) struct Bucket;
/// The list of the SuperSlabs with purgeable pages.
pub(super) struct Dirt;

// SAFETY: these links are of that list only; descriptors are never unmapped.
unsafe impl Linked<Bucket> for Desc {
    unsafe fn links<'a>(desc: *mut Self) -> &'a Links<Self> {
        // SAFETY: a descriptor; the cells are the caller's, who holds the pool's lock.
        unsafe { &(*desc).bucket }
    }
}

// SAFETY: as above.
unsafe impl Linked<Dirt> for Desc {
    unsafe fn links<'a>(desc: *mut Self) -> &'a Links<Self> {
        // SAFETY: as above.
        unsafe { &(*desc).dirt }
    }
}

/// A descriptor as lists know it.
pub(super) fn as_member(desc: DescRef) -> *mut Desc {
    ptr::from_ref(desc).cast_mut()
}

/// What a list has, if that is not null.
pub(super) fn of_member(desc: *mut Desc) -> Option<DescRef> {
    // SAFETY: descriptors are never unmapped, and only read and changed through cells and atomics.
    unsafe { desc.as_ref() }
}

impl Desc {
    /// The address of the SuperSlab.
    pub(crate) fn base(&self) -> *mut u8 {
        // Acquire: pairs with the release in `fill`.
        self.base.load(Ordering::Acquire)
    }

    /// One that describes nothing.
    #[cfg(test)]
    pub(crate) fn stand_in() -> DescRef {
        // SAFETY: all zero is one that is not in use.
        std::boxed::Box::leak(std::boxed::Box::new(unsafe { core::mem::zeroed() }))
    }

    /// The next one with purgeable pages, which it has for a shorter time; under the lock.
    pub(super) fn next_dirty(&self) -> Option<DescRef> {
        of_member(self.dirt.next.get())
    }

    /// The next one with as many free pages; under the lock.
    pub(super) fn next_of_bucket(&self) -> Option<DescRef> {
        of_member(self.bucket.next.get())
    }

    /// Claims an unused descriptor.
    pub(super) fn claim(&self) -> bool {
        !self.taken.swap(true, Relaxed)
    }

    /// Describes a SuperSlab whose pages are free and clean. The caller has claimed the descriptor.
    pub(super) fn fill(&self, base: *mut u8, huge: bool) {
        self.huge.store(huge, Relaxed);
        self.unmapping.store(false, Relaxed);
        self.job.store(0, Relaxed);
        self.pages.set(Sets::ALL_FREE);
        // Release: pairs with the acquire in `base`.
        self.base.store(base, Ordering::Release);
    }

    /// Whether all of it is being given back.
    pub(super) fn is_hidden(&self) -> bool {
        self.job.load(Relaxed) == u32::MAX
    }

    /// Whether some of its pages are being given back.
    pub(crate) fn has_job(&self) -> bool {
        self.job.load(Relaxed) != 0
    }

    /// Hides the pages that can be given back, or all of a SuperSlab that is entirely free. Which ones, and which are dirty.
    pub(super) fn begin_job(&self) -> (u32, u32) {
        let mut hidden = 0;
        let hide = |sets: Sets| {
            hidden = if sets.free == u32::MAX { u32::MAX } else { sets.purgeable() };
            (hidden != 0).then_some(Sets { free: sets.free & !hidden, ..sets })
        };
        let Some((before, _)) = self.pages.change(hide) else { return (0, 0) };
        // First hidden, then written down: a fork in between loses them to the child.
        self.job_of.store(os::thread::id(), Relaxed);
        self.job.store(hidden, Ordering::Release);
        (hidden, before.dirty)
    }

    /// Says that the SuperSlab, all of which is hidden, is about to be unmapped: in the child of a fork nobody knows then
    /// whether it is there.
    pub(crate) fn begin_unmapping(&self) {
        self.unmapping.store(true, Ordering::Release);
    }

    /// Puts the pages back that [`Desc::begin_job`] has hidden; of these the ones in `clean` are not dirty any more. All pages
    /// then.
    pub(super) fn end_job(&self, clean: u32) -> Sets {
        let hidden = self.job.load(Relaxed);
        // The other way round than at the beginning.
        self.unmapping.store(false, Relaxed);
        self.job.store(0, Ordering::Release);
        self.give(hidden, |dirty| dirty & !clean)
    }

    /// Makes pages free; `dirty` says which ones are dirty then, of those that were. All pages then.
    pub(super) fn give(&self, pages: u32, dirty: impl Fn(u32) -> u32) -> Sets {
        let give = |sets: Sets| Some(Sets { free: sets.free | pages, dirty: dirty(sets.dirty) });
        self.pages.change(give).map_or(Sets { free: 0, dirty: 0 }, |(_, after)| after)
    }

    /// The SuperSlab is gone.
    pub(super) fn clear(&self) {
        self.base.store(ptr::null_mut(), Relaxed);
        self.job.store(0, Relaxed);
        self.taken.store(false, Ordering::Release);
    }
}

/// Adds memory for descriptors, [`CHUNK`] bytes, all zero.
pub(super) fn supply(memory: *mut u8) {
    let chunk = memory.cast::<Chunk>();
    let mut last = CHUNKS.load(Relaxed);
    loop {
        // SAFETY: ours until it is published.
        unsafe { (*chunk).before = last };
        // Release: pairs with the acquire in `chunks`.
        match CHUNKS.compare_exchange_weak(last, chunk, Ordering::Release, Relaxed) {
            Ok(_) => return,
            Err(now) => last = now,
        }
    }
}

/// Gives all chunks back to the system, when nobody uses a descriptor any more.
pub(super) fn unmap() {
    let mut chunk = CHUNKS.swap(ptr::null_mut(), Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: a chunk, of which nothing is of use but the link; then it is gone.
        unsafe {
            let before = (*chunk).before;
            os::unmap_uncounted(chunk.cast(), CHUNK);
            chunk = before;
        }
    }
}

/// All chunks, the last one first. Pointers, not references: these reach no further than the header.
fn chunks() -> impl Iterator<Item = *mut Chunk> {
    let some = |chunk: *mut Chunk| (!chunk.is_null()).then_some(chunk);
    // SAFETY: chunks are never unmapped; the link is constant once published.
    let before = move |chunk: &*mut Chunk| some(unsafe { (**chunk).before });
    // Acquire: pairs with the release in `supply`.
    core::iter::successors(some(CHUNKS.load(Ordering::Acquire)), before)
}

/// How many descriptors of a chunk have been in use.
fn used_of(chunk: *mut Chunk) -> &'static AtomicUsize {
    // SAFETY: one of `chunks`, which are never unmapped.
    unsafe { &(*chunk).used }
}

/// Bytes of descriptors: all of them are taken to be resident.
pub(super) fn bytes_of_descriptors() -> usize {
    chunks().count() * CHUNK
}

/// Descriptor `i` of a chunk.
fn desc_at(chunk: *mut Chunk, i: usize) -> DescRef {
    debug_assert!(i < FIT);
    // SAFETY: behind the chunk's header there are so many, zero or in use, for ever.
    unsafe { &*chunk.add(1).cast::<Desc>().add(i) }
}

/// Every descriptor that was ever in use.
pub(super) fn all_descs() -> impl Iterator<Item = DescRef> {
    chunks().flat_map(|chunk| {
        // Acquire: pairs with the release in `unused_desc`.
        let used = used_of(chunk).load(Ordering::Acquire).min(FIT);
        (0..used).map(move |i| desc_at(chunk, i))
    })
}

/// Every SuperSlab there is. Without the lock it may go at any time.
pub(super) fn descs() -> impl Iterator<Item = DescRef> {
    all_descs().filter(|desc| !desc.base().is_null())
}

/// A descriptor that was never in use.
pub(super) fn unused_desc() -> Option<DescRef> {
    loop {
        let chunk = chunks().next()?;
        // Release: pairs with the acquire in `all_descs`.
        let i = used_of(chunk).fetch_add(1, Ordering::Release);
        if i >= FIT {
            used_of(chunk).store(FIT, Relaxed);
            return None;
        }
        let desc = desc_at(chunk, i);
        if desc.claim() {
            return Some(desc);
        }
    }
}
