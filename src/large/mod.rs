//! Large blocks, above the largest size class: up to 960 KiB runs of 64 KiB slices inside SuperSlabs, and
//! direct mappings for larger blocks and for alignments above 64 KiB.

mod batch;
mod block;
mod cache;
#[cfg(all(test, not(loom)))]
pub(crate) mod child;
mod direct;
pub(crate) mod huge;
mod run;

pub(crate) use block::{
    MAX_RUN, alloc, alloc_growing, alloc_to_clear, bytes_for, free, free_replaced, give_run, grows_into_kept,
    resize, run_slices, usable_checked,
};
pub(crate) use cache::{clean, drain, due_in, inherit as inherit_cache, kept, spare, tick, tick_at};
pub(crate) use run::slices as slices_of_run;
