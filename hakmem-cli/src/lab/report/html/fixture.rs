//! Experiments made up for the tests of the page.

use std::collections::BTreeMap;

use hakmem_workloads::{Latency, Percentiles};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::lab::model::{
    Experiment, FORMAT, Machine, Method, Metric, Missing, Row, Run, Subject, Unit, Verdict, Workload,
};
use crate::lab::{stats, tasks};

pub const PEERS: [&str; 12] = [
    "glibc",
    "hakmem",
    "jemalloc",
    "mimalloc",
    "tcmalloc",
    "snmalloc",
    "rpmalloc",
    "scudo",
    "musl",
    "dlmalloc",
    "hakmem+HAKMEM_A_VERY_LONG_NAME=1,HAKMEM_ANOTHER=2",
    "<b>&\"odd\"</b>",
];

const NAMES: [&str; 6] = [
    "comprehensive random 64",
    "larson",
    "producer-consumer 1:N",
    "idle return",
    "fragmentation",
    "server mix",
];

/// An experiment of this size with plausible figures, the same every time.
pub fn experiment(subjects: usize, workloads: usize, rounds: usize) -> Experiment {
    let mut random = StdRng::seed_from_u64(5);
    let subjects: Vec<Subject> = PEERS[..subjects].iter().map(|name| subject(name)).collect();
    let ratio = Metric { key: "held".into(), label: "resident over live".into(), unit: Unit::Ratio };
    let mut metrics = tasks::worker_metrics();
    metrics.push(ratio);
    let workloads = (0..workloads).map(|i| workload(i, &subjects, &metrics, rounds, &mut random)).collect();
    Experiment {
        format: FORMAT,
        title: "hakmem bench: comprehensive & <others>".into(),
        command: ["hakmem", "bench", "--report", "it's here", "--", ""].map(String::from).to_vec(),
        when: "2026-11-21T03:00:00Z".into(),
        took: 754.2,
        machine: Machine {
            processor: "AMD EPYC 9B14".into(),
            processors: 2,
            memory: 16_787_980_288,
            kernel: "6.1.0-18-amd64".into(),
            system: "Debian GNU/Linux 12 (bookworm)".into(),
            libc: "glibc 2.36".into(),
            huge_pages: "madvise".into(),
            virtualisation: "kvm".into(),
            busy_before: 0.31,
        },
        method: Method {
            rounds,
            warmups: 1,
            timeout: 120.0,
            equal_memory: true,
            seed: 42,
            baseline: "glibc".into(),
            confidence: stats::CONFIDENCE,
            resamples: stats::RESAMPLES,
        },
        subjects,
        missing: vec![Missing { name: "scudo".into(), hint: "apt install libscudo-19-dev".into() }],
        warnings: vec!["the machine was 31% busy before the start: figures may be too high".into()],
        differs: false,
        metrics,
        workloads,
        targets: Vec::new(),
    }
}

fn subject(name: &str) -> Subject {
    Subject {
        name: name.into(),
        library: (name != "glibc").then(|| format!("/usr/lib/x86_64-linux-gnu/lib{name}.so.2").into()),
        program: None,
        version: (name != "musl").then(|| "2.1.1-1".into()),
        environment: if name.contains('+') {
            vec![("HAKMEM_RETURN".into(), "<now>".into())]
        } else {
            Vec::new()
        },
    }
}

fn workload(
    i: usize,
    subjects: &[Subject],
    metrics: &[Metric],
    rounds: usize,
    random: &mut StdRng,
) -> Workload {
    let name = NAMES[i % NAMES.len()];
    let scale = 10f64.powf(random.random_range(0.5..3.5));
    let heap = 10f64.powf(random.random_range(6.5..8.5));
    let rows = subjects.iter().map(|subject| {
        let speed = if subject.name == "glibc" { 1.0 } else { random.random_range(0.6..1.3) };
        let size = if subject.name == "glibc" { 1.0 } else { random.random_range(0.7..1.6) };
        row(&subject.name, metrics, rounds, (scale * speed, heap * size), random)
    });
    let mut rows: Vec<Row> = rows.collect();
    let base = rows[0].clone();
    for (j, row) in rows.iter_mut().enumerate() {
        summarise(row, metrics, (j > 0).then_some(&base));
    }
    Workload {
        name: if i < NAMES.len() { name.into() } else { format!("{name} ({i})") },
        models: "many threads that hand blocks to each other, as a server does with its requests".into(),
        parameters: "threads=2 sizes=16..1024 rounds=100000".into(),
        primary: "per_op".into(),
        rows,
    }
}

