//! Magazines: a thread's cached blocks of one class, as bounded arrays of pointers.
//!
//! ```text
//!   [ null | block | block |  ...  |       ]
//!            first           ^ top          ^ limit
//! ```
//!
//! The slot below the first is null: a pop that reads null has found the magazine empty. A push at the limit has found
//! it full. A class without a magazine has `top == limit` above a null, so it is empty and full at once, and so is
//! everything in the constant heaps that stand in where a thread has none.

use crate::superslab::pagemap::KINDS;
use crate::tiny::classes::{CLASSES, STRIDES};
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU8,
    Ordering::{Relaxed, Release},
    compiler_fence,
};

type Slot = *mut u8;

/// What the hit paths touch of a heap; indexed by class, and by the page map's kind, of which those that are no
/// classes never get a magazine. Atomic only so that statistics may look; the owner's loads and stores are plain ones.
#[repr(C, align(64))]
pub(crate) struct Hot {
    top: [AtomicPtr<Slot>; KINDS],
    limit: [AtomicPtr<Slot>; KINDS],
}

/// The slot that every missing magazine's top points behind.
static NOTHING: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

const fn missing() -> *mut Slot {
    (&raw const NOTHING).cast::<Slot>().cast_mut().wrapping_add(1)
}

/// Reads what only this thread writes: an ordinary load, which the compiler may fold into its use.
#[inline(always)]
unsafe fn own(slot: *const AtomicPtr<Slot>) -> *mut Slot {
    // SAFETY: other threads only read it, so there is no race.
    unsafe { (*slot).as_ptr().read() }
}

impl Hot {
    /// No magazines.
    pub(crate) const fn without() -> Self {
        Self {
            top: [const { AtomicPtr::new(missing()) }; KINDS],
            limit: [const { AtomicPtr::new(missing()) }; KINDS],
        }
    }

    /// Takes a block of `class` from its magazine, or null.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, and `class` is below [`KINDS`].
    #[inline(always)]
    pub(crate) unsafe fn pop(hot: *mut Hot, class: usize) -> *mut u8 {
        // SAFETY: passed on; top always has a slot below it.
        unsafe {
            let top = (&raw const (*hot).top).cast::<AtomicPtr<Slot>>().add(class);
            let at = own(top);
            let block = at.sub(1).read();
            if !block.is_null() {
                (*top).store(at.sub(1), Relaxed);
                // What the program does with the block must not come before: see `push`.
                compiler_fence(Release);
            }
            block
        }
    }

    /// Puts a block into the magazine of `class`. False when it is full.
    ///
    /// # Safety
    ///
    /// As [`Hot::pop`]; the block is free, of that class, and nobody's.
    #[inline(always)]
    pub(crate) unsafe fn push(hot: *mut Hot, class: usize, block: *mut u8) -> bool {
        // SAFETY: passed on; below the limit there is a slot.
        unsafe {
            let top = (&raw const (*hot).top).cast::<AtomicPtr<Slot>>().add(class);
            let limit = (&raw const (*hot).limit).cast::<AtomicPtr<Slot>>().add(class);
            let at = own(top);
            if at == own(limit) {
                return false;
            }
            at.write(block);
            // The child of a fork takes every slot below the top for a block.
            compiler_fence(Release);
            (*top).store(at.add(1), Relaxed);
            true
        }
    }

    /// [`Hot::pop`] where the class is not known when compiling: the top moves in one instruction.
    ///
    /// # Safety
    ///
    /// As [`Hot::pop`].
    #[inline(always)]
    pub(crate) unsafe fn pop_at(hot: *mut Hot, class: usize) -> *mut u8 {
        // SAFETY: as in `pop`.
        unsafe {
            let block = own((&raw const (*hot).top).cast::<AtomicPtr<Slot>>().add(class)).sub(1).read();
            if !block.is_null() {
                Hot::step(hot, class, -1);
            }
            block
        }
    }

    /// [`Hot::push`] where the class is not known when compiling.
    ///
    /// # Safety
    ///
    /// As [`Hot::push`].
    #[inline(always)]
    pub(crate) unsafe fn push_at(hot: *mut Hot, class: usize, block: *mut u8) -> bool {
        // SAFETY: as in `push`.
        unsafe {
            let at = own((&raw const (*hot).top).cast::<AtomicPtr<Slot>>().add(class));
            if at == own((&raw const (*hot).limit).cast::<AtomicPtr<Slot>>().add(class)) {
                return false;
            }
            at.write(block);
            Hot::step(hot, class, 1);
            true
        }
    }

