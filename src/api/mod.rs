//! The entries: `GlobalAlloc`, the core of the C family, and what the process is told and asked.

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
