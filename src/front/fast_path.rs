//! The part of a heap that the fast path touches: the tops and limits of its magazines ([`super::magazine`]
//! describes those), and the pops and pushes.

use crate::base::table::CellTable;
use crate::lockfree::magazine_slots::{self, Push, Slot};
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::Block;
use crate::sync::AtomicPtr;
use crate::sync::Ordering::Relaxed;
use crate::tiny::classes::{C_TABLE, MAX_TABLE};
use core::cell::Cell;
use core::ptr;

/// The part of a heap that the fast path touches. Both tables are indexed by size class, and by the page
/// map's kind; the kinds that are no classes never get a magazine.
///
/// Only the owner writes the tops and limits, and it may read them with plain loads. They are atomic because
/// statistics and visitors read them.
#[repr(C)]
pub(crate) struct MagazineTops {
    pub(crate) top: CellTable<AtomicPtr<Slot>, KINDS>,
    pub(crate) limit: CellTable<AtomicPtr<Slot>, KINDS>,
    /// C's size classes, by size in words. A copy for each heap, because the address of a table elsewhere
    /// would cost `malloc` one more instruction.
    pub(crate) classes: Cell<[u8; MAX_TABLE / 8 + 1]>,
}

/// The null slot below the top of every class without a magazine. The second slot is there for the top to
/// point at.
static NOTHING: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// Top and limit of a class without a magazine.
pub(crate) const fn missing() -> *mut Slot {
    (&raw const NOTHING).cast::<Slot>().cast_mut().wrapping_add(1)
}

impl MagazineTops {
    /// No magazines.
    pub(crate) const fn without() -> Self {
        Self {
            top: CellTable::new([const { AtomicPtr::new(missing()) }; KINDS]),
            limit: CellTable::new([const { AtomicPtr::new(missing()) }; KINDS]),
            classes: Cell::new(C_TABLE),
        }
    }

    /// C's size class for a size in words, at most `MAX_TABLE / 8`.
    ///
    /// # Safety
    ///
    /// `tops` belongs to a heap that the calling thread owns, or to a placeholder; `words` is at most
    /// `MAX_TABLE / 8`.
    #[inline(always)]
    pub(crate) unsafe fn class(tops: *const MagazineTops, words: usize) -> usize {
        debug_assert!(words <= MAX_TABLE / 8);
        // SAFETY: `words` is an index of the table. That is written only by the owner, before it first uses
        // the heap.
        unsafe { (&raw const (*tops).classes).cast::<u8>().add(words).read() as usize }
    }

    /// The top of the magazine of `class`.
    ///
    /// # Safety
    ///
    /// `tops` belongs to a heap's record or to a placeholder, which stay mapped for as long as `'a`; `class`
    /// is below [`KINDS`].
    #[inline(always)]
    pub(super) unsafe fn top<'a>(tops: *const MagazineTops, class: usize) -> &'a AtomicPtr<Slot> {
        // SAFETY: mapped, and `class` is in the table.
        unsafe { &*(&raw const (*tops).top).cast::<AtomicPtr<Slot>>().add(class) }
    }

    /// Pops a block from the magazine of `class`; null when that is empty.
    ///
    /// # Safety
    ///
    /// `tops` belongs to a heap that the calling thread owns, or to a placeholder; `class` is below
    /// [`KINDS`].
    #[inline(always)]
    pub(crate) unsafe fn pop(tops: *const MagazineTops, class: usize) -> *mut u8 {
        // SAFETY: the calling thread's own magazine, or a placeholder's. Below every top there is a slot.
        unsafe { magazine_slots::pop(MagazineTops::top(tops, class)) }
    }

    /// Pushes a block into the magazine of `class`. False, and nothing done, when that is full.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`]; `block` is a block of that class, and nobody uses it.
    #[inline(always)]
    pub(crate) unsafe fn push(tops: *const MagazineTops, class: usize, block: *mut u8) -> bool {
        // SAFETY: the calling thread's own magazine, with every slot from the top to the limit free, or a
        // placeholder's, which is always full. `class` is in both tables.
        unsafe {
            let limit = &*(&raw const (*tops).limit).cast::<AtomicPtr<Slot>>().add(class);
            magazine_slots::push(MagazineTops::top(tops, class), limit, block)
        }
    }

    /// [`MagazineTops::push`] of a block that C's `free` was called with, if it does not look
    /// [free](Block::looks_free) already. It does from then on.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::push`], but that the block may be free already; `class` has blocks of at least 16
    /// bytes, if it has a magazine. `secret` is where the [secret](crate::tiny::bins::Bins) lies.
    #[inline(always)]
    pub(crate) unsafe fn push_once(
        tops: *const MagazineTops,
        class: usize,
        block: *mut u8,
        secret: *const usize,
    ) -> Push {
        // SAFETY: as in `push`. Where there is room, `class` is one, and so the block lies in a slab.
        unsafe {
            let limit = &*(&raw const (*tops).limit).cast::<AtomicPtr<Slot>>().add(class);
            magazine_slots::push_if(MagazineTops::top(tops, class), limit, block, || {
                Block::half_mark_once(block.cast(), secret.read())
            })
        }
    }

    /// Whether the magazine of `class` holds `block`, as far down as no visitor has taken anything out. Under
    /// Miri among the last few blocks only: to walk down at each free took 40% of some tests.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`].
    pub(crate) unsafe fn holds(tops: *const MagazineTops, class: usize, block: *mut u8) -> bool {
        // SAFETY: the table is the calling thread's own, or a placeholder's.
        let top = unsafe { &(*tops).top };
        let mut at = top[class].load(Relaxed);
        let mut left = if cfg!(miri) { 4 } else { usize::MAX };
        while left != 0 {
            left -= 1;
            at = at.wrapping_sub(1);
            // Atomic, because a visitor may be taking blocks out of these slots.
            // SAFETY: a slot of the magazine: a null ends it, and the loop with it.
            let held = unsafe { (*at).load(Relaxed) };
            if held.is_null() || held == block {
                return !held.is_null();
            }
        }
        false
    }
}
