//! Small blocks: size classes, the slabs of one heap, and how a block returns to its slab.

pub(crate) mod bins;
pub(crate) mod classes;
pub(crate) mod free;
mod free_list;
pub(crate) mod idle;
mod lists;
#[cfg(all(test, loom))]
mod model;
pub(crate) mod partial_purge;
mod refill;
pub(crate) mod release;
mod shared;