    /// Moves a top by one slot. `class` counts from the start of `hot`, where the tops are.
    #[inline(always)]
    unsafe fn step(hot: *mut Hot, class: usize, slots: isize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: passed on. An aligned store of a word, as atomic as the ones it stands for.
        unsafe {
            if slots > 0 {
                core::arch::asm!("add qword ptr [{} + {} * 8], 8", in(reg) hot, in(reg) class, options(nostack));
            } else {
                core::arch::asm!("add qword ptr [{} + {} * 8], -8", in(reg) hot, in(reg) class, options(nostack));
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        // SAFETY: passed on.
        unsafe {
            let top = (&raw const (*hot).top).cast::<AtomicPtr<Slot>>().add(class);
            (*top).store((*top).load(Relaxed).offset(slots), Relaxed);
        }
    }

    /// Whether the magazine of `class` holds `block`.
    ///
    /// # Safety
    ///
    /// As [`Hot::pop`].
    #[cfg(any(feature = "checked", debug_assertions))]
    pub(crate) unsafe fn holds(hot: *mut Hot, class: usize, block: *mut u8) -> bool {
        // SAFETY: passed on; a null ends the blocks.
        unsafe {
            let mut at = (*hot).top[class].load(Relaxed).sub(1);
            while !at.read().is_null() {
                if at.read() == block {
                    return true;
                }
                at = at.sub(1);
            }
        }
        false
    }
}

/// log2 of the slots of the smallest magazine, and of the largest.
const MIN_LOG: u8 = 3;
const MAX_LOG: u8 = 8;
/// Bytes of blocks that a magazine holds at most, for classes of which it holds more than [`FEW`].
const MAX_BYTES: usize = 16 << 10;
/// Slots that every class may have up to 8 KiB.
const FEW: u8 = 2;

/// log2 of the slots that a magazine of `class` may grow to.
const fn max_log(class: usize) -> u8 {
    let stride = STRIDES[class] as usize;
    let blocks = MAX_BYTES / stride;
    let log = if blocks == 0 { 0 } else { blocks.ilog2() as u8 };
    if log > MAX_LOG {
        MAX_LOG
    } else if log >= FEW {
        log
    } else if stride <= 8 << 10 {
        FEW
    } else {
        1
    }
}

const MAX_LOGS: [u8; CLASSES + 1] = {
    let mut logs = [0; CLASSES + 1];
    let mut class = 1;
    while class <= CLASSES {
        logs[class] = max_log(class);
        class += 1;
    }
    logs
};

/// The owner's part of the magazines: their sizes, and the memory they live in.
pub(crate) struct Magazines {
    /// log2 of the slots, by class; 0: no magazine.
    logs: [AtomicU8; CLASSES + 1],
    /// log2 of the slots that they may grow to: the table's, or 0 when magazines are switched off.
    max: [u8; CLASSES + 1],
    /// Free memory for slots.
    at: *mut Slot,
    end: *mut Slot,
    /// Arrays that a magazine has grown out of, by log2 of their slots, linked through their first slot.
    spare: [*mut Slot; MAX_LOG as usize + 1],
}

impl Magazines {
    /// None, and none to come.
    pub(crate) const fn none() -> Self {
        Self {
            logs: [const { AtomicU8::new(0) }; CLASSES + 1],
            max: [0; CLASSES + 1],
            at: ptr::null_mut(),
            end: ptr::null_mut(),
            spare: [ptr::null_mut(); MAX_LOG as usize + 1],
        }
    }

    /// Whether the magazine of `class` may grow.
    #[inline(always)]
    pub(crate) fn may_grow(&self, class: usize) -> bool {
        // SAFETY: callers have a class.
        unsafe { self.logs.get_unchecked(class).load(Relaxed) < *self.max.get_unchecked(class) }
    }

    /// No magazines; they will live between `at` and `end`.
    pub(crate) fn reset(&mut self, hot: *mut Hot, enabled: bool, at: *mut u8, end: *mut u8) {
        for kind in 0..KINDS {
            // SAFETY: the caller's own heap.
            unsafe {
                (*hot).top[kind].store(missing(), Relaxed);
                (*hot).limit[kind].store(missing(), Relaxed);
            }
        }
        self.logs = [const { AtomicU8::new(0) }; CLASSES + 1];
        self.max = if enabled { MAX_LOGS } else { [0; CLASSES + 1] };
        self.at = at.cast();
        self.end = end.cast();
        self.spare = [ptr::null_mut(); MAX_LOG as usize + 1];
    }

    /// Doubles the magazine of `class`. False when it is as large as it may be.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that `hot` and these belong to.
    pub(crate) unsafe fn grow(&mut self, hot: *mut Hot, class: usize) -> bool {
        let before = self.logs[class].load(Relaxed);
        if before >= self.max[class] {
            return false;
        }
        let log = (before + 1).max(MIN_LOG).min(MAX_LOGS[class]);
        let array = self.take(log);
        if array.is_null() {
            return false;
        }
        // SAFETY: passed on; both arrays are ours and have the slots that their logs say.
        unsafe {
            array.write(ptr::null_mut());
            if before != 0 {
                let old = (*hot).limit[class].load(Relaxed).sub(1 << before);
                let count = (*hot).top[class].load(Relaxed).offset_from(old.add(1)) as usize;
                ptr::copy_nonoverlapping(old.add(1), array.add(1), count);
                // A fork between any two of these must leave its child a magazine that ends in a null.
                compiler_fence(Release);
                (*hot).top[class].store(array.add(1 + count), Relaxed);
                (*hot).limit[class].store(array.add(1 << log), Relaxed);
                compiler_fence(Release);
                old.write(self.spare[before as usize].cast());
                self.spare[before as usize] = old;
            } else {
                compiler_fence(Release);
                (*hot).top[class].store(array.add(1), Relaxed);
                (*hot).limit[class].store(array.add(1 << log), Relaxed);
            }
        }
        self.logs[class].store(log, Relaxed);
        true
    }

    fn take(&mut self, log: u8) -> *mut Slot {
        let spare = self.spare[log as usize];
        if !spare.is_null() {
            // SAFETY: a spare array's first slot links the next.
            self.spare[log as usize] = unsafe { spare.read() }.cast();
            return spare;
        }
        let array = self.at;
        let next = array.wrapping_add(1 << log);
        if next > self.end {
            return ptr::null_mut();
        }
        self.at = next;
        array
    }

    /// How many blocks the magazine of `class` holds: exact for the owner, a glimpse for others.
    pub(crate) fn held(&self, hot: *const Hot, class: usize) -> usize {
        let log = self.logs[class].load(Relaxed);
        if log == 0 {
            return 0;
        }
        // SAFETY: heaps are never unmapped.
        let (top, limit) = unsafe { ((*hot).top[class].load(Relaxed), (*hot).limit[class].load(Relaxed)) };
        let free = (limit.addr().wrapping_sub(top.addr())) / size_of::<Slot>();
        ((1usize << log) - 1).saturating_sub(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::boxed::Box;
    use std::vec;

    #[test]
    fn all_magazines_fit_at_their_largest() {
        let slots: usize = (1..=CLASSES).map(|c| 1usize << MAX_LOGS[c]).sum();
        // Arrays grown out of are at most as much again.
        assert!(2 * slots * 8 + size_of::<super::super::heap::Heap>() <= super::super::heap::RECORD);
        assert!(MAX_LOGS[1..].iter().all(|&log| log >= 1));
    }

    #[test]
    fn last_in_first_out_and_growing_keeps_everything() {
        let mut hot = Box::new(Hot::without());
        let mut memory = vec![ptr::null_mut::<u8>(); 2000];
        let mut m = Magazines::none();
        let range = memory.as_mut_ptr_range();
        m.reset(&raw mut *hot, true, range.start.cast(), range.end.cast());
        let hot = &raw mut *hot;
        for class in [1usize, 8, 30, CLASSES] {
            let capacity = (1usize << MAX_LOGS[class]) - 1;
            // SAFETY: `hot` is this thread's; the blocks are only numbers.
            unsafe {
                assert!(Hot::pop(hot, class).is_null());
                for i in 1..=capacity {
                    let block = ptr::without_provenance_mut(i * 8);
                    if !Hot::push(hot, class, block) {
                        assert!(m.grow(hot, class));
                        assert!(Hot::push(hot, class, block));
                    }
                    assert_eq!(m.held(hot, class), i);
                }
                assert!(!Hot::push(hot, class, ptr::without_provenance_mut(8)));
                assert!(!m.grow(hot, class));
                for i in (1..=capacity).rev() {
                    assert_eq!(Hot::pop(hot, class).addr(), i * 8);
                }
                assert!(Hot::pop(hot, class).is_null());
            }
        }
    }
}
