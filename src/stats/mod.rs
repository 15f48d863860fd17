//! Counters and live figures. No figure is maintained that can be found by looking: every request walks over
//! all slabs.

mod classes;
mod print;
mod report;
mod snapshot;

pub use classes::ClassStats;
pub(crate) use print::write;
pub use report::{StatsReport, stats_report};
pub(crate) use snapshot::Snapshot;
pub use snapshot::{Stats, class_stats, stats};
