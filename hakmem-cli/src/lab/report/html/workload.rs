//! One workload: its table, latencies and plots.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{Report, page};
use crate::lab::model::{Metric, Ratio, Row, Summary, Unit, Verdict, Workload};
use crate::lab::report::units::figure;
use crate::lab::report::word;

/// Metrics side by side, so that a table fits the page.
const COLUMNS: usize = 5;

/// The section of the workload of this number.
pub fn render(report: &Report, number: usize) -> Markup {
    let (workload, slug) = (&report.experiment.workloads[number], &report.slugs[number]);
    let (same, shown): (Vec<&Metric>, Vec<&Metric>) = report
        .experiment
        .metrics
        .iter()
        .filter(|metric| has(workload, metric))
        .partition(|metric| zero(workload, metric));
    let tables = shown.len().div_ceil(COLUMNS).max(1);
    let (first, rest) = shown.split_at(shown.len().div_ceil(tables));
    html! {
        section.workload aria-labelledby=(slug) {
            h2 id=(slug) { (workload.name) }
            p.models { (workload.models) }
            p.parameters { code { (workload.parameters) } }
            (failures(workload))
            (table(report, workload, first, true))
            @for part in rest.chunks(shown.len().div_ceil(tables).max(1)) { (table(report, workload, part, false)) }
            @if !same.is_empty() {
                p { "0 in every run: " (same.iter().map(|metric| metric.label.as_str()).collect::<Vec<_>>().join(", ")) "." }
            }
            @if workload.rows.iter().all(|row| row.summaries.values().all(|summary| summary.ratio.is_none())) {
                p.note { (no_ratios(report, workload)) }
            }
            (latencies(report, workload))
            (page::gallery(&report.workloads[number]))
        }
    }
}

fn has(workload: &Workload, metric: &Metric) -> bool {
    workload.rows.iter().any(|row| row.summaries.contains_key(&metric.key))
}

fn zero(workload: &Workload, metric: &Metric) -> bool {
    let mut all = workload.rows.iter().filter_map(|row| row.summaries.get(&metric.key));
    metric.key != workload.primary && all.all(|summary| summary.minimum == 0.0 && summary.maximum == 0.0)
}

/// Why there is nothing to compare.
fn no_ratios(report: &Report, workload: &Workload) -> String {
    let baseline = &report.experiment.method.baseline;
    let row = workload.rows.iter().find(|row| row.subject == *baseline);
    match row {
        Some(row) if row.failure.is_some() => {
            format!("No ratios and no verdicts: the baseline {baseline} failed.")
        }
        Some(_) if workload.rows.len() == 1 => format!("No ratios and no verdicts: only {baseline} was run."),
        Some(_) => "No ratios and no verdicts: nothing else has figures.".to_string(),
        None => format!("No ratios and no verdicts: the baseline {baseline} was not run."),
    }
}

fn failures(workload: &Workload) -> Markup {
    let failed: Vec<_> =
        workload.rows.iter().filter(|row| row.failure.is_some()).map(|row| row.subject.as_str()).collect();
    html! {
        @if !failed.is_empty() { p.failed role="alert" { b { "Failed: " (failed.join(", ")) "." } " See the table." } }
    }
}

/// How many runs the figures are of.
fn runs(workload: &Workload) -> String {
    let counts = workload.rows.iter().flat_map(|row| row.summaries.values().map(|summary| summary.runs));
    let counts: BTreeSet<usize> = counts.collect();
    match (counts.first(), counts.last()) {
        (Some(1), Some(1)) => "1 run of each".to_string(),
        (Some(least), Some(most)) if least == most => format!("{most} runs of each"),
        (Some(least), Some(most)) => format!("{least} to {most} runs of each"),
        _ => "no complete runs".to_string(),
    }
}

fn table(report: &Report, workload: &Workload, metrics: &[&Metric], verdicts: bool) -> Markup {
    html! {
        div.scroll {
            table.figures {
                caption {
                    @if verdicts {
                        b { (workload.name) ", " (runs(workload)) }
                        ": median; below it minimum – maximum, and the ratio to " (report.experiment.method.baseline)
                        " with its interval."
                    } @else { b { (workload.name) ", " (runs(workload)) } ", further metrics." }
                }
                thead {
                    tr {
                        th scope="col" { "Allocator" }
                        @if verdicts { th scope="col" { "Verdict" } }
                        @for metric in metrics {
                            th.number scope="col" {
                                (metric.label)
                                @if verdicts && metric.key == workload.primary { " " span.tag { "main" } }
                            }
                        }
                    }
                }
                tbody { @for row in &workload.rows { (line(report, row, metrics, verdicts)) } }
            }
        }
    }
}

