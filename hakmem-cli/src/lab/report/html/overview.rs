//! All workloads together: tables of ratios whose colours show where to look.

use maud::{Markup, html};

use super::{Report, memory, page};
use crate::lab::model::{Interval, Metric, Workload};
use crate::lab::report::word;
use crate::lab::stats;

/// The section.
pub fn render(report: &Report) -> Markup {
    html! {
        section aria-labelledby="overview" {
            h2 #overview { "Overview" }
            (heat(report, None))
            @if let Some(metric) = memory(report.experiment) { (heat(report, Some(metric))) }
            (page::gallery(&report.overview))
        }
    }
}

/// Ratios of the workloads' main metrics, or of `metric`, to the baseline.
fn heat(report: &Report, metric: Option<&Metric>) -> Markup {
    let experiment = report.experiment;
    let baseline = &experiment.method.baseline;
    let others: Vec<&str> = experiment
        .subjects
        .iter()
        .map(|subject| subject.name.as_str())
        .filter(|name| name != baseline)
        .collect();
    if others.is_empty() {
        return html! {};
    }
    let key = |workload: &Workload| metric.map_or(workload.primary.clone(), |metric| metric.key.clone());
    let label = |workload: &Workload| {
        experiment.metric(&workload.primary).map_or(workload.primary.clone(), |metric| metric.label.clone())
    };
    let means = others.iter().map(|name| {
        let ratios =
            experiment.workloads.iter().map(|workload| Some(ratio(workload, &key(workload), name)?.median));
        ratios.collect::<Option<Vec<f64>>>().and_then(|ratios| stats::geometric_mean(&ratios))
    });
    let what = metric.map_or("Main metric of each workload", |metric| metric.label.as_str());
    html! {
        div.scroll {
            table.heat {
                caption {
                    b { (what) ", ratio to " (baseline) }
                    ": median of the pairwise ratios of " (experiment.method.rounds) " rounds. Blue is better, orange is "
                    "worse, bold where the interval excludes 1; – where there is no ratio."
                }
                thead {
                    tr {
                        th scope="col" { "Workload" }
                        @if metric.is_none() { th scope="col" { "Metric" } }
                        @for name in &others { th.number scope="col" { (page::name(report, name)) } }
                    }
                }
                tbody {
                    @for (workload, slug) in experiment.workloads.iter().zip(&report.slugs) {
                        tr {
                            th scope="row" { a href={ "#" (slug) } { (workload.name) } }
                            @if metric.is_none() { td { (label(workload)) } }
                            @for name in &others { (cell(workload, &key(workload), name)) }
                        }
                    }
                }
                tfoot {
                    tr {
                        th scope="row" colspan=[metric.is_none().then_some("2")] { "Geometric mean" }
                        @for mean in means {
                            @match mean {
                                Some(mean) => td.number style=(shade(mean)) { (format!("{mean:.3}")) },
                                None => td.number title="not all workloads have a ratio above 0" { "–" },
                            }
                        }
                    }
                }
            }
        }
    }
}

fn ratio(workload: &Workload, key: &str, subject: &str) -> Option<Interval> {
    workload.rows.iter().find(|row| row.subject == subject)?.summaries.get(key)?.ratio
}

fn cell(workload: &Workload, key: &str, subject: &str) -> Markup {
    let row = workload.rows.iter().find(|row| row.subject == subject);
    let failed = row.is_some_and(|row| row.failure.is_some());
    let verdict = row.filter(|_| key == workload.primary).and_then(|row| row.verdict).map_or("", word);
    html! {
        @match ratio(workload, key, subject) {
            Some(ratio) => td.number.sure[excludes_one(ratio)] style=(shade(ratio.median))
                title=(format!("{:.3} to {:.3} {verdict}", ratio.low, ratio.high)) { (format!("{:.3}", ratio.median)) },
            None if failed => td.number.failed { "failed" },
            None => td.number { "–" },
        }
    }
}

/// Whether there is a difference at all, large or small.
pub fn excludes_one(ratio: Interval) -> bool {
    ratio.low > 1.0 || ratio.high < 1.0
}

/// A background: none at 1, full at twice or half.
fn shade(ratio: f64) -> String {
    if !(ratio.is_finite() && ratio >= 0.0) {
        return String::new();
    }
    let colour = if ratio < 1.0 { "31,127,196" } else { "213,94,0" };
    let strength = (ratio.max(1e-9).log2().abs().min(1.0)).sqrt() * 0.6;
    format!("background:rgba({colour},{strength:.2})")
}
