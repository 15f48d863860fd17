//! Descriptors: what the pool knows about each SuperSlab, in atomics.

use crate::base::list::{Linked, Links, List};
use crate::base::table::CellTable;
use crate::lockfree::slice_sets::{Sets, Slices};
use crate::os;
use crate::superslab::layout::SLICE;
use crate::sync::Ordering::{self, Relaxed};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, reads, wrote};
use core::cell::Cell;
use core::ptr;

/// Bytes of a chunk: memory for descriptors is mapped in such pieces.
pub(super) const CHUNK: usize = SLICE;
/// The newest chunk; each links to the one before. Unmapped only with the whole library ([`unmap`]).
static CHUNKS: AtomicPtr<Chunk> = AtomicPtr::new(ptr::null_mut());

/// Descriptors, all zero at first.
struct Chunk {
    /// The chunk before, or null. Constant once the chunk is in the list.
    before: *mut Chunk,
    /// How many descriptors have ever been in use. May exceed [`FIT`] for a moment, when somebody has looked
    /// in vain.
    used: AtomicUsize,
    descs: CellTable<Desc, FIT>,
}

/// How many descriptors fit in a chunk, besides its other fields.
const FIT: usize = (CHUNK - size_of::<(*mut Chunk, AtomicUsize)>()) / size_of::<Desc>();
const _: () = assert!(size_of::<Chunk>() <= CHUNK);

/// A SuperSlab as the pool sees it. All zero means not in use. Descriptors are reused, and unmapped only by
/// [`unmap`].
///
/// In the child of a fork every thread of the parent has stopped between two stores. So stores are ordered
/// such that slices that change hands belong to nobody in between: the child may lose them, but never has
/// them twice. Orderings that say "for the child of a fork" pair with no load in another thread: they keep
/// the compiler from moving stores.
pub(crate) struct Desc {
    /// Address of the SuperSlab; null where there is none.
    pub(super) base: AtomicPtr<u8>,
    /// Whether somebody uses this descriptor for a SuperSlab. Claimed by exchange.
    pub(super) taken: AtomicBool,
    /// Whether huge pages have been advised. Relaxed everywhere: it only guides advice and figures.
    pub(crate) huge: AtomicBool,
    /// It was made of memory that had been used for something else, so all of it may be resident, whatever is
    /// touched since. Relaxed everywhere, like `huge`.
    pub(crate) reused: AtomicBool,
    /// The SuperSlab is about to be unmapped as a whole, or has been.
    pub(super) unmapping: AtomicBool,
    /// How many there had been before it. Relaxed everywhere, like `huge`.
    pub(super) number: AtomicU32,
    /// The job: slices that are being given back to the system, and are not free meanwhile. Written by the
    /// thread that does it.
    pub(super) job: AtomicU32,
    /// The number of that thread.
    pub(super) job_of: AtomicUsize,
    /// Which slices are free, and which are dirty.
    pub(crate) slices: Slices,
    /// When the oldest of the free dirty slices became so, in milliseconds. This and what follows belongs to
    /// the index, and is used under the pool's lock.
    pub(crate) since: Cell<u32>,
    /// The number of the last purge of everything that has handled this SuperSlab.
    pub(crate) visited: Cell<u32>,
    /// Free slices, as indexed.
    pub(super) free_slices: Cell<u8>,
    /// Purgeable slices, as indexed.
    pub(super) purgeable_slices: Cell<u8>,
    /// Links of its bucket, or of the list of spare descriptors.
    bucket: Links<Desc>,
    /// Links of the list of SuperSlabs with purgeable slices.
    dirt: Links<Desc>,
}

/// The number of the next SuperSlab.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Desc {
    /// How many SuperSlabs are newer. May wrap around.
    pub(super) fn age(&self) -> u32 {
        NUMBER.load(Relaxed).wrapping_sub(self.number.load(Relaxed)).wrapping_sub(1)
    }
}

/// A reference to a descriptor. Valid for ever, since descriptors are unmapped only when nobody calls the
/// library any more.
pub(crate) type DescRef = &'static Desc;

// SAFETY: all fields are atomics or cells, and the cells are used under the pool's lock only.
unsafe impl Sync for Desc {}

/// The list of the SuperSlabs with the same number of free slices.
pub(super) struct Bucket;
/// The list of the SuperSlabs with purgeable slices.
pub(super) struct Dirt;