fn line(report: &Report, row: &Row, metrics: &[&Metric], verdicts: bool) -> Markup {
    let baseline = row.subject == report.experiment.method.baseline;
    html! {
        tr.prominent[report.palette.look(&row.subject).prominent] {
            th scope="row" { (page::name(report, &row.subject)) }
            @if let Some(failure) = &row.failure {
                td.failed colspan=(metrics.len() + usize::from(verdicts)) {
                    @if verdicts {
                        b { "Failed" } " after " (row.runs.len()) " complete runs: " (failure)
                    } @else { "Failed" }
                }
            } @else {
                @if verdicts { td { (verdict(row.verdict, baseline)) } }
                @for metric in metrics {
                    td.number { @if let Some(summary) = row.summaries.get(&metric.key) { (cell(summary, metric.unit)) } @else { "–" } }
                }
            }
        }
    }
}

fn verdict(verdict: Option<Verdict>, baseline: bool) -> Markup {
    let class = match verdict {
        Some(Verdict::Go) => "verdict go",
        Some(Verdict::NoGo) => "verdict nogo",
        Some(Verdict::Neutral) => "verdict neutral",
        None => "verdict",
    };
    html! {
        @match verdict {
            Some(verdict) => span class=(class) { (word(verdict)) },
            None if baseline => span.tag { "baseline" },
            None => "–",
        }
    }
}

fn cell(summary: &Summary, unit: Unit) -> Markup {
    html! {
        span.median { (figure(summary.median, unit)) }
        span.range { (figure(summary.minimum, unit)) " – " (figure(summary.maximum, unit)) }
        @if let Some(ratio) = summary.ratio { (shown(ratio)) }
    }
}

fn shown(ratio: Ratio) -> Markup {
    let sure = ratio.interval.is_some_and(|ends| ends.excludes_one());
    let class = match (sure, ratio.median < 1.0) {
        (false, _) => "ratio",
        (true, true) => "ratio better",
        (true, false) => "ratio worse",
    };
    html! {
        span class=(class) {
            (format!("×{:.3}", ratio.median))
            @if let Some(ends) = ratio.interval { " " small { (format!("[{:.3}, {:.3}]", ends.low, ends.high)) } }
        }
    }
}

fn latencies(report: &Report, workload: &Workload) -> Markup {
    let rows: Vec<_> = workload.rows.iter().filter_map(|row| Some((row, row.latency.as_ref()?))).collect();
    let show = |value: f64| figure(value, Unit::Nanoseconds);
    html! {
        @if !rows.is_empty() {
            div.scroll {
                table.latencies {
                    caption {
                        b { (workload.name) ", latency of single calls" }
                        ": each figure the median over the runs (" (runs(workload)) "). What reading the clock costs has "
                        "been subtracted."
                    }
                    thead {
                        tr {
                            th scope="col" rowspan="2" { "Allocator" }
                            th.group scope="colgroup" colspan="4" { "malloc" }
                            th.group scope="colgroup" colspan="4" { "free" }
                            th.number scope="col" rowspan="2" { "Calls in a run" }
                            th.number scope="col" rowspan="2" { "Clock" }
                        }
                        tr { @for _ in 0..2 { @for what in ["p50", "p99", "p99.9", "slowest"] { th.number scope="col" { (what) } } } }
                    }
                    tbody {
                        @for (row, latency) in rows {
                            tr.prominent[report.palette.look(&row.subject).prominent] {
                                th scope="row" { (page::name(report, &row.subject)) }
                                @for of in [&latency.malloc, &latency.free] {
                                    @for value in [of.p50, of.p99, of.p999, of.max] { td.number { (show(value)) } }
                                }
                                td.number { (figure((latency.malloc.count + latency.free.count) as f64, Unit::Count)) }
                                td.number { (show(latency.timer_ns)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
