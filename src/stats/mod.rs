//! Counters and live figures. No figure is maintained that can be found by looking: every request walks over
//! all slabs.

mod classes;
mod kept;
mod print;
mod report;
mod snapshot;

pub use classes::ClassStats;
#[cfg(all(test, not(any(loom, miri))))]
pub(crate) use kept::keeps_text;
pub(crate) use kept::{forget, inherit, keep};
pub(crate) use print::{Event, write};
pub use report::{StatsReport, stats_report};
pub(crate) use snapshot::Snapshot;
pub use snapshot::{Stats, class_stats, stats};
