//! What runs on every call: the gates, the calling thread's heap, its magazines and its outbox.

pub(crate) mod bias;
pub(crate) mod recycle;
pub(crate) mod steal;

#[cfg(not(loom))]
pub mod c;
#[cfg(all(not(loom), any(feature = "checked", debug_assertions)))]
mod checked;
#[cfg(not(loom))]
pub(crate) mod fork;
#[cfg(not(loom))]
pub(crate) mod gate;
#[cfg(not(loom))]
pub(crate) mod heap;
#[cfg(not(loom))]
mod hot;
#[cfg(not(loom))]
mod leave;
#[cfg(not(loom))]
mod magazine;
#[cfg(not(loom))]
mod outbox;
#[cfg(not(loom))]
mod reclaim;
#[cfg(not(loom))]
pub(crate) mod registry;
#[cfg(not(loom))]
mod rob;
#[cfg(not(loom))]
mod shelf;
#[cfg(not(loom))]
pub(crate) mod thread;
#[cfg(not(loom))]
mod tls;
#[cfg(not(loom))]
mod unload;
#[cfg(not(loom))]
pub(crate) mod visit;
