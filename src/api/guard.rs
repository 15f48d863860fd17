//! The entries' ways to blocks between guard pages.

use crate::api::hardened::{self, Said};
use crate::api::profile;
use crate::front::heap::Heap;
use crate::front::lease::Due;
use crate::guard;
use crate::superslab::slab::Allocation;
use crate::tiny::classes::stride;
use core::ptr;

/// What an allocation was asked for.
pub(super) struct Asked {
    pub(super) size: usize,
    pub(super) align: usize,
    /// Whether by Rust.
    pub(super) in_rust: bool,
}

/// Gives the gate's clients the block that they have asked for. Returns it, or another one that takes its
/// place.
///
/// # Safety
///
/// The calling thread owns the heap, and has just taken a block of `class` from it, which nobody else knows.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn due(
    heap: *mut Heap,
    due: Due,
    allocation: Allocation,
    class: u8,
    asked: Asked,
) -> Allocation {
    let Asked { size, align, in_rust } = asked;
    let mut allocation = allocation;
    if due.is_for_guard() {
        // What a layout of the same class becomes, `realloc` leaves in place, and in Rust it asks nobody.
        let size = if in_rust { stride(class as usize) as usize } else { size };
        let guarded = guard::alloc(size, align, class);
        if !guarded.is_null() {
            // SAFETY: the calling thread's heap, of which this block was just taken.
            unsafe { Heap::free(heap, allocation.ptr, class) };
            allocation = Allocation { ptr: guarded, zeroed: true };
        }
    }
    if due.is_for_profile() {
        // SAFETY: the calling thread's heap.
        let tag = unsafe { (*heap).tag.get() };
        profile::sampled(allocation.ptr, stride(class as usize) as usize, tag);
    }
    allocation
}

/// C's `realloc`: another block by `allocate`, unless the size is the same. Null, and nothing changed, when
/// there is no memory.
///
/// # Safety
///
/// As [`guard::free`], and the caller alone uses the block. After success it uses the result instead.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn realloc(block: *mut u8, size: usize, allocate: impl Fn(usize) -> *mut u8) -> *mut u8 {
    let Some(old) = guard::usable(block, "realloc") else { return ptr::null_mut() };
    if old == size {
        return block;
    }
    let new = allocate(size);
    if !new.is_null() {
        // SAFETY: two blocks with at least that many bytes. Nobody uses the old one after the copy.
        unsafe {
            ptr::copy_nonoverlapping(block, new, old.min(size));
            hardened::free(block, Said::Nothing, "realloc");
        }
    }
    new
}
