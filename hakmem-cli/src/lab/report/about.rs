//! The overviews of all workloads: what each is about, and which workloads are in it.

use crate::lab::model::{Experiment, Metric, Workload};

/// What an overview is about.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// The main metric of those workloads where that is a time.
    Time,
    /// The main metric of the others: no mean of those would make sense, least of all together with times.
    Other,
    /// A metric that all have.
    Metric(&'a Metric),
}

impl<'a> About<'a> {
    /// Every overview that has a workload in it; `memory` is the metric that stands for memory.
    pub fn all(experiment: &Experiment, memory: Option<&'a Metric>) -> Vec<Self> {
        let mut all = vec![Self::Time, Self::Other];
        all.extend(memory.map(Self::Metric));
        all.retain(|about| !about.workloads(experiment).is_empty());
        all
    }

    /// The workloads in it, each with its place in the experiment.
    pub fn workloads<'e>(&self, experiment: &'e Experiment) -> Vec<(usize, &'e Workload)> {
        // One that failed under all has no figure; it counts as a time, whose mean then lacks something.
        let timed = |workload: &Workload| {
            experiment.metric(&workload.primary).is_none_or(|metric| metric.unit.is_time())
        };
        let inside = |(_, workload): &(usize, &Workload)| match self {
            Self::Time => timed(workload),
            Self::Other => !timed(workload),
            Self::Metric(_) => true,
        };
        experiment.workloads.iter().enumerate().filter(inside).collect()
    }

    /// The key of the metric that it shows of a workload.
    pub fn key<'k>(&self, workload: &'k Workload) -> &'k str
    where
        'a: 'k,
    {
        match self {
            Self::Time | Self::Other => &workload.primary,
            Self::Metric(metric) => &metric.key,
        }
    }

    /// Its heading.
    pub fn title(&self) -> &'a str {
        match self {
            Self::Time => "time",
            Self::Other => "main metric",
            Self::Metric(metric) => &metric.label,
        }
    }

    /// Whether each workload in it shows another metric, which has to be named, and which makes a mean
    /// meaningless.
    pub fn is_mixed(&self) -> bool {
        matches!(self, Self::Other)
    }
}
