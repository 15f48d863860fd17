//! What a workload says of itself when it is done.

use serde::{Deserialize, Serialize};

/// The figures of one run of one workload, measured inside its process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Operations that the measured part made: one allocation with its free is two.
    pub operations: u64,
    /// Wall-clock time of the measured part, nanoseconds.
    pub elapsed_ns: u64,
    /// Resident bytes before the measured part.
    pub resident_before: u64,
    /// Resident bytes at its end, before anything is cleaned up.
    pub resident_after: u64,
    /// Bytes in live blocks at its end.
    pub live_after: u64,
    /// Figures of this workload's own: key, value. Their label and unit are in [`crate::Workload::figures`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<(String, f64)>,
    /// Resident memory over time where the workload is about that: seconds since its start, bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<(f64, u64)>,
    /// Latency of single operations, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// Latency of single calls. All in nanoseconds, the timer's own cost subtracted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// What reading the clock twice costs by itself: the median, which has been subtracted.
    pub timer_ns: f64,
    /// Of the calls that allocate.
    pub malloc: Percentiles,
    /// Of the calls that free.
    pub free: Percentiles,
}

/// Of one histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Calls measured.
    pub count: u64,
    /// The median, nanoseconds; and so on.
    pub p50: f64,
    /// 99%.
    pub p99: f64,
    /// 99.9%.
    pub p999: f64,
    /// The slowest call.
    pub max: f64,
}
