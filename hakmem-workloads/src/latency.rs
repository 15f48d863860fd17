//! How long single calls take.

use std::time::Instant;

use hdrhistogram::Histogram;

use crate::report::{Latency, Percentiles};

/// Slower calls than this count as this slow.
const MOST: u64 = 10_000_000_000;

/// What a workload wraps its calls into: [`Untimed`] where only the whole counts.
pub trait Probe {
    /// Around a call that allocates.
    fn malloc<T>(&mut self, call: impl FnOnce() -> T) -> T;
    /// Around a call that frees.
    fn free<T>(&mut self, call: impl FnOnce() -> T) -> T;
}

/// Measures nothing and costs nothing.
pub struct Untimed;

impl Probe for Untimed {
    #[inline(always)]
    fn malloc<T>(&mut self, call: impl FnOnce() -> T) -> T {
        call()
    }

    #[inline(always)]
    fn free<T>(&mut self, call: impl FnOnce() -> T) -> T {
        call()
    }
}

/// Measures every call, for one thread.
pub struct Timed {
    timer: u64,
    malloc: Histogram<u64>,
    free: Histogram<u64>,
}

impl Timed {
    /// Ready to measure: allocates all it will ever need. `timer` is from [`timer_cost`].
    pub fn new(timer: u64) -> Self {
        let histogram = || {
            let mut histogram = Histogram::new_with_bounds(1, MOST, 3).expect("valid bounds");
            // Writes to all of it, so that it is resident before anything is measured.
            histogram.reset();
            histogram
        };
        Self { timer, malloc: histogram(), free: histogram() }
    }

    /// Puts the measurements of several threads together.
    pub fn report(threads: Vec<Timed>) -> Option<Latency> {
        let mut threads = threads.into_iter();
        let mut all = threads.next()?;
        for thread in threads {
            all.malloc.add(&thread.malloc).expect("the same bounds");
            all.free.add(&thread.free).expect("the same bounds");
        }
        Some(Latency {
            timer_ns: all.timer as f64,
            malloc: percentiles(&all.malloc),
            free: percentiles(&all.free),
        })
    }
}

/// The clock: nanoseconds. `Instant` reads CLOCK_MONOTONIC without a system call.
#[inline(always)]
fn timed<T>(histogram: &mut Histogram<u64>, timer: u64, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = call();
    let took = start.elapsed().as_nanos() as u64;
    histogram.saturating_record(took.saturating_sub(timer));
    value
}

impl Probe for Timed {
    #[inline(always)]
    fn malloc<T>(&mut self, call: impl FnOnce() -> T) -> T {
        timed(&mut self.malloc, self.timer, call)
    }

    #[inline(always)]
    fn free<T>(&mut self, call: impl FnOnce() -> T) -> T {
        timed(&mut self.free, self.timer, call)
    }
}

/// What reading the clock around nothing gives: the median, nanoseconds.
pub fn timer_cost() -> u64 {
    let mut costs = [0u64; 10_001];
    // The first pass warms up.
    for _ in 0..2 {
        for cost in &mut costs {
            let start = Instant::now();
            *cost = start.elapsed().as_nanos() as u64;
        }
    }
    costs.sort_unstable();
    costs[costs.len() / 2]
}

fn percentiles(histogram: &Histogram<u64>) -> Percentiles {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64;
    Percentiles {
        count: histogram.len(),
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max() as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms() {
        let mut one = Timed::new(0);
        for ns in 1..=10_000 {
            one.malloc.record(ns).unwrap();
        }
        let mut two = Timed::new(0);
        two.free(|| std::thread::sleep(std::time::Duration::from_millis(2)));
        let latency = Timed::report(vec![one, two]).unwrap();
        let malloc = &latency.malloc;
        assert_eq!(malloc.count, 10_000);
        assert!((malloc.p50 - 5_000.0).abs() < 50.0 && (malloc.p999 - 9_990.0).abs() < 50.0, "{malloc:?}");
        assert!(latency.free.count == 1 && latency.free.max >= 2e6, "{:?}", latency.free);
        assert!(Timed::report(Vec::new()).is_none());
    }
}
