//! The workloads by name: what each models, its parameters and its figures.

use crate::run;

/// One workload.
pub struct Workload {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// What it models, in one line.
    pub models: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Named sets of parameters.
    pub presets: &'static [Preset],
    /// Figures of its own, beside those of every [`crate::Report`].
    pub figures: &'static [Figure],
    /// Whether it can measure the latency of single calls.
    pub latency: bool,
    /// The key of the figure that a comparison is about; none for the time of an operation.
    pub primary: Option<&'static str>,
    /// What Hakmem is to reach in it: `hakmem memory` compares.
    pub targets: &'static [Target],
}

/// A parameter: a whole number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value unless set.
    pub default: u64,
    /// The least it may be.
    pub least: u64,
    /// The most it may be.
    pub most: u64,
    /// What it is, with its unit.
    pub help: &'static str,
}

/// A named set of parameters.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name, after the workload's and a colon.
    pub name: &'static str,
    /// What it sets.
    pub values: &'static [(&'static str, u64)],
}

/// A figure of a workload's own. Less is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its key in [`crate::Report::figures`].
    pub key: &'static str,
    /// Its heading.
    pub label: &'static str,
    /// `seconds`, `nanoseconds`, `bytes`, `count` or `ratio`.
    pub unit: &'static str,
}

/// What Hakmem is to reach in a figure of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The preset it is about; empty: the defaults.
    pub preset: &'static str,
    /// The figure's key.
    pub figure: &'static str,
    /// What is asked of it.
    pub limit: Limit,
    /// The setting of Hakmem, such as `BACKGROUND=on`, under which it holds; empty: the defaults.
    pub under: &'static str,
}

/// What is asked of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// At most this, in the figure's unit.
    AtMost(f64),
    /// At most this times what the best other allocator has.
    OfBestPeer(f64),
}

impl Target {
    /// Of Hakmem's defaults.
    pub(crate) const fn of(preset: &'static str, figure: &'static str, limit: Limit) -> Self {
        Self { preset, figure, limit, under: "" }
    }

    /// The same of Hakmem under a setting.
    pub(crate) const fn under(self, setting: &'static str) -> Self {
        Self { under: setting, ..self }
    }
}

/// All workloads, in the order in which they are run.
pub fn all() -> &'static [&'static Workload] {
    run::ALL
}

/// The workload of this name.
pub fn find(name: &str) -> Option<&'static Workload> {
    all().iter().copied().find(|workload| workload.name == name)
}

impl Workload {
    /// The preset of this name.
    pub fn preset(&self, name: &str) -> Option<&Preset> {
        self.presets.iter().find(|preset| preset.name == name)
    }
}
