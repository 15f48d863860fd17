//! The slots: where sampled blocks lie, and what is known of each.
//!
//! ```text
//!   | guard |  free, inaccessible  | block's pages | guard |  block's pages  |  inaccessible  | guard | ...
//!     page    slot 0: at its right side      ####    page    ##  slot 1: at its left side
//! ```
//!
//! A slot has one block at a time, at its left or right side, at random. Only the pages that the block
//! touches are accessible; the rest of these is filled with a byte that must still be there when the block is
//! freed. There is no lock: whoever changes a slot's state by compare-and-swap has the slot. SeqCst
//! throughout: all of this is rare, and mostly system calls.

use crate::guard::figures::Figures;
use crate::guard::trace::Trace;
use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, FOREIGN, HARDENED};
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use core::ptr;

#[cfg(all(test, not(loom)))]
mod tests;

/// The state of a slot: has no block, or none any more. All zero is a slot that never had one.
pub(super) const FREE: u32 = 0;
/// A thread is making it accessible or inaccessible.
pub(super) const HELD: u32 = 1;
/// Has a block.
pub(super) const USED: u32 = 2;

/// The mean number of allocations between two samples; 0 without guard pages. Relaxed where it is read:
/// `options::init` publishes it.
static RATE: AtomicUsize = AtomicUsize::new(0);
/// How many slots there are to be.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Whether there are slots: one of the four below.
static READY: AtomicU32 = AtomicU32::new(NOT_YET);
const NOT_YET: u32 = 0;
/// A thread is making them.
const SOON: u32 = 1;
const MADE: u32 = 2;
/// There was no memory for them.
const NEVER: u32 = 3;
/// Where the slots begin.
static BASE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// What is known of each slot: `COUNT` records.
static RECORDS: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// How often a slot has been freed: for the order of these.
static FREES: AtomicU64 = AtomicU64::new(0);
/// How many blocks have been put into slots.
static SAMPLES: AtomicU64 = AtomicU64::new(0);

/// What is known of a slot. Its block is that in use, or the last one.
pub(super) struct Slot {
    state: AtomicU32,
    /// The thread that holds it; 0 if none does, or it has only just begun to.
    holder: AtomicUsize,
    class: AtomicU8,
    /// What the rest of the block's pages is filled with.
    filler: AtomicU8,
    /// Whether pages of an earlier block could not be given back: 1, and they may not be zero.
    dirty: AtomicU8,
    /// The number of its last free; 0 before the first.
    freed_as: AtomicU64,
    start: AtomicUsize,
    size: AtomicUsize,
    pub(super) allocated: Trace,
    pub(super) freed: Trace,
}

/// What a slot's block is at some moment.
#[derive(Clone, Copy)]
pub(super) struct About {
    pub(super) state: u32,
    pub(super) class: u8,
    /// Where it begins; 0 if there was none.
    pub(super) start: usize,
    /// The bytes that were asked for.
    pub(super) size: usize,
}

/// Bytes from one slot to the next: the guard page first.
pub(super) fn stride() -> usize {
    SLICE.max(2 * os::page_size())
}

/// Bytes of address space of all slots, with what lies behind the last one.
fn bytes() -> usize {
    COUNT.load(SeqCst) * stride() + SLICE.max(os::page_size())
}

/// Bytes of the records.
fn record_bytes() -> usize {
    (COUNT.load(SeqCst) * size_of::<Slot>()).next_multiple_of(os::page_size())
}

/// Begins to sample one in `rate` allocations, in so many slots.
pub(super) fn init(rate: usize, count: usize) {
    COUNT.store(count, SeqCst);
    RATE.store(rate, SeqCst);
}

/// Whether there are sampled guard pages.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    RATE.load(Relaxed) != 0
}

/// The mean number of allocations between two samples; 0 for none.
pub(super) fn rate() -> usize {
    RATE.load(Relaxed)
}

/// How many blocks have been put into slots.
pub(super) fn samples() -> u64 {
    SAMPLES.load(SeqCst)
}

/// Maps the slots, if that was not done. Whether there are some.
#[unsafe(link_section = "hakmem_rare")]
fn are_there() -> bool {
    match READY.compare_exchange(NOT_YET, SOON, SeqCst, SeqCst) {
        Ok(_) => {
            let made = make();
            READY.store(if made { MADE } else { NEVER }, SeqCst);
            made
        }
        Err(state) => state == MADE,
    }
}

