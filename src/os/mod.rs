//! Every system call: memory, threads, clock, environment, messages.
//!
//! Nothing here allocates, takes a lock of std's, or changes `errno`, unless it says so.

mod access;
pub(crate) mod barrier;
mod calls;
#[cfg(test)]
pub(crate) mod child;
pub(crate) mod env;
mod errno;
pub(crate) mod faults;
pub(crate) mod file;
pub(crate) mod futex;
pub(crate) mod generation;
pub(crate) mod held;
mod info;
mod left;
mod mapping;
mod memory;
pub(crate) mod message;
#[cfg(miri)]
mod mock;
#[cfg(all(test, loom))]
mod model;
mod moving;
#[cfg(feature = "profile")]
pub(crate) mod peek;
pub(crate) mod process;
mod raw;
mod refused;
pub(crate) mod returning;
pub(crate) mod signals;
pub(crate) mod thread;
mod vdso;
mod words;

pub(crate) use access::{claim, close, make_inaccessible, protect};
pub(crate) use calls::{
    are_settled, confine, elapsed, inherit as inherit_calls, is_confined, is_confined_by_now, keep_errno,
    now_ms, now_ns, real_ns, set_errno,
};
pub(crate) use info::{duplicate, peak_resident, process_id, random, resident};
pub(crate) use mapping::{could_map, map_aligned, map_aligned_uncounted, map_uncounted, reserve_aligned};
pub(crate) use memory::*;
#[cfg(miri)]
pub(crate) use mock::is_one_piece;
pub(crate) use moving::{remap_anywhere, remap_to_marked};
pub(crate) use raw::prctl;
pub(crate) use words::{is_written, scattered};
