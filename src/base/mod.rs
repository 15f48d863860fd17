//! What all of the allocator stands on besides the system: options and limits, counters, messages about misuse.

pub(crate) mod counters;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod misuse;
pub(crate) mod options;
pub(crate) mod pause;
pub(crate) mod table;
