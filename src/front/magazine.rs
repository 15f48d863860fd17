//! Magazines: a thread's cached blocks of one size class, as bounded arrays of pointers.
//!
//! ```text
//!   [ null | block | block |  ...  |       ]
//!            first           ^ top          ^ limit
//! ```
//!
//! The slot below the first block is null: a pop that reads null has found the magazine empty. A push at the
//! limit has found it full. A class without a magazine has `top == limit` just above a null, so it is empty
//! and full at once. So is every class of the placeholders, the constant heaps of threads that have none of
//! their own.

use crate::base::table::{CellTable, Table};
use crate::front::fast_path::{MagazineTops, missing};
use crate::front::lease::Gate;
use crate::lockfree::magazine_slots::Slot;
use crate::superslab::pagemap::KINDS;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicPtr, AtomicU8, AtomicU64};
use crate::tiny::classes::{C_TABLE, CLASSES, TABLE, bits, stride};
use core::cell::Cell;
use core::ops::Range;
use core::ptr;

/// log2 of the slots of the smallest magazine.
const MIN_LOG: u8 = 3;
/// log2 of the slots that every magazine may grow to.
const FREE_LOG: u8 = 8;
/// Bytes of blocks that every magazine may grow to.
const FREE_BYTES: usize = 16 << 10;
/// [`FREE_LOG`] for a magazine that has run empty since it last grew: the number of blocks that its thread
/// holds swings by more than the magazine has room for. One that only ever overflows, as when a program frees
/// everything at its end, would merely withhold memory.
const MAX_LOG: u8 = 10;
/// Bytes of blocks that all magazines of a thread together may always hold beyond [`FREE_BYTES`] each. With
/// more slabs the heap may hold as much as these have, up to [`MUCH`]; and with many, one byte in
/// [`EXTRA_PART`] of them.
const MAX_EXTRA: usize = 1 << 20;
/// See [`MAX_EXTRA`].
const MUCH: usize = 4 << 20;
/// See [`MAX_EXTRA`].
const EXTRA_PART: usize = 16;
/// The last class of which blocks are cut ahead: up to 512 bytes. Larger ones are often asked for by
/// `calloc`, which need not clear them while they come from a slab's untouched memory.
const CUT_CLASSES: usize = TABLE[512 / 8] as usize;
/// log2 of the slots that a magazine begins with which is there for blocks that are cut ahead.
const FIRST_CUT_LOG: u8 = 4;
/// log2 of the slots up to which it grows for these.
const CUT_LOG: u8 = 6;
/// log2 of the slots that every class up to 8 KiB may have at least.
const FEW: u8 = 2;

/// log2 of the slots that the magazine of `class` may always grow to.
const fn log_for(class: usize) -> u8 {
    let stride = stride(class) as usize;
    let blocks = FREE_BYTES / stride;
    let log = if blocks == 0 { 0 } else { blocks.ilog2() as u8 };
    if log > FREE_LOG {
        FREE_LOG
    } else if log >= FEW {
        log
    } else if stride <= 8 << 10 {
        FEW
    } else {
        1
    }
}

/// [`log_for`] of every class; 0 for the kinds that are no classes.
static FREE_LOGS: Table<u8, KINDS> = {
    let mut logs = [0; KINDS];
    let mut class = 1;
    while class <= CLASSES {
        logs[class] = log_for(class);
        class += 1;
    }
    Table(logs)
};
/// Lists of spare arrays: one for each log2 of their slots.
const SPARES: usize = MAX_LOG as usize + 1;

/// The sizes of a heap's magazines, and the memory of their arrays. The cells are the owner's alone. Visitors
/// and statistics read the atomics, so nobody makes an exclusive reference to the whole. All accesses are
/// relaxed: the heap's lock orders those of the owner and of visitors, and statistics need no order.
pub(crate) struct Magazines {
    /// By kind: [`QUIET`] if a block that finds the magazine full just returns to its slab.
    notices: CellTable<Cell<u8>, KINDS>,
    /// log2 of the slots, by class; 0 where there is no magazine. Written under the heap's lock.
    logs: CellTable<AtomicU8, KINDS>,
    /// The classes that have a magazine, a bit for each.
    present: Cell<u64>,
    /// Bytes of blocks for which there is room beyond [`FREE_BYTES`] each.
    extra: Cell<u32>,
    /// The most that the process had mapped when [`Magazines::surplus`] was last called, in slices.
    peak: Cell<u32>,
    /// Memory from here to `end` has not been used for arrays since the record was reset. There is none where
    /// the options allow no magazines.
    at: Cell<*mut Slot>,
    /// The end of the memory that was ever used for arrays, under any owner. Null before the first. For
    /// statistics.
    most: AtomicPtr<Slot>,
    /// See `at`. The heap's [`Gate`] lies there.
    end: AtomicPtr<Slot>,
    /// Magazines that a visitor has taken blocks out of, a bit for each class. Written under the heap's lock.
    drained: AtomicU64,
    /// Arrays that magazines have grown or shrunk out of, by log2 of their slots, linked through their first
    /// slot.
    spare: CellTable<Cell<*mut Slot>, SPARES>,
}

