//! The part of a heap that the fast path touches: the tops and limits of its magazines ([`super::magazine`]
//! describes those), and the pops and pushes.

use crate::base::table::Table;
use crate::superslab::pagemap::KINDS;
use crate::sync::Ordering::{Relaxed, Release, SeqCst};
use crate::sync::{AtomicPtr, Ordering, compiler_fence};
use crate::tiny::classes::{C_TABLE, MAX_TABLE};
use core::ptr;

/// A place for a block's address.
pub(crate) type Slot = *mut u8;

/// The part of a heap that the fast path touches. Both tables are indexed by size class, and by the page
/// map's kind; the kinds that are no classes never get a magazine.
///
/// Only the owner writes the tops and limits, and it may read them with plain loads. They are atomic because
/// statistics and visitors read them.
#[repr(C)]
pub(crate) struct MagazineTops {
    pub(crate) top: Table<AtomicPtr<Slot>, KINDS>,
    pub(crate) limit: Table<AtomicPtr<Slot>, KINDS>,
    /// C's size classes, by size in words. A copy for each heap, because the address of a table elsewhere
    /// would cost `malloc` one more instruction.
    pub(crate) classes: [u8; MAX_TABLE / 8 + 1],
}

/// The null slot below the top of every class without a magazine. The second slot is there for the top to
/// point at.
static NOTHING: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// Top and limit of a class without a magazine.
pub(crate) const fn missing() -> *mut Slot {
    (&raw const NOTHING).cast::<Slot>().cast_mut().wrapping_add(1)
}

/// A slot as an atomic, for access while a visitor or statistics may look at it.
///
/// # Safety
///
/// `slot` is a slot of a magazine's array in a heap's record, or of [`NOTHING`]: both stay mapped for as long
/// as `'a`.
#[inline(always)]
pub(crate) unsafe fn shared<'a>(slot: *mut Slot) -> &'a AtomicPtr<u8> {
    // SAFETY: the slot is mapped for `'a`, by the caller's clause, and an atomic pointer has the size and
    // alignment of a slot. Plain accesses of the owner race with nothing: see where they are made.
    unsafe { &*slot.cast::<AtomicPtr<u8>>() }
}

/// The ordering with which a push stores a block and the new top. Release where that is free: it pairs with
/// the acquire of the swap in [`steal`](crate::lockfree::steal) and of the top's load in
/// `reclaim::drain_magazines`, so that whoever takes the block out sees what was written to it before.
/// Elsewhere the visitor's barriers order the two.
const PUT: Ordering = if cfg!(target_arch = "x86_64") { Release } else { Relaxed };

/// Reads a top or limit of the calling thread's own heap: a plain load, which the compiler may fold into its
/// use.
///
/// # Safety
///
/// `slot` is valid, and no other thread writes it meanwhile.
#[inline(always)]
unsafe fn own(slot: *const AtomicPtr<Slot>) -> *mut Slot {
    // SAFETY: valid, by the caller's clause. Other threads only read it, and two reads are no race.
    unsafe { (*slot).as_ptr().read() }
}

impl MagazineTops {
    /// No magazines.
    pub(crate) const fn without() -> Self {
        Self {
            top: Table([const { AtomicPtr::new(missing()) }; KINDS]),
            limit: Table([const { AtomicPtr::new(missing()) }; KINDS]),
            classes: C_TABLE,
        }
    }

    /// C's size class for a size in words, at most `MAX_TABLE / 8`.
    ///
    /// # Safety
    ///
    /// `tops` belongs to a heap that the calling thread owns, or to a placeholder; `words` is at most
    /// `MAX_TABLE / 8`.
    #[inline(always)]
    pub(crate) unsafe fn class(tops: *mut MagazineTops, words: usize) -> usize {
        debug_assert!(words <= MAX_TABLE / 8);
        // SAFETY: `words` is an index of the table. That is written only by the owner, before it first uses
        // the heap.
        unsafe { (&raw const (*tops).classes).cast::<u8>().add(words).read() as usize }
    }

