//! The row of one subject in one task: its runs, and what they come to beside the baseline's.

use super::model::{Row, Run};
use super::output::Digest;
use super::stats;

/// What happens to one subject in one task.
pub struct Track {
    /// Why it is not run any more.
    pub failure: Option<String>,
    /// The counted runs.
    pub runs: Vec<Run>,
    /// Resident memory over time, of each of them.
    pub timelines: Vec<Vec<(f64, u64)>>,
    /// Of each of them that measured single calls.
    pub latencies: Vec<hakmem_workloads::Latency>,
    /// Of every run, warm-ups included.
    pub outputs: Vec<(Digest, Digest)>,
    /// The exit codes likewise.
    pub exits: Vec<i32>,
    /// Whether any of them left something behind that lived on.
    pub left: bool,
}

impl Track {
    /// Nothing yet; `failure` where it cannot be run at all.
    pub fn new(failure: Option<String>) -> Self {
        Self {
            failure,
            runs: Vec::new(),
            timelines: Vec::new(),
            latencies: Vec::new(),
            outputs: Vec::new(),
            exits: Vec::new(),
            left: false,
        }
    }

    /// Its row: `base` are the baseline's runs, none for the baseline itself, `primary` what the verdict is
    /// about.
    pub fn row(self, subject: &str, base: Option<&[Run]>, primary: &str, seed: u64) -> Row {
        let mut row = Row {
            subject: subject.to_string(),
            failure: self.failure,
            summaries: Default::default(),
            verdict: None,
            runs: self.runs,
            timeline: Vec::new(),
            latency: latency(&self.latencies),
        };
        if row.failure.is_some() {
            return row;
        }
        let keys: Vec<String> =
            row.runs.first().map(|run| run.values.keys().cloned().collect()).unwrap_or_default();
        for key in keys {
            let values: Vec<f64> = row.runs.iter().filter_map(|run| run.values.get(&key).copied()).collect();
            let pairs: Vec<(f64, f64)> = row
                .runs
                .iter()
                .filter_map(|run| {
                    let partner = base?.iter().find(|other| other.round == run.round)?;
                    Some((*run.values.get(&key)?, *partner.values.get(&key)?))
                })
                .collect();
            row.summaries.extend(stats::summary(&values, &pairs, seed).map(|summary| (key, summary)));
        }
        let ratio = row.summaries.get(primary).and_then(|summary| summary.ratio);
        row.verdict = ratio.and_then(stats::verdict);
        row.timeline = median_run(&row.runs).map(|i| self.timelines[i].clone()).unwrap_or_default();
        row
    }
}

/// The run with the median wall time, the lower one of two.
fn median_run(runs: &[Run]) -> Option<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|&a, &b| runs[a].values["wall"].total_cmp(&runs[b].values["wall"]));
    order.get(runs.len().saturating_sub(1) / 2).copied()
}

/// Each figure the median over the runs.
fn latency(runs: &[hakmem_workloads::Latency]) -> Option<hakmem_workloads::Latency> {
    use hakmem_workloads::{Latency, Percentiles};
    if runs.is_empty() {
        return None;
    }
    let over = |figure: &dyn Fn(&Latency) -> f64| stats::median(&runs.iter().map(figure).collect::<Vec<_>>());
    let percentiles = |of: fn(&Latency) -> &Percentiles| Percentiles {
        count: over(&|run| of(run).count as f64) as u64,
        p50: over(&|run| of(run).p50),
        p99: over(&|run| of(run).p99),
        p999: over(&|run| of(run).p999),
        max: over(&|run| of(run).max),
    };
    Some(Latency {
        timer_ns: over(&|run| run.timer_ns),
        malloc: percentiles(|run| &run.malloc),
        free: percentiles(|run| &run.free),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(walls: &[f64]) -> Track {
        let mut track = Track::new(None);
        for (round, &wall) in walls.iter().enumerate() {
            let values = [("wall".to_string(), wall), ("major".to_string(), 0.0)].into();
            track.runs.push(Run { round, place: 0, values });
            track.timelines.push(vec![(wall, round as u64)]);
        }
        track
    }

    #[test]
    fn rows_are_compared_round_by_round() {
        let base = track(&[1.0, 2.0, 4.0, 8.0, 0.5]);
        let row = track(&[0.9, 1.8, 3.6, 7.2, 0.45]).row("x", Some(&base.runs), "wall", 1);
        let ratio = row.summaries["wall"].ratio.unwrap();
        let high = ratio.interval.unwrap().high;
        assert!((ratio.median - 0.9).abs() < 1e-9 && (high - 0.9).abs() < 1e-9, "{ratio:?}");
        assert_eq!(row.verdict, Some(crate::lab::model::Verdict::Go));
        assert_eq!(row.timeline, [(1.8, 1)], "of the run with the median time");
        assert_eq!(row.summaries["major"].ratio, None, "nothing to divide by");
        let own = base.row("base", None, "wall", 1);
        assert_eq!((own.summaries["wall"].ratio, own.verdict), (None, None));
    }

    #[test]
    fn a_round_that_the_baseline_lacks_is_left_out() {
        let mut base = track(&[1.0, 2.0]);
        base.runs.remove(0);
        let row = track(&[9.0, 2.0]).row("x", Some(&base.runs), "wall", 1);
        assert_eq!(row.summaries["wall"].ratio.unwrap().median, 1.0);
    }

    #[test]
    fn a_failed_row_keeps_its_runs_and_has_no_figures() {
        let mut failed = track(&[1.0]);
        failed.failure = Some("killed".into());
        let row = failed.row("x", None, "wall", 1);
        assert!(row.summaries.is_empty() && row.runs.len() == 1 && row.verdict.is_none());
    }
}
