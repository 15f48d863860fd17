//! How magazines get larger and smaller arrays, and close the gaps that visitors leave.

use super::{
    CUT_CLASSES, CUT_LOG, EXTRA_PART, FIRST_CUT_LOG, FREE_LOGS, MAX_EXTRA, MAX_LOG, MIN_LOG, MISSED, MUCH,
    Magazines, QUIET, SMALL,
};
use crate::front::fast_path::MagazineTops;
use crate::lockfree::magazine_slots::Slot;
use crate::superslab::layout::SLICE_SHIFT;
use crate::sync::AtomicPtr;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::compiler_fence;
use crate::tiny::classes::{bits, stride};
use core::cell::Cell;
use core::ptr;

impl Magazines {
    /// Makes room in the magazine of `class`, which is full: closes the gaps that a visitor has left, or
    /// doubles the array. False when there are no gaps and it must not grow. Its [`Magazines::limit`] is in
    /// `limit`, and the heap's slabs have `bytes`.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap that `tops` and these belong to, and has entered it.
    #[inline(always)]
    pub(crate) unsafe fn grow(
        &self,
        tops: &MagazineTops,
        class: usize,
        limit: &AtomicPtr<Slot>,
        bytes: usize,
    ) -> bool {
        let notice = self.notices[class].get();
        // SAFETY: the caller's clauses are the same.
        if unsafe { self.close_gaps(tops, class, limit) } {
            return true;
        }
        if notice == QUIET {
            return false;
        }
        let before = self.logs[class].load(Relaxed);
        let most = if notice == MISSED { MAX_LOG } else { FREE_LOGS[class] };
        let log = (before + 1).max(MIN_LOG.min(FREE_LOGS[class])).min(most);
        // SAFETY: `resize` asks for the same as this function, and the new array is larger.
        if before >= most || !unsafe { self.resize(tops, class, limit, log, bytes) } {
            return false;
        }
        // Beyond its own share it grows by one step for every time that it runs empty.
        self.notices[class].set(if log < FREE_LOGS[class] { SMALL } else { QUIET });
        true
    }

    /// [`Magazines::grow`] without a larger array: closes the gaps, if there are any.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`].
    #[inline(always)]
    pub(crate) unsafe fn close_gaps(
        &self,
        tops: &MagazineTops,
        class: usize,
        limit: &AtomicPtr<Slot>,
    ) -> bool {
        let notice = self.notices[class].replace(QUIET);
        // SAFETY: `gather` asks for the same as this function.
        let gathered = notice != QUIET && unsafe { self.gather(tops, class) };
        let has_room = gathered && tops.top[class].load(Relaxed) != limit.load(Relaxed);
        if has_room {
            self.notices[class].set(notice);
        }
        has_room
    }

