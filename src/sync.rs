//! Atomics and cells: `core`'s in the shipped library, loom's under `cfg(loom)`.
//!
//! Every lock-free type of this crate imports from here and from nowhere else, so that the model checker runs
//! the code that ships.

#[cfg(not(loom))]
pub(crate) use crate::os::barrier::{heavy as heavy_barrier, light as light_barrier};
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The model's stand-in for a barrier that the system puts into other threads: one on either side.
#[cfg(loom)]
pub(crate) fn light_barrier() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// See [`light_barrier`].
#[cfg(loom)]
pub(crate) fn heavy_barrier() -> bool {
    loom::sync::atomic::fence(Ordering::SeqCst);
    true
}

/// Something that can be linked into a lock-free stack.
///
/// The stacks of this crate are intrusive. What they link is raw memory in the library and a loom-tracked cell in
/// the model tests: loom cannot see atomics or cells that are made by casting, so the link is a trait.
///
/// # Safety
///
/// `set_next(node, x)` followed by `next(node)` on the same thread must return `x`, and neither may touch anything
/// but the link of `node`.
pub(crate) unsafe trait Node: Sized {
    /// Reads the link.
    ///
    /// # Safety
    /// `node` must be valid, its link must have been written, and no other thread may be writing it.
    unsafe fn next(node: *mut Self) -> *mut Self;
    /// Writes the link.
    ///
    /// # Safety
    /// `node` must be valid and exclusively the caller's.
    unsafe fn set_next(node: *mut Self, next: *mut Self);
}
