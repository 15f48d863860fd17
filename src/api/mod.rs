//! The entries: `GlobalAlloc`, the core of the `malloc` family, and the hooks for forks, exit and unloading.

mod asked;
// With `asan` or `valgrind` only its controls are used.
#[cfg_attr(any(feature = "asan", feature = "valgrind"), allow(dead_code))]
pub mod c;
mod checked;
mod control;
mod folder;
mod fork;
pub(crate) mod global;
mod guard;
mod hardened;
mod process;
pub mod profile;
mod profile_file;
mod report;
mod request;
#[cfg_attr(any(feature = "asan", feature = "valgrind"), allow(dead_code))]
mod rust;
pub(crate) mod sizes;
mod slow_free;
mod slow_path;
mod unload;
#[cfg(any(feature = "asan", feature = "valgrind"))]
pub mod watched;
