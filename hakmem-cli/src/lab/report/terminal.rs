//! Tables on the terminal.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::about::About;
use super::csv::{unit, word};
use super::units::figure;
use crate::lab::model::{Experiment, Outcome, Ratio, Row, Unit, Workload};
use crate::lab::stats;

/// The whole experiment: all metrics where there is one workload or `full`, else the most important ones.
pub fn render(experiment: &Experiment, full: bool) -> String {
    render_as(experiment, full, presets::UTF8_FULL_CONDENSED)
}

/// The same for a page in Markdown: the overview first, then a section for each workload.
pub fn markdown(experiment: &Experiment) -> String {
    let (mut text, style) = (String::new(), presets::ASCII_MARKDOWN);
    head(experiment, &mut text);
    text = text.replace('\n', "\n\n");
    targets(experiment, &mut text, style);
    if experiment.workloads.len() > 1 {
        overview(experiment, &mut text, style);
    }
    for workload in &experiment.workloads {
        let _ =
            writeln!(text, "\n#### {}\n\n{} (`{}`)\n", workload.name, workload.models, workload.parameters);
        let single = experiment.workloads.len() == 1;
        let table =
            if single { metrics(experiment, workload, style) } else { short(experiment, workload, style) };
        let _ = writeln!(text, "{table}");
        for row in workload.rows.iter().filter(|row| row.failure.is_some()) {
            let _ =
                writeln!(text, "\nFAILED: {}: {}", row.subject, row.failure.as_deref().unwrap_or_default());
        }
        if let Some(table) = latencies(workload, style) {
            let _ = writeln!(text, "\n{table}");
        }
    }
    for missing in &experiment.missing {
        let _ = writeln!(text, "\nMissing: {}: {}", missing.name, missing.hint);
    }
    for warning in &experiment.warnings {
        let _ = writeln!(text, "\n**Warning**: {warning}");
    }
    text
}

fn render_as(experiment: &Experiment, full: bool, style: &str) -> String {
    let mut text = String::new();
    head(experiment, &mut text);
    let single = experiment.workloads.len() == 1;
    for workload in &experiment.workloads {
        let _ = writeln!(text, "\n{} ({})\n  {}", workload.name, workload.parameters, workload.models);
        let table = if single || full {
            metrics(experiment, workload, style)
        } else {
            short(experiment, workload, style)
        };
        let _ = writeln!(text, "{table}");
        for (subject, failure) in
            workload.rows.iter().filter_map(|row| Some((&row.subject, row.failure.as_ref()?)))
        {
            let _ = writeln!(text, "FAILED: {subject}: {failure}");
        }
        if let Some(table) = latencies(workload, style) {
            let _ = writeln!(text, "{table}");
        }
    }
    if !single {
        overview(experiment, &mut text, style);
    }
    targets(experiment, &mut text, style);
    for missing in &experiment.missing {
        let _ = writeln!(text, "missing: {}: {}", missing.name, missing.hint);
    }
    for warning in &experiment.warnings {
        let _ = writeln!(text, "WARNING: {warning}");
    }
    text
}

/// What was measured, where and how.
fn head(experiment: &Experiment, text: &mut String) {
    let (machine, method) = (&experiment.machine, &experiment.method);
    let _ = writeln!(
        text,
        "{}\n{}, {} processors, {} of memory, {}, {}, Linux {}, huge pages: {}",
        experiment.title,
        machine.processor,
        machine.processors,
        figure(machine.memory as f64, Unit::Bytes),
        machine.system,
        machine.libc,
        machine.kernel,
        machine.huge_pages
    );
    let _ = writeln!(
        text,
        "{}: {} runs of each after {} not counted, shuffled rounds, memory {} before each, seed {}; ratios are to the {} \
         run of the same round: median{}",
        experiment.when,
        method.rounds,
        method.warmups,
        if method.equal_memory { "made equal" } else { "NOT made equal" },
        method.seed,
        method.baseline,
        if method.rounds < stats::LEAST_RUNS {
            ", of too few for an interval".to_string()
        } else {
            format!(" and {:.0}% interval", method.confidence * 100.0)
        }
    );
}