/// A notice: the magazine stays as it is when it is full.
pub(super) const QUIET: u8 = 0;
/// A notice: it may grow up to what every magazine may have. Or there is none to grow, because the heap is a
/// placeholder or the kind no class.
const SMALL: u8 = 1;
/// A notice: it has run empty since it last grew, so it may grow further.
pub(super) const MISSED: u8 = 2;
/// A notice: the heap is armed, and the magazine's own notice in its [`Gate`].
pub(super) const ARMED: u8 = 3;

impl Magazines {
    /// No magazines, and no room for any.
    pub(crate) const fn none() -> Self {
        Self {
            notices: CellTable::new([const { Cell::new(SMALL) }; KINDS]),
            logs: CellTable::new([const { AtomicU8::new(0) }; KINDS]),
            present: Cell::new(0),
            extra: Cell::new(0),
            peak: Cell::new(0),
            at: Cell::new(ptr::null_mut()),
            most: AtomicPtr::new(ptr::null_mut()),
            end: AtomicPtr::new(ptr::null_mut()),
            drained: AtomicU64::new(0),
            spare: CellTable::new([const { Cell::new(ptr::null_mut()) }; SPARES]),
        }
    }

    /// Whether a block of `kind` that finds the magazine full just returns to its slab.
    ///
    /// `kind` is below [`KINDS`], as every answer of the page map is.
    #[inline(always)]
    pub(crate) fn frees_to_slab(&self, kind: usize) -> bool {
        // SAFETY: the table has an entry for every kind, and all callers pass one.
        unsafe { self.notices.get_unchecked(kind) }.get() == QUIET
    }

    /// Bytes of blocks for which the magazine of `class` has room beyond what every one may have.
    #[inline(always)]
    pub(super) fn beyond_share(&self, class: usize) -> usize {
        let (log, share) = (self.logs[class].load(Relaxed), FREE_LOGS[class]);
        ((1usize << log.max(share)) - (1 << share)) * stride(class) as usize
    }

    /// Whether the magazine of `class` has as much room as every one may have.
    #[inline(always)]
    pub(super) fn has_share(&self, class: usize) -> bool {
        self.logs[class].load(Relaxed) >= FREE_LOGS[class]
    }

    /// Leaves `class` without a magazine. False, and nothing was done, if there is one.
    pub(super) fn stay_without(&self, class: usize) -> bool {
        let is_without = self.logs[class].load(Relaxed) == 0;
        if is_without {
            self.notices[class].set(QUIET);
        }
        is_without
    }

    /// Whether the heap is armed, and `kind` a size class.
    ///
    /// `kind` is below [`KINDS`].
    #[inline(always)]
    pub(super) fn is_armed(&self, kind: usize) -> bool {
        // SAFETY: the table has an entry for every kind, and all callers pass one.
        unsafe { self.notices.get_unchecked(kind) }.get() == ARMED
    }

    /// Forgets all magazines. New ones will get their arrays between `at` and `end`, if they are `enabled`.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that `tops` and these belong to, and has entered it. The magazines
    /// hold nothing. The memory from `at` to `end` is that heap's, all of it slots.
    pub(crate) unsafe fn reset(&self, tops: &MagazineTops, enabled: bool, at: *mut u8, end: *mut u8) {
        for kind in 0..KINDS {
            tops.top[kind].store(missing(), Relaxed);
            tops.limit[kind].store(missing(), Relaxed);
        }
        // Loops of their own, which become a few long stores.
        for (kind, notice) in self.notices.iter().enumerate() {
            notice.set(if !enabled && (1..=CLASSES).contains(&kind) { QUIET } else { SMALL });
        }
        self.logs.iter().for_each(|log| log.store(0, Relaxed));
        self.present.set(0);
        tops.classes.set(C_TABLE);
        self.extra.set(0);
        self.at.set(if enabled { at } else { end }.cast());
        self.end.store(end.cast(), Relaxed);
        self.drained.store(0, Relaxed);
        self.spare.iter().for_each(|spare| spare.set(ptr::null_mut()));
    }

    /// Notes that the magazine of `class` has run empty.
    ///
    /// # Safety
    ///
    /// `class` is a size class, and the calling thread owns the heap.
    #[inline(always)]
    pub(crate) unsafe fn on_miss(&self, class: usize) {
        // SAFETY: the table has an entry for every class.
        unsafe { self.notices.get_unchecked(class) }.set(MISSED);
    }

    /// The classes that have a magazine.
    pub(crate) fn present(&self) -> impl Iterator<Item = usize> {
        bits(self.present.get())
    }

