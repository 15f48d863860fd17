//! The asymmetric barrier of `os/barrier.rs`, or what stands in for it in the models.

#[cfg(not(loom))]
pub(crate) use crate::os::barrier::{heavy, light};
#[cfg(loom)]
use crate::sync::{Ordering, fence};

/// The model's stand-in for the light side of the asymmetric barrier: a full fence. Pairs with
/// [`heavy`].
#[cfg(loom)]
#[track_caller]
pub(crate) fn light() {
    fence(Ordering::SeqCst);
}

/// The model's stand-in for the heavy side: a full fence. Pairs with [`light`].
#[cfg(loom)]
#[track_caller]
pub(crate) fn heavy() -> bool {
    fence(Ordering::SeqCst);
    true
}
