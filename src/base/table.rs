//! Arrays that accept any index, so that a lookup can never make the allocator panic.

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_good() {
        let mut table = Table([1, 2, 3, 4]);
        table[3] += 10;
        assert_eq!((table[0], table[3], table[4], table[usize::MAX]), (1, 14, 1, 14));
    }
}
