//! Which pages of a SuperSlab are free, and which are dirty: one word, so that each change is one step.
//!
//! This word is what counts. Everything else that the pool knows of free pages (lists, numbers) can be made anew from it: in the
//! child of a fork, and when a thread has changed it without the pool's lock, which it could not have.

use crate::sync::{AtomicU64, Ordering};

/// The pages of a SuperSlab.
pub(crate) struct Pages {
    word: AtomicU64,
}

/// Sets of pages, as masks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sets {
    /// Pages that belong to no span, and are not being given back.
    pub(crate) free: u32,
    /// Pages that may hold something other than zeros, or be resident.
    pub(crate) dirty: u32,
}

impl Sets {
    /// All are free and clean.
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) const ALL_FREE: Sets = Sets { free: u32::MAX, dirty: 0 };

    /// Pages that can be given back.
    pub(crate) fn purgeable(self) -> u32 {
        self.free & self.dirty
    }

    const fn word(self) -> u64 {
        self.free as u64 | (self.dirty as u64) << 32
    }

    fn of(word: u64) -> Self {
        Self { free: word as u32, dirty: (word >> 32) as u32 }
    }
}

impl Pages {
    /// Pages that are so.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(crate) fn new(sets: Sets) -> Self {
        Self { word: AtomicU64::new(sets.word()) }
    }

    /// Sets them, while nobody else uses them.
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn set(&self, sets: Sets) {
        self.word.store(sets.word(), Ordering::Relaxed);
    }

    /// How they are now.
    pub(crate) fn get(&self) -> Sets {
        Sets::of(self.word.load(Ordering::Relaxed))
    }

    /// Changes them as `f` says, which is asked again when another thread has been faster; how they were, and are. `None`, and
    /// nothing changed, when `f` has no answer.
    #[inline]
    pub(crate) fn change(&self, mut f: impl FnMut(Sets) -> Option<Sets>) -> Option<(Sets, Sets)> {
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            let new = f(Sets::of(old))?;
            // Acquire: whoever takes pages sees what was done to them before, which pairs with the release of whoever gave
            // them back.
            match self.word.compare_exchange_weak(old, new.word(), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some((Sets::of(old), new)),
                Err(now) => old = now,
            }
        }
    }

    /// Takes the first `count` of `room` adjacent free pages of those in `among`, dirty ones if there are any. Where they begin,
    /// and how all pages were before.
    pub(crate) fn take(&self, count: usize, room: usize, among: u32) -> Option<(usize, Sets)> {
        let mut index = 0;
        let (before, _) = self.change(|sets| {
            index = find(sets, room, among)?;
            Some(Sets { free: sets.free & !span_mask(index, count), ..sets })
        })?;
        Some((index, before))
    }
}

/// Where adjacent free pages of those in `among` begin, dirty ones if there are any: they are resident already.
fn find(sets: Sets, count: usize, among: u32) -> Option<usize> {
    let dirty = runs(sets.purgeable() & among, count);
    let any = if dirty != 0 { dirty } else { runs(sets.free & among, count) };
    (any != 0).then(|| any.trailing_zeros() as usize)
}

/// Bit i of the result: the `count` bits of `mask` from i on are all set.
fn runs(mask: u32, count: usize) -> u32 {
    let mut result = mask;
    let mut have = 1;
    while have < count && result != 0 {
        let step = have.min(count - have);
        result &= result >> step;
        have += step;
    }
    result
}

/// The bits of the pages of a span.
pub(crate) fn span_mask(index: usize, pages: usize) -> u32 {
    (((1u64 << pages) - 1) << index) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_exactly() {
        for count in 1..=16 {
            for mask in
                [0u32, 1, 0xffff_ffff, 0xfffe_fffe, 0x0ff0_0ff0, 0x8000_0001, 0xf0f0_f0f0, 0x7fff_8001]
            {
                let expected = (0..=32 - count)
                    .filter(|&i| (i..i + count).all(|b| mask & (1 << b) != 0))
                    .fold(0u32, |m, i| m | 1 << i);
                assert_eq!(runs(mask, count), expected, "{mask:x} {count}");
            }
        }
    }

    #[test]
    fn dirty_pages_are_taken_first_and_only_those_that_may_be() {
        let pages = Pages::new(Sets { free: 0b1110_1111, dirty: 0b1100_0000 });
        assert_eq!(pages.take(2, 2, u32::MAX).map(|(index, _)| index), Some(6));
        assert_eq!(pages.take(1, 4, !1), None, "one of them is page 0");
        assert_eq!(pages.take(2, 3, !1).map(|(index, _)| index), Some(1));
        let (index, before) = pages.take(1, 1, u32::MAX).unwrap();
        assert_eq!((index, before.free), (0, 0b10_1001));
        assert_eq!(pages.get(), Sets { free: 0b10_1000, dirty: 0b1100_0000 });
    }
}