// SAFETY: always the same field, which no other list uses.
unsafe impl Linked<Bucket> for Desc {
    unsafe fn links<'a>(desc: *mut Self) -> &'a Links<Self> {
        // SAFETY: by the trait's contract the descriptor is valid, and the caller has the right to its links:
        // it holds the pool's lock.
        unsafe { &(*desc).bucket }
    }
}

// SAFETY: always the same field, which no other list uses.
unsafe impl Linked<Dirt> for Desc {
    unsafe fn links<'a>(desc: *mut Self) -> &'a Links<Self> {
        // SAFETY: by the trait's contract the descriptor is valid, and the caller has the right to its links:
        // it holds the pool's lock.
        unsafe { &(*desc).dirt }
    }
}

/// A descriptor as a list's member.
pub(super) fn as_member(desc: DescRef) -> *mut Desc {
    ptr::from_ref(desc).cast_mut()
}

/// A list's member, or null, as a descriptor.
pub(super) fn of_member(desc: *mut Desc) -> Option<DescRef> {
    // SAFETY: members come from `as_member`, so they are descriptors, which stay, and are changed only
    // through cells and atomics.
    unsafe { desc.as_ref() }
}

/// The members of a list, under the pool's lock. The next one is looked up before one is passed on, so that
/// one may be moved to another list meanwhile.
pub(super) fn members<Which>(list: &List<Desc, Which>) -> impl Iterator<Item = DescRef> + use<Which>
where
    Desc: Linked<Which>,
{
    // SAFETY: `desc` is a member, and the caller, who has the list, holds the pool's lock.
    let next = |desc: &DescRef| of_member(unsafe { List::<Desc, Which>::next(as_member(desc)) });
    core::iter::successors(of_member(list.first()), next)
}

/// Like [`members`], from the last one to the first one.
pub(super) fn members_from_last<Which>(list: &List<Desc, Which>) -> impl Iterator<Item = DescRef> + use<Which>
where
    Desc: Linked<Which>,
{
    // SAFETY: as in `members`.
    let previous = |desc: &DescRef| of_member(unsafe { List::<Desc, Which>::previous(as_member(desc)) });
    core::iter::successors(of_member(list.last()), previous)
}

impl Desc {
    /// The address of the SuperSlab; null if there is none.
    pub(crate) fn base(&self) -> *mut u8 {
        // Acquire: pairs with the release in `fill`.
        self.base.load(Ordering::Acquire)
    }

    /// A descriptor, in no list, of a SuperSlab at `base`.
    #[cfg(test)]
    pub(crate) fn stand_in(base: *mut u8) -> DescRef {
        // SAFETY: all fields are integers, null pointers and booleans that are false, for which zero is
        // valid.
        let desc: DescRef = std::boxed::Box::leak(std::boxed::Box::new(unsafe { core::mem::zeroed() }));
        desc.base.store(base, Relaxed);
        desc
    }

    /// As if so many were newer.
    #[cfg(test)]
    pub(super) fn set_age(&self, age: u32) {
        self.number.store(NUMBER.load(Relaxed).wrapping_sub(age).wrapping_sub(1), Relaxed);
    }

    /// Claims a descriptor. False if it is in use.
    pub(super) fn claim(&self) -> bool {
        // Acquire: pairs with the release in `clear`.
        !self.taken.swap(true, Ordering::Acquire)
    }

    /// Describes a SuperSlab whose slices are free, and clean unless its memory is `reused`. The caller has
    /// claimed the descriptor.
    ///
    /// The address is stored before the slices: a thread that takes slices without the lock may have found
    /// the descriptor when it was another SuperSlab's.
    pub(super) fn fill(&self, base: *mut u8, huge: bool, reused: bool) {
        self.huge.store(huge, Relaxed);
        self.reused.store(reused, Relaxed);
        self.number.store(NUMBER.fetch_add(1, Relaxed), Relaxed);
        self.unmapping.store(false, Relaxed);
        self.job.store(0, Relaxed);
        // Release: pairs with the acquire in `base`.
        self.base.store(base, Ordering::Release);
        self.slices.set(if reused { Sets::ALL_DIRTY } else { Sets::ALL_FREE });
    }

