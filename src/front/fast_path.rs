//! What the hit paths touch of a heap: the tops and limits of its magazines ([`super::magazine`] says what those are), and the
//! pops and pushes.

use crate::base::table::Table;
use crate::superslab::pagemap::KINDS;
use crate::tiny::classes::{C_TABLE, MAX_TABLE};
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, Ordering, compiler_fence};

/// A place for a block's address.
pub(crate) type Slot = *mut u8;

/// What the hit paths touch of a heap; indexed by class, and by the page map's kind, of which those that are no
/// classes never get a magazine. Atomic only so that statistics may look; the owner's loads and stores are plain ones.
#[repr(C)]
pub(crate) struct MagazineTops {
    pub(crate) top: Table<AtomicPtr<Slot>, KINDS>,
    pub(crate) limit: Table<AtomicPtr<Slot>, KINDS>,
    /// C's classes by size in words: here, because a table elsewhere costs `malloc` an instruction for its address.
    pub(crate) classes: [u8; MAX_TABLE / 8 + 1],
}

/// The slot that every missing magazine's top points behind.
static NOTHING: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

pub(crate) const fn missing() -> *mut Slot {
    (&raw const NOTHING).cast::<Slot>().cast_mut().wrapping_add(1)
}

/// A slot as the owner and a visitor see it.
///
/// # Safety
///
/// A slot of an array in a heap's record, which is never unmapped.
#[inline(always)]
pub(crate) unsafe fn shared<'a>(slot: *mut Slot) -> &'a AtomicPtr<u8> {
    // SAFETY: passed on; as large and as aligned as an atomic.
    unsafe { &*slot.cast::<AtomicPtr<u8>>() }
}

/// How a block is put into a slot. Where that costs nothing, such that who takes it out again sees what was done to the
/// block before; elsewhere the visitor's barriers see to that.
const PUT: Ordering = if cfg!(target_arch = "x86_64") { Release } else { Relaxed };

/// Reads what only this thread writes: an ordinary load, which the compiler may fold into its use.
#[inline(always)]
unsafe fn own(slot: *const AtomicPtr<Slot>) -> *mut Slot {
    // SAFETY: other threads only read it, so there is no race.
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

    /// C's class for as many words, at most what the table has.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, or it is a placeholder.
    #[inline(always)]
    pub(crate) unsafe fn class(tops: *mut MagazineTops, words: usize) -> usize {
        debug_assert!(words <= MAX_TABLE / 8);
        // SAFETY: passed on; the words are in the table.
        unsafe { (&raw const (*tops).classes).cast::<u8>().add(words).read() as usize }
    }

    /// Takes a block of `class` from its magazine, or null.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, and `class` is below [`KINDS`].
    #[inline(always)]
    pub(crate) unsafe fn pop(tops: *mut MagazineTops, class: usize) -> *mut u8 {
        // SAFETY: passed on; top always has a slot below it.
        unsafe {
            let top = (&raw const (*tops).top).cast::<AtomicPtr<Slot>>().add(class);
            let at = own(top);
            let block = shared(at.sub(1)).load(Relaxed);
            if !block.is_null() {
                (*top).store(at.sub(1), Relaxed);
                // What the program does with the block must not come before: see `push`. Nor must the next pop: see `rob`.
                compiler_fence(SeqCst);
            }
            block
        }
    }

    /// Puts a block into the magazine of `class`. False when it is full.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`]; the block is free, of that class, and nobody's.
    #[inline(always)]
    pub(crate) unsafe fn push(tops: *mut MagazineTops, class: usize, block: *mut u8) -> bool {
        // SAFETY: passed on; below the limit there is a slot.
        unsafe {
            let top = (&raw const (*tops).top).cast::<AtomicPtr<Slot>>().add(class);
            let limit = (&raw const (*tops).limit).cast::<AtomicPtr<Slot>>().add(class);
            let at = own(top);
            if at == own(limit) {
                return false;
            }
            shared(at).store(block, PUT);
            // The child of a fork takes every slot below the top for a block.
            compiler_fence(Release);
            (*top).store(at.add(1), PUT);
            true
        }
    }

    /// [`MagazineTops::pop`] where the class is not known when compiling: the top moves in one instruction. The same in `push` saves an
    /// instruction, too, and costs time: see decision 014.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`].
    #[inline(always)]
    pub(crate) unsafe fn pop_at(tops: *mut MagazineTops, class: usize) -> *mut u8 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: as in `pop`. The tops are at the start of `hot`; an aligned store of a word, as atomic as the one that
        // it stands for, and a barrier to the compiler.
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
        // SAFETY: passed on.
        unsafe {
            MagazineTops::pop(tops, class)
        }
    }

    /// Whether the magazine of `class` holds `block`.
    ///
    /// # Safety
    ///
    /// As [`MagazineTops::pop`].
    #[cfg(any(feature = "checked", debug_assertions))]
    pub(crate) unsafe fn holds(tops: *mut MagazineTops, class: usize, block: *mut u8) -> bool {
        // SAFETY: passed on; a null ends the blocks.
        unsafe {
            let mut at = (&(*tops).top)[class].load(Relaxed).sub(1);
            loop {
                // A visitor may be at these slots.
                let held = shared(at).load(Relaxed);
                if held.is_null() || held == block {
                    return !held.is_null();
                }
                at = at.sub(1);
            }
        }
    }
}
