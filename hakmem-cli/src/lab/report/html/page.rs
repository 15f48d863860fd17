//! The page's frame: what, where and how was measured, and what makes it doubtful.

use maud::{Markup, PreEscaped, html};

use super::plots::Plot;
use super::{Report, overview, targets, workload};
use crate::lab::model::{Experiment, Unit};
use crate::lab::report::units::figure;

/// The rule behind the verdicts, in percent: [`crate::lab::stats::verdict`] holds it, a test compares.
pub const GO: f64 = 1.0;
pub const NO_GO: f64 = 0.5;

/// The whole page.
pub fn render(report: &Report) -> Markup {
    let experiment = report.experiment;
    let several = experiment.workloads.len() > 1;
    let header = html! {
        p.when { (experiment.when) ", took " (duration(experiment.took)) }
        pre.command { code { (command(&experiment.command)) } }
    };
    let main = html! {
        (warnings(experiment))
        (missing(experiment))
        div.sides { (machine(experiment)) (method(experiment)) }
        (subjects(report))
        (targets::render(report))
        @if several {
            (contents(report))
            (overview::render(report))
        }
        @for i in 0..experiment.workloads.len() { (workload::render(report, i)) }
        @if experiment.workloads.is_empty() { p { "No workload was run." } }
    };
    let footer = html! {
        "Every single run is in " a href="experiment.json" { "experiment.json" }
        ", the plots are in " code { "plots/" } ". Made by hakmem " (env!("CARGO_PKG_VERSION")) "."
    };
    crate::html::page(&experiment.title, "", header, main, footer, "")
}

/// Plots side by side.
pub fn gallery(plots: &[Plot]) -> Markup {
    html! {
        div.gallery {
            @for plot in plots {
                figure.wide[plot.wide] {
                    div.plot { (PreEscaped(&plot.svg)) }
                    figcaption { b { (plot.title) } ". " (plot.note) "." }
                }
            }
        }
    }
}

fn warnings(experiment: &Experiment) -> Markup {
    html! {
        @if !experiment.warnings.is_empty() {
            section.warnings role="alert" aria-labelledby="warnings" {
                h2 #warnings { "Read this before you believe a figure" }
                ul { @for warning in &experiment.warnings { li { (warning) } } }
            }
        }
    }
}

fn missing(experiment: &Experiment) -> Markup {
    html! {
        @if !experiment.missing.is_empty() {
            section.missing aria-labelledby="missing" {
                h2 #missing { "Not measured, because not found" }
                ul { @for one in &experiment.missing { li { b { (one.name) } ": " (one.hint) } } }
            }
        }
    }
}

fn machine(experiment: &Experiment) -> Markup {
    let machine = &experiment.machine;
    html! {
        section aria-labelledby="machine" {
            h2 #machine { "Machine" }
            dl {
                dt { "Processor" } dd { (machine.processor) ", " (machine.processors) " usable" }
                dt { "Memory" } dd { (figure(machine.memory as f64, Unit::Bytes)) ", huge pages: " (machine.huge_pages) }
                dt { "System" } dd { (machine.system) ", Linux " (machine.kernel) ", " (machine.libc) }
                dt { "Virtualisation" } dd { (machine.virtualisation) }
                dt { "Busy before" } dd { (format!("{:.0}%", machine.busy_before * 100.0)) " of all processors' time, by others" }
            }
        }
    }
}

fn method(experiment: &Experiment) -> Markup {
    let method = &experiment.method;
    let level = format!("{:.0}%", method.confidence * 100.0);
    let plural = |count: usize| if count == 1 { "round" } else { "rounds" };
    html! {
        section aria-labelledby="method" {
            h2 #method { "Method" }
            dl {
                dt { "Runs" }
                dd {
                    (method.rounds) " " (plural(method.rounds)) " after " (method.warmups) " not counted; each round runs "
                    "every subject once, in an order shuffled anew (seed " (method.seed) "). A run may take "
                    (duration(method.timeout)) "."
                }
                dt { "Memory" }
                dd {
                    @if method.equal_memory {
                        "Made equal before each run: as much as it needs is touched and freed as huge pages."
                    } @else {
                        strong { "Not made equal before each run" }
                        "; on a virtual machine the price of a page fault then depends on what ran before."
                    }
                }
                dt { "Ratios" }
                dd {
                    "Of each run to the run of " b { (method.baseline) } " in the same round: their median and its " (level)
                    " bootstrap interval (" (figure(method.resamples as f64, Unit::Count)) " resamples). Less is better "
                    "in every metric, so a ratio under 1 is better than " (method.baseline) "."
                }
                dt { "Verdict" }
                dd {
                    "On a workload's main metric: " span.verdict.go { "GO" } " when better by " (GO) "% or more, "
                    span.verdict.nogo { "NO-GO" } " when worse by more than " (NO_GO) "%, both only if the interval "
                    "excludes 1; else " span.verdict.neutral { "NEUTRAL" } "."
                }
            }
        }
    }
}

fn subjects(report: &Report) -> Markup {
    let experiment = report.experiment;
    html! {
        section aria-labelledby="subjects" {
            h2 #subjects { "Compared" }
            div.scroll {
                table.subjects {
                    thead { tr { th scope="col" { "Name" } th scope="col" { "Version" } th scope="col" { "Preloaded library, or program" } th scope="col" { "Environment" } } }
                    tbody {
                        @for subject in &experiment.subjects {
                            tr {
                                th scope="row" {
                                    (name(report, &subject.name))
                                    @if subject.name == experiment.method.baseline { " " span.tag { "baseline" } }
                                }
                                td { (subject.version.as_deref().unwrap_or("–")) }
                                td {
                                    @match subject.library.as_ref().or(subject.program.as_ref()) {
                                        Some(file) => code { (file.display()) },
                                        None => "none: the C library's own",
                                    }
                                }
                                td { @for (name, value) in &subject.environment { code { (name) "=" (value) } " " } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn contents(report: &Report) -> Markup {
    html! {
        nav aria-label="Workloads" {
            a href="#overview" { "Overview" }
            @for (workload, slug) in report.experiment.workloads.iter().zip(&report.slugs) {
                " " a href={ "#" (slug) } { (workload.name) }
            }
        }
    }
}

/// A subject's name with its colour.
pub fn name(report: &Report, name: &str) -> Markup {
    let class = if report.palette.look(name).again { "swatch again" } else { "swatch" };
    html! { span class=(class) style={ "--own:" (report.palette.css(name)) } aria-hidden="true" {} (name) }
}

/// "2 min 5 s".
fn duration(seconds: f64) -> String {
    if !(60.0..1e9).contains(&seconds) {
        return figure(seconds, Unit::Seconds);
    }
    humantime::format_duration(std::time::Duration::from_secs(seconds.round() as u64)).to_string()
}

/// The words as one would type them into a shell.
fn command(words: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_./=,:+@%".contains(c))
    };
    let quote =
        |word: &String| if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}
