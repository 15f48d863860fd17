//! The record of one slab.

use crate::base::list::{Linked, Links};
use crate::lockfree::ready_list::ReadyList;
use crate::lockfree::remote_stack::RemoteStack;
use crate::superslab::decay::Patience;
use crate::superslab::desc::{Desc, DescRef};
use crate::superslab::layout::{HEADER, PAGE_SHIFT, SUPERSLAB};
use crate::sync::Node;
use core::ptr;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
};

/// What an allocation gives: a block, and whether it is known to be zero.
pub(crate) struct Allocation {
    /// The block; null when there is no memory.
    pub(crate) ptr: *mut u8,
    /// Whether every byte of it is known to be zero.
    pub(crate) zeroed: bool,
}

impl Allocation {
    /// No block: there is no memory.
    pub(crate) const NONE: Allocation = Allocation { ptr: ptr::null_mut(), zeroed: false };
}

/// A free block: its first word links it. Blocks of 16 bytes and more carry a mark in the second word while they are
/// on a slab's list or on the way there, by which a second `free` is told.
#[repr(C)]
pub(crate) struct Block {
    next: *mut Block,
    mark: usize,
}

// SAFETY: the link is the first word of a free block, which is nobody else's.
unsafe impl Node for Block {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: passed on.
        unsafe { (*node).next }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: passed on.
        unsafe { (*node).next = next }
    }
}

impl Block {
    /// Where the link is.
    ///
    /// # Safety
    /// `block` is a free block.
    pub(crate) unsafe fn link(block: *mut Self) -> *mut *mut Self {
        // SAFETY: passed on.
        unsafe { &raw mut (*block).next }
    }
    /// Whether the block carries the mark of a free block.
    ///
    /// # Safety
    /// `block` is a block of a slab of ours with at least 16 bytes.
    #[inline(always)]
    pub(crate) unsafe fn is_marked(block: *mut Self, secret: usize) -> bool {
        // SAFETY: passed on. The memory was handed out or marked, so it is initialised as far as we care.
        unsafe { (&raw const (*block).mark).read() == block.addr() ^ secret }
    }
    /// Marks or unmarks the block.
    ///
    /// # Safety
    /// `block` is a free block with at least 16 bytes and the caller's alone.
    #[inline(always)]
    pub(crate) unsafe fn set_mark(block: *mut Self, secret: usize, free: bool) {
        // SAFETY: passed on.
        unsafe { (*block).mark = if free { block.addr() ^ secret } else { 0 } }
    }
}

/// In a slab's count of used blocks: the slab is in the list of full ones. The sign, read as a signed number.
pub(crate) const FULL: u32 = 1 << 31;

/// Mark on the owner of a slab that the owner has left.
pub(crate) const LEFT: usize = 1;
/// Mark on the owner of a slab that a visitor is working on: its owner finds that it is not its own.
pub(crate) const VISITED: usize = 2;

/// Who owns slabs: a thread's heap, as far as this layer knows it. Never unmapped.
pub(crate) struct Owner {
    /// Slabs that other threads have pushed something to.
    pub(crate) ready: ReadyList<Slab>,
    /// Pages of slabs that others have emptied since the owner last took in what was published.
    pub(crate) idle: AtomicUsize,
    /// When somebody took that in instead, in milliseconds and not 0, until the owner is back.
    pub(crate) visited: AtomicU32,
    /// With owners that were back soon others wait longer before they visit.
    patience: Patience,
}

/// Pages of slabs that others have emptied, from which on an owner who does not come for them is visited: 8 MiB.
const VISIT_FROM: usize = 128;
/// An owner that is back within so many milliseconds would have taken in all that itself.
const SOON: u32 = 1000;

impl Owner {
    /// Somebody who has nothing.
    pub(crate) const fn new() -> Self {
        Self {
            ready: ReadyList::new(),
            idle: AtomicUsize::new(0),
            visited: AtomicU32::new(0),
            patience: Patience::none(),
        }
    }