    /// Gives the magazine of `class` an array of `1 << log` slots, and moves its blocks there. False, and
    /// nothing done, when there is no memory for that, or it would take more than half of what is left of
    /// what all may have together beside slabs of `bytes`: so something is left for other classes.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`]; the blocks have room in the new array.
    #[inline(always)]
    unsafe fn resize(
        &self,
        tops: &MagazineTops,
        class: usize,
        limit: &AtomicPtr<Slot>,
        log: u8,
        bytes: usize,
    ) -> bool {
        let before = self.logs[class].load(Relaxed);
        // What is beyond the magazine's own share counts.
        let mut extra = self.extra.get();
        if log.max(before) > FREE_LOGS[class] {
            let slots = |log: u8| 1usize << log.max(FREE_LOGS[class]);
            let more = slots(log).wrapping_sub(slots(before)).wrapping_mul(stride(class) as usize);
            let most = bytes.clamp(MAX_EXTRA, MUCH).max(bytes / EXTRA_PART);
            if log > before && more > most.saturating_sub(extra as usize) / 2 {
                return false;
            }
            extra = extra.wrapping_add(more as u32);
        }
        let array = self.take_array(log);
        if array.is_null() {
            return false;
        }
        let top = &tops.top[class];
        let old = limit.load(Relaxed).wrapping_sub(1 << before);
        // SAFETY: the new array is in no magazine, so it is ours, with `1 << log` slots. The old one, if
        // there is one, ends at the limit and has `1 << before` slots, all written up to the top. No visitor
        // is in, but statistics may read the slots and the tops: all accesses are atomic.
        unsafe {
            (*array).store(ptr::null_mut(), Relaxed);
            let held = if before == 0 { 0 } else { top.load(Relaxed).offset_from(old) as usize - 1 };
            for i in 1..=held {
                (*array.add(i)).store((*old.add(i)).load(Relaxed), Relaxed);
            }
            // Compiler fences: a fork between any two of these steps must leave its child a magazine that
            // ends in a null.
            compiler_fence(Release);
            top.store(array.add(1 + held), Relaxed);
            limit.store(array.add(1 << log), Relaxed);
            compiler_fence(Release);
            if before != 0 {
                (*old).store(self.spares(before).replace(old).cast(), Relaxed);
            }
        }
        self.extra.set(extra);
        self.present.set(self.present.get() | 1 << class);
        self.logs[class].store(log, Relaxed);
        true
    }

    /// Gives the magazine of `class` all the slots that every magazine may have, if it has fewer and there is
    /// memory for them.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`].
    pub(crate) unsafe fn begin(&self, tops: &MagazineTops, class: usize) {
        if self.logs[class].load(Relaxed) < FREE_LOGS[class] {
            // SAFETY: `resize` asks for the same as this function.
            unsafe { self.resize(tops, class, self.limit(tops, class), FREE_LOGS[class], 0) };
        }
    }

    /// Makes a magazine of `class` with room for so many blocks, or for as many as every one may have, if
    /// there is none and there is memory for it. It may grow, also if there was no use for one before.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`]; the heap is not armed.
    pub(crate) unsafe fn begin_with(&self, tops: &MagazineTops, class: usize, blocks: usize) {
        if self.logs[class].load(Relaxed) == 0 {
            let log = (blocks + 1).next_power_of_two().ilog2() as u8;
            // SAFETY: `resize` asks for the same as this function.
            let is_made =
                unsafe { self.resize(tops, class, &tops.limit[class], log.min(FREE_LOGS[class]), 0) };
            if is_made && self.notices[class].get() == QUIET {
                self.notices[class].set(SMALL);
            }
        }
    }

    /// Makes room for blocks that are cut ahead, in the magazine of a class of which a slab has been used up,
    /// if it has only run empty since it last grew: a step with each slab. Whether there is room for some.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`]; the heap is not armed.
    #[inline(always)]
    pub(crate) unsafe fn widen(&self, tops: &MagazineTops, class: usize) -> bool {
        if self.notices[class].get() != MISSED || class > CUT_CLASSES {
            return false;
        }
        let log = self.logs[class].load(Relaxed);
        let wider = (log + 1).clamp(FIRST_CUT_LOG, CUT_LOG).min(FREE_LOGS[class]);
        // SAFETY: `resize` asks for the same as this function.
        log >= wider || unsafe { self.resize(tops, class, &tops.limit[class], wider, 0) }
    }

    /// Closes the gaps that a visitor has left in the magazine of `class`. True when a visitor had taken
    /// something.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`].
    #[inline]
    pub(crate) unsafe fn gather(&self, tops: &MagazineTops, class: usize) -> bool {
        // The check is in line because a thread that ends makes it for every class.
        // SAFETY: the caller's clauses are the same.
        self.drained.load(Relaxed) & (1 << class) != 0 && unsafe { self.gather_drained(tops, class) }
    }

