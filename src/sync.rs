//! Atomics: `core`'s in the shipped library, loom's under `cfg(loom)`.
//!
//! All of the library imports them from here and from nowhere else, which `tests/layers.rs` checks, so that
//! the model checker runs the code that ships.

#[cfg(loom)]
pub(crate) use self::loom::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence, reads, wrote,
};
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence,
};

#[cfg(loom)]
pub(crate) mod loom;

/// Says that the caller writes plain memory at this address, and nobody else uses it. Nothing but in models,
/// where loom checks it.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn wrote<T>(_: *const T) {}

/// Says that the caller reads plain memory at this address, and nobody writes it: see [`wrote`].
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn reads<T>(_: *const T) {}

/// Something that can be linked into a lock-free list.
///
/// The lists of this crate are intrusive. What they link is raw memory in the library, and a cell tracked by
/// loom in the model tests. Loom cannot see atomics or cells that are made by casting, so the link is a
/// trait.
///
/// # Safety
///
/// `set_next(node, x)` followed by `next(node)` on the same thread must return `x`. Neither may touch
/// anything but the link of `node`. If a node of this type goes onto a
/// [`RecordStack`](crate::lockfree::record_stack::RecordStack), its link must be atomic.
pub(crate) unsafe trait Node: Sized {
    /// Reads the link.
    ///
    /// # Safety
    /// `node` must be valid, and its link must have been written. Unless the link is atomic, no other thread
    /// may be writing it.
    unsafe fn next(node: *mut Self) -> *mut Self;
    /// Writes the link.
    ///
    /// # Safety
    /// `node` must be valid, and its link exclusively the caller's. If the link is atomic, other threads may
    /// read it meanwhile.
    unsafe fn set_next(node: *mut Self, next: *mut Self);
}