    /// Forgets what was before: for the next thread.
    pub(crate) fn reset(&self) {
        self.idle.store(0, Ordering::Relaxed);
        self.visited.store(0, Ordering::Relaxed);
        self.patience.forget();
    }

    /// Counts pages that others have emptied; whether the owner should be visited.
    pub(crate) fn leave_idle(&self, pages: usize) -> bool {
        // Relaxed, here and below: figures.
        let idle = self.idle.fetch_add(pages, Ordering::Relaxed) + pages;
        let much = idle >= self.patience.stretch(VISIT_FROM);
        if much {
            self.idle.store(0, Ordering::Relaxed);
        }
        much
    }

    /// It should be visited, and nobody does now: whoever leaves something next is told so, too.
    pub(crate) fn is_still_idle(&self) {
        self.idle.fetch_add(Patience::longest(VISIT_FROM), Ordering::Relaxed);
    }

    /// Somebody has taken in what waited.
    pub(crate) fn was_visited(&self, now: u32) {
        self.visited.store(now.max(1), Ordering::Relaxed);
    }

    /// The owner takes in what waits.
    pub(crate) fn is_back(&self, now: impl FnOnce() -> u32) {
        self.idle.store(0, Ordering::Relaxed);
        let visited = self.visited.load(Ordering::Relaxed);
        if visited != 0 {
            self.visited.store(0, Ordering::Relaxed);
            self.patience.learn(now().wrapping_sub(visited) < SOON);
        }
    }
}

/// Which of its owner's lists a slab is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Listed {
    /// None; it is being made or released, or it is an orphan's.
    None,
    /// The slab its class allocates from.
    Current,
    /// Has free blocks.
    Partial,
    /// Had none when it was last looked at.
    Full,
    /// Has hardly a block in use.
    Sparse,
    /// The same, and what lies idle in it has been given back.
    Purged,
}

/// The record of a slab: a line that only the owner writes, and a line that other threads read and push to.
///
/// Invariant: every block of the slab is on `free`, between `bump` and `end`, among the `counted` ones of `remote`, in
/// `purged` memory, or counted in `used`; blocks in magazines and outboxes count as used, and so do those of `remote` that
/// the owner has not seen yet.
#[repr(C, align(128))]
pub(crate) struct Slab {
    /// Free blocks, most recently freed first. Owner only.
    pub(crate) free: *mut Block,
    /// Memory from here to `end` has never been handed out, or not since it was purged. Owner only; written by
    /// [`Slab::set_bump`] and [`Slab::set_revived`], read by statistics.
    pub(crate) bump: *mut u8,
    /// See `bump`: the end of a block. Owner only.
    pub(crate) end: *mut u8,
    /// Blocks that are neither on `free` nor above `bump`, and [`FULL`]. Written by the owner, read by statistics.
    pub(crate) used: AtomicU32,
    /// A count at or below this one, both read as signed, makes the slab change its list: see [`Slab::enlist`].
    pub(crate) low: i32,
    /// Blocks waiting on `remote` that `used` does not count any more. Written by the owner, read by statistics.
    pub(crate) counted: AtomicU32,
    /// The list that `next` and `prev` belong to. Owner only.
    pub(crate) list: Listed,
    /// Whether memory above `bump` is known to be zero. Owner only.
    pub(crate) zero: bool,
    /// Whether the pool knows that every block has been handed out once. Owner only.
    pub(crate) filled: bool,
    /// Whether memory that had been purged has been handed out again, so that `bump` does not say what is dirty. As `bump`.
    pub(crate) revived: bool,
    /// In the owner's lists, or in the orphans'. Owner only, or under the orphans' lock.
    pub(crate) links: Links<Slab>,
    /// The granules of the span that have been given back ([`granules`](super::granules)): no block in them is in use or on `free`.
    /// Written by the owner, read by others of a block that is in none of them.
    pub(crate) purged: AtomicU64,

