//! A page with everything: it opens without a network, and holds its plots and its style itself. Beside it
//! lie the raw data and each plot as a file of its own.

mod overview;
mod page;
mod palette;
mod plots;
mod targets;
mod workload;

#[cfg(test)]
pub mod fixture;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use self::palette::Palette;
use self::plots::Plot;
use crate::lab::model::{Experiment, Metric, Unit};

/// Writes `dir`/index.html, `dir`/experiment.json and `dir`/plots/*.svg, and says what it wrote, the page
/// first.
///
/// # Errors
///
/// When a file cannot be written; the error names it.
pub fn write(experiment: &Experiment, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let report = Report::new(experiment);
    let folder = dir.join("plots");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut files = vec![
        (dir.join("index.html"), page::render(&report).into_string()),
        (dir.join("experiment.json"), serde_json::to_string(experiment)? + "\n"),
    ];
    for plot in report.overview.iter().chain(report.workloads.iter().flatten()) {
        files.push((folder.join(format!("{}.svg", plot.file)), plot.svg.clone()));
    }
    files
        .into_iter()
        .map(|(path, text)| {
            fs::write(&path, text).with_context(|| path.display().to_string())?;
            Ok(path)
        })
        .collect()
}

/// What all parts of the page need.
struct Report<'a> {
    experiment: &'a Experiment,
    palette: Palette,
    /// Of all workloads together; none where there is only one.
    overview: Vec<Plot>,
    /// The names of the workloads' sections and the first part of their plots' file names.
    slugs: Vec<String>,
    /// Of each workload.
    workloads: Vec<Vec<Plot>>,
}

impl<'a> Report<'a> {
    fn new(experiment: &'a Experiment) -> Self {
        let palette = Palette::new(&experiment.subjects);
        let slugs = slugs(experiment.workloads.iter().map(|workload| workload.name.as_str()));
        let workloads = experiment.workloads.iter().zip(&slugs);
        Self {
            overview: plots::of_all(experiment, &palette),
            workloads: workloads
                .map(|(one, slug)| plots::of_workload(experiment, one, slug, &palette))
                .collect(),
            slugs,
            palette,
            experiment,
        }
    }
}

/// The metric that stands for memory: peak resident, else the first that is in bytes.
fn memory(experiment: &Experiment) -> Option<&Metric> {
    experiment.metric("peak").or_else(|| experiment.metrics.iter().find(|metric| metric.unit == Unit::Bytes))
}

/// Names that are safe in file names and addresses, each once.
fn slugs<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut slugs: Vec<String> = Vec::new();
    for name in names {
        let plain: String = name
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(60)
            .collect();
        let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).collect();
        let plain = if words.is_empty() { "workload".to_string() } else { words.join("-") };
        let candidates = (2..).map(|number| format!("{plain}-{number}"));
        let free = |candidate: &String| !slugs.contains(candidate) && candidate != "overview";
        let slug =
            std::iter::once(plain.clone()).chain(candidates).find(free).expect("there is no end of numbers");
        slugs.push(slug);
    }
    slugs
}
