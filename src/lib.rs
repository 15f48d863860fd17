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
//! Settings come from the environment (`HAKMEM_*`) or from [`Hakmem::with_options`].
#![cfg_attr(not(any(loom, test)), no_std)]

mod lockfree;
mod sync;

mod api;
mod base;
mod front;
mod guard;
mod hardened;
mod large;
mod os;
mod reclaim;
mod sampling;
#[cfg(feature = "profile")]
mod stacks;
mod stats;
mod superslab;
mod tiny;

#[cfg(not(any(feature = "asan", feature = "valgrind")))]
#[doc(hidden)]
pub use api::c as __c;
pub use api::global::{Hakmem, few_syscalls, purge, start_background, stop_background};
pub use api::profile::{self, scope};
#[cfg(any(feature = "asan", feature = "valgrind"))]
#[doc(hidden)]
pub use api::watched::c as __c;
pub use base::limits::{InvalidLimits, Limits, on_soft_limit, set_limits};
pub use base::options::{Foreign, Hardened, Options, Preset, StatsFormat, Thp};
pub use stats::{ClassStats, Stats, class_stats, stats};

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
