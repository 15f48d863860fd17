//! Lock-free structures. They know nothing of slabs and heaps. Loom checks each of them with a model in
//! `model`.

pub(crate) mod barrier;
pub(crate) mod biased_lock;
pub(crate) mod magazine_slots;
pub(crate) mod ready_list;
pub(crate) mod record_stack;
pub(crate) mod remote_stack;
pub(crate) mod slice_sets;
pub(crate) mod waker;

#[cfg(all(test, loom))]
mod model;
