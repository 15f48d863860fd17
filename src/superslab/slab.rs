//! The record of one slab.

use crate::base::list::{Linked, Links};
use crate::lockfree::remote_stack::RemoteStack;
use crate::superslab::desc::{Desc, DescRef};
use crate::superslab::layout::{HEADER, SLICE_SHIFT, SUPERSLAB};
use crate::sync::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Node, Ordering, compiler_fence, wrote,
};
use core::ptr;

mod bump;
mod counts;
pub(super) mod glimpse;

pub(crate) use crate::superslab::block::{Allocation, Block};

/// The owner of slabs.
pub(crate) type Owner = crate::superslab::owner::Owner<Slab>;

/// A flag in [`Slab::used`]: the slab is in the list of full ones. It is the sign bit, so the count read as a
/// signed number is negative.
pub(crate) const FULL: u32 = 1 << 31;

/// A mark on a slab's `owner`: that was the last one, which has given the slab up, or exited.
pub(crate) const LEFT: usize = 1;
/// A mark on a slab's `owner`: a visitor is working on the slab, and its owner must not take it for its own.
pub(crate) const VISITED: usize = 2;

/// Which of its owner's lists a slab is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Listed {
    /// In no list: it is being made or released, or is an orphan.
    None,
    /// In no list: the slab that its class allocates from.
    Current,
    /// Has free blocks.
    Partial,
    /// Had no free block when it was last looked at.
    Full,
    /// Has hardly a block in use.
    Sparse,
    /// What was idle in it has been given back: it has hardly a block in use, or that was asked for.
    Purged,
}

/// The record of a slab: one cache line that only the owner writes, and one that other threads read and push
/// to.
///
/// Invariant: every block of the slab is on `free`, between `bump` and `end`, among the `counted` blocks of
/// `remote`, in `purged` memory, or counted in `used`. Blocks in magazines and outboxes count as used, and so
/// do those on `remote` that the owner has not seen yet.
///
/// *Owner* means here whoever alone may act as the owner: the thread whose heap the slab belongs to; a
/// visitor in that heap, which has marked the slab as [`VISITED`], if it is neither current nor named by the
/// owner; or the thread that has just claimed or adopted the slab. Statistics, and threads that free a
/// block, access the record at any time. Fields that they read are atomics, or are written through atomics,
/// or are constant while the slab has blocks in use. So nobody makes a reference to the whole record.
#[repr(C, align(128))]
pub(crate) struct Slab {
    /// Free blocks, most recently freed first. Owner only; a visitor may look at it, so
    /// [`Bins::push_free`](crate::tiny::bins::Bins::push_free) writes it atomically.
    pub(crate) free: *mut Block,
    /// Memory from here to `end` has never been handed out, or not since it was purged. Owner only; written
    /// by [`Slab::set_bump`] and [`Slab::set_revived`], read by statistics.
    pub(crate) bump: *mut u8,
    /// See `bump`; the end of a block. Owner only; written by [`Slab::set_revived`], read by statistics.
    pub(crate) end: *mut u8,
    /// Blocks that are neither on `free` nor above `bump`, and the flag [`FULL`]. Written by the owner, read
    /// by statistics.
    pub(crate) used: AtomicU32,
    /// The slab has to change its list when `used` is at or below this, both read as signed: see
    /// [`Slab::enlist`]. Of a slab in no list: see [`Slab::not_due`]. Owner only.
    pub(crate) low: i32,
    /// Blocks waiting on `remote` that `used` does not count any more. Written by the owner, read by
    /// statistics.
    pub(crate) counted: AtomicU32,
    /// The list that `links` belong to. Owner only.
    pub(crate) list: Listed,
    /// What is known of the memory above `bump`: [`ZERO`], [`CUT`], [`FREED_FIRST`], [`BY_PAGE`]; and
    /// [`SHARED`]. Owner only.
    pub(crate) rest: u8,
    /// Whether [`thp::filled`](super::thp::filled) has been told of the slab: every block has been handed out
    /// once. Owner only.
    pub(crate) filled: bool,
    /// Whether memory that had been purged has been handed out again, so that `bump` does not tell what is
    /// dirty. Owner only; written by [`Slab::set_revived`], read by statistics.
    pub(crate) revived: bool,
    /// Links of the owner's lists, or of the orphans'. Owner only, or under the orphans' lock.
    pub(crate) links: Links<Slab>,
    /// The granules of the span that have been given back ([`granules`](super::granules)): no block in them
    /// is in use or on `free`. Written by the owner. Other threads read it for the granules of a block in
    /// use, whose bits do not change.
    pub(crate) purged: AtomicU64,

