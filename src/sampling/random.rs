//! When to take the next sample.
//!
//! A Poisson process along the bytes that are allocated, one for each size: an allocation of `s` bytes is
//! taken with probability `p = 1 - exp(-s / rate)`, independently of all others. Then how many are passed
//! over before the next one is the whole part of an exponentially distributed number, divided by `s / rate`.

use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;
use core::cell::Cell;

/// A pseudorandom number from a state that is not 0, which advances (xorshift64*, by Vigna).
fn next(state: &Cell<u64>) -> u64 {
    let mut x = state.get();
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    state.set(x);
    x.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// A state from a counter or another number that need not be random.
pub(super) fn state(number: u64) -> u64 {
    // The finalizer of splitmix64.
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) | 1
}

/// The natural logarithm of a positive, normal number.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | 1023 << 52);
    if m > core::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh t, and |t| is at most 0.172.
    let t = (m - 1.0) / (m + 1.0);
    let (mut sum, mut power) = (0.0, t);
    for k in 0..10 {
        sum += power / (2 * k + 1) as f64;
        power *= t * t;
    }
    exponent as f64 * core::f64::consts::LN_2 + 2.0 * sum
}

/// A number from the exponential distribution of mean 1.
fn exponential(state: &Cell<u64>) -> f64 {
    // From 2^-53 to 1.
    let uniform = ((next(state) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    -ln(uniform)
}

/// How many allocations of `size` bytes to pass over before one is taken, for one sample in `rate` bytes.
pub(super) fn draw(state: &Cell<u64>, size: usize, rate: u64) -> u64 {
    match rate {
        // There is no profile any more.
        0 => return u64::MAX,
        1 => return 0,
        _ => {}
    }
    // A conversion from a float saturates.
    (exponential(state) * (rate as f64 / size.max(1) as f64)) as u64
}

/// `size` rounded to one of two sizes that are a `step` apart, at random so that it stays the same on
/// average.
pub(super) fn round(counter: &AtomicU64, size: usize, step: usize) -> usize {
    let (low, above) = (size - size % step.max(1), size % step.max(1));
    // Relaxed: as below.
    let random = next(&Cell::new(state(counter.fetch_add(1, Relaxed)))) >> 32;
    let up = (random * (step as u64)) >> 32 < above as u64;
    if up { low.saturating_add(step) } else { low }
}

/// Whether to take one allocation of `size` bytes that no [`draw`] counts.
pub(super) fn is_taken(counter: &AtomicU64, size: usize, rate: u64) -> bool {
    // Relaxed: any number will do that nobody else gets.
    draw(&Cell::new(state(counter.fetch_add(1, Relaxed))), size, rate) == 0
}

/// The probability that an allocation of `size` bytes is taken.
pub(super) fn probability(size: u64, rate: u64) -> f64 {
    let x = size as f64 / rate as f64;
    if rate <= 1 || x > 40.0 {
        return 1.0;
    }
    // The series for a part that is small, doubled as often as it was halved: 1 - (1 - p)² is p (2 - p).
    let small = x / 1024.0;
    let mut p = small * (1.0 - small / 2.0 * (1.0 - small / 3.0 * (1.0 - small / 4.0)));
    for _ in 0..10 {
        p *= 2.0 - p;
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_probability_are_those_of_std() {
        let mut x = 1e-16;
        while x < 1e16 {
            assert!((ln(x) - x.ln()).abs() <= 1e-12 * x.ln().abs().max(1.0), "{x}");
            x *= 1.37;
        }
        for rate in [2u64, 100, 512 << 10, 1 << 40] {
            for size in [1u64, 8, 100, 4096, 1 << 20, 1 << 45] {
                let exact = -(-(size as f64) / rate as f64).exp_m1();
                let p = probability(size, rate);
                assert!((p - exact).abs() <= 1e-6 * exact, "{size} {rate}: {p} {exact}");
            }
        }
        assert_eq!(probability(8, 1), 1.0);
    }

    #[test]
    fn samples_are_as_frequent_as_their_probability_says() {
        let states = Cell::new(state(7));
        for (size, rate) in [(64, 4096), (4096, 4096), (20_000, 4096)] {
            let (mut left, mut taken) = (draw(&states, size, rate), 0u32);
            const ROUNDS: u32 = 1_000_000;
            for _ in 0..ROUNDS {
                if left == 0 {
                    taken += 1;
                    left = draw(&states, size, rate);
                } else {
                    left -= 1;
                }
            }
            let p = probability(size as u64, rate);
            let spread = (f64::from(ROUNDS) * p * (1.0 - p)).sqrt();
            assert!((f64::from(taken) - f64::from(ROUNDS) * p).abs() < 5.0 * spread, "{size}: {taken}");
        }
        let counter = AtomicU64::new(3);
        let taken = (0..100_000).filter(|_| is_taken(&counter, 4096, 4096)).count() as f64;
        assert!((taken - 63_212.0).abs() < 5.0 * 152.5, "{taken}");
        assert!((0..1000).all(|_| is_taken(&counter, 1, 1)));
        let sum: usize = (0..100_000).map(|_| round(&counter, 100_000, 8192)).sum();
        assert!((sum as f64 / 1e5 - 1e5).abs() < 5.0 * 13.0, "{sum}");
        assert!((0..100).all(|_| round(&counter, 8192, 1024) == 8192));
    }
}
