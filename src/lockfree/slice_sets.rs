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
    /// All slices free and dirty.
    pub(crate) const ALL_DIRTY: Sets = Sets { free: u32::MAX, dirty: u32::MAX };

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

    /// Every pattern of 16 slices, in either half, beside an empty and a full other half; every length.
    #[test]
    fn runs_are_found_exactly() {
        for half in 0..=u16::MAX as u32 {
            for mask in [half, half | 0xffff_0000, half << 16, half << 16 | 0xffff] {
                // Bit i is set if the `count` bits from bit i on are, one more in each round.
                let mut expected = u32::MAX;
                for count in 1..=32 {
                    expected &= mask >> (count - 1);
                    assert_eq!(runs(mask, count), expected, "{mask:#x} {count}");
                }
            }
        }
    }

    #[test]
    fn a_span_is_as_many_slices_as_it_says() {
        for (index, slices) in (0..32).flat_map(|index| (0..=32 - index).map(move |slices| (index, slices))) {
            let expected = (index..index + slices).fold(0u32, |mask, slice| mask | 1 << slice);
            assert_eq!(span_mask(index, slices), expected, "{index} {slices}");
        }
    }

    /// Every state of the lowest 6 slices, each free or not and dirty or not; every length and room.
    #[test]
    fn a_span_is_taken_where_it_should_be() {
        for (free, dirty) in (0..1u32 << 6).flat_map(|free| (0..1u32 << 6).map(move |dirty| (free, dirty))) {
            for (room, among) in (1..=6).flat_map(|room| [u32::MAX, !1, 0b10_1111].map(|among| (room, among)))
            {
                // What is beyond must not change.
                let sets = Sets { free: free | 1 << 31, dirty: dirty | 0xff00_0000 };
                let fits = |i: &usize, set: u32| (*i..i + room).all(|slice| set & among & 1 << slice != 0);
                let first = (0..6)
                    .find(|i| fits(i, free & dirty))
                    .or_else(|| (room == 1 && among >> 31 != 0).then_some(31))
                    .filter(|&i| i < 31 || sets.purgeable() & 1 << 31 != 0)
                    .or_else(|| (0..6).find(|i| fits(i, free)));
                let slices = Slices::new(sets);
                let count = room.div_ceil(2);
                assert_eq!(
                    slices.take(count, room, among),
                    first.map(|i| (i, sets)),
                    "{sets:?} {room} {among:b}"
                );
                let taken = first.map_or(0, |i| span_mask(i, count));
                assert_eq!(slices.get(), Sets { free: sets.free & !taken, ..sets });
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