    /// Blocks freed by other threads. Any thread.
    pub(crate) remote: RemoteStack<Block>,
    /// The owner, marked with [`LEFT`] when it has given the slab up, and with [`VISITED`] during a visit.
    /// Any thread compares it with its own, or counts idle slices there ([`Owner::count_emptied`]). Only a
    /// thread with the duty to publish follows it to the ready list.
    pub(crate) owner: AtomicPtr<Owner>,
    /// The first block. Constant while the slab has blocks in use, as is everything below unless it says
    /// otherwise.
    pub(crate) start: *mut u8,
    /// `ceil(2^64 / stride)`, or 0 while a part is purged, so that frees take the slow path and check the
    /// block more closely. Written by the owner.
    pub(crate) inverse: AtomicU64,
    /// Bytes from block to block.
    pub(crate) stride: u32,
    /// The offset of the last block from the first, in bytes.
    pub(crate) last: u32,
    /// Link of the ready list. Belongs to the thread with the duty to publish, then to the owner.
    ready_next: AtomicPtr<Slab>,
    /// The SuperSlab's descriptor.
    desc: *const Desc,
    /// Size class, or [`super::pagemap::RUN`].
    pub(crate) class: u8,
    /// Slices from the span's first slice to this record's slice. Valid in every record of a slab's span.
    pub(crate) lead: u8,
    /// Slices of the span. For a run, changed when it is resized.
    pub(crate) slices: u8,
    /// Whether what lies above `bump` has been given back, but for the rest of its granule. Owner only.
    pub(crate) fresh_purged: bool,
    /// When a part was last purged, in milliseconds, if one is; earlier if that was asked for. Owner only.
    pub(crate) purged_at: u32,
}

/// In [`Slab::rest`]: it is zero.
pub(crate) const ZERO: u8 = 1;
/// In [`Slab::rest`], of a current slab: blocks are cut from it many at a time, and the magazine gets all but
/// one, since the thread has used up a whole slab of the class and freed hardly a block.
pub(crate) const CUT: u8 = 2;

/// In [`Slab::rest`]: what other threads have freed is used again before untouched memory is. So with
/// [long](LONG) blocks, and where there are many threads.
pub(crate) const FREED_FIRST: u8 = 4;
/// In [`Slab::rest`], with [`FREED_FIRST`]: only before an untouched page is.
pub(crate) const BY_PAGE: u8 = 8;
/// In [`Slab::rest`]: no thread keeps the slab, unless it is [`KEPT`]: see `tiny::shared`.
pub(crate) const SHARED: u8 = 16;
/// In [`Slab::rest`], with [`SHARED`]: the owner keeps it all the same.
pub(crate) const KEPT: u8 = 32;
/// Blocks of more bytes are long: what each thread of many withholds of them, or leaves untouched, counts,
/// and a program does more with one than to allocate it.
pub(crate) const LONG: u32 = 4 << 10;

/// The current slab of a class that has none: nothing can be taken from it, and nothing is written to it.
pub(crate) static NO_SLAB: Slab = Slab {
    free: ptr::null_mut(),
    bump: ptr::null_mut(),
    end: ptr::null_mut(),
    used: AtomicU32::new(0),
    low: 0,
    counted: AtomicU32::new(0),
    list: Listed::None,
    rest: 0,
    filled: false,
    revived: false,
    links: Links::new(),
    purged: AtomicU64::new(0),
    remote: RemoteStack::constant(),
    owner: AtomicPtr::new(ptr::null_mut()),
    start: ptr::null_mut(),
    inverse: AtomicU64::new(0),
    stride: 0,
    last: 0,
    ready_next: AtomicPtr::new(ptr::null_mut()),
    desc: ptr::null(),
    class: 0,
    lead: 0,
    slices: 0,
    fresh_purged: false,
    purged_at: 0,
};

// SAFETY: each field says which thread may access it, and how. Threads reach the fields through raw pointers;
// the only `Slab` that is shared by reference is `NO_SLAB`, which is never written to.
unsafe impl Sync for Slab {}

const _: () = assert!(size_of::<Slab>() == 128 && size_of::<Slab>() * 32 == HEADER);
const _: () = assert!(core::mem::offset_of!(Slab, remote) == 64);

// SAFETY: always the same field, which is used by the owner's lists, or by the orphans', but never by both at
// a time.
unsafe impl Linked for Slab {
    #[inline]
    unsafe fn links<'a>(slab: *mut Self) -> &'a Links<Self> {
        // SAFETY: by the trait's contract the record is valid. The reference is to cells that only the caller
        // uses.
        unsafe { &(*slab).links }
    }
}