    /// Blocks freed by other threads. Any thread.
    pub(crate) remote: RemoteStack<Block>,
    /// The owner, marked with [`LEFT`] when it has gone. Compared by any thread with itself; followed only by a thread
    /// with the duty to publish.
    pub(crate) owner: AtomicPtr<Owner>,
    /// The first block. Constant while the slab has blocks in use, as is all below.
    pub(crate) start: *mut u8,
    /// `ceil(2^64 / stride)`; 0 while a part is purged, so that frees take the slow way and their blocks are looked at more
    /// closely. Written by the owner.
    pub(crate) inverse: AtomicU64,
    /// Bytes from block to block.
    pub(crate) stride: u32,
    /// Where the last block begins, in bytes from the first.
    pub(crate) last: u32,
    /// Link of the ready list. Of the thread with the duty to publish, then of the owner.
    ready_next: AtomicPtr<Slab>,
    /// The SuperSlab's descriptor.
    desc: *const Desc,
    /// Size class, or [`super::pagemap::RUN`].
    pub(crate) class: u8,
    /// Pages from the span's first page to this record's page. In every record of the span.
    pub(crate) lead: u8,
    /// Pages of the span.
    pub(crate) pages: u8,
    /// When a part was last purged, in milliseconds, if one is. Owner only.
    pub(crate) purged_at: u32,
}

/// What statistics read of a record, under the pool's lock or without: a thread that could not have the lock in time may be
/// making another slab of it. Then each value is right for the one or the other.
#[derive(Clone, Copy)]
pub(crate) struct Glimpse {
    pub(crate) class: u8,
    pub(crate) lead: u8,
    pub(crate) pages: usize,
    pub(crate) stride: usize,
    pub(crate) last: usize,
    pub(crate) start: *mut u8,
    pub(crate) bump: *mut u8,
    pub(crate) end: *mut u8,
    pub(crate) revived: bool,
}

/// Stands in for the slab that a class does not have: nothing can be taken from it, and nothing is written to it.
pub(crate) static NO_SLAB: Slab = Slab {
    free: ptr::null_mut(),
    bump: ptr::null_mut(),
    end: ptr::null_mut(),
    used: AtomicU32::new(0),
    low: 0,
    counted: AtomicU32::new(0),
    list: Listed::None,
    zero: false,
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
    pages: 0,
    purged_at: 0,
};

// SAFETY: each field says which thread may touch it.
unsafe impl Sync for Slab {}

const _: () = assert!(size_of::<Slab>() == 128 && size_of::<Slab>() * 32 == HEADER);
const _: () = assert!(core::mem::offset_of!(Slab, remote) == 64);

// SAFETY: `links` is of the lists only.
unsafe impl Linked for Slab {
    #[inline]
    unsafe fn links<'a>(slab: *mut Self) -> &'a Links<Self> {
        // SAFETY: a valid record; the links are the caller's.
        unsafe { &(*slab).links }
    }
}

// SAFETY: `ready_next` is only the link.
unsafe impl Node for Slab {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: passed on.
        unsafe { (*node).ready_next.load(Ordering::Relaxed) }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: passed on.
        unsafe { (*node).ready_next.store(next, Ordering::Relaxed) }
    }
}

impl Slab {
    /// The record of page `index` of the SuperSlab at `base`.
    pub(crate) fn at(base: *mut u8, index: usize) -> *mut Slab {
        base.cast::<Slab>().wrapping_add(index)
    }

    /// The record of the span that holds `address`.
    ///
    /// # Safety
    ///
    /// The page map says that the page of `address` belongs to a slab.
    #[inline(always)]
    pub(crate) unsafe fn of(address: *mut u8) -> *mut Slab {
        let offset = address.addr() & (SUPERSLAB - 1);
        let record = Slab::at(address.wrapping_sub(offset), offset >> PAGE_SHIFT);
        // SAFETY: a live page of a SuperSlab has a valid record.
        record.wrapping_sub(unsafe { (*record).lead } as usize)
    }

