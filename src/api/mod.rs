//! The entries: `GlobalAlloc`, the core of the `malloc` family, and the hooks for forks, exit and unloading.

pub mod c;
#[cfg(any(feature = "checked", debug_assertions))]
mod checked;
mod fork;
pub(crate) mod global;
mod process;
mod report;
mod rust;
mod slow_path;
mod unload;
