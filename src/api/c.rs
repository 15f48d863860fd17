//! The core of the `malloc` family, for the `hakmem-capi` crate. Not part of the Rust interface.
//!
//! A failing call sets `errno` to `ENOMEM`; a successful one leaves it alone.

use crate::api::hardened;
use crate::api::{checked, guard, slow_free, slow_path};
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::{large_blocks, suspects, thread, tls};
use crate::lockfree::magazine_slots::Push;
use crate::os;
use crate::superslab::pagemap::{self, FOREIGN, HARDENED};
use crate::superslab::slab::{Allocation, Block};
use crate::tiny::classes::{CLASSES, MAX_SMALL, MAX_TABLE, medium};
use core::ptr;

mod controls;
mod resized;
mod sized;
pub use controls::*;
#[cfg_attr(any(feature = "asan", feature = "valgrind"), allow(unused_imports))]
pub use resized::realloc;
#[cfg_attr(any(feature = "asan", feature = "valgrind"), allow(unused_imports))]
pub use sized::*;

/// Alignment and least size of blocks. They could be 8 for up to 8 bytes, but such blocks have no second word
/// for a mark.
const MIN_ALIGN: usize = 16;

/// Removes what tells that `block` is in a magazine: for each block that may come from there, before the
/// program gets it.
///
/// # Safety
///
/// The caller has allocated the block, of at least 16 bytes.
#[inline(always)]
unsafe fn unmark(block: *mut u8) {
    // SAFETY: the caller's clause is the same.
    unsafe { Block::unmark(block.cast()) }
}

/// The same for an allocation of a slow path, which may have failed, and for which no memory should be
/// touched that was not before.
#[inline(always)]
fn unmarked(allocation: Allocation) -> *mut u8 {
    if !allocation.ptr.is_null() && !allocation.zeroed {
        // SAFETY: just allocated, and C has no blocks of less than 16 bytes.
        unsafe { unmark(allocation.ptr) };
    }
    allocation.ptr
}

/// `block`, or null and the right `errno`.
fn or_enomem(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        os::set_errno(libc::ENOMEM);
    }
    block
}

/// `malloc`.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    if size > MAX_TABLE {
        return malloc_rest(size);
    }
    let words = size.div_ceil(8);
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder; `words` is in the table, because `size` is at most
    // `MAX_TABLE`.
    let class = unsafe { MagazineTops::class(heap.cast(), words) };
    // SAFETY: the calling thread's heap or a placeholder; a class from the table.
    let block = unsafe { MagazineTops::pop(heap.cast(), class) };
    if block.is_null() {
        return malloc_slow(size, heap, words);
    }
    // SAFETY: just allocated.
    unsafe { unmark(block) };
    block
}

/// The fast path of `malloc` alone: a block from a magazine, for sizes in the table. Null means take the slow
/// path.
#[inline(always)]
pub fn malloc_hit(size: usize) -> *mut u8 {
    if size > MAX_TABLE {
        return ptr::null_mut();
    }
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder; the size is in the table, and so the class is one.
    // What is unmarked has just been allocated.
    unsafe {
        let block = MagazineTops::pop(heap.cast(), MagazineTops::class(heap.cast(), size.div_ceil(8)));
        if !block.is_null() {
            unmark(block);
        }
        block
    }
}

// The slow paths are `extern "C"`: what cannot unwind can be reached by a jump, without a stack frame in the
// fast path. The order of their arguments leaves each value in the register where the fast path has it.

/// `malloc` when the magazine is empty, for a size that is in the table, and is so many words.
#[cold]
#[inline(never)]
extern "C" fn malloc_slow(size: usize, heap: *mut Heap, words: usize) -> *mut u8 {
    // SAFETY: `malloc` passes the calling thread's heap or a placeholder, and words that are in the table.
    malloc_second(size, heap, unsafe { MagazineTops::class(heap.cast(), words) })
}

/// `malloc` when the magazine of `class` is empty: from the current slab.
#[inline(always)]
fn malloc_second(size: usize, heap: *mut Heap, class: usize) -> *mut u8 {
    // SAFETY: the callers pass the calling thread's heap or a placeholder, and a size class.
    let block = unsafe { Heap::alloc_from_slab(heap, class) }.ptr;
    if !block.is_null() { block } else { malloc_cold(size, heap, class) }
}

