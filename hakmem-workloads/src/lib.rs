//! Allocation patterns that the Hakmem benchmarks run over any allocator.
//!
//! A [`Workload`] models a kind of program and runs once per process, under `hakmem bench`; a
//! [`patterns::Pattern`] is a small kernel that can be repeated for ever, for `cargo bench` and for counting
//! instructions. Both are generic over the [`Heap`] they allocate from, write into what they get, and check
//! on every free that it is still there.

mod block;
mod heap;
mod latency;
mod mapped;
mod meter;
pub mod patterns;
mod random;
mod report;
mod run;
mod settings;
mod threads;
mod trim;
mod workload;

pub use heap::{Global, Heap, Malloc};
pub use mapped::Mapped;
pub use meter::resident;
pub use report::{Latency, Percentiles, Report};
pub use run::{Error, run};
pub use settings::Settings;
pub use workload::{Figure, Limit, Parameter, Preset, Target, Workload, all, find};