    /// Pops a block from the magazine of `class`; null when that is empty.
    ///
    /// # Safety
    ///
    /// `tops` belongs to a heap that the calling thread owns, or to a placeholder; `class` is below
    /// [`KINDS`].
    #[inline(always)]
    pub(crate) unsafe fn pop(tops: *mut MagazineTops, class: usize) -> *mut u8 {
        // SAFETY: `class` is in the table. Only the owner writes its tops, so `own` may read this one. Below
        // every top there is a slot: that of a block, or the null at the bottom. Nothing is written unless
        // there is a block, which no placeholder has.
        unsafe {
            let top = (&raw const (*tops).top).cast::<AtomicPtr<Slot>>().add(class);
            let at = own(top);
            // Relaxed: this thread's own push, or what a visitor put there: null, or the same block again.
            let block = shared(at.sub(1)).load(Relaxed);
            if !block.is_null() {
                // Relaxed: this publishes nothing. drain_magazines.rs says what a visitor concludes from it.
                (*top).store(at.sub(1), Relaxed);
                // The program must not use the block before the top has moved: in the child of a fork, what
                // is below the top counts as free. Nor may the next pop read its slot before: visitors rely
                // on that order.
                compiler_fence(SeqCst);
            }
            block
        }
    }

    /// Pushes a block into the magazine of `class`. False, and nothing done, when that is full.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`]; `block` is a block of that class, and nobody uses it.
    #[inline(always)]
    pub(crate) unsafe fn push(tops: *mut MagazineTops, class: usize, block: *mut u8) -> bool {
        // SAFETY: `class` is in both tables. Only the owner writes them, so `own` may read them. Below the
        // limit every slot from the top on is free. A placeholder is always full, so nothing is written to
        // it.
        unsafe {
            let top = (&raw const (*tops).top).cast::<AtomicPtr<Slot>>().add(class);
            let limit = (&raw const (*tops).limit).cast::<AtomicPtr<Slot>>().add(class);
            let at = own(top);
            if at == own(limit) {
                return false;
            }
            shared(at).store(block, PUT);
            // The child of a fork takes every slot below the top for a block, so the block is stored first.
            compiler_fence(Release);
            (*top).store(at.add(1), PUT);
            true
        }
    }

    /// [`MagazineTops::pop`] for a class that is not a compile-time constant: the top moves in one
    /// instruction. The same in `push` would save an instruction, too, but costs time: see decision 014.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`].
    #[inline(always)]
    pub(crate) unsafe fn pop_at(tops: *mut MagazineTops, class: usize) -> *mut u8 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: as in `pop`. `top` is the first field, so the operand is the top of `class`. To other
        // threads the addition is an aligned store of a word, as atomic as the one in `pop`, since only this
        // thread writes it; an `asm!` without `nomem` is a barrier to the compiler, too.
        unsafe {
            let block = own((&raw const (*tops).top).cast::<AtomicPtr<Slot>>().add(class))
                .sub(1)
                .cast::<AtomicPtr<u8>>();
            let block = (*block).load(Relaxed);
            if !block.is_null() {
                core::arch::asm!("add qword ptr [{} + {} * 8], -8", in(reg) tops, in(reg) class, options(nostack));
            }
            block
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        // SAFETY: the caller's clauses are the same.
        unsafe {
            MagazineTops::pop(tops, class)
        }
    }

    /// Whether the magazine of `class` holds `block`, as far down as no visitor has taken anything out.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`].
    pub(crate) unsafe fn holds(tops: *mut MagazineTops, class: usize, block: *mut u8) -> bool {
        // SAFETY: the table is the calling thread's own, or a placeholder's.
        let top = unsafe { &(*tops).top };
        let mut at = top[class].load(Relaxed);
        loop {
            at = at.wrapping_sub(1);
            // Atomic, because a visitor may be taking blocks out of these slots.
            // SAFETY: a slot of the magazine: a null ends it, and the loop with it.
            let held = unsafe { shared(at) }.load(Relaxed);
            if held.is_null() || held == block {
                return !held.is_null();
            }
        }
    }
}
