//! Ratios to the baseline with their intervals: a row for each subject of a workload, or for each workload.

use plotters::style::text_anchor::HPos;

use super::Plot;
use super::axis::Axis;
use super::canvas::{self, Chart, Drawn, FINE, FOOT, HALF, HEAD, Ink, Space, WHOLE};
use crate::lab::model::{Experiment, Metric, Ratio, Unit, Workload};
use crate::lab::report::about::About;
use crate::lab::report::html::palette::{Look, Palette};
use crate::lab::report::word;

/// From here on an axis of ratios is logarithmic.
const FAR: f64 = 4.0;
const ROW: i32 = 24;

/// The ratio of each subject that has one, in the order of the rows.
fn ratios<'a>(workload: &'a Workload, key: &'a str) -> impl Iterator<Item = (&'a str, Ratio)> {
    workload.rows.iter().filter_map(move |row| {
        let ratio = row.summaries.get(key)?.ratio?;
        let (low, high) = ends(ratio);
        let finite = [ratio.median, low, high].iter().all(|value| value.is_finite());
        finite.then_some((row.subject.as_str(), ratio))
    })
}

/// Of the interval, or where there is none, of the dot.
fn ends(ratio: Ratio) -> (f64, f64) {
    ratio.interval.map_or((ratio.median, ratio.median), |interval| (interval.low, interval.high))
}

fn axis(ratios: &[Ratio]) -> Axis {
    let ends = ratios.iter().flat_map(|ratio| [ends(*ratio).0, ratio.median, ends(*ratio).1]);
    // The line at 1 is always there, and differences below 1% never look large.
    Axis::fitting(ends.chain([0.99, 1.01]), Unit::Ratio, FAR)
}

fn whisker(chart: &mut Chart, ratio: Ratio, y: f64, look: Look, small: bool) -> Drawn {
    let thick = if look.prominent { 5 } else { 3 } - i32::from(small);
    if let Some(ends) = ratio.interval {
        canvas::strokes(chart, &[(ends.low, y), (ends.high, y)], look.colour, false, thick)?;
    }
    canvas::dot(chart, (ratio.median, y), look, if small { 6 } else { 9 } + i32::from(look.prominent))
}

fn how_to_read(experiment: &Experiment, intervals: bool, rounds: &str) -> String {
    let level = experiment.method.confidence * 100.0;
    let interval = if intervals { format!(" and {level:.0}% interval") } else { String::new() };
    let few = if intervals { "" } else { ", too few for an interval" };
    format!("median of the pairwise ratios{interval}, {rounds}{few}; left of 1 is better")
}

/// A row for each subject; none without ratios.
pub fn of_workload(
    experiment: &Experiment,
    workload: &Workload,
    metric: &Metric,
    file: String,
    palette: &Palette,
) -> Option<Plot> {
    let (names, values): (Vec<&str>, Vec<Ratio>) = ratios(workload, &metric.key).unzip();
    let runs =
        workload.rows.iter().filter_map(|row| row.summaries.get(&metric.key)).map(|one| one.runs).min()?;
    if names.is_empty() {
        return None;
    }
    let title = format!("{}: {}, ratio to {}", workload.name, metric.label, experiment.method.baseline);
    let each = if runs == 1 { "1 run of each".to_string() } else { format!("{runs} runs of each") };
    let subtitle = how_to_read(experiment, values.iter().all(|ratio| ratio.interval.is_some()), &each);
    let rows: Vec<String> = names.iter().map(|name| canvas::cut(name, 110, 11.0)).collect();
    let left = rows.iter().map(|name| canvas::width(name, 11.0)).max().unwrap_or(0).max(40) + 16;
    let count = names.len();
    let size = (HALF, HEAD + FOOT + count as i32 * ROW + 10);
    let svg = canvas::document((&title, &subtitle), size, |area| {
        let x = (axis(&values), "ratio (1 = no difference)");
        let mut chart = canvas::chart(area, Space(HEAD, 178, FOOT, left), x, (Axis::rows(&rows), ""), true)?;
        canvas::rule(&mut chart, (1.0, 0.0), (1.0, count as f64), true)?;
        for (i, (name, ratio)) in names.iter().zip(&values).enumerate() {
            let y = i as f64 + 0.5;
            whisker(&mut chart, *ratio, y, palette.look(name), false)?;
            let beside = chart.backend_coord(&(1.0, y)).1 / FINE;
            let interval = ratio.interval.map(|ends| format!(" [{:.3}, {:.3}]", ends.low, ends.high));
            let figures = format!("{:.3}{}", ratio.median, interval.unwrap_or_default());
            canvas::text(area, &figures, (HALF - 172, beside), 11.0, Ink::Strong, HPos::Left)?;
            let row = workload.rows.iter().find(|row| row.subject == *name && metric.key == workload.primary);
            let verdict = row.and_then(|row| row.verdict).map_or("", word);
            canvas::text(area, verdict, (HALF - 4, beside), 9.0, Ink::Muted, HPos::Right)?;
        }
        Ok(())
    });
    Some(Plot { file, title, note: subtitle, wide: false, svg })
}

