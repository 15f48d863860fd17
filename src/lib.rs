//! # Hakmem
//!
//! A general-purpose memory allocator: fast, gives memory back, observable.
//!
//! ```
//! #[global_allocator]
//! static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
//!
//! fn main() {
//!     let words: Vec<String> = (0..1000).map(|i| format!("word {i}")).collect();
//!     assert!(hakmem::stats().allocated_bytes > 0);
//!     drop(words);
//! }
//! ```
//!
//! A thread's frees and allocations meet in *magazines*, small arrays of blocks that other threads do not
//! use. A block that does not fit goes back to its *slab*, a span of 64 KiB slices in a 2 MiB *SuperSlab*. If
//! another thread owns the slab, blocks go there in bundles and without locks. `docs/architecture.md` in the
//! repository describes the whole.
//!
//! Settings come from the environment (`HAKMEM_*`) or from [`Hakmem::with_options`]. It runs on Linux, on
//! x86-64 and 64-bit Arm, with glibc or musl. What it notices of misuse (a block freed twice, say) ends the
//! process with one line: `docs/misuse.md`.
//!
//! # Features
//!
//! * `profile` (on by default): heap profiles ([`profile`]), and the call stacks of sampled guard pages.
//! * `checked`: every free is checked at once.
//! * `asan`, `valgrind`: for AddressSanitizer and memcheck, which then see each block.
#![cfg_attr(not(any(loom, test)), no_std)]

// One line where it cannot run, and not an error for each function of the system that is not there.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("Hakmem runs on Linux only, on x86-64 and 64-bit Arm");

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod lockfree;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod sync;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod api;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod base;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod front;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod guard;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod hardened;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod large;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod os;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod reclaim;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod sampling;
#[cfg(all(target_os = "linux", target_pointer_width = "64", feature = "profile"))]
mod stacks;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod stats;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod superslab;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod tiny;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub use self::{
    api::global::{Hakmem, few_syscalls, purge, start_background, stop_background},
    api::profile::{self, scope},
    api::sizes::{good_size, usable_size},
    base::limits::{InvalidLimits, Limits, bytes_held, limits, on_soft_limit, set_limits},
    base::options::{Foreign, Hardened, Options, Preset, StatsFormat, Thp},
    stats::{ClassStats, Stats, StatsReport, class_stats, stats, stats_report},
};

#[cfg(all(
    target_os = "linux",
    target_pointer_width = "64",
    not(any(feature = "asan", feature = "valgrind"))
))]
#[doc(hidden)]
pub use api::c as __c;
#[cfg(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(feature = "asan", feature = "valgrind")
))]
#[doc(hidden)]
pub use api::watched::c as __c;

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