/// Maps the slots. False when there is no memory.
#[unsafe(link_section = "hakmem_rare")]
fn make() -> bool {
    let records = os::map_uncounted(record_bytes()).cast::<Slot>();
    if records.is_null() {
        return false;
    }
    let base = os::map_aligned_uncounted(bytes(), SLICE.max(os::page_size()));
    let last = base.wrapping_add(bytes() - 1);
    // SAFETY: mapped just now with these lengths; nobody else knows them.
    unsafe {
        if base.is_null()
            || !pagemap::prepare(base)
            || !pagemap::prepare(last)
            || !os::make_inaccessible(base, bytes())
        {
            if !base.is_null() {
                os::discard_uncounted(base, bytes());
            }
            os::discard_uncounted(records.cast(), record_bytes());
            return false;
        }
    }
    RECORDS.store(records, SeqCst);
    BASE.store(base, SeqCst);
    pagemap::set_all(base, bytes() / SLICE, HARDENED);
    true
}

/// All slots; none before there are any.
fn all() -> &'static [Slot] {
    if READY.load(SeqCst) != MADE {
        return &[];
    }
    // SAFETY: mapped with so many records, which consist of atomics and are zero at first; unmapped only when
    // nobody calls the library any more.
    unsafe { core::slice::from_raw_parts(RECORDS.load(SeqCst), COUNT.load(SeqCst)) }
}

/// The number of the slot that an address lies in, its guard page included, if it is one of ours: the number
/// of slots for what lies behind the last one.
pub(super) fn index(address: usize) -> Option<usize> {
    let base = BASE.load(SeqCst).addr();
    let offset = address.wrapping_sub(base);
    (base != 0 && offset < bytes()).then(|| offset / stride())
}

/// The slot with this number.
pub(super) fn at(index: usize) -> Option<&'static Slot> {
    all().get(index)
}

/// The slot that an address lies in.
pub(super) fn find(address: *const u8) -> Option<&'static Slot> {
    at(index(address.addr())?)
}

/// Puts a block into the free slot whose last block was freed first, and returns it: zero, and not accessible
/// beyond its pages. Null if there is none, or the block does not fit. `random` is any number.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take(size: usize, align: usize, class: u8, random: u64) -> *mut u8 {
    // A block of no bytes has an address of its own.
    let room = size.max(1);
    if room.saturating_add(align) > stride() || !are_there() {
        return ptr::null_mut();
    }
    let Some((index, slot)) = hold_oldest() else { return ptr::null_mut() };
    let page = os::page_size();
    let first = BASE.load(SeqCst).wrapping_add(index * stride() + page);
    let end = first.wrapping_add(stride() - page);
    let block = if random & 32 == 0 {
        first.wrapping_add(first.addr().wrapping_neg() & (align - 1))
    } else {
        let last = end.wrapping_sub(room);
        last.wrapping_sub(last.addr() & (align - 1))
    };
    let fits = block.addr() >= first.addr() && block.addr() + room <= end.addr();
    let (from, len) = pages(block, room);
    // Once more, and all of it: an earlier block may have been at the other side.
    // SAFETY: the payload of a slot that this call holds, where there is no block.
    let is_dirty = slot.dirty.load(SeqCst) != 0 && !unsafe { os::make_inaccessible(first, stride() - page) };
    slot.dirty.store(is_dirty.into(), SeqCst);
    // SAFETY: as before.
    if !fits || !unsafe { os::protect(from, len, true) } {
        slot.let_go(FREE);
        return ptr::null_mut();
    }
    let filler = (random >> 8) as u8 | 1;
    // SAFETY: just made accessible, and ours.
    unsafe {
        if is_dirty {
            from.write_bytes(0, len);
        }
        let before = block.addr() - from.addr();
        from.write_bytes(filler, before);
        block.wrapping_add(size).write_bytes(filler, len - before - size);
    }
    slot.filler.store(filler, SeqCst);
    slot.class.store(class, SeqCst);
    slot.size.store(size, SeqCst);
    slot.start.store(block.expose_provenance(), SeqCst);
    slot.freed.clear();
    slot.allocated.note();
    SAMPLES.fetch_add(1, SeqCst);
    slot.let_go(USED);
    block
}

/// Holds the free slot that has been free for longest.
#[unsafe(link_section = "hakmem_rare")]
fn hold_oldest() -> Option<(usize, &'static Slot)> {
    // Another thread may hold it first.
    (0..4).find_map(|_| {
        let slots = all().iter().enumerate();
        let free = slots.filter(|(_, slot)| slot.state.load(SeqCst) == FREE);
        let (index, slot) = free.min_by_key(|(_, slot)| slot.freed_as.load(SeqCst))?;
        slot.held_from(FREE).then_some((index, slot))
    })
}

/// The pages of a block of so many bytes, at least one: the first, and how many bytes they have.
fn pages(block: *mut u8, room: usize) -> (*mut u8, usize) {
    let page = os::page_size();
    let before = block.addr() & (page - 1);
    (block.wrapping_sub(before), (before + room).next_multiple_of(page))
}

impl Slot {
    /// What its block is.
    pub(super) fn about(&self) -> About {
        About {
            state: self.state.load(SeqCst),
            class: self.class.load(SeqCst),
            start: self.start.load(SeqCst),
            size: self.size.load(SeqCst),
        }
    }