    /// Whether the whole SuperSlab is being given back. Jobs begin under the pool's lock, and those who ask
    /// hold it, too; but a job may end without it.
    pub(super) fn is_hidden(&self) -> bool {
        // Acquire: pairs with the release in `clear`.
        self.job.load(Ordering::Acquire) == u32::MAX
    }

    /// Whether some of its slices are being given back. Relaxed: a job that ends without the lock makes the
    /// index stale.
    pub(crate) fn has_job(&self) -> bool {
        self.job.load(Relaxed) != 0
    }

    /// Whether they are being given back by another thread than `this`.
    pub(super) fn has_job_of_another(&self, this: usize) -> bool {
        self.has_job() && self.job_of.load(Relaxed) != this
    }

    /// Begins a job: hides the slices that can be given back, or all if the SuperSlab is entirely free.
    /// Returns these slices, and all slices that are dirty.
    pub(super) fn begin_job(&self) -> (u32, u32) {
        let mut hidden = 0;
        let hide = |sets: Sets| {
            hidden = if sets.free == u32::MAX { u32::MAX } else { sets.purgeable() };
            (hidden != 0).then_some(Sets { free: sets.free & !hidden, ..sets })
        };
        let Some((before, _)) = self.slices.change(hide) else { return (0, 0) };
        // First hidden, then recorded: after a fork in between, the child has lost the slices. Release: for
        // the child of a fork, which must not find the job without its thread.
        self.job_of.store(os::thread::id(), Relaxed);
        self.job.store(hidden, Ordering::Release);
        (hidden, before.dirty)
    }

    /// Ends a job: puts back the slices that [`Desc::begin_job`] has hidden. Those in `clean` are not dirty
    /// any more. Returns the state of all slices after that.
    pub(super) fn end_job(&self, clean: u32) -> Sets {
        let hidden = self.job.load(Relaxed);
        // In the reverse order of the beginning. Release: for the child of a fork.
        self.unmapping.store(false, Relaxed);
        self.job.store(0, Ordering::Release);
        let after = self.give(hidden, |dirty| dirty & !clean);
        if after.dirty == 0 {
            self.reused.store(false, Relaxed);
        }
        after
    }

    /// Makes slices free. `dirty` maps the slices that were dirty to those that are dirty then. Returns the
    /// state of all slices after that.
    pub(super) fn give(&self, slices: u32, dirty: impl Fn(u32) -> u32) -> Sets {
        let give = |sets: Sets| Some(Sets { free: sets.free | slices, dirty: dirty(sets.dirty) });
        self.slices.change(give).map_or(Sets { free: 0, dirty: 0 }, |(_, after)| after)
    }

    /// Makes all slices of a SuperSlab that ceases to be in a huge page dirty: that made them resident, used
    /// or not. Returns those that can be purged only now.
    pub(super) fn soil(&self) -> u32 {
        let soiled = self.slices.change(|sets| Some(Sets { dirty: u32::MAX, ..sets }));
        soiled.map_or(0, |(before, after)| after.purgeable() & !before.purgeable())
    }

    /// Makes the descriptor unused: the SuperSlab is gone.
    pub(super) fn clear(&self) {
        self.base.store(ptr::null_mut(), Relaxed);
        // Release: pairs with the acquire in `is_hidden`: whoever finds it not hidden finds no address
        // either.
        self.job.store(0, Ordering::Release);
        // Release: pairs with the acquire in `claim`.
        self.taken.store(false, Ordering::Release);
    }
}

/// Adds memory for descriptors: a new mapping of [`CHUNK`] bytes, all zero, that is the caller's.
pub(super) fn supply(memory: *mut u8) {
    let chunk = memory.cast::<Chunk>();
    // Release: pairs with the acquire in `chunks`.
    let _ = CHUNKS.fetch_update(Ordering::Release, Relaxed, |before| {
        // SAFETY: the memory is large enough, and nobody else knows it until the exchange succeeds.
        unsafe { (*chunk).before = before };
        wrote(chunk);
        Some(chunk)
    });
}

/// Gives all chunks back to the system, when nobody uses a descriptor any more.
pub(super) fn unmap() {
    let mut chunk = CHUNKS.swap(ptr::null_mut(), Ordering::Acquire);
    while !chunk.is_null() {
        // SAFETY: a chunk that is still mapped. Its link is constant.
        let before = unsafe { (*chunk).before };
        // SAFETY: mapped with this length; by the caller's word nobody uses its descriptors any more.
        unsafe { os::discard_uncounted(chunk.cast(), CHUNK) };
        chunk = before;
    }
}

