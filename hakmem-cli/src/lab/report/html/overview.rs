//! All workloads together: tables of ratios whose colours show where to look.

use maud::{Markup, html};

use super::{Report, memory, page};
use crate::lab::model::{Ratio, Workload};
use crate::lab::report::about::About;
use crate::lab::report::word;
use crate::lab::stats;

/// The section.
pub fn render(report: &Report) -> Markup {
    html! {
        section aria-labelledby="overview" {
            h2 #overview { "Overview" }
            @for about in About::all(report.experiment, memory(report.experiment)) { (heat(report, about)) }
            (page::gallery(&report.overview))
        }
    }
}

/// Ratios to the baseline.
fn heat(report: &Report, about: About) -> Markup {
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
    let workloads = about.workloads(experiment);
    let sure = experiment.method.rounds >= stats::LEAST_RUNS;
    let main = !matches!(about, About::Metric(_));
    let label = |workload: &Workload| {
        experiment.metric(&workload.primary).map_or(workload.primary.clone(), |metric| metric.label.clone())
    };
    let means = others.iter().map(|name| {
        let ratios =
            workloads.iter().map(|(_, workload)| Some(ratio(workload, about.key(workload), name)?.median));
        ratios.collect::<Option<Vec<f64>>>().and_then(|ratios| stats::geometric_mean(&ratios))
    });
    html! {
        div.scroll {
            table.heat {
                caption {
                    b { (about.title()) ", ratio to " (baseline) }
                    ": median of the pairwise ratios of " (experiment.method.rounds) " rounds"
                    @if sure { ". Blue is better, orange is worse, bold where the interval excludes 1" }
                    @else { ", which are too few to tell a difference from chance" }
                    "; – where there is no ratio."
                }
                thead {
                    tr {
                        th scope="col" { "Workload" }
                        @if main { th scope="col" { "Metric" } }
                        @for name in &others { th.number scope="col" { (page::name(report, name)) } }
                    }
                }
                tbody {
                    @for (place, workload) in &workloads {
                        tr {
                            th scope="row" { a href={ "#" (report.slugs[*place]) } { (workload.name) } }
                            @if main { td { (label(workload)) } }
                            @for name in &others { (cell(workload, about.key(workload), name)) }
                        }
                    }
                }
                @if !about.is_mixed() {
                    tfoot {
                        tr {
                            th scope="row" colspan=[main.then_some("2")] { "Geometric mean" }
                            @for mean in means {
                                @match mean {
                                    Some(mean) => td.number style=[sure.then(|| shade(mean))] { (format!("{mean:.3}")) },
                                    None => td.number title="not all workloads have a ratio above 0" { "–" },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn ratio(workload: &Workload, key: &str, subject: &str) -> Option<Ratio> {
    workload.rows.iter().find(|row| row.subject == subject)?.summaries.get(key)?.ratio
}

fn cell(workload: &Workload, key: &str, subject: &str) -> Markup {
    let row = workload.rows.iter().find(|row| row.subject == subject);
    let failed = row.is_some_and(|row| row.failure.is_some());
    let verdict = row.filter(|_| key == workload.primary).and_then(|row| row.verdict).map_or("", word);
    html! {
        @match ratio(workload, key, subject) {
            Some(Ratio { median, interval: Some(ends) }) => td.number.sure[ends.excludes_one()] style=(shade(median))
                title=(format!("{:.3} to {:.3} {verdict}", ends.low, ends.high)) { (format!("{median:.3}")) },
            Some(Ratio { median, interval: None }) => td.number { (format!("{median:.3}")) },
            None if failed => td.number.failed { "failed" },
            None => td.number { "–" },
        }
    }
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
