//! Arrays whose index operator accepts any index, so that a lookup can never make the allocator panic.

use core::cell::UnsafeCell;
use core::ops::{Index, IndexMut};

/// An array whose length is a power of two. An index is taken modulo the length; no caller relies on that.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Table<T, const N: usize>(pub(crate) [T; N]);

impl<T, const N: usize> Index<usize> for Table<T, N> {
    type Output = T;
    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        const { assert!(N.is_power_of_two()) };
        &self.0[index & (N - 1)]
    }
}

impl<T, const N: usize> IndexMut<usize> for Table<T, N> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        const { assert!(N.is_power_of_two()) };
        &mut self.0[index & (N - 1)]
    }
}

/// An array of atomics or cells. One cell lies around all of them: without it Miri looks at each element
/// wherever a reference is made to the array, or to what it is part of, which took half of its time. To be
/// indexed as a [`Table`] is, it has a length that is a power of two.
#[repr(transparent)]
pub(crate) struct CellTable<T, const N: usize>(UnsafeCell<[T; N]>);

// SAFETY: a shared table gives out shared references to its elements and nothing else.
unsafe impl<T: Sync, const N: usize> Sync for CellTable<T, N> {}

impl<T, const N: usize> CellTable<T, N> {
    pub(crate) const fn new(elements: [T; N]) -> Self {
        Self(UnsafeCell::new(elements))
    }

    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: `index` is less than `N`, as has just been checked.
        (index < N).then(|| unsafe { self.get_unchecked(index) })
    }

    /// # Safety
    ///
    /// `index` is less than `N`.
    #[inline(always)]
    pub(crate) unsafe fn get_unchecked(&self, index: usize) -> &T {
        debug_assert!(index < N);
        // SAFETY: by the caller's word there is such an element. Nobody has an exclusive reference to it
        // while there is a shared one to the table.
        unsafe { &*self.0.get().cast::<T>().add(index) }
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        // SAFETY: each index is less than `N`.
        (0..N).map(|index| unsafe { self.get_unchecked(index) })
    }
}

impl<T, const N: usize> Index<usize> for CellTable<T, N> {
    type Output = T;
    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        const { assert!(N.is_power_of_two()) };
        // SAFETY: taken modulo `N`, so less than that.
        unsafe { self.get_unchecked(index & (N - 1)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn every_index_is_good() {
        let mut table = Table([1, 2, 3, 4]);
        table[3] += 10;
        assert_eq!((table[0], table[3], table[4], table[usize::MAX]), (1, 14, 1, 14));
        let table = CellTable::new([1, 2, 3, 4].map(Cell::new));
        table[3].set(14);
        assert_eq!([0, 3, 4, usize::MAX].map(|index| table[index].get()), [1, 14, 1, 14]);
        assert!(table.iter().map(Cell::get).eq([1, 2, 3, 14]));
        assert_eq!((table.get(3).map(Cell::get), table.get(4)), (Some(14), None));
    }
}
