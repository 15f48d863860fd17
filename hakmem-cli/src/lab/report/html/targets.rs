//! The targets: a line for each, green where Hakmem is within the limit, all others beside it.

use maud::{Markup, html};

use super::{Report, page};
use crate::lab::model::{Outcome, Target};
use crate::lab::report::{outcome, units::figure};

/// The section; nothing where there are no targets.
pub fn render(report: &Report) -> Markup {
    let experiment = report.experiment;
    let met = experiment.targets.iter().filter(|target| target.outcome == Outcome::Met).count();
    html! {
        @if !experiment.targets.is_empty() {
            section aria-labelledby="targets" {
                h2 #targets { "Targets" }
                p { (met) " of " (experiment.targets.len()) " are met. Medians; less is better." }
                div.scroll {
                    table.targets {
                        thead {
                            tr {
                                @for title in ["Target", "Figure", "At most", "Result"] { th scope="col" { (title) } }
                                @for subject in &experiment.subjects {
                                    th.number scope="col" { (page::name(report, &subject.name)) }
                                }
                            }
                        }
                        tbody {
                            @for target in &experiment.targets {
                                tr {
                                    th scope="row" { (target.scenario) }
                                    td { (target.figure) }
                                    td { (target.limit) }
                                    td class=(class(target.outcome)) { (outcome(target.outcome)) }
                                    @for (subject, value) in experiment.subjects.iter().zip(&target.values) {
                                        (cell(target, &subject.name, *value))
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Met => "met",
        Outcome::Missed => "missed",
        Outcome::Unknown => "failed",
    }
}

fn cell(target: &Target, subject: &str, value: Option<f64>) -> Markup {
    let own = if subject == target.subject { class(target.outcome) } else { "" };
    let shown = value.map_or("–".to_string(), |value| figure(value, target.unit));
    html! { td class=(format!("number {own}").trim_end()) { (shown) } }
}
