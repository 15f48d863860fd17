//! One thread's heap: its fast path, its magazines, outbox and run cache, and how a thread gets a heap and
//! gives it up.

mod counts;
pub(crate) mod fast_path;
mod flush;
mod gate;
pub(crate) mod gated;
pub(crate) mod heap;
pub(crate) mod large_blocks;
pub(crate) mod lease;
pub(crate) mod magazine;
#[cfg(all(test, loom))]
mod model;
mod outbox;
pub(crate) mod registry;
pub(crate) mod run_cache;
pub(crate) mod suspects;
pub(crate) mod thread;
pub(crate) mod tls;
pub(crate) mod visitor;