// SAFETY: `ready_next` is used for nothing but the link.
unsafe impl Node for Slab {
    // Relaxed, here and below: `ReadyList` orders the accesses by its head.
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: by the trait's contract the record is valid; the field is atomic.
        unsafe { (*node).ready_next.load(Ordering::Relaxed) }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: by the trait's contract the record is valid; the field is atomic.
        unsafe { (*node).ready_next.store(next, Ordering::Relaxed) }
    }
}

impl Slab {
    /// The address of the record of slice `index` of the SuperSlab at `base`.
    pub(crate) fn at(base: *mut u8, index: usize) -> *mut Slab {
        base.cast::<Slab>().wrapping_add(index)
    }

    /// The record of the span that holds `address`.
    ///
    /// # Safety
    ///
    /// The page map says that the slice of `address` belongs to a slab, or is the first one of a run; and the
    /// span is in use, or its SuperSlab at least stays mapped.
    #[inline(always)]
    pub(crate) unsafe fn of(address: *mut u8) -> *mut Slab {
        let offset = address.addr() & (SUPERSLAB - 1);
        let record = Slab::at(address.wrapping_sub(offset), offset >> SLICE_SHIFT);
        // SAFETY: the header of a mapped SuperSlab has a record for each slice, and `lead` is constant while
        // the span is in use.
        record.wrapping_sub(unsafe { (*record).lead } as usize)
    }

    /// Whether `address` is the start of a block. Always false while a part of the slab is purged: then
    /// `partial_purge::block_at` gives the answer.
    ///
    /// # Safety
    ///
    /// `slab` is the record of a live slab with at least one block in use.
    #[inline(always)]
    pub(crate) unsafe fn is_block(slab: *mut Slab, address: *mut u8) -> bool {
        // Relaxed: whether a part is purged does not matter for a block in use; either answer leads to the
        // right check.
        // SAFETY: the block in use keeps the slab, so `start` and `last` are constant; `inverse` is atomic.
        let (start, inverse, last) =
            unsafe { ((*slab).start, (*slab).inverse.load(Ordering::Relaxed), (*slab).last) };
        let offset = address.addr().wrapping_sub(start.addr()) as u64;
        // The product is the fractional part of offset / stride in units of 2^-64, too large by less than
        // `offset`. For a multiple of the stride it is below `inverse`, for anything else at least that
        // (offset and stride have less than 32 bits). An address below the first block wraps around to a huge
        // offset.
        offset <= last as u64 && offset.wrapping_mul(inverse) < inverse
    }

    /// Sets up the records of a new span of `slices` slices from slice `index` on. The rest of the record
    /// keeps what an earlier span left, until [`Slab::make`] sets it.
    ///
    /// # Safety
    ///
    /// `desc` is the descriptor of a mapped SuperSlab, and the caller has just taken these slices from the
    /// pool, so that the span is its alone.
    pub(crate) unsafe fn claim(desc: DescRef, index: usize, slices: usize, class: u8) -> *mut Slab {
        let first = Slab::at(desc.base(), index);
        // SAFETY: the records of our slices. Statistics may read them meanwhile: so what `Glimpse` reads is
        // stored atomically.
        unsafe {
            for i in 0..slices {
                AtomicU8::from_ptr(&raw mut (*first.wrapping_add(i)).lead).store(i as u8, Ordering::Relaxed);
            }
            AtomicU8::from_ptr(&raw mut (*first).class).store(class, Ordering::Relaxed);
            AtomicU8::from_ptr(&raw mut (*first).slices).store(slices as u8, Ordering::Relaxed);
            wrote(first);
            wrote(&raw const (*first).start);
            (*first).desc = desc;
            (*first).used.store(0, Ordering::Relaxed);
            (*first).counted.store(0, Ordering::Relaxed);
            (*first).remote.reset();
            (*first).owner.store(ptr::null_mut(), Ordering::Relaxed);
        }
        first
    }