/// All chunks, the newest first.
fn chunks() -> impl Iterator<Item = &'static Chunk> {
    // SAFETY: null or a chunk, which stays while the library is in use. Its link is constant, and the rest is
    // atomics, and cells that are used under the pool's lock.
    let of = |chunk: *mut Chunk| unsafe { chunk.as_ref() };
    // Acquire: pairs with the release in `supply`.
    core::iter::successors(of(CHUNKS.load(Ordering::Acquire)), move |chunk| {
        reads(ptr::from_ref(*chunk));
        of(chunk.before)
    })
}

/// Bytes of all chunks, which count as resident.
pub(super) fn bytes_of_descriptors() -> usize {
    chunks().count() * CHUNK
}

/// All descriptors that were ever in use.
pub(super) fn all_descs() -> impl Iterator<Item = DescRef> {
    // Relaxed: descriptors lie in the chunk, and one without an address is passed over.
    chunks().flat_map(|chunk| chunk.descs.iter().take(chunk.used.load(Relaxed)))
}

/// The descriptors of all SuperSlabs. Without the pool's lock a SuperSlab may be unmapped at any time.
pub(super) fn descs() -> impl Iterator<Item = DescRef> {
    all_descs().filter(|desc| !desc.base().is_null())
}

/// Claims a descriptor that was never in use. `None` if the newest chunk has none.
pub(super) fn unused_desc() -> Option<DescRef> {
    loop {
        let chunk = chunks().next()?;
        // Relaxed: nothing has been written to the descriptor yet.
        let i = chunk.used.fetch_add(1, Relaxed);
        let Some(desc) = chunk.descs.get(i) else {
            chunk.used.store(FIT, Relaxed);
            return None;
        };
        if desc.claim() {
            return Some(desc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_a_huge_page_is_dirty() {
        let desc = Desc::stand_in(ptr::null_mut());
        desc.slices.set(Sets { free: 0b1100, dirty: 0b0101 });
        assert_eq!(desc.soil(), 0b1000, "free, and clean until now");
        assert_eq!(desc.slices.get(), Sets { free: 0b1100, dirty: u32::MAX });
        assert_eq!(desc.soil(), 0);
    }

    #[test]
    fn a_descriptor_is_claimed_once() {
        let desc = Desc::stand_in(ptr::null_mut());
        assert!(desc.claim());
        assert!(!desc.claim());
        desc.clear();
        assert!(desc.claim());
    }

    #[test]
    fn a_job_is_its_threads_until_it_ends() {
        let desc = Desc::stand_in(ptr::null_mut());
        let (this, another) = (os::thread::id(), os::thread::id() + 1);
        desc.slices.set(Sets { free: 0b1100, dirty: 0b0101 });
        assert!(!desc.has_job() && !desc.has_job_of_another(another));
        assert_eq!(desc.begin_job(), (0b0100, 0b0101));
        assert!(desc.has_job() && !desc.is_hidden());
        assert!(desc.has_job_of_another(another) && !desc.has_job_of_another(this));
        assert_eq!(desc.end_job(0b0100), Sets { free: 0b1100, dirty: 0b0001 });
        assert!(!desc.has_job() && !desc.has_job_of_another(another));
        // What was to be unmapped may go on in use, and the next job be another one.
        desc.slices.set(Sets { free: 0b1100, dirty: 0b0101 });
        desc.unmapping.store(true, Relaxed);
        assert_eq!(desc.begin_job(), (0b0100, 0b0101));
        desc.end_job(0);
        assert!(!desc.unmapping.load(Relaxed));
        desc.slices.set(Sets { free: u32::MAX, dirty: 0 });
        assert_eq!(desc.begin_job(), (u32::MAX, 0));
        assert!(desc.is_hidden());
    }

    #[test]
    fn what_is_free_stays_free() {
        let desc = Desc::stand_in(ptr::null_mut());
        desc.slices.set(Sets { free: 0b1100, dirty: 0b0101 });
        let expected = Sets { free: 0b1110, dirty: 0b0001 };
        assert_eq!(desc.give(0b0110, |dirty| dirty & !0b0110), expected);
        assert_eq!(desc.slices.get(), expected);
    }
}
