//! The entries: `GlobalAlloc`, the core of the `malloc` family, and the hooks for forks, exit and unloading.

pub mod c;
mod checked;
mod control;
mod fork;
pub(crate) mod global;
mod guard;
mod hardened;
mod process;
pub mod profile;
mod report;
mod request;
mod rust;
mod slow_free;
mod slow_path;
mod unload;
