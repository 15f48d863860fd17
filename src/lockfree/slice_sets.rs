//! Which slices of a SuperSlab are free and which are dirty: one atomic word, so that each change is one
//! step.
//!
//! This word is the truth. Everything else that the pool knows of free slices (lists, counts) can be rebuilt
//! from it. That happens in the child of a fork, and after a thread that could not get the pool's lock has
//! changed the word without it.

use crate::sync::{AtomicU64, Ordering};

/// The slice sets of one SuperSlab, shared between threads.
pub(crate) struct Slices {
    word: AtomicU64,
}

/// Sets of slices, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sets {
    /// Slices that belong to no span and are not being purged.
    pub(crate) free: u32,
    /// Slices that may be resident or hold something other than zeros.
    pub(crate) dirty: u32,
}

impl Sets {
    /// All slices free and clean.
    pub(crate) const ALL_FREE: Sets = Sets { free: u32::MAX, dirty: 0 };

    /// Slices that can be purged.
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

impl Slices {
    /// Starts with these sets.
    #[cfg(test)]
    pub(crate) fn new(sets: Sets) -> Self {
        Self { word: AtomicU64::new(sets.word()) }
    }

    /// Sets the word while no other thread uses it.
    pub(crate) fn set(&self, sets: Sets) {
        // Release: pairs with the acquire in `change`: who takes slices sees all that has been stored before.
        self.word.store(sets.word(), Ordering::Release);
    }

    /// The sets at this moment.
    pub(crate) fn get(&self) -> Sets {
        // Relaxed: a snapshot; whoever acts on it does so by `change`, which fails if it is outdated.
        Sets::of(self.word.load(Ordering::Relaxed))
    }

    /// Replaces the sets by what `f` returns for them. `f` is called again when another thread was faster.
    /// Returns the sets before and after; `None`, with nothing changed, when `f` returns `None`.
    #[inline]
    pub(crate) fn change(&self, mut f: impl FnMut(Sets) -> Option<Sets>) -> Option<(Sets, Sets)> {
        let mut after = None;
        let word = |before| {
            after = f(Sets::of(before));
            after.map(Sets::word)
        };
        // Acquire: whoever takes slices sees what was done to them before. Release: whoever gives slices back
        // publishes what it did to them. Each pairs with the other, here in another thread.
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, word).ok()?;
        Some((Sets::of(before), after?))
    }

    /// Takes the first `count` slices of `room` adjacent free ones in `among`, preferably dirty ones. Returns
    /// the index of the first and all sets as they were before.
    pub(crate) fn take(&self, count: usize, room: usize, among: u32) -> Option<(usize, Sets)> {
        let mut index = 0;
        let (before, _) = self.change(|sets| {
            index = find(sets, room, among)?;
            Some(Sets { free: sets.free & !span_mask(index, count), ..sets })
        })?;
        Some((index, before))
    }
}

/// The index of the first of `count` adjacent free slices in `among`, preferably dirty ones, which are
/// resident already.
fn find(sets: Sets, count: usize, among: u32) -> Option<usize> {
    let dirty = runs(sets.purgeable() & among, count);
    let any = if dirty != 0 { dirty } else { runs(sets.free & among, count) };
    (any != 0).then(|| any.trailing_zeros() as usize)
}

/// Bit i of the result is set if the `count` bits of `mask` from bit i on are all set.
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

/// The mask of a span's slices.
pub(crate) fn span_mask(index: usize, slices: usize) -> u32 {
    (((1u64 << slices) - 1) << index) as u32
}

#[cfg(test)]
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
    fn dirty_slices_are_taken_first_and_only_those_that_may_be() {
        let slices = Slices::new(Sets { free: 0b1110_1111, dirty: 0b1100_0000 });
        assert_eq!(slices.take(2, 2, u32::MAX).map(|(index, _)| index), Some(6));
        assert_eq!(slices.take(1, 4, !1), None, "one of them is slice 0");
        assert_eq!(slices.take(2, 3, !1).map(|(index, _)| index), Some(1));
        let (index, before) = slices.take(1, 1, u32::MAX).unwrap();
        assert_eq!((index, before.free), (0, 0b10_1001));
        assert_eq!(slices.get(), Sets { free: 0b10_1000, dirty: 0b1100_0000 });
    }
}
