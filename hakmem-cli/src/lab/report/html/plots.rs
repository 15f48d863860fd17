//! The plots, each an SVG document that stands on its own: in the page, and as a file for other documents.

mod axis;
mod canvas;
mod latency;
mod memory;
mod ratio;

use super::palette::Palette;
use crate::lab::model::{Experiment, Metric, Workload};
use crate::lab::report::about::About;

/// A plot.
pub struct Plot {
    /// Its file's name, without the ending.
    pub file: String,
    /// What it shows, in one line.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// Whether it needs the page's whole width.
    pub wide: bool,
    /// The document.
    pub svg: String,
}

/// Of all workloads together; none where there is only one.
pub fn of_all(experiment: &Experiment, palette: &Palette) -> Vec<Plot> {
    if experiment.workloads.len() < 2 {
        return Vec::new();
    }
    let all = About::all(experiment, super::memory(experiment)).into_iter();
    all.filter_map(|about| ratio::of_all(experiment, about, palette)).collect()
}

/// Of one workload: those for which there are figures.
pub fn of_workload(experiment: &Experiment, workload: &Workload, slug: &str, palette: &Palette) -> Vec<Plot> {
    let primary = experiment.metric(&workload.primary);
    let memory = super::memory(experiment).filter(|memory| memory.key != workload.primary);
    let ratio = |metric: Option<&Metric>, file: &str| {
        ratio::of_workload(experiment, workload, metric?, format!("{slug}-{file}"), palette)
    };
    let mut plots = vec![
        ratio(primary, "ratio"),
        ratio(memory, "memory-ratio"),
        memory::over_time(workload, slug, palette),
        memory::against_time(experiment, workload, slug, palette),
    ];
    plots.extend(latency::both(workload, slug, palette));
    plots.into_iter().flatten().collect()
}
