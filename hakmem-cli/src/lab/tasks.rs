//! What is run under every subject, and what is measured of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use hakmem_workloads::Report;

use super::model::{Metric, Unit};
use super::run::Measured;

/// Something to run under every subject.
pub struct Task {
    /// Its name in the reports.
    pub name: String,
    /// What it models, in one line.
    pub models: String,
    /// Its parameters, or its command line.
    pub parameters: String,
    /// The metric that the verdict is about.
    pub primary: &'static str,
    /// The program.
    pub program: OsString,
    /// Its arguments. A worker gets `--result FILE` after them.
    pub arguments: Vec<OsString>,
    /// Its standard input; `/dev/null` without.
    pub input: Option<PathBuf>,
    /// Whether it has work done by processes that are not counted for it, as replays do to read their traces.
    pub apart: bool,
    /// Whether it is one of our workers, which say in a file what they measured; else its output is compared.
    pub worker: bool,
}

/// The metrics of every run, whatever it is.
pub fn process_metrics() -> Vec<Metric> {
    let metric = |key: &str, label: &str, unit| Metric { key: key.into(), label: label.into(), unit };
    vec![
        metric("wall", "wall time", Unit::Seconds),
        metric("user", "user time", Unit::Seconds),
        metric("system", "system time", Unit::Seconds),
        metric("peak", "peak resident", Unit::Bytes),
        metric("minor", "minor faults", Unit::Count),
        metric("major", "major faults", Unit::Count),
    ]
}

/// The metrics that every worker adds.
pub fn worker_metrics() -> Vec<Metric> {
    let metric = |key: &str, label: &str, unit| Metric { key: key.into(), label: label.into(), unit };
    let mut metrics = vec![
        metric("per_op", "time per operation", Unit::Nanoseconds),
        metric("elapsed", "measured part", Unit::Seconds),
        metric("grown", "resident growth", Unit::Bytes),
    ];
    metrics.extend(process_metrics());
    metrics
}

/// A metric of a workload's own, which names its unit.
pub fn own_metric(key: &str, label: &str, unit: &str) -> Metric {
    let unit = match unit {
        "seconds" => Unit::Seconds,
        "nanoseconds" => Unit::Nanoseconds,
        "bytes" => Unit::Bytes,
        "count" => Unit::Count,
        _ => Unit::Ratio,
    };
    Metric { key: key.into(), label: label.into(), unit }
}

/// The figures of one run.
pub fn values(measured: &Measured, report: Option<&Report>) -> BTreeMap<String, f64> {
    let used = &measured.used;
    let mut values: BTreeMap<String, f64> = [
        ("wall", measured.wall),
        ("user", used.user),
        ("system", used.system),
        ("peak", used.peak as f64),
        ("minor", used.minor as f64),
        ("major", used.major as f64),
    ]
    .map(|(key, value)| (key.to_string(), value))
    .into();
    if let Some(report) = report {
        let elapsed = report.elapsed_ns as f64;
        values.insert("elapsed".into(), elapsed * 1e-9);
        values.insert("per_op".into(), elapsed / report.operations.max(1) as f64);
        values.insert("grown".into(), report.resident_after.saturating_sub(report.resident_before) as f64);
        values.extend(report.figures.iter().cloned());
    }
    values
}

/// Reads what a worker wrote.
pub fn read_report(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read(path).context("the worker left no result")?;
    serde_json::from_slice(&text).context("the worker's result cannot be read")
}
