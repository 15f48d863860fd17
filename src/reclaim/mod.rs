//! Giving memory back: when memory is refused, from heaps whose threads are idle, and in the background.

pub(crate) mod background;
mod drain_magazines;
pub(crate) mod idle_heaps;
pub(crate) mod left_heaps;
pub(crate) mod purge;
pub(crate) mod retry;
mod sparse_orphans;