/// `malloc` when the current slab has no block either, or the thread has no heap.
#[cold]
#[inline(never)]
extern "C" fn malloc_cold(size: usize, heap: *mut Heap, class: usize) -> *mut u8 {
    // SAFETY: `malloc` passes the calling thread's heap or a placeholder.
    if unsafe { hardened::serves(heap) } {
        return malloc_hardened(size, heap, class);
    }
    malloc_refill(size, class)
}

/// [`malloc_cold`] in hardened mode, for a thread that has a heap. What the heap's table says of the class
/// counts the trailer.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
extern "C" fn malloc_hardened(size: usize, heap: *mut Heap, class: usize) -> *mut u8 {
    let with_trailer = if size <= MAX_TABLE { class } else { hardened::class_with_trailer(size, MIN_ALIGN) };
    // SAFETY: the calling thread's heap, since that is served.
    let block = unsafe { hardened::hit(heap, size, MIN_ALIGN, with_trailer) };
    if !block.is_null() { block } else { malloc_hardened_shared(size, heap, class) }
}

/// [`malloc_hardened`] when the thread has no block ready.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
extern "C" fn malloc_hardened_shared(size: usize, heap: *mut Heap, class: usize) -> *mut u8 {
    // SAFETY: `malloc` passes the calling thread's heap or a placeholder.
    let block = unsafe { hardened::hit_shared(heap, size, MIN_ALIGN) };
    if !block.is_null() { block } else { malloc_refill(size, class) }
}

/// [`malloc_cold`] when there is no block ready anywhere.
#[inline(always)]
fn malloc_refill(size: usize, class: usize) -> *mut u8 {
    let allocation = slow_path::refill(size, MIN_ALIGN, class as u8, None);
    if allocation.ptr.is_null() {
        return no_memory();
    }
    // It is one: this spares short threads a test each.
    unmarked(allocation)
}

/// Null, with the right `errno`.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
extern "C" fn no_memory() -> *mut u8 {
    or_enomem(ptr::null_mut())
}

/// `malloc` for sizes that are not in the table.
#[inline(never)]
extern "C" fn malloc_rest(size: usize) -> *mut u8 {
    if size > MAX_SMALL {
        return malloc_large(size);
    }
    let class = medium(size);
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder; `medium` gives a size class for a size up to
    // `MAX_SMALL`.
    let block = unsafe { MagazineTops::pop(heap.cast(), class) };
    if block.is_null() {
        return malloc_second(size, heap, class);
    }
    // SAFETY: just allocated.
    unsafe { unmark(block) };
    block
}

#[cold]
#[inline(never)]
extern "C" fn malloc_large(size: usize) -> *mut u8 {
    let block = large_blocks::hit(size);
    if !block.is_null() {
        return block;
    }
    or_enomem(slow_path::alloc(size, MIN_ALIGN, None).ptr)
}

/// A large block for contents that have outgrown their block.
#[cold]
#[inline(never)]
extern "C" fn malloc_growing(size: usize) -> *mut u8 {
    or_enomem(slow_path::alloc_growing(size, MIN_ALIGN, None).ptr)
}

/// `free`.
///
/// # Safety
///
/// `block` is null or a block of this allocator that nobody uses any more.
#[inline(always)]
pub unsafe fn free(block: *mut u8) {
    // SAFETY: the caller's clause is the same.
    unsafe { free_of_kind(block, pagemap::kind_index(block)) }
}

/// [`free`] of a block whose `kind` is known.
///
/// # Safety
///
/// As [`free`]; `kind` is the page map's answer for `block`.
#[inline(always)]
unsafe fn free_of_kind(block: *mut u8, kind: usize) {
    if kind != FOREIGN as usize && kind <= CLASSES {
        checked::free(block, kind as u8);
    }
    // Kinds that are no classes have no magazine: to a push it looks full, so they take the slow path.
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder; a kind of the page map is below `KINDS`. By the
    // caller's clause nobody uses the block any more. What the push has left alone goes on with the same
    // heap, kind and block; the kind is a class and the heap no placeholder where there was room.
    unsafe {
        match MagazineTops::push_once(heap.cast(), kind, block, &raw const (*heap).bins.secret) {
            Push::Done => (),
            Push::Full => free_rest(block, heap, kind),
            Push::Refused => slow_free::free_suspect(block, heap, kind),
        }
    }
}