fn table(header: Vec<String>, left: usize, style: &str) -> Table {
    let columns = header.len();
    let mut table = Table::new();
    table.load_preset(style).set_header(header);
    for i in left..columns {
        table.column_mut(i).expect("the header has it").set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(String::from).to_vec()
}

/// "0.873 [0.861, 0.884]", or "0.873" of too few runs.
fn interval(ratio: Option<Ratio>) -> String {
    ratio.map_or(String::new(), |ratio| match ratio.interval {
        Some(ends) => format!("{:.3} [{:.3}, {:.3}]", ratio.median, ends.low, ends.high),
        None => format!("{:.3}", ratio.median),
    })
}

fn verdict(row: &Row) -> String {
    row.verdict.map_or(String::new(), |verdict| word(verdict).to_string())
}

/// A line for every metric and subject.
fn metrics(experiment: &Experiment, workload: &Workload, style: &str) -> Table {
    let header = strings(["metric", "allocator", "median", "minimum", "maximum", "ratio", "verdict"]);
    let mut table = table(header, 2, style);
    for metric in &experiment.metrics {
        let mut label = metric.label.as_str();
        let mut summaries = workload.rows.iter().filter_map(|row| row.summaries.get(&metric.key)).peekable();
        if summaries.peek().is_some() && summaries.all(|summary| summary.maximum == 0.0) {
            table.add_row([label, "all", "0"]);
            continue;
        }
        for row in &workload.rows {
            let Some(summary) = row.summaries.get(&metric.key) else { continue };
            let show = |value| figure(value, metric.unit);
            let primary = metric.key == workload.primary;
            table.add_row([
                label.to_string(),
                row.subject.clone(),
                show(summary.median),
                show(summary.minimum),
                show(summary.maximum),
                interval(summary.ratio),
                if primary { verdict(row) } else { String::new() },
            ]);
            label = "";
        }
    }
    table
}

/// A line for every subject: the primary metric, memory and faults.
fn short(experiment: &Experiment, workload: &Workload, style: &str) -> Table {
    let mut shown = vec![workload.primary.as_str()];
    shown.extend(["peak", "grown", "minor"].into_iter().filter(|key| {
        *key != workload.primary && workload.rows.iter().any(|row| row.summaries.contains_key(*key))
    }));
    let own = experiment.metrics.iter().map(|metric| metric.key.as_str()).filter(|key| {
        let general = crate::lab::tasks::worker_metrics().iter().any(|metric| metric.key == *key);
        !general && !shown.contains(key) && workload.rows.iter().any(|row| row.summaries.contains_key(*key))
    });
    let own: Vec<&str> = own.collect();
    shown.extend(own);
    let metrics: Vec<_> = shown.iter().filter_map(|key| experiment.metric(key)).collect();
    let mut header = strings(["allocator"]);
    for (i, metric) in metrics.iter().enumerate() {
        header.push(metric.label.clone());
        if i == 0 {
            header.extend(strings(["ratio", "verdict"]));
        }
    }
    let mut table = table(header, 1, style);
    for row in workload.rows.iter().filter(|row| row.failure.is_none()) {
        let mut cells = vec![row.subject.clone()];
        for (i, metric) in metrics.iter().enumerate() {
            let summary = row.summaries.get(&metric.key);
            cells.push(summary.map_or(String::new(), |summary| figure(summary.median, metric.unit)));
            if i == 0 {
                cells.extend([interval(summary.and_then(|summary| summary.ratio)), verdict(row)]);
            }
        }
        table.add_row(cells);
    }
    table
}

fn latencies(workload: &Workload, style: &str) -> Option<Table> {
    let rows: Vec<_> =
        workload.rows.iter().filter_map(|row| Some((&row.subject, row.latency.as_ref()?))).collect();
    let timer = stats::median(&rows.iter().map(|(_, latency)| latency.timer_ns).collect::<Vec<_>>());
    if rows.is_empty() {
        return None;
    }
    let mut header = vec![format!("latency (timer's {timer:.0} ns subtracted)")];
    for call in ["malloc", "free"] {
        header.extend(["p50", "p99", "p99.9", "max"].map(|what| format!("{call} {what}")));
    }
    let mut table = table(header, 1, style);
    for (subject, latency) in rows {
        let mut cells = vec![subject.clone()];
        for percentiles in [&latency.malloc, &latency.free] {
            let figures = [percentiles.p50, percentiles.p99, percentiles.p999, percentiles.max];
            cells.extend(figures.map(|value| figure(value, Unit::Nanoseconds)));
        }
        table.add_row(cells);
    }
    Some(table)
}

/// The targets, a line for each: what came of it, and the figure of everybody.
fn targets(experiment: &Experiment, text: &mut String, style: &str) {
    if experiment.targets.is_empty() {
        return;
    }
    let mut header = strings(["target", "figure", "at most", "result"]);
    header.extend(experiment.subjects.iter().map(|subject| subject.name.clone()));
    let mut table = table(header, 4, style);
    for target in &experiment.targets {
        let mut cells = vec![
            target.scenario.clone(),
            target.figure.clone(),
            target.limit.clone(),
            outcome(target.outcome).to_string(),
        ];
        let shown = |value: &Option<f64>| value.map_or("–".to_string(), |value| figure(value, target.unit));
        cells.extend(target.values.iter().map(shown));
        table.add_row(cells);
    }
    let met = experiment.targets.iter().filter(|target| target.outcome == Outcome::Met).count();
    let _ = writeln!(text, "\n{table}\n\n{met} of {} targets met", experiment.targets.len());
}

/// What came of a target, in a word.
pub fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Met => "met",
        Outcome::Missed => "MISSED",
        Outcome::Unknown => "unknown",
    }
}

