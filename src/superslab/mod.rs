//! SuperSlabs: 2 MiB regions, aligned to 2 MiB, cut into 32 pages of 64 KiB.
//!
//! A *slab* is a span of 1, 2, 4 or 8 pages holding blocks of one class; a *run* is a span that is one large block.
//! The first 4 KiB of a SuperSlab hold a [`Slab`] record for each of its pages; a span uses the record of its first
//! page, and the others point back to it. Everything about free spans lives outside, in the [`pool`].

pub(crate) mod ready;
pub(crate) mod remote;

#[cfg(not(loom))]
mod dense;
#[cfg(not(loom))]
pub(crate) mod figures;
#[cfg(not(loom))]
pub(crate) mod granules;
#[cfg(not(loom))]
pub(crate) mod orphans;
#[cfg(not(loom))]
pub(crate) mod pagemap;
pub(crate) mod pages;
#[cfg(not(loom))]
pub(crate) mod pool;
#[cfg(not(loom))]
mod purge;
#[cfg(not(loom))]
mod state;

#[cfg(not(loom))]
pub(crate) use slab::{Block, Fresh, LEFT, List, NO_SLAB, Owner, SUPERSLAB, Slab, VISITED};
#[cfg(all(test, not(loom)))]
pub(crate) use state::Desc;

#[cfg(not(loom))]
mod slab;
