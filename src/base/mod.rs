//! What the rest of the allocator builds on, besides the system: options and limits, counters, reports of
//! misuse.

pub(crate) mod counters;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod misuse;
pub(crate) mod once;
pub(crate) mod options;
pub(crate) mod pause;
pub(crate) mod prefetch;
pub(crate) mod table;