fn row(name: &str, metrics: &[Metric], rounds: usize, (time, heap): (f64, f64), random: &mut StdRng) -> Row {
    let runs = (0..rounds).map(|round| {
        let per_op = time * random.random_range(0.97..1.06);
        let peak = heap * random.random_range(0.98..1.02);
        let value = |metric: &Metric| match metric.key.as_str() {
            "per_op" => per_op,
            "elapsed" | "user" => per_op * 0.01,
            "wall" => per_op * 0.011,
            "system" => per_op * 0.0007,
            "grown" => peak * 0.9,
            "peak" => peak,
            "minor" => (peak / 4096.0).round(),
            "held" => peak / heap * 1.1,
            _ => 0.0,
        };
        let values = metrics.iter().map(|metric| (metric.key.clone(), value(metric))).collect();
        Run { round, place: round % 3, values }
    });
    let runs = runs.collect();
    let wall = time * 0.011;
    let timeline = (0..200).map(|i| {
        let part = f64::from(i) / 199.0;
        let shape =
            (part * 7.0).min(1.0) * (0.75 + 0.2 * (part * 20.0).sin()) * if part > 0.85 { 0.4 } else { 1.0 };
        (wall * part, (heap * shape) as u64)
    });
    let percentiles = |factor: f64| Percentiles {
        count: 100_000,
        p50: time * factor,
        p99: time * factor * 8.0,
        p999: time * factor * 70.0,
        max: time * factor * 9000.0,
    };
    let latency = Latency { timer_ns: 21.0, malloc: percentiles(1.0), free: percentiles(0.7) };
    Row {
        subject: name.into(),
        failure: None,
        summaries: BTreeMap::new(),
        verdict: None,
        runs,
        timeline: timeline.collect(),
        latency: Some(latency),
    }
}

/// Fills in the summaries and the verdict as the harness does.
fn summarise(row: &mut Row, metrics: &[Metric], base: Option<&Row>) {
    for metric in metrics {
        let values: Vec<f64> = row.runs.iter().map(|run| run.values[&metric.key]).collect();
        let pair = |(own, base): (&f64, &Run)| (*own, base.values[&metric.key]);
        let pairs: Vec<_> = base.map_or(Vec::new(), |base| values.iter().zip(&base.runs).map(pair).collect());
        if let Some(summary) = stats::summary(&values, &pairs, 1) {
            row.summaries.insert(metric.key.clone(), summary);
        }
    }
    row.verdict = row.summaries.get("per_op").and_then(|summary| summary.ratio).and_then(stats::verdict);
}

/// Takes a row's figures away, as the harness does when a run fails.
pub fn fail(row: &mut Row, why: &str) {
    row.failure = Some(why.into());
    row.summaries.clear();
    row.verdict = None;
    row.runs.truncate(1);
    row.timeline.clear();
    row.latency = None;
}

/// What the baseline's failure does to the others.
pub fn without_ratios(workload: &mut Workload) {
    for row in &mut workload.rows {
        row.verdict = None;
        row.summaries.values_mut().for_each(|summary| summary.ratio = None);
    }
}

/// Verdicts that occur.
pub fn verdicts(experiment: &Experiment) -> Vec<Verdict> {
    experiment
        .workloads
        .iter()
        .flat_map(|workload| workload.rows.iter().filter_map(|row| row.verdict))
        .collect()
}
