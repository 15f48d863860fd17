//! From samples to estimates.
//!
//! A block of `size` bytes is sampled with probability `p = 1 - exp(-size / rate)`, independently of all
//! others: `n` samples stand for `n / p` blocks, without bias.

use std::iter::Sum;
use std::ops::AddAssign;

use serde::Serialize;

/// The quantile of the normal distribution that leaves 2.5% above it.
const Z: f64 = 1.959_963_984_540_054;

/// Half of the logarithm of 40, by which Hoeffding's inequality leaves 2.5% on each side.
const HALF_LN_40: f64 = 1.844_439_727_056_968_1;

/// The size of the largest slab class. The sizes of larger blocks are rounded.
const LARGE: u64 = 64 << 10;

/// How far apart the sizes are that blocks of about `size` bytes are rounded to, up or down; 0 for blocks of
/// slab classes. In `coarse` files, older ones, they are eighths of a power of two, else 64ths.
pub fn step(size: u64, coarse: bool) -> u64 {
    // One of exactly the largest class may be a larger block that was rounded down.
    if size < LARGE { 0 } else { 1 << (size.ilog2() - if coarse { 3 } else { 6 }) }
}

/// The variance of a normal distribution that is as wide, where 95% of it lies, as what rounding the sizes of
/// so many blocks may do: by Hoeffding's inequality, so that it holds for one block as for many.
pub(crate) fn rounding_variance(blocks: f64, step: u64) -> f64 {
    blocks * (step as f64).powi(2) * HALF_LN_40 / (Z * Z)
}

/// The probability that a block of `size` bytes is sampled: with rate 1 all are.
pub fn probability(size: u64, rate: u64) -> f64 {
    if rate <= 1 {
        return 1.0;
    }
    -(-(size as f64) / rate.max(1) as f64).exp_m1()
}

/// How many blocks, and bytes in them, some samples stand for. Sums of estimates are estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// How many samples there were.
    pub samples: u64,
    /// Blocks.
    pub objects: f64,
    /// Bytes in them.
    pub bytes: f64,
    /// The variance of `objects`.
    #[serde(skip)]
    objects_variance: f64,
    /// The variance of `bytes`.
    #[serde(skip)]
    bytes_variance: f64,
    /// Bytes that one more sample of the heaviest kind would add, less those of its own block.
    #[serde(skip)]
    step: f64,
    /// Bytes in the sampled blocks alone: there are not fewer.
    #[serde(skip)]
    seen: f64,
    /// [`rounding_variance`].
    #[serde(skip)]
    rounding_variance: f64,
    /// The most by which rounding may have changed `bytes`.
    #[serde(skip)]
    rounding_most: f64,
}

impl Estimate {
    /// Of `samples` blocks of `size` bytes each.
    pub fn new(samples: u64, size: u64, rate: u64) -> Self {
        if samples == 0 {
            return Self::default();
        }
        let (n, s, p) = (samples as f64, size as f64, probability(size, rate));
        let variance = n * (1.0 - p) / (p * p);
        Self {
            samples,
            objects: n / p,
            bytes: n * s / p,
            objects_variance: variance,
            bytes_variance: variance * s * s,
            step: s * (1.0 - p) / p,
            seen: n * s,
            rounding_variance: 0.0,
            rounding_most: 0.0,
        }
    }

    /// The same where the blocks' size was rounded, at random so that it stays the same on average, to
    /// multiples of `step`.
    pub fn rounded(self, step: u64) -> Self {
        Self {
            rounding_variance: rounding_variance(self.objects, step),
            rounding_most: self.objects * step as f64,
            ..self
        }
    }

    /// The standard error of `objects`.
    pub fn objects_error(&self) -> f64 {
        self.objects_variance.sqrt()
    }

    /// The standard error of `bytes`, that of rounding included: 1.96 of it are 95%.
    pub fn bytes_error(&self) -> f64 {
        (self.bytes_variance + self.rounding_variance).sqrt()
    }

    /// An interval that contains the true number of bytes with at least 95%: that of the samples, and to both
    /// sides what rounding may have done, which reaches one step at least.
    pub fn interval(&self) -> (f64, f64) {
        let rounding = (Z * self.rounding_variance.sqrt()).min(self.rounding_most);
        let (low, high) = self.sampling_interval();
        (self.bytes - (self.bytes - low).hypot(rounding), self.bytes + (high - self.bytes).hypot(rounding))
    }

    /// The interval, as if all sizes were exact.
    ///
    /// Fay and Feuer's for a weighted sum of Poisson counts: of few samples, which the standard error
    /// describes badly, it is wide upwards; of many it is `bytes ± 1.96 · bytes_error()`. Its chi-squared
    /// quantiles are Wilson and Hilferty's.
    fn sampling_interval(&self) -> (f64, f64) {
        let (y, v, w) = (self.bytes, self.bytes_variance, self.step);
        if v <= 0.0 {
            return (y, y);
        }
        let low = v / (2.0 * y) * chi_squared(2.0 * y * y / v, -Z);
        let (y, v) = (y + w, v + w * w);
        let high = v / (2.0 * y) * chi_squared(2.0 * y * y / v, Z);
        (low.max(self.seen), high)
    }
}

