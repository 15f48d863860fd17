//! The whole report, for programs that keep it or send it somewhere.

use crate::stats::classes::ClassStats;
use crate::stats::print;
use crate::stats::snapshot::{Snapshot, Stats};
use core::fmt;

/// All statistics of one moment: what `HAKMEM_STATS` prints when the process ends. See [`stats_report`].
///
/// It displays itself as a table, and [`json`](Self::json) as one line of JSON. Both end with a newline.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsReport {
    /// The figures of the whole process, as [`stats`](crate::stats()) has them.
    pub stats: Stats,
    /// Those by size class, as [`class_stats`](crate::class_stats()) has them.
    pub classes: [ClassStats; ClassStats::COUNT],
}

/// All statistics, of the process and of each size class, of the same moment. Costs as much as
/// [`stats`](super::stats), once; writing it is the caller's, who may allocate for it, and takes no look at
/// the allocator any more. The report has about 5 KiB.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
///
/// fn main() {
///     let report = hakmem::stats_report();
///     let line = report.json().to_string();
///     assert!(line.starts_with("{\"hakmem\":") && line.ends_with("]}\n"));
///     // For people; `{}` of `report.stats` leaves out the size classes.
///     print!("{report}");
/// }
/// ```
pub fn stats_report() -> StatsReport {
    // Filled in where the caller wants it: the stack may be small.
    let mut report =
        StatsReport { stats: Stats::default(), classes: [ClassStats::default(); ClassStats::COUNT] };
    Snapshot::with(|now| {
        report.stats = now.stats;
        report.classes.copy_from_slice(&now.classes);
    });
    report.stats = report.stats.with_kernel();
    report
}

impl StatsReport {
    /// Displays the report as one line of JSON: `hakmem` (the version), `event` (`running`, whenever it is
    /// made), `pid`, the figures under their names, and `classes`, an array of objects for the size classes
    /// that are used.
    pub fn json(&self) -> impl fmt::Display {
        Json(self)
    }
}

/// Three tables: the figures, where the memory is, and the size classes that are used.
impl fmt::Display for StatsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::table(f, &self.stats, &self.classes)
    }
}

struct Json<'a>(&'a StatsReport);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print::line(f, print::Event::Running, &self.0.stats, &self.0.classes)
    }
}
