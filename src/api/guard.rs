//! The entries' ways to blocks between guard pages.

use crate::api::hardened::{self, Said};
use crate::api::{profile_file, slow_free};
use crate::base::options::Options;
use crate::front::gated::Pushed;
use crate::front::heap::Heap;
use crate::guard;
use crate::sampling;
use crate::superslab::slab::{Allocation, Block};
use crate::tiny::classes::stride;
use core::ptr;

/// [`Heap::refill`] in hardened mode, and for a heap that is gated: gives the gate's clients what they have
/// asked for. `size` and `align` are what the program has asked for, or have at least the same class; Rust
/// has `options`.
///
/// # Safety
///
/// The calling thread owns the heap; `class` is a size class.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn refill(
    heap: *mut Heap,
    class: u8,
    size: usize,
    align: usize,
    options: Option<&Options>,
) -> Allocation {
    if hardened::is_on() {
        // SAFETY: the calling thread owns the heap.
        let allocation = unsafe { hardened::alloc_unmarked(heap, size, align) };
        profile_file::tick_if_on();
        return allocation;
    }
    // SAFETY: the caller's clauses are the same.
    let (mut allocation, due) = unsafe { Heap::refill_gated(heap, class) };
    if due.is_for_guard() {
        // What a layout of the same class becomes, `realloc` leaves in place, and in Rust it asks nobody.
        let in_rust = options.is_some();
        let size = if in_rust { stride(class as usize) as usize } else { size };
        let guarded = guard::alloc(size, align, class, in_rust);
        if !guarded.is_null() {
            // SAFETY: the calling thread's heap, of which this block was just taken.
            unsafe { Heap::take_back(heap, allocation.ptr, class) };
            allocation = Allocation { ptr: guarded, zeroed: true };
        }
    }
    if due.is_for_profile() {
        // SAFETY: the calling thread's heap.
        let tag = unsafe { (*heap).tag.get() };
        sampling::allocated(allocation.ptr, stride(class as usize) as usize, tag);
    }
    // Also without a sample: the time may have come.
    profile_file::tick_if_on();
    allocation
}

/// C's `free` in a heap that is armed: blocks in magazines are marked as in others, unless there is a
/// profile, which sees every free.
///
/// # Safety
///
/// As [`slow_free::free_second_level`]; the heap [can mark](Heap::can_mark) blocks of this kind, and the
/// block is aligned as C's are.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe extern "C" fn free_armed(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same. A block of a class that is aligned as all are has a second
    // word, if it is one.
    unsafe {
        if !sampling::is_on() {
            if !Block::half_mark_once(block.cast(), (*heap).bins.secret) {
                return slow_free::free_suspect(block, heap, kind);
            }
            if matches!(Heap::push_armed(heap, block, kind), Pushed::Done) {
                return;
            }
            // Else perhaps the magazine will grow.
            if Heap::returns_to_slab(heap, kind) {
                Block::unmark(block.cast());
            }
        }
        slow_free::free_armed(block, heap, kind)
    }
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