    /// Holds the slot, if `block` is in use there. Of several threads that try, exactly one gets true.
    pub(super) fn hold(&self, block: *mut u8) -> bool {
        let is_there = || self.start.load(SeqCst) == block.addr();
        if !is_there() || !self.held_from(USED) {
            return false;
        }
        // Another thread may have freed it since, and the slot may have been used again.
        if !is_there() {
            self.let_go(USED);
            return false;
        }
        true
    }

    /// The first byte around the block that has been written to, as its distance from the block.
    ///
    /// # Safety
    ///
    /// The calling thread holds the slot, in which `block` was in use.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn broken(&self, block: *mut u8) -> Option<isize> {
        let (filler, size) = (self.filler.load(SeqCst), self.size.load(SeqCst));
        let (from, len) = pages(block, size.max(1));
        let before = block.addr() - from.addr();
        let around = (0..before).rev().chain(before + size..len);
        let mut offsets = around.map(|at| at as isize - before as isize);
        // SAFETY: the block's pages are accessible, and these bytes are no part of the block. Volatile,
        // because a program that misuses them may be writing.
        offsets.find(|&at| unsafe { block.wrapping_offset(at).read_volatile() } != filler)
    }

    /// Makes the block's pages inaccessible, and the slot free.
    ///
    /// # Safety
    ///
    /// As [`Slot::broken`], and nobody uses the block any more.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn close(&self, block: *mut u8) {
        self.freed.note();
        let (from, len) = pages(block, self.size.load(SeqCst).max(1));
        // SAFETY: by the caller's clause.
        if !unsafe { os::make_inaccessible(from, len) } {
            self.dirty.store(1, SeqCst);
        }
        self.freed_as.store(FREES.fetch_add(1, SeqCst) + 1, SeqCst);
        self.let_go(FREE);
    }

    /// Holds the slot, if its state is `from`.
    fn held_from(&self, from: u32) -> bool {
        let done = self.state.compare_exchange(from, HELD, SeqCst, SeqCst).is_ok();
        if done {
            self.holder.store(os::thread::id(), SeqCst);
        }
        done
    }

    /// Ends what the calling thread holds the slot for.
    fn let_go(&self, state: u32) {
        // First: who holds it next has another number.
        self.holder.store(0, SeqCst);
        self.state.store(state, SeqCst);
    }
}

/// The figures of this moment.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn figures() -> Figures {
    let mut figures = Figures { samples: samples(), ..Figures::default() };
    if READY.load(SeqCst) == MADE {
        figures.mapped = (bytes() + record_bytes()) as u64;
        figures.records = record_bytes() as u64;
    }
    for about in all().iter().map(Slot::about).filter(|about| about.state == USED) {
        let block = ptr::without_provenance_mut(about.start);
        figures.blocks += 1;
        figures.allocated += about.size as u64;
        figures.active += pages(block, about.size.max(1)).1 as u64;
    }
    figures
}

/// Whether a block is in use, or about to be.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn in_use() -> bool {
    all().iter().any(|slot| slot.state.load(SeqCst) != FREE)
}

/// In the child of a fork, by its only thread: what other threads held, they do not hold any more. What this
/// one holds it goes on with, if a signal handler has forked.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn inherit() {
    let _ = READY.compare_exchange(SOON, NOT_YET, SeqCst, SeqCst);
    let (page, mine) = (os::page_size(), os::thread::id());
    // One that somebody has only just begun to hold stays as it is: it may be this thread.
    let is_left = |slot: &Slot| {
        let holder = slot.holder.load(SeqCst);
        slot.state.load(SeqCst) == HELD && holder != 0 && holder != mine
    };
    for (index, slot) in all().iter().enumerate().filter(|(_, slot)| is_left(slot)) {
        let first = BASE.load(SeqCst).wrapping_add(index * stride() + page);
        // SAFETY: the slot is held by a thread that does not exist here, so there is no block in it: its free
        // has begun, or its allocation has not ended.
        if !unsafe { os::make_inaccessible(first, stride() - page) } {
            slot.dirty.store(1, SeqCst);
        }
        slot.freed_as.store(FREES.fetch_add(1, SeqCst) + 1, SeqCst);
        slot.let_go(FREE);
    }
}

/// Gives all memory back, when no slot is in use and no other thread can be here.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn unmap() {
    if READY.swap(NEVER, SeqCst) == MADE {
        let (base, records) = (BASE.swap(ptr::null_mut(), SeqCst), RECORDS.load(SeqCst));
        pagemap::set_all(base, bytes() / SLICE, FOREIGN);
        // SAFETY: the mappings that `make` has made, which nobody uses any more.
        unsafe {
            // Nobody needs any memory either, of which this has none: it may stay mapped.
            let _ = os::unmap_uncounted(base, bytes());
            os::discard_uncounted(records.cast(), record_bytes());
        }
    }
}
