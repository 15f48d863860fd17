//! One mapping that the cache keeps.

use crate::large::huge::Mapping;
use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::thp::HUGE_PAGE;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::compiler_fence;
use core::ptr;

/// Milliseconds until the system is asked again to unmap memory that it has refused to unmap.
pub(super) const AGAIN: u32 = 1000;
/// The least number of bytes that is cut off a mapping to make room.
pub(super) const LEAST_CUT: usize = 1 << 20;

impl Mapping {
    /// The address behind the last byte.
    pub(super) fn end(&self) -> usize {
        self.block.addr() + self.len
    }

    /// Whether it goes on where other memory ends, at `end`.
    pub(super) fn begins_at(&self, end: *mut u8) -> bool {
        self.block == end && os::is_one_piece(end.wrapping_sub(1), self.block)
    }

    /// Whether one of the two goes on where the other ends.
    pub(super) fn is_beside(&self, other: &Mapping) -> bool {
        let end = |mapping: &Mapping| mapping.block.wrapping_add(mapping.len);
        self.begins_at(end(other)) || other.begins_at(end(self))
    }

    /// Splits the huge pages that lie in it only in part, before it is unmapped or moved.
    ///
    /// # Safety
    ///
    /// It is mapped, ours, and in whole system pages.
    pub(in crate::large) unsafe fn split_ends(&self) {
        let inside = |end: usize| end & (HUGE_PAGE - 1) != 0;
        // SAFETY: the first page of it, and the last one.
        unsafe {
            if inside(self.block.addr()) {
                os::split_huge_page(self.block);
            }
            if inside(self.end()) {
                os::split_huge_page(self.block.wrapping_add(self.len - os::page_size()));
            }
        }
    }

    /// The length that is left when at least `tail` bytes are cut off the end, if that is worth keeping. Huge
    /// pages are not split: the system could reuse neither part before both are free.
    pub(super) fn without(&self, tail: usize) -> Option<usize> {
        let unit = if self.huge { HUGE_PAGE } else { SLICE };
        let end = self.end().checked_sub(tail)? & !(unit - 1);
        end.checked_sub(self.block.addr()).filter(|&rest| rest >= LEAST_CUT)
    }
}

/// A place for memory that is kept. In the child of a fork, it is as it was before or after any one change:
/// see [`Entry::fill`], [`Entry::clear`] and [`Entry::cut`].
pub(super) struct Entry {
    pub(super) block: *mut u8,
    /// 0 where nothing is kept.
    len: AtomicUsize,
    pub(super) huge: bool,
    /// Nothing of it was ever touched: see [`Mapping`].
    pub(super) clean: bool,
    /// The system has refused to unmap it, though as a rule it has taken the pages. Where room has to be made
    /// it is not tried again for [`AGAIN`].
    pub(super) refused: bool,
    /// A block, which may grow into this, was cut off the front.
    pub(super) follows: bool,
    /// When it was kept, in milliseconds.
    pub(super) since: u32,
}

impl Entry {
    /// An empty place.
    pub(super) const fn empty() -> Self {
        Self {
            block: ptr::null_mut(),
            len: AtomicUsize::new(0),
            huge: false,
            clean: false,
            refused: false,
            follows: false,
            since: 0,
        }
    }

    /// The length of what is kept.
    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// What is kept.
    pub(super) fn kept(&self) -> Mapping {
        Mapping { block: self.block, len: self.len(), huge: self.huge, clean: self.clean }
    }

    /// Enters memory into an empty place.
    pub(super) fn fill(&mut self, kept: Mapping, now: u32, refused: bool) {
        (self.block, self.huge, self.since, self.refused) = (kept.block, kept.huge, now, refused);
        (self.clean, self.follows) = (kept.clean, false);
        compiler_fence(Release);
        self.len.store(kept.len, Relaxed);
    }

    /// How long it is kept at least, in milliseconds, where `least` is the rule.
    pub(super) fn term(&self, least: u32) -> u32 {
        if self.refused { least.max(AGAIN) } else { least }
    }

    /// Empties the place. Returns what was there.
    pub(super) fn clear(&mut self) -> Mapping {
        let kept = self.kept();
        self.len.store(0, Relaxed);
        compiler_fence(Release);
        kept
    }

    /// Cuts off the first `len` bytes and returns them, or all if the rest would be too short for a block of
    /// its own.
    pub(super) fn cut(&mut self, len: usize) -> Mapping {
        let kept = self.kept();
        if kept.len - len < SLICE {
            return self.clear();
        }
        // After a fork in between, the child has lost the end.
        self.len.store(kept.len - len, Relaxed);
        compiler_fence(Release);
        self.block = kept.block.wrapping_add(len);
        self.follows = true;
        Mapping { len, ..kept }
    }

    /// Shortens the memory to `len` bytes. Returns what was cut off the end.
    pub(super) fn shorten(&mut self, len: usize) -> Mapping {
        let kept = self.kept();
        self.len.store(len, Relaxed);
        Mapping { block: kept.block.wrapping_add(len), len: kept.len - len, ..kept }
    }
}
