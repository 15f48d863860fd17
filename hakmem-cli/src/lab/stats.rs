//! The statistics: medians, the bootstrap of paired ratios, and the verdict.
//!
//! Runs are compared pairwise, each with the baseline's run in the same round, so that what changes slowly on
//! the machine cancels out. The interval is the percentile bootstrap of the median of those ratios.

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use statrs::statistics::{Data, Max, Min, OrderStatistics};

use super::model::{Interval, Ratio, Summary, Verdict};

/// The level of the intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Resamples of the bootstrap.
pub const RESAMPLES: usize = 10_000;
/// Better by this much is a GO: the ratio is at most this.
const GO: f64 = 0.99;
/// Worse by more than this is a NO-GO: the ratio is above this.
const NO_GO: f64 = 1.005;

/// The median; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    Data::new(values.to_vec()).median()
}

/// The median of `ratios`, and its interval unless they are too few for one. None without ratios.
pub fn ratio(ratios: &[f64], seed: u64) -> Option<Ratio> {
    let interval = || interval(ratios, seed);
    let interval = (ratios.len() >= LEAST_RUNS).then(interval);
    (!ratios.is_empty()).then(|| Ratio { median: median(ratios), interval })
}

/// The bootstrap interval of the median of `ratios`, which are some.
fn interval(ratios: &[f64], seed: u64) -> Interval {
    let mut random = StdRng::seed_from_u64(seed);
    let mut sample = vec![0.0; ratios.len()];
    let medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            sample.fill_with(|| ratios[random.random_range(0..ratios.len())]);
            median(&sample)
        })
        .collect();
    let mut medians = Data::new(medians);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    Interval { low: medians.quantile(tail), high: medians.quantile(1.0 - tail) }
}

/// Summarises `values`; `pairs` are (this subject's, the baseline's) of the same round, empty for the
/// baseline itself.
pub fn summary(values: &[f64], pairs: &[(f64, f64)], seed: u64) -> Option<Summary> {
    if values.is_empty() {
        return None;
    }
    let data = Data::new(values.to_vec());
    let ratios: Vec<f64> =
        pairs.iter().filter(|(_, base)| *base != 0.0).map(|(own, base)| own / base).collect();
    // A few rounds without a figure to divide by would make a ratio of the other rounds alone.
    let complete = ratios.len() == pairs.len();
    Some(Summary {
        runs: values.len(),
        median: median(values),
        minimum: data.min(),
        maximum: data.max(),
        ratio: if complete { ratio(&ratios, seed) } else { None },
    })
}

/// Of fewer runs there is no interval, and so no verdict: the bootstrap of a few ratios spans no more than
/// these, and covers the true one far less often than it says.
pub const LEAST_RUNS: usize = 5;

/// The rule of the project: a difference counts when it is large enough *and* the interval excludes "none".
pub fn verdict(ratio: Ratio) -> Option<Verdict> {
    let interval = ratio.interval?;
    Some(if ratio.median <= GO && interval.high < 1.0 {
        Verdict::Go
    } else if ratio.median > NO_GO && interval.low > 1.0 {
        Verdict::NoGo
    } else {
        Verdict::Neutral
    })
}

/// The geometric mean; none of nothing and of values that are not above 0.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| *value <= 0.0) {
        return None;
    }
    Some((values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_pairs_and_its_interval() {
        let ratios: Vec<f64> = (0..11).map(|i| 0.90 + 0.01 * f64::from(i)).collect();
        let ratio = ratio(&ratios, 1).unwrap();
        assert!((ratio.median - 0.95).abs() < 1e-9);
        let interval = ratio.interval.unwrap();
        assert!(interval.low >= 0.90 && interval.low < 0.95, "{interval:?}");
        assert!(interval.high <= 1.00 && interval.high > 0.95, "{interval:?}");
        assert_eq!(super::ratio(&ratios, 1), Some(ratio), "the same seed, the same interval");
        assert_eq!(super::ratio(&[], 1), None);
        let same = super::ratio(&[1.5; LEAST_RUNS], 1).unwrap();
        assert_eq!((same.median, same.interval), (1.5, Some(Interval { low: 1.5, high: 1.5 })));
    }

    #[test]
    fn a_few_runs_have_no_interval_and_no_verdict() {
        let few = ratio(&[0.5; LEAST_RUNS - 1], 1).unwrap();
        assert_eq!((few.median, few.interval, verdict(few)), (0.5, None, None));
        let json = serde_json::to_string(&few).unwrap();
        assert_eq!(json, r#"{"median":0.5}"#);
        assert_eq!(serde_json::from_str::<Ratio>(&json).unwrap(), few);
        let enough = ratio(&[0.5; LEAST_RUNS], 1).unwrap();
        let json = serde_json::to_string(&enough).unwrap();
        assert_eq!(json, r#"{"median":0.5,"low":0.5,"high":0.5}"#);
        assert_eq!(serde_json::from_str::<Ratio>(&json).unwrap(), enough);
    }

    #[test]
    fn interval_covers_the_true_median_about_as_often_as_it_says() {
        let mut random = StdRng::seed_from_u64(7);
        let covered = (0..200)
            .filter(|&seed| {
                let ratios: Vec<f64> = (0..10).map(|_| 1.0 + 0.1 * (random.random::<f64>() - 0.5)).collect();
                let interval = interval(&ratios, seed);
                interval.low <= 1.0 && 1.0 <= interval.high
            })
            .count();
        assert!((180..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn verdicts() {
        let verdict = |median, low, high| {
            super::verdict(Ratio { median, interval: Some(Interval { low, high }) }).unwrap()
        };
        assert_eq!(verdict(0.95, 0.93, 0.97), Verdict::Go);
        assert_eq!(verdict(0.95, 0.93, 1.01), Verdict::Neutral);
        assert_eq!(verdict(0.995, 0.992, 0.998), Verdict::Neutral);
        assert_eq!(verdict(1.004, 1.001, 1.008), Verdict::Neutral);
        assert_eq!(verdict(1.02, 1.01, 1.03), Verdict::NoGo);
        assert_eq!(verdict(1.02, 0.99, 1.03), Verdict::Neutral);
    }

    #[test]
    fn summaries() {
        let summary = summary(&[2.0, 4.0, 3.0], &[(2.0, 4.0), (4.0, 8.0), (3.0, 6.0)], 0).unwrap();
        assert_eq!((summary.runs, summary.median, summary.minimum, summary.maximum), (3, 3.0, 2.0, 4.0));
        assert_eq!(summary.ratio.unwrap().median, 0.5);
        assert_eq!(super::summary(&[1.0], &[(1.0, 0.0)], 0).unwrap().ratio, None);
        assert_eq!(super::summary(&[], &[], 0), None);
    }

    #[test]
    fn geometric_means() {
        assert!((geometric_mean(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
    }
}