/// A row for each workload; none without ratios.
pub fn of_all(experiment: &Experiment, about: About, palette: &Palette) -> Option<Plot> {
    let workloads = about.workloads(experiment);
    let file = match about {
        About::Time => "overview-time",
        About::Other => "overview-main",
        About::Metric(_) => "overview-memory",
    };
    let others = experiment.subjects.iter().filter(|subject| subject.name != experiment.method.baseline);
    let others: Vec<_> = others.map(|subject| (subject.name.clone(), palette.look(&subject.name))).collect();
    let lines = workloads.len() as f64;
    let mut points: Vec<(Ratio, f64, Look)> = Vec::new();
    for (i, (_, workload)) in workloads.iter().enumerate() {
        for (subject, ratio) in ratios(workload, about.key(workload)) {
            let Some(place) = others.iter().position(|(name, _)| name == subject) else { continue };
            let y = i as f64 + 0.1 + 0.8 * (place as f64 + 0.5) / others.len() as f64;
            points.push((ratio, y, others[place].1));
        }
    }
    if points.is_empty() {
        return None;
    }
    // What is no time has another metric in each row.
    let row = |workload: &Workload| match experiment.metric(&workload.primary) {
        Some(metric) if about.is_mixed() => format!("{}: {}", workload.name, metric.label),
        _ => workload.name.clone(),
    };
    let which = if workloads.len() == experiment.workloads.len() { "All workloads" } else { "Workloads" };
    let title = format!("{which}: {}, ratio to {}", about.title(), experiment.method.baseline);
    let rounds = format!("{} rounds", experiment.method.rounds);
    let intervals = points.iter().all(|(ratio, ..)| ratio.interval.is_some());
    let subtitle = how_to_read(experiment, intervals, &rounds);
    let names: Vec<String> =
        workloads.iter().map(|(_, workload)| canvas::cut(&row(workload), 220, 11.0)).collect();
    let left = names.iter().map(|name| canvas::width(name, 11.0)).max().unwrap_or(0).max(40) + 16;
    let top = HEAD + canvas::legend_height(WHOLE, &others) + 4;
    let height = (others.len() as i32 * 10 + 8).max(26);
    let size = (WHOLE, top + FOOT + height * workloads.len() as i32 + 10);
    let svg = canvas::document((&title, &subtitle), size, |area| {
        canvas::legend(area, WHOLE, HEAD + 8, &others)?;
        let x = axis(&points.iter().map(|(ratio, ..)| *ratio).collect::<Vec<_>>());
        let (low, high) = x.ends();
        let x = (x, "ratio (1 = no difference)");
        let mut chart = canvas::chart(area, Space(top, 20, FOOT, left), x, (Axis::rows(&names), ""), true)?;
        for i in 1..workloads.len() {
            canvas::rule(&mut chart, (low, i as f64), (high, i as f64), false)?;
        }
        canvas::rule(&mut chart, (1.0, 0.0), (1.0, lines), true)?;
        for (ratio, y, look) in points {
            whisker(&mut chart, ratio, y, look, true)?;
        }
        Ok(())
    });
    Some(Plot { file: file.to_string(), title, note: subtitle, wide: true, svg })
}