    /// [`Magazines::gather`] for a magazine that was drained.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`].
    #[cold]
    #[inline(never)]
    unsafe fn gather_drained(&self, tops: &MagazineTops, class: usize) -> bool {
        let top = &tops.top[class];
        let Some(first) = self.first(tops, class) else { return false };
        // Load and store, no exchange: under the heap's lock nobody else writes it.
        self.drained.store(self.drained.load(Relaxed) & !(1 << class), Relaxed);
        // SAFETY: all slots from the first to the top were written, and lie in the magazine's array. No
        // visitor is in, so only we write them, and may read them plainly; statistics may be reading, so we
        // write them atomically.
        unsafe {
            // Each block leaves the top before it is stored further down, so that the child of a fork finds
            // none twice.
            let mut put = first;
            while top.load(Relaxed) > put {
                let at = top.load(Relaxed).sub(1);
                let block = (*at).load(Relaxed);
                top.store(at, Relaxed);
                compiler_fence(Release);
                if !block.is_null() {
                    while put < at && !(*put).load(Relaxed).is_null() {
                        put = put.add(1);
                    }
                    if put >= at {
                        top.store(at.add(1), Relaxed);
                        break;
                    }
                    (*put).store(block, Relaxed);
                    put = put.add(1);
                }
            }
        }
        true
    }

    /// The classes whose magazines should be emptied and halved, if they [have much](Self::has_much) and the
    /// process has had `peak` bytes mapped. If that is more than at the last call, it grows while blocks lie
    /// here: then those that have more room than their own.
    pub(crate) fn surplus(&self, peak: usize) -> impl Iterator<Item = usize> {
        let peak = (peak >> SLICE_SHIFT) as u32;
        let among = if self.peak.replace(peak) < peak { self.present.get() } else { 0 };
        bits(among).filter(|&class| self.logs[class].load(Relaxed) > FREE_LOGS[class])
    }

    /// Whether the magazine of `class` has more than the fewest slots.
    pub(crate) fn may_shrink(&self, class: usize) -> bool {
        self.logs[class].load(Relaxed) > MIN_LOG
    }

    /// Halves the magazine of `class`, if there is memory for the smaller array.
    ///
    /// # Safety
    ///
    /// As [`Magazines::grow`]; the magazine is empty, and [`Magazines::may_shrink`] says that it may, or
    /// [`Magazines::surplus`] has named it.
    pub(crate) unsafe fn shrink(&self, tops: &MagazineTops, class: usize) {
        // SAFETY: `resize` asks for the same as this function, and an empty magazine has room anywhere.
        if unsafe { self.resize(tops, class, self.limit(tops, class), self.logs[class].load(Relaxed) - 1, 0) }
        {
            self.notices[class].set(QUIET);
        }
    }

    /// The spare arrays of `1 << log` slots.
    ///
    /// # Safety
    ///
    /// `log` is at most [`MAX_LOG`], as that of every magazine.
    #[inline(always)]
    unsafe fn spares(&self, log: u8) -> &Cell<*mut Slot> {
        // SAFETY: by the caller's word it is less than `SPARES`.
        unsafe { self.spare.get_unchecked(log as usize) }
    }

    /// Takes an array of `1 << log` slots, used before or not; null when there is no memory for it. Under the
    /// heap's lock.
    fn take_array(&self, log: u8) -> *mut Slot {
        // SAFETY: no magazine asks for more than the most slots of all.
        let spares = unsafe { self.spares(log) };
        let spare = spares.get();
        if !spare.is_null() {
            // SAFETY: an array of this heap, in whose first slot its last magazine has stored the link.
            spares.set(unsafe { (*spare).load(Relaxed) }.cast());
            return spare;
        }
        let array = self.at.get();
        let next = array.wrapping_add(1 << log);
        if next > self.end.load(Relaxed) {
            return ptr::null_mut();
        }
        self.at.set(next);
        if next > self.most.load(Relaxed) {
            self.most.store(next, Relaxed);
        }
        array
    }
}