    /// Makes a claimed span a slab without blocks in use.
    ///
    /// # Safety
    ///
    /// [`Slab::claim`] has returned `slab`, and nobody else knows the span yet. `owner` is the calling
    /// thread's.
    pub(crate) unsafe fn make(slab: *mut Slab, stride: u32, zero: bool, owner: *mut Owner) {
        let header = if Slab::index(slab) == 0 { HEADER } else { 0 };
        let start = Slab::address(slab).wrapping_add(header);
        // SAFETY: the record of our span. Statistics may read it meanwhile: so what `Glimpse` reads is stored
        // atomically, and there is no reference to the whole record.
        unsafe {
            let bytes = (((*slab).slices as usize) << SLICE_SHIFT) - header;
            let bytes = bytes - bytes % stride.max(1) as usize;
            let end = start.wrapping_add(bytes);
            (*slab).free = ptr::null_mut();
            AtomicPtr::from_ptr(&raw mut (*slab).start).store(start, Ordering::Relaxed);
            AtomicPtr::from_ptr(&raw mut (*slab).bump).store(start, Ordering::Relaxed);
            AtomicPtr::from_ptr(&raw mut (*slab).end).store(end, Ordering::Relaxed);
            AtomicU32::from_ptr(&raw mut (*slab).last).store(bytes as u32 - stride, Ordering::Relaxed);
            AtomicU32::from_ptr(&raw mut (*slab).stride).store(stride, Ordering::Relaxed);
            AtomicBool::from_ptr(&raw mut (*slab).revived).store(false, Ordering::Relaxed);
            (*slab).list = Listed::None;
            (*slab).low = 0;
            (*slab).rest = if zero { ZERO } else { 0 } | if stride > LONG { FREED_FIRST } else { 0 };
            (*slab).filled = false;
            (*slab).fresh_purged = false;
            (*slab).purged.store(0, Ordering::Relaxed);
            (*slab).links = Links::new();
            (*slab).inverse.store(Slab::inverse_of(stride), Ordering::Relaxed);
            // Release: pairs with the acquire in `survey::look`, which passes over a slab without an owner,
            // and with those in `free::is_owned_by` and `free::push_remote`.
            // What only the owner uses, and what is constant: for the models.
            wrote(slab);
            wrote(&raw const (*slab).start);
            (*slab).owner.store(owner, Ordering::Release);
        }
    }

    /// Makes purged memory, from `bump` to `end`, memory to hand out.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner. No block is left between the present `bump` and `end`. The new range
    /// consists of whole blocks that belong to nobody.
    pub(crate) unsafe fn set_revived(slab: *mut Slab, bump: *mut u8, end: *mut u8) {
        // SAFETY: only the owner writes these fields; atomic and relaxed as in `set_bump`.
        unsafe {
            AtomicBool::from_ptr(&raw mut (*slab).revived).store(true, Ordering::Relaxed);
            // The child of a fork between the two stores relies on neither of them: see `release::disown`.
            compiler_fence(Ordering::Release);
            Slab::set_bump(slab, bump);
            AtomicPtr::from_ptr(&raw mut (*slab).end).store(end, Ordering::Relaxed);
            compiler_fence(Ordering::Release);
        }
    }

    /// The value of `inverse` while nothing is purged.
    pub(crate) fn inverse_of(stride: u32) -> u64 {
        u64::MAX / stride.max(1) as u64 + 1
    }

    /// Puts the slab on its owner's ready list.
    ///
    /// # Safety
    ///
    /// A push by the caller has answered [`Pushed::Publish`](crate::lockfree::remote_stack::Pushed::Publish),
    /// and this is the only call for it.
    pub(crate) unsafe fn publish(slab: *mut Slab) {
        // Relaxed: that push has acquired the owner from the release in `RemoteStack::arm` or `rearm`; that
        // of a slab which was never published came with the block, by the program's own synchronisation.
        // SAFETY: nobody releases a disarmed slab before it is published, and owners are never unmapped. The
        // duty to publish makes the slab's ready link ours.
        unsafe {
            let owner = (*slab).owner.load(Ordering::Relaxed).map_addr(|a| a & !(LEFT | VISITED));
            (*owner).ready.push(slab);
        }
    }

    /// The SuperSlab's descriptor.
    ///
    /// # Safety
    ///
    /// `slab` is the first record of a span in use, which stays so meanwhile.
    pub(crate) unsafe fn desc(slab: *mut Slab) -> DescRef {
        // SAFETY: `claim` has written the field, and descriptors are never unmapped while there are
        // SuperSlabs.
        unsafe { &*(*slab).desc }
    }

    /// The address of the SuperSlab.
    pub(crate) fn base(slab: *mut Slab) -> *mut u8 {
        slab.cast::<u8>().wrapping_sub(slab.addr() & (SUPERSLAB - 1))
    }

    /// The address of the first slice of the span.
    pub(crate) fn address(slab: *mut Slab) -> *mut u8 {
        Slab::base(slab).wrapping_add(Slab::index(slab) << SLICE_SHIFT)
    }

    /// The slice of the SuperSlab at which the span begins.
    pub(crate) fn index(slab: *mut Slab) -> usize {
        (slab.addr() & (SUPERSLAB - 1)) / size_of::<Slab>()
    }
}