/// The quantile of the chi-squared distribution with `k` degrees of freedom where a normal one has `z`.
fn chi_squared(k: f64, z: f64) -> f64 {
    let spread = 2.0 / (9.0 * k);
    k * (1.0 - spread + z * spread.sqrt()).max(0.0).powi(3)
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, other: Self) {
        self.samples += other.samples;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.objects_variance += other.objects_variance;
        self.bytes_variance += other.bytes_variance;
        self.step = self.step.max(other.step);
        self.seen += other.seen;
        self.rounding_variance += other.rounding_variance;
        self.rounding_most += other.rounding_most;
    }
}

impl Sum for Estimate {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 512 << 10;

    #[test]
    fn follows_the_formulas() {
        for (n, s) in [(1, 8), (17, 48), (3, 4096), (9, 1 << 19), (2, 8 << 20)] {
            let p = 1.0 - (-(s as f64) / RATE as f64).exp();
            let estimate = Estimate::new(n, s, RATE);
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9 || a == b;
            assert!(close(estimate.objects, n as f64 / p), "{s}");
            assert!(close(estimate.bytes, n as f64 * s as f64 / p), "{s}");
            let variance = n as f64 * (1.0 - p) / (p * p);
            assert!(close(estimate.objects_error(), variance.sqrt()), "{s}");
            assert!(close(estimate.bytes_error(), variance.sqrt() * s as f64), "{s}");
        }
        assert_eq!(Estimate::new(0, 8, RATE), Estimate::default());
        assert_eq!(Estimate::default().interval(), (0.0, 0.0));
    }

    #[test]
    fn of_many_samples_the_interval_is_the_usual_one() {
        let estimate = Estimate::new(10_000, 64, RATE);
        let (low, high) = estimate.interval();
        let half = Z * estimate.bytes_error();
        assert!(((estimate.bytes - half) / low - 1.0).abs() < 1e-3, "{low}");
        assert!(((estimate.bytes + half) / high - 1.0).abs() < 1e-3, "{high}");
    }

    #[test]
    fn of_what_is_always_sampled_the_interval_is_narrow() {
        // At this rate everything is.
        assert_eq!(Estimate::new(1_000_000, 8, 1).interval(), (8e6, 8e6));
        let (low, high) = Estimate::new(3, 64 << 20, RATE).interval();
        assert!(low >= 3.0 * f64::from(64 << 20) && high < 3.001 * f64::from(64 << 20), "{low} {high}");
        // One sample says that there was a block.
        let (low, high) = Estimate::new(1, 1 << 19, RATE).interval();
        assert!(low >= f64::from(1 << 19) && high > 3.0 * f64::from(1 << 19), "{low} {high}");
    }

    #[test]
    fn intervals_contain_the_truth_of_rounded_sizes() {
        assert_eq!([8, 57_344, 65_535].map(|size| step(size, false)), [0; 3]);
        assert_eq!([false, true].map(|coarse| step(17 << 20, coarse)), [256 << 10, 2 << 20]);
        let step = 1u64 << 20;
        for n in [1u32, 2, 4, 9, 50] {
            for tenths in 0..=10 {
                // How likely so many of the blocks are rounded up, with all of them sampled.
                let (up, mut within) = (f64::from(tenths) / 10.0, 0.0);
                let mut ways = 1.0;
                for k in 0..=n {
                    let likely = ways * up.powi(k as i32) * (1.0 - up).powi((n - k) as i32);
                    ways *= f64::from(n - k) / f64::from(k + 1);
                    let of = |count: u32, size| Estimate::new(count.into(), size, 1).rounded(step);
                    let sum: Estimate = [of(n - k, 16 << 20), of(k, 17 << 20)].into_iter().sum();
                    let truth = f64::from(n) * (16.0 + up) * step as f64;
                    let (low, high) = sum.interval();
                    within += if (low - 0.5..=high + 0.5).contains(&truth) { likely } else { 0.0 };
                }
                assert!(within >= 0.95, "{n} blocks, {up}: {within}");
            }
        }
    }

    #[test]
    fn intervals_contain_the_truth_and_and_estimates_have_no_bias() {
        // Splitmix64: the same samples in every run.
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) as f64 / 2f64.powi(64)
        };
        for kinds in
            [&[(20_000u64, 1024u64)][..], &[(30, 1 << 19)], &[(4000, 4096), (60, 1 << 18), (3, 8 << 20)]]
        {
            let truth: u64 = kinds.iter().map(|(n, s)| n * s).sum();
            let (mut hits, mut sum, runs) = (0, 0.0, 1000);
            for _ in 0..runs {
                let estimate: Estimate = kinds
                    .iter()
                    .map(|&(n, s)| {
                        let p = probability(s, RATE);
                        Estimate::new((0..n).filter(|_| random() < p).count() as u64, s, RATE)
                    })
                    .sum();
                let (low, high) = estimate.interval();
                hits += usize::from((low..=high).contains(&(truth as f64)));
                sum += estimate.bytes;
            }
            assert!(hits * 100 >= runs * 94, "{kinds:?}: {hits} of {runs}");
            assert!((sum / runs as f64 / truth as f64 - 1.0).abs() < 0.02, "{kinds:?}: {sum}");
        }
    }
}
