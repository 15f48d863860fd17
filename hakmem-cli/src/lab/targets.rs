//! Whether Hakmem reaches what it is to reach: the targets stand beside the workloads, the figures come from
//! an experiment.

use anyhow::{Context, ensure};
use hakmem_workloads::{Limit, Target, Workload};

use super::model::{self, Experiment, Outcome, Subject, Unit};
use super::report::units::figure;
use super::stats;
use super::subjects::{GLIBC, HAKMEM};
use super::tasks;

/// Real programs may hold this much more than under glibc, on average.
const OF_GLIBC: f64 = 1.02;

/// Every workload and preset that has a target, in the order of the workloads.
pub fn scenarios() -> Vec<(&'static Workload, Option<&'static str>)> {
    let mut all = Vec::new();
    for workload in hakmem_workloads::all() {
        for target in workload.targets {
            let one = (*workload, Some(target.preset).filter(|preset| !preset.is_empty()));
            if all.iter().all(|(w, preset): &(&Workload, _)| !std::ptr::eq(*w, *workload) || *preset != one.1)
            {
                all.push(one);
            }
        }
    }
    all
}

/// The name of a workload with its preset, as on the command line.
pub fn name(workload: &Workload, preset: Option<&str>) -> String {
    preset.map_or(workload.name.to_string(), |preset| format!("{}:{preset}", workload.name))
}

/// Every setting of Hakmem that a target is about, such as `BACKGROUND=on`.
pub fn settings() -> Vec<&'static str> {
    let mut settings: Vec<_> = hakmem_workloads::all().iter().flat_map(|workload| workload.targets).collect();
    settings.retain(|target| !target.under.is_empty());
    let mut settings: Vec<_> = settings.iter().map(|target| target.under).collect();
    settings.sort_unstable();
    settings.dedup();
    settings
}

/// "idle-return:keep-100: resident after idling / at the peak: 0.350", for the list of workloads.
pub fn in_words(workload: &Workload, target: &Target) -> String {
    let scenario = name(workload, Some(target.preset).filter(|preset| !preset.is_empty()));
    let (label, unit) = metric(workload, target);
    let under = if target.under.is_empty() { String::new() } else { format!(" (under {})", target.under) };
    format!("{scenario}: {label} at most {}{under}", limit(target.limit, unit))
}

fn metric(workload: &Workload, target: &Target) -> (&'static str, Unit) {
    let known = workload.figures.iter().find(|known| known.key == target.figure).expect("a test checks");
    (known.label, tasks::own_metric(known.key, known.label, known.unit).unit)
}

fn limit(limit: Limit, unit: Unit) -> String {
    match limit {
        Limit::AtMost(most) => figure(most, unit),
        Limit::OfBestPeer(factor) => format!("{factor:.2} of the best peer"),
    }
}

/// The name of the subject that is Hakmem under this setting, or with its defaults.
fn subject_under(setting: &str) -> String {
    if setting.is_empty() { HAKMEM.into() } else { format!("{HAKMEM} {setting}") }
}

/// Whether a subject is Hakmem, under whatever setting.
fn is_ours(name: &str) -> bool {
    name == HAKMEM || name.strip_prefix(HAKMEM).is_some_and(|rest| rest.starts_with(' '))
}

/// Every target of the workloads that the experiment ran.
pub fn judge(experiment: &Experiment) -> Vec<model::Target> {
    let mut judged = Vec::new();
    for workload in hakmem_workloads::all() {
        for target in workload.targets {
            let scenario = name(workload, Some(target.preset).filter(|preset| !preset.is_empty()));
            let Some(run) = experiment.workloads.iter().find(|run| run.name == scenario) else { continue };
            let values = experiment.subjects.iter().map(|subject| {
                let row = run.rows.iter().find(|row| row.subject == subject.name)?;
                Some(row.summaries.get(target.figure)?.median)
            });
            let values: Vec<Option<f64>> = values.collect();
            let bound = match target.limit {
                Limit::AtMost(most) => Some(most),
                Limit::OfBestPeer(factor) => {
                    let peers = experiment.subjects.iter().zip(&values);
                    let peers = peers.filter(|(subject, _)| !is_ours(&subject.name));
                    peers.filter_map(|(_, value)| *value).reduce(f64::min).map(|best| best * factor)
                }
            };
            let (label, unit) = metric(workload, target);
            let subject = subject_under(target.under);
            let own = own(experiment.subjects.iter().map(|subject| subject.name.as_str()), &values, &subject);
            let outcome = match (own, bound) {
                (Some(own), Some(bound)) if own <= bound => Outcome::Met,
                (Some(_), Some(_)) => Outcome::Missed,
                _ => Outcome::Unknown,
            };
            let under = if target.under.is_empty() { String::new() } else { format!(", {}", target.under) };
            judged.push(model::Target {
                scenario: scenario + &under,
                figure: label.into(),
                unit,
                limit: limit(target.limit, unit),
                subject,
                bound,
                values,
                outcome,
            });
        }
    }
    judged
}

fn own<'a>(
    mut subjects: impl Iterator<Item = &'a str>,
    values: &[Option<f64>],
    subject: &str,
) -> Option<f64> {
    subjects.position(|name| name == subject).and_then(|at| values[at])
}

/// The peak resident memory of real programs, by what `hakmem ab` found of each: the geometric mean of the
/// ratios to glibc, in the order of `subjects`.
///
/// # Errors
///
/// One of the experiments has no glibc as its baseline.
pub fn programs(experiments: &[Experiment], subjects: &[Subject]) -> anyhow::Result<model::Target> {
    for experiment in experiments {
        let base = &experiment.method.baseline;
        ensure!(base == GLIBC, "{}: compared with {base}, not with {GLIBC}", experiment.title);
    }
    let mean = |name: &str| {
        let ratio = |workload: &model::Workload| {
            let row = workload.rows.iter().find(|row| row.subject == name)?;
            let peak = row.summaries.get("peak")?;
            if name == GLIBC { Some(1.0) } else { peak.ratio.map(|ratio| ratio.median) }
        };
        let workloads = experiments.iter().flat_map(|experiment| &experiment.workloads);
        let ratios: Option<Vec<f64>> = workloads.map(ratio).collect();
        ratios.and_then(|ratios| stats::geometric_mean(&ratios))
    };
    let first = experiments.first().context("no experiments")?;
    // Those that some program fails under have no mean, and are nobody to be measured by.
    let others = first.subjects.iter().filter(|subject| subject.name != GLIBC && !is_ours(&subject.name));
    let best = others.filter_map(|subject| mean(&subject.name)).reduce(f64::min);
    let outcome = match mean(HAKMEM) {
        Some(own) if own <= OF_GLIBC && best.is_none_or(|best| own < best) => Outcome::Met,
        Some(_) => Outcome::Missed,
        None => Outcome::Unknown,
    };
    Ok(model::Target {
        scenario: format!("{} real programs", experiments.len()),
        figure: "peak resident, geometric mean of the ratios to glibc".into(),
        unit: Unit::Ratio,
        limit: format!("{OF_GLIBC:.2}, and below every other peer"),
        subject: HAKMEM.into(),
        bound: Some(best.unwrap_or(OF_GLIBC).min(OF_GLIBC)),
        values: subjects.iter().map(|subject| mean(&subject.name)).collect(),
        outcome,
    })
}

#[cfg(test)]
mod tests;
