//! What an experiment is and what came out of it: all that the reports show, and all that the JSON file
//! holds.
//!
//! Sizes are bytes, times seconds, unless a metric's unit says otherwise.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};

/// The version of this format; a reader refuses others.
pub const FORMAT: u32 = 1;

/// One experiment: some workloads, each run several times under each of some subjects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Experiment {
    /// [`FORMAT`].
    pub format: u32,
    /// A heading, such as "hakmem ab: python3 -c …".
    pub title: String,
    /// The command line that made it, each argument as given.
    pub command: Vec<String>,
    /// When it began, RFC 3339, UTC.
    pub when: String,
    /// How long it took, seconds.
    pub took: f64,
    /// Where it ran.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// What was compared, in the order of the rows.
    pub subjects: Vec<Subject>,
    /// Allocators that were looked for and not found.
    pub missing: Vec<Missing>,
    /// What the reader has to know before believing a figure: a busy machine, differing output, a failed run.
    pub warnings: Vec<String>,
    /// Whether the output or the exit status under some subject is not that under the baseline.
    #[serde(skip)]
    pub differs: bool,
    /// Every metric that occurs, in the order of the columns.
    pub metrics: Vec<Metric>,
    /// The results.
    pub workloads: Vec<Workload>,
    /// What Hakmem is to reach, and whether it did; only `hakmem memory` has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
}

/// The machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Main memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution's name.
    pub system: String,
    /// The C library, such as "glibc 2.36".
    pub libc: String,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`, the chosen word.
    pub huge_pages: String,
    /// The hypervisor's name, or "none".
    pub virtualisation: String,
    /// The part of all processors' time that others used just before the start, 0 to 1.
    pub busy_before: f64,
}

/// How an experiment was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Method {
    /// Measured rounds; each runs every subject once, in an order shuffled anew.
    pub rounds: usize,
    /// Rounds before them that are not counted.
    pub warmups: usize,
    /// Seconds that one run may take.
    pub timeout: f64,
    /// Whether memory was made equal before each run by touching and freeing huge pages.
    pub equal_memory: bool,
    /// What the shuffle and the bootstrap began with.
    pub seed: u64,
    /// The subject that the others are compared with.
    pub baseline: String,
    /// The level of the intervals, such as 0.95.
    pub confidence: f64,
    /// Resamples of the bootstrap.
    pub resamples: usize,
}

/// An allocator, or one setting of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Its name in every report.
    pub name: String,
    /// What is preloaded; none for the C library's own.
    #[serde(serialize_with = "lossy")]
    pub library: Option<PathBuf>,
    /// The program that it is built into, run instead of the task's; none where it is preloaded.
    #[serde(default, serialize_with = "lossy", skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// Its version where that is known, such as a package's.
    pub version: Option<String>,
    /// Variables set for it alone.
    pub environment: Vec<(String, String)>,
}

/// An allocator that was not found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// Its name.
    pub name: String,
    /// What to do, such as "apt install libjemalloc2".
    pub hint: String,
}

/// Something measured in every run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name in [`Run::values`], such as `wall`.
    pub key: String,
    /// Its heading.
    pub label: String,
    /// Its unit; values are in it. Less is better, always.
    pub unit: Unit,
}

/// A unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Of time.
    Seconds,
    /// Of time, for single operations.
    Nanoseconds,
    /// Of memory.
    Bytes,
    /// How many.
    Count,
    /// A plain ratio, such as resident over live bytes.
    Ratio,
}

impl Unit {
    /// Whether it is one of time.
    pub fn is_time(self) -> bool {
        matches!(self, Unit::Seconds | Unit::Nanoseconds)
    }
}

/// One workload under every subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// What it models, in one line.
    pub models: String,
    /// Its parameters, or the program's command line.
    pub parameters: String,
    /// The metric that the verdict is about.
    pub primary: String,
    /// One for each of [`Experiment::subjects`], in that order.
    pub rows: Vec<Row>,
}

/// One workload under one subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The subject's name.
    pub subject: String,
    /// Why there are no figures: it crashed, timed out, could not be loaded. Runs made before stay listed.
    pub failure: Option<String>,
    /// Figures over all runs, by metric; empty where there is a failure.
    pub summaries: BTreeMap<String, Summary>,
    /// Of the primary metric against the baseline; none for the baseline itself.
    pub verdict: Option<Verdict>,
    /// The counted runs in the order of the rounds.
    pub runs: Vec<Run>,
    /// Resident memory over time in the run with the median wall time: seconds, bytes.
    pub timeline: Vec<(f64, u64)>,
    /// Latencies, each figure the median over the runs.
    pub latency: Option<hakmem_workloads::Latency>,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The round, from 0.
    pub round: usize,
    /// Its place in the round's order, from 0.
    pub place: usize,
    /// By metric.
    pub values: BTreeMap<String, f64>,
}

/// A metric over the runs of a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many runs.
    pub runs: usize,
    /// The median.
    pub median: f64,
    /// The smallest.
    pub minimum: f64,
    /// The largest.
    pub maximum: f64,
    /// Against the baseline; none for the baseline itself, and where the baseline has no figure or 0.
    pub ratio: Option<Ratio>,
}

/// The ratios of runs to the baseline's run in the same round; under 1 is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Their median.
    pub median: f64,
    /// Its interval; none of fewer runs than [`crate::lab::stats::LEAST_RUNS`].
    #[serde(flatten)]
    pub interval: Option<Interval>,
}

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Whether there is a difference at all, large or small.
    pub fn excludes_one(self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// A verdict against the baseline: see [`crate::lab::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Better by 1% or more, and the interval excludes "no difference".
    Go,
    /// Neither.
    Neutral,
    /// Worse by more than 0.5%, and the interval excludes "no difference".
    #[serde(rename = "NO-GO")]
    NoGo,
}

/// A target of Hakmem's, with the figures of all beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The workload, with its preset; or what else was measured.
    pub scenario: String,
    /// The figure's heading.
    pub figure: String,
    /// Its unit.
    pub unit: Unit,
    /// The limit in words.
    pub limit: String,
    /// Whose figure it is about: one of [`Experiment::subjects`].
    pub subject: String,
    /// The largest figure that would do; none where there was nothing to compare with.
    pub bound: Option<f64>,
    /// The figure of each of [`Experiment::subjects`], in that order: medians; none where there is none.
    pub values: Vec<Option<f64>>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The figure is within the limit.
    Met,
    /// It is not.
    Missed,
    /// There is no figure, or nothing to compare it with.
    Unknown,
}

/// A path with a replacement for what is no character: JSON has no other bytes, and the figures are worth
/// more than the path.
fn lossy<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(to)
}

impl Experiment {
    /// The metric of this key.
    pub fn metric(&self, key: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.key == key)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_path_may_have_any_bytes() {
        let path = Some(PathBuf::from(OsStr::from_bytes(b"/a\xff.so")));
        let subject = Subject { library: path.clone(), program: path, ..Subject::default() };
        let read: Subject = serde_json::from_str(&serde_json::to_string(&subject).unwrap()).unwrap();
        let shown = Some(PathBuf::from("/a\u{fffd}.so"));
        assert_eq!((&read.library, &read.program), (&shown, &shown));
        let none = serde_json::to_value(Subject::default()).unwrap();
        assert!(none["library"].is_null() && none.get("program").is_none());
    }
}
