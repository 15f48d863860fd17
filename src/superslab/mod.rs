//! SuperSlabs: 2 MiB regions, aligned to 2 MiB, cut into 32 slices of 64 KiB.
//!
//! A *slab* is a span of 1 to 10 slices that holds blocks of one class; a *run* is a span that is one large
//! block. The first 4 KiB of a SuperSlab hold a [`slab::Slab`] record for each of its slices. A span
//! uses the record of its first slice; those of its other slices point back to it. What is known about free
//! spans lies elsewhere, in the [`pool`].

mod block;
pub(crate) mod decay;
pub(crate) mod delay;
pub(crate) mod desc;
pub(crate) mod granules;
pub(crate) mod grow;
pub(crate) mod layout;
#[cfg(all(test, loom))]
pub(crate) mod model;
pub(crate) mod orphans;
mod owner;
pub(crate) mod pagemap;
pub(crate) mod pool;
pub(crate) mod purge;
pub(crate) mod slab;
mod span;
pub(crate) mod span_index;
pub(crate) mod survey;
#[cfg(test)]
mod tests;
pub(crate) mod thp;
