//! Cheap random numbers, the same ones for the same seed.

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::mapped::Mapped;

/// A generator.
pub struct Random(SmallRng);

impl Random {
    /// From a seed and the number of the thread that uses it.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream))
    }

    /// Two independent numbers, the first below `a`, the second in `low..=high`. None is above 2^32.
    #[inline(always)]
    pub fn pair(&mut self, a: usize, low: usize, high: usize) -> (usize, usize) {
        let bits = self.0.next_u64();
        let scale = |bits: u64, n: usize| (((bits & 0xffff_ffff) * n as u64) >> 32) as usize;
        (scale(bits, a), low + scale(bits >> 32, high - low + 1))
    }

    /// A number below `n`, which is at most 2^32.
    #[inline(always)]
    pub fn below(&mut self, n: usize) -> usize {
        self.pair(n, 0, 0).0
    }

    /// A number in `low..=high`.
    #[inline(always)]
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        self.pair(1, low, high).1
    }

    /// 0 to `length` in random order.
    pub fn permutation(&mut self, length: usize) -> Mapped<u32> {
        let mut order = Mapped::from_fn(length, |i| i as u32);
        for i in (1..length).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_repetition() {
        let (mut one, mut two) = (Random::new(1, 0), Random::new(1, 0));
        let mut seen = [false; 4];
        for _ in 0..1000 {
            let (a, b) = one.pair(10, 5, 8);
            assert!(a < 10 && (5..=8).contains(&b));
            assert_eq!((a, b), two.pair(10, 5, 8));
            seen[b - 5] = true;
        }
        assert_eq!(seen, [true; 4]);
        assert_ne!(Random::new(1, 0).0.next_u64(), Random::new(1, 1).0.next_u64());
        let mut order = one.permutation(100).to_vec();
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
