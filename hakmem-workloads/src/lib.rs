//! Allocation patterns that the Hakmem benchmarks run over any allocator.

mod heap;
mod report;

pub use heap::{Global, Heap, Malloc};
pub use report::{Latency, Percentiles, Report};