    /// What the gate keeps for the heap, behind the arrays.
    pub(super) fn gate(&self) -> *mut Gate {
        self.end.load(Relaxed).cast()
    }

    /// Where the end of the magazine of `class` is kept: in the gate if the heap is armed.
    #[inline(always)]
    pub(super) fn limit<'a>(&'a self, tops: &'a MagazineTops, class: usize) -> &'a AtomicPtr<Slot> {
        let limit = &tops.limit[class];
        if !limit.load(Relaxed).is_null() {
            return limit;
        }
        // SAFETY: where a limit is null, the heap is a record, and its gate was written before. Only atomics
        // are referred to.
        unsafe { &(&(*self.gate()).limits)[class] }
    }

    /// Replaces the notice of `class`, and returns the one before: see [`Heap::arm`](super::heap::Heap::arm).
    /// For the owner.
    pub(super) fn replace_notice(&self, class: usize, notice: u8) -> u8 {
        self.notices[class].replace(notice)
    }

    /// The first slot of the magazine of `class`, if there is one. Whoever uses it owns the heap and has
    /// entered it, or visits it: so neither the array nor its size changes meanwhile.
    pub(crate) fn first(&self, tops: &MagazineTops, class: usize) -> Option<*mut Slot> {
        let log = self.logs[class].load(Relaxed);
        (log != 0).then(|| self.limit(tops, class).load(Relaxed).wrapping_sub((1 << log) - 1))
    }

    /// Whether all together have room for more than any heap's may.
    #[inline(always)]
    pub(crate) fn has_much(&self) -> bool {
        self.extra.get() as usize > MAX_EXTRA
    }

    /// The end of the memory that was ever used for arrays, under any owner; null before the first.
    pub(crate) fn most(&self) -> *mut u8 {
        self.most.load(Relaxed).cast()
    }

    /// What was used for arrays has been given back to the system.
    pub(super) fn forget_most(&self) {
        self.most.store(ptr::null_mut(), Relaxed);
    }

    /// How many blocks the magazine of `class` holds: exact for the owner, approximate for other threads.
    /// `record` is where the record's slots lie.
    ///
    /// # Safety
    ///
    /// Both are parts of one heap's record that is still mapped.
    pub(crate) unsafe fn held(&self, tops: &MagazineTops, class: usize, record: Range<usize>) -> usize {
        let log = self.logs[class].load(Relaxed);
        if log == 0 {
            return 0;
        }
        let (top, limit) = (tops.top[class].load(Relaxed), self.limit(tops, class).load(Relaxed));
        let free = (limit.addr().wrapping_sub(top.addr())) / size_of::<Slot>();
        let held = ((1usize << log) - 1).saturating_sub(free);
        if self.drained.load(Relaxed) & (1 << class) == 0 {
            return held;
        }
        let first = limit.wrapping_sub((1 << log) - 1);
        let slots = (0..held).map(|i| first.wrapping_add(i)).filter(|slot| record.contains(&slot.addr()));
        // SAFETY: memory of this record, all of which may be read atomically. To another thread `log` may be
        // older than `limit`, or the magazine gone: then `first` may lie outside.
        let present = slots.filter(|&slot| !unsafe { (*slot).load(Relaxed) }.is_null()).count();
        // SAFETY: where a limit is null, the heap is a record, and its gate was written before.
        let cut = tops.limit[class].load(Relaxed).is_null() && unsafe { (*self.gate()).is_cut(class) };
        present + usize::from(cut)
    }

    /// Whether the magazine of `class` holds `block`: exact for the owner, approximate for other threads.
    /// `record` is where the record's slots lie.
    ///
    /// # Safety
    ///
    /// As [`Magazines::held`].
    pub(super) unsafe fn holds(
        &self,
        tops: &MagazineTops,
        class: usize,
        block: *mut u8,
        record: Range<usize>,
    ) -> bool {
        let Some(first) = self.first(tops, class) else { return false };
        let slots = tops.top[class].load(Relaxed).addr().saturating_sub(first.addr()) / size_of::<Slot>();
        let mut slots =
            (0..slots).map(|i| first.wrapping_add(i)).take_while(|slot| record.contains(&slot.addr()));
        // SAFETY: where a limit is null, the heap is a record, and its gate was written before.
        let cut =
            tops.limit[class].load(Relaxed).is_null() && unsafe { (*self.gate()).has_cut(class, block) };
        // SAFETY: memory of this record, all of which may be read atomically.
        cut || slots.any(|slot| unsafe { (*slot).load(Relaxed) } == block)
    }

    /// Notes that a visitor has taken blocks out of the magazine of `class`.
    pub(crate) fn set_drained(&self, class: usize) {
        // Relaxed: the owner reads it under the lock that the visitor holds.
        self.drained.fetch_or(1 << class, Relaxed);
    }
}

mod arrays;
#[cfg(test)]
mod tests;