    /// Whether `address` is the start of a block. Always false while a part of the slab is purged: then the
    /// long way tells: `partial_purge::block_at`.
    ///
    /// # Safety
    ///
    /// `slab` is the record of a live slab with at least one block in use.
    #[inline(always)]
    pub(crate) unsafe fn is_block(slab: *mut Slab, address: *mut u8) -> bool {
        // SAFETY: constant fields of a live slab.
        let (start, inverse, last) =
            unsafe { ((*slab).start, (*slab).inverse.load(Ordering::Relaxed), (*slab).last) };
        let offset = address.addr().wrapping_sub(start.addr()) as u64;
        // The product is the fraction offset / stride in units of 2^-64, its whole part cut off, and too large by less than
        // offset: for a multiple of the stride what is left is below the inverse, for anything else it is at least that
        // (offset and stride have less than 32 bits). An address below the first block wraps around to a huge offset.
        offset <= last as u64 && offset.wrapping_mul(inverse) < inverse
    }

    /// Counts a block as used. Owner only.
    #[inline(always)]
    pub(crate) unsafe fn count_taken(slab: *mut Slab) {
        // SAFETY: passed on.
        let used = unsafe { &(*slab).used };
        used.store(used.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Blocks that are neither on `free` nor above `bump`.
    pub(crate) unsafe fn in_use(slab: *mut Slab) -> u32 {
        // SAFETY: passed on.
        unsafe { &(*slab).used }.load(Ordering::Relaxed) & !FULL
    }

    /// Notes which list the slab is in, so that a free needs one comparison to learn whether there is something to do: among
    /// the partial ones when few blocks are in use ([`Slab::few`]), among the purged ones when half of those are left that were
    /// when it was purged, among the full ones at once, and as the current one never.
    ///
    /// # Safety
    ///
    /// The caller owns the slab.
    pub(crate) unsafe fn enlist(slab: *mut Slab, list: Listed) {
        // SAFETY: passed on.
        unsafe {
            (*slab).list = list;
            (*slab).low = match list {
                Listed::Current => i32::MIN,
                Listed::Partial => Slab::few(slab) as i32,
                Listed::Purged => (Slab::in_use(slab) / 2) as i32,
                Listed::None | Listed::Full | Listed::Sparse => 0,
            };
            let full = if list == Listed::Full { FULL } else { 0 };
            (*slab).used.store(Slab::in_use(slab) | full, Ordering::Relaxed);
        }
    }

    /// So few blocks in use that nearly the whole slab lies idle: one in 32, and one where there are fewer.
    pub(crate) unsafe fn few(slab: *mut Slab) -> u32 {
        // SAFETY: passed on.
        unsafe { (*slab).last.div_ceil(((*slab).stride * 32).max(1)) }
    }

    /// Notes that `waiting` blocks wait on `remote`, which `used` shall count no more, or as `rest` says that they have been
    /// taken off. Owner only.
    pub(crate) unsafe fn count_waiting(slab: *mut Slab, waiting: u32, rest: u32) {
        // SAFETY: passed on. In this order a fork in between leaves its child blocks that count as used, not the reverse.
        unsafe {
            let counted = (*slab).counted.load(Ordering::Relaxed);
            (*slab).counted.store(rest, Ordering::Relaxed);
            compiler_fence(Ordering::Release);
            Slab::count(slab, -(waiting.saturating_sub(counted) as i32));
        }
    }

    /// Changes the count of used blocks; the count with [`FULL`]. Owner only.
    #[inline(always)]
    pub(crate) unsafe fn count(slab: *mut Slab, by: i32) -> u32 {
        // SAFETY: passed on.
        let used = unsafe { &(*slab).used };
        // SAFETY: other threads only read it, so there is no race.
        let now = unsafe { used.as_ptr().read() }.wrapping_add_signed(by);
        used.store(now, Ordering::Relaxed);
        now
    }

    /// Sets up the records of a fresh span of `pages` pages from page `index` on; what [`Slab::make`] does not set stays.
    ///
    /// # Safety
    ///
    /// The span is the caller's alone.
    pub(crate) unsafe fn claim(
        base: *mut u8,
        index: usize,
        pages: usize,
        class: u8,
        desc: DescRef,
    ) -> *mut Slab {
        let first = Slab::at(base, index);
        // SAFETY: the records of our span. Atomic is what `Glimpse` reads.
        unsafe {
            for i in 0..pages {
                AtomicU8::from_ptr(&raw mut (*first.wrapping_add(i)).lead).store(i as u8, Ordering::Relaxed);
            }
            AtomicU8::from_ptr(&raw mut (*first).class).store(class, Ordering::Relaxed);
            AtomicU8::from_ptr(&raw mut (*first).pages).store(pages as u8, Ordering::Relaxed);
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
    /// As [`Slab::claim`]; `slab` is what it returned.
    pub(crate) unsafe fn make(slab: *mut Slab, stride: u32, zero: bool, owner: *mut Owner) {
        let offset = slab.addr() & (SUPERSLAB - 1);
        let base = slab.cast::<u8>().wrapping_sub(offset);
        let page = offset / size_of::<Slab>();
        let begin = page << PAGE_SHIFT;
        // SAFETY: the record is ours, but for what others may look at: no reference to all of it. Atomic is what `Glimpse` reads.
        unsafe {
            let start = if page == 0 { HEADER } else { begin };
            let bytes = (begin + (((*slab).pages as usize) << PAGE_SHIFT)) - start;
            let (bytes, start) = (bytes - bytes % stride.max(1) as usize, base.wrapping_add(start));
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
            (*slab).zero = zero;
            (*slab).filled = false;
            (*slab).purged.store(0, Ordering::Relaxed);
            (*slab).links = Links::new();
            (*slab).inverse.store(Slab::inverse_of(stride), Ordering::Relaxed);
            // Release: pairs with the acquire in statistics, which pass over a slab that nobody owns.
            (*slab).owner.store(owner, Ordering::Release);
        }
    }

    /// Moves the end of what has been handed out. Owner only.
    #[inline(always)]
    pub(crate) unsafe fn set_bump(slab: *mut Slab, bump: *mut u8) {
        // SAFETY: passed on. Atomic, because statistics look on; the owner alone may read it plainly.
        unsafe { AtomicPtr::from_ptr(&raw mut (*slab).bump) }.store(bump, Ordering::Relaxed);
    }

    /// Makes purged memory, from `bump` to `end`, memory to hand out. Owner only, when there is none left.
    pub(crate) unsafe fn set_revived(slab: *mut Slab, bump: *mut u8, end: *mut u8) {
        // SAFETY: passed on; atomic as in `set_bump`.
        unsafe {
            AtomicBool::from_ptr(&raw mut (*slab).revived).store(true, Ordering::Relaxed);
            // The child of a fork in between relies on neither of the two: see `release::disown`.
            compiler_fence(Ordering::Release);
            Slab::set_bump(slab, bump);
            AtomicPtr::from_ptr(&raw mut (*slab).end).store(end, Ordering::Relaxed);
            compiler_fence(Ordering::Release);
        }
    }

    /// The fields that any thread may read.
    ///
    /// # Safety
    ///
    /// The record of a page of a SuperSlab that stays mapped meanwhile.
    pub(crate) unsafe fn glimpse(slab: *mut Slab) -> Glimpse {
        // SAFETY: passed on; `claim`, `make`, `set_bump` and `set_revived` write them, atomically.
        unsafe {
            Glimpse {
                class: AtomicU8::from_ptr(&raw mut (*slab).class).load(Ordering::Relaxed),
                lead: AtomicU8::from_ptr(&raw mut (*slab).lead).load(Ordering::Relaxed),
                pages: AtomicU8::from_ptr(&raw mut (*slab).pages).load(Ordering::Relaxed) as usize,
                stride: AtomicU32::from_ptr(&raw mut (*slab).stride).load(Ordering::Relaxed) as usize,
                last: AtomicU32::from_ptr(&raw mut (*slab).last).load(Ordering::Relaxed) as usize,
                start: AtomicPtr::from_ptr(&raw mut (*slab).start).load(Ordering::Relaxed),
                bump: AtomicPtr::from_ptr(&raw mut (*slab).bump).load(Ordering::Relaxed),
                end: AtomicPtr::from_ptr(&raw mut (*slab).end).load(Ordering::Relaxed),
                revived: AtomicBool::from_ptr(&raw mut (*slab).revived).load(Ordering::Relaxed),
            }
        }
    }

    /// Whether all of its blocks wait to be taken in.
    ///
    /// # Safety
    ///
    /// The slab is published or has blocks in use, so its record is a slab's.
    pub(crate) unsafe fn is_whole(slab: *mut Slab) -> bool {
        // SAFETY: passed on; constant fields, and an atomic.
        unsafe { (*slab).remote.waiting() * (*slab).stride > (*slab).last }
    }

    /// What `inverse` is while nothing is purged.
    pub(crate) fn inverse_of(stride: u32) -> u64 {
        u64::MAX / stride.max(1) as u64 + 1
    }

    /// Whether this is a slab, not a run.
    ///
    /// # Safety
    ///
    /// The record of a span in use, which stays so meanwhile.
    pub(crate) unsafe fn is_slab(slab: *mut Slab) -> bool {
        // SAFETY: constant while the span is in use. No reference to the record: its owner may be writing to it.
        unsafe { (*slab).class != super::pagemap::RUN }
    }

    /// Publishes the slab to its owner.
    ///
    /// # Safety
    ///
    /// A push by the caller has answered [`Pushed::Publish`](crate::lockfree::remote_stack::Pushed::Publish).
    pub(crate) unsafe fn publish(slab: *mut Slab) {
        // SAFETY: until it is published the slab stays, and its owner's record is never unmapped.
        unsafe {
            let owner = (*slab).owner.load(Ordering::Relaxed).map_addr(|a| a & !(LEFT | VISITED));
            (*owner).ready.push(slab);
        }
    }

    /// The SuperSlab's descriptor.
    ///
    /// # Safety
    ///
    /// The record of a span in use.
    pub(crate) unsafe fn desc(slab: *mut Slab) -> DescRef {
        // SAFETY: passed on: `claim` has written it.
        unsafe { &*(*slab).desc }
    }

    /// The SuperSlab.
    pub(crate) fn base(slab: *mut Slab) -> *mut u8 {
        slab.cast::<u8>().wrapping_sub(slab.addr() & (SUPERSLAB - 1))
    }

    /// The page of the SuperSlab at which the span begins.
    pub(crate) fn index(slab: *mut Slab) -> usize {
        (slab.addr() & (SUPERSLAB - 1)) / size_of::<Slab>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_is_back_soon_is_visited_later() {
        let owner = Owner::new();
        assert!(!owner.leave_idle(VISIT_FROM - 1) && owner.leave_idle(1));
        owner.was_visited(0);
        owner.is_back(|| SOON - 1);
        assert!(!owner.leave_idle((VISIT_FROM << 3) - 1) && owner.leave_idle(1));
        owner.is_back(|| unreachable!("nobody was here"));
        for _ in 0..9 {
            owner.was_visited(5);
            owner.is_back(|| 6);
        }
        assert!(!owner.leave_idle(Patience::longest(VISIT_FROM) - 1) && owner.leave_idle(1));
        owner.was_visited(5);
        owner.is_back(|| SOON + 6);
        assert!(owner.leave_idle(VISIT_FROM), "it was away for long");
        owner.leave_idle(9);
        owner.reset();
        assert!(!owner.leave_idle(VISIT_FROM - 1));
    }
}