/// `free` when the magazine is full, or `kind` is no class.
///
/// # Safety
///
/// As [`slow_free::free_second_level`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_rest(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same.
    unsafe { slow_free::free_second_level(block, heap, kind, free_unserved) }
}

/// `free` when the second level does not serve the block either: perhaps the magazine will grow. So the block
/// is marked as in a magazine, unless that has no room for marks.
///
/// # Safety
///
/// As [`slow_free::free_second_level`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_unserved(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same. Only the owner's own heap has marks. A block of a class that
    // is aligned as all are has a second word, if it is one.
    unsafe {
        if kind == HARDENED as usize {
            return hardened::free_plain(block, heap);
        } else if Heap::can_mark(heap, kind) {
            if block.addr() % MIN_ALIGN == 0 {
                if Heap::is_armed_for(heap, kind) {
                    return guard::free_armed(block, heap, kind);
                }
                if !Block::half_mark_once(block.cast(), (*heap).bins.secret) {
                    return slow_free::free_suspect(block, heap, kind);
                }
            }
        } else if block.is_null() {
            // Common in C, and nothing else here would have to be asked.
            return;
        } else if kind != FOREIGN as usize && kind <= CLASSES {
            return free_newcomer(block, kind);
        }
        slow_free::free_armed(block, heap, kind)
    }
}

/// `free` by a thread that has no heap: the first one to have the block may have marked it.
///
/// # Safety
///
/// As [`slow_free::free_cold`]; `kind` is the page map's answer for the block, and a size class.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_newcomer(block: *mut u8, kind: usize) {
    // SAFETY: `with_heap_to_free` passes a heap that the calling thread owns, or null if it has none. The
    // other clauses are the caller's.
    thread::with_heap_to_free(|heap| unsafe {
        if heap.is_null() {
            suspects::free_without_heap(block, kind as u8)
        } else {
            Heap::free_newcomer(heap, block, kind as u8)
        }
    });
}

/// `calloc`.
#[inline(always)]
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    // A product that overflows becomes a size that no allocation can have.
    let bytes = count.saturating_mul(size);
    let block = malloc_hit(bytes);
    if block.is_null() {
        return calloc_rest(bytes);
    }
    // SAFETY: just allocated, with at least that many bytes.
    unsafe { block.write_bytes(0, bytes) };
    block
}

/// `calloc` when the magazine is empty, or the size is not in the table.
#[inline(never)]
extern "C" fn calloc_rest(bytes: usize) -> *mut u8 {
    // The mark, too, of which the hardened heap has none, but an eye on each byte.
    let is_hardened = hardened::is_on();
    let more = if is_hardened { bytes } else { bytes.max(MIN_ALIGN) };
    // SAFETY: just allocated for that many bytes, or null.
    let block = unsafe { slow_path::cleared(slow_path::alloc_to_clear(more, MIN_ALIGN, None), more) };
    if more != bytes && is_hardened != hardened::is_on() {
        // The first call has read the options.
        // SAFETY: of the lines above, or null.
        unsafe { free(block) };
        return calloc_rest(bytes);
    }
    or_enomem(block)
}

/// Allocates `size` bytes at a multiple of `align`, a power of two. Null when there is no memory; leaves
/// `errno` alone.
#[inline(always)]
pub fn aligned(align: usize, size: usize) -> *mut u8 {
    let align = align.max(MIN_ALIGN);
    if size <= MAX_TABLE && align <= MAX_TABLE {
        // A block of so many bytes that they are a multiple of the alignment lies at one; one of size 0, too.
        let block = malloc_hit((size.max(1) + (align - 1)) & !(align - 1));
        if !block.is_null() {
            return block;
        }
    }
    aligned_rest(size, align)
}

/// [`aligned`] when the magazine is empty, or size or alignment are not in the table.
#[cold]
#[inline(never)]
extern "C" fn aligned_rest(size: usize, align: usize) -> *mut u8 {
    unmarked(slow_path::alloc(size, align, None))
}

/// `malloc_usable_size`: the bytes that a block has, 0 for null. Reports misuse on behalf of `function`.
///
/// # Safety
///
/// `block` is null or a block of this allocator.
#[inline]
pub unsafe fn usable_size(block: *mut u8, function: &str) -> usize {
    if block.is_null() { 0 } else { slow_path::usable(block, pagemap::kind(block), function) }
}