/// The ratios of all workloads, and their geometric means.
fn overview(experiment: &Experiment, text: &mut String, style: &str) {
    let others: Vec<_> =
        experiment.subjects.iter().filter(|subject| subject.name != experiment.method.baseline).collect();
    for about in About::all(experiment, experiment.metric("peak")) {
        let workloads = about.workloads(experiment);
        let mut header = vec![format!("{}, ratio to {}", about.title(), experiment.method.baseline)];
        header.extend(about.is_mixed().then(|| "metric".to_string()));
        let left = header.len();
        header.extend(others.iter().map(|subject| subject.name.clone()));
        let mut table = table(header, left, style);
        let mut all: Vec<Vec<f64>> = vec![Vec::new(); others.len()];
        for (_, workload) in &workloads {
            let mut cells = vec![workload.name.clone()];
            if about.is_mixed() {
                let metric = experiment.metric(&workload.primary);
                cells.push(metric.map_or(workload.primary.clone(), |metric| {
                    format!("{} ({})", metric.label, unit(metric.unit))
                }));
            }
            for (subject, all) in others.iter().zip(&mut all) {
                let row = workload.rows.iter().find(|row| row.subject == subject.name);
                let summary = row.and_then(|row| row.summaries.get(about.key(workload)));
                let ratio = summary.and_then(|summary| summary.ratio).map(|ratio| ratio.median);
                all.extend(ratio);
                cells.push(ratio.map_or("-".to_string(), |ratio| format!("{ratio:.3}")));
            }
            table.add_row(cells);
        }
        let complete = |all: &Vec<f64>| {
            let mean = stats::geometric_mean(all).filter(|_| all.len() == workloads.len());
            mean.map_or("-".to_string(), |mean| format!("{mean:.3}"))
        };
        if !about.is_mixed() {
            let mut cells = vec!["geometric mean".to_string()];
            cells.extend(all.iter().map(complete));
            table.add_row(cells);
        }
        let _ = writeln!(text, "\n{table}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::html::fixture::experiment;

    #[test]
    fn memory_is_not_among_the_times() {
        let mut experiment = experiment(2, 3, 5);
        experiment.workloads[1].primary = "held".into();
        let mut text = String::new();
        overview(&experiment, &mut text, presets::ASCII_MARKDOWN);
        let tables: Vec<Vec<&str>> =
            text.trim().split("\n\n").map(|table| table.lines().skip(2).collect()).collect();
        let [time, other, memory] = &tables[..] else { panic!("{text}") };
        assert!(text.contains("main metric, ratio to glibc"), "{text}");
        let figure = |i: usize, key: &str| {
            let ratio = experiment.workloads[i].rows[1].summaries[key].ratio;
            format!("{:.3}", ratio.unwrap().median)
        };
        let words = |line: &str| line.split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
        assert_eq!(other.len(), 1, "no mean: {text}");
        let name = &experiment.workloads[1].name;
        assert_eq!(words(other[0])[1..4], [name, "resident over live (ratio)", &figure(1, "held")]);
        assert_eq!((time.len(), memory.len()), (3, 4), "{text}");
        assert!(!time.iter().any(|line| line.contains(name)), "{text}");
        let ratio = |i: usize| experiment.workloads[i].rows[1].summaries["per_op"].ratio.unwrap().median;
        let expected = format!("{:.3}", (ratio(0) * ratio(2)).sqrt());
        assert_eq!(words(time[2])[1..3], ["geometric mean", &expected]);
    }
}
