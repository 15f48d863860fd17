//! The core of the malloc family, for the `hakmem-capi` crate. Not part of the Rust interface.
//!
//! A failing call sets `errno` to `ENOMEM`; a successful one leaves it alone.

#[cfg(any(feature = "checked", debug_assertions))]
use crate::api::checked;
use crate::api::{process, slow_path};
pub use crate::base::limits::CHook;
use crate::base::misuse::Fault;
use crate::base::{limits, misuse};
use crate::front::fast_path::MagazineTops;
use crate::front::heap::Heap;
use crate::front::{large_blocks, thread, tls};
use crate::os;
use crate::stats::{ClassStats, Snapshot};
use crate::superslab::pagemap;
use crate::superslab::pagemap::FOREIGN;
use crate::tiny::classes::{CLASSES, MAX_SMALL, MAX_TABLE, class_of, medium, stride};
use core::ptr;

/// Alignment of blocks of at least as many bytes.
const MIN_ALIGN: usize = 16;

#[inline(always)]
fn align_for(size: usize) -> usize {
    if size <= 8 { 8 } else { MIN_ALIGN }
}

fn out_of_memory() -> *mut u8 {
    os::set_errno(libc::ENOMEM);
    ptr::null_mut()
}

/// `malloc`.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    if size > MAX_TABLE {
        return malloc_rest(size);
    }
    let words = size.div_ceil(8);
    let heap = tls::get();
    // SAFETY: the thread's own heap.
    let class = unsafe { MagazineTops::class(heap.cast(), words) };
    // SAFETY: as above.
    let block = unsafe { MagazineTops::pop_at(heap.cast(), class) };
    if !block.is_null() { block } else { malloc_slow(words, heap) }
}

/// What `malloc` can do at once: a block from a magazine, for sizes in the table. Null is no answer.
#[inline(always)]
pub fn malloc_hit(size: usize) -> *mut u8 {
    if size > MAX_TABLE {
        return ptr::null_mut();
    }
    let heap = tls::get();
    // SAFETY: the thread's own heap.
    unsafe { MagazineTops::pop_at(heap.cast(), MagazineTops::class(heap.cast(), size.div_ceil(8))) }
}

// The slow paths are `extern "C"`: what cannot unwind can be jumped to, without a frame on the fast path. Their arguments are
// in the order that leaves each value in the register where the fast path has it.

#[cold]
#[inline(never)]
extern "C" fn malloc_slow(words: usize, heap: *mut Heap) -> *mut u8 {
    // SAFETY: the thread's own heap, or a placeholder.
    malloc_second(heap, unsafe { MagazineTops::class(heap.cast(), words) })
}

/// The second level, behind an empty magazine.
#[inline(always)]
fn malloc_second(heap: *mut Heap, class: usize) -> *mut u8 {
    // SAFETY: the thread's own heap, or a placeholder.
    let block = unsafe { Heap::alloc_from_slab(heap, class) }.ptr;
    if !block.is_null() { block } else { malloc_cold(class) }
}

#[cold]
#[inline(never)]
extern "C" fn malloc_cold(class: usize) -> *mut u8 {
    let block = slow_path::refill(class as u8, None).ptr;
    if block.is_null() { out_of_memory() } else { block }
}

#[inline(never)]
extern "C" fn malloc_rest(size: usize) -> *mut u8 {
    if size > MAX_SMALL {
        return malloc_large(size);
    }
    let class = medium(size) as usize;
    let heap = tls::get();
    // SAFETY: the thread's own heap.
    let block = unsafe { MagazineTops::pop_at(heap.cast(), class) };
    if !block.is_null() { block } else { malloc_second(heap, class) }
}

#[cold]
#[inline(never)]
extern "C" fn malloc_large(size: usize) -> *mut u8 {
    let block = large_blocks::hit(size);
    if !block.is_null() {
        return block;
    }
    let block = slow_path::any(size, MIN_ALIGN, None).ptr;
    if block.is_null() { out_of_memory() } else { block }
}

#[cold]
#[inline(never)]
extern "C" fn malloc_growing(size: usize) -> *mut u8 {
    let block = slow_path::grown(size, MIN_ALIGN, None).ptr;
    if block.is_null() { out_of_memory() } else { block }
}

/// `free`.
///
/// # Safety
///
/// `block` is null or a block of this allocator that nobody uses any more.
#[inline(always)]
pub unsafe fn free(block: *mut u8) {
    let kind = pagemap::kind_index(block);
    #[cfg(any(feature = "checked", debug_assertions))]
    if kind != FOREIGN as usize && kind <= CLASSES {
        checked::free(block, kind as u8);
    }
    // Kinds that are no classes have no magazine: full, so they take the slow path.
    let heap = tls::get();
    // SAFETY: the thread's own heap; the block is free now.
    if !unsafe { MagazineTops::push(heap.cast(), kind, block) } {
        // SAFETY: passed on.
        unsafe { free_rest(block, heap, kind) }
    }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn free_rest(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: passed on; the thread's own heap, or a placeholder.
    unsafe { slow_path::free_second_level(block, heap, kind) }
}

/// `calloc`.
#[inline(always)]
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    // What overflows is more than there is.
    let bytes = count.saturating_mul(size);
    let block = malloc_hit(bytes);
    if block.is_null() {
        return calloc_rest(bytes);
    }
    // SAFETY: a block of ours with that many bytes.
    unsafe { block.write_bytes(0, bytes) };
    block
}

#[inline(never)]
extern "C" fn calloc_rest(bytes: usize) -> *mut u8 {
    // SAFETY: fresh from the gate.
    let block = unsafe { slow_path::cleared(slow_path::any_to_clear(bytes, align_for(bytes), None), bytes) };
    if block.is_null() { out_of_memory() } else { block }
}

/// `realloc`. Frees `block` and returns null when `size` is 0.
///
/// # Safety
///
/// `block` is null or a block of this allocator; after success only the result is.
pub unsafe extern "C" fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    let kind = pagemap::kind_index(block);
    if kind == FOREIGN as usize || kind > CLASSES || size == 0 {
        // SAFETY: passed on.
        return unsafe { realloc_rest(block, kind as u8, size) };
    }
    // In place while it fits and half of it is used.
    let stride = stride(kind) as usize;
    if size <= stride && (size > stride / 2 || class_of(size, align_for(size)) as usize == kind) {
        return block;
    }
    let new = if size > MAX_SMALL { malloc_growing(size) } else { malloc(size) };
    if !new.is_null() {
        // SAFETY: two blocks of ours with at least that many bytes; then the old one is free.
        unsafe {
            ptr::copy_nonoverlapping(block, new, stride.min(size));
            free(block);
        }
    }
    new
}

#[inline(never)]
unsafe extern "C" fn realloc_rest(block: *mut u8, kind: u8, size: usize) -> *mut u8 {
    if block.is_null() {
        return malloc(size);
    }
    let old = slow_path::usable(block, kind, "realloc");
    if old == 0 {
        // A foreign pointer, and the program runs on.
        return out_of_memory();
    }
    if size == 0 {
        // SAFETY: passed on.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    // SAFETY: passed on.
    let new = unsafe { slow_path::reallocate(block, kind, old, align_for(size), size, true, None) };
    if new.is_null() { out_of_memory() } else { new }
}

/// Allocates at a multiple of `align`, a power of two. Null when there is no memory; leaves `errno` alone.
pub extern "C" fn aligned(align: usize, size: usize) -> *mut u8 {
    slow_path::any(size, align.max(align_for(size)), None).ptr
}

/// `malloc_usable_size`, on behalf of `function`.
///
/// # Safety
///
/// `block` is null or a block of this allocator.
#[inline]
pub unsafe fn usable_size(block: *mut u8, function: &str) -> usize {
    if block.is_null() { 0 } else { slow_path::usable(block, pagemap::kind(block), function) }
}

/// `free_sized`, on behalf of `function`: `size` is what was asked for, which the block must have.
///
/// # Safety
///
/// As [`free`].
pub unsafe fn free_sized(block: *mut u8, size: usize, function: &str) {
    if !block.is_null() {
        let kind = pagemap::kind(block);
        // Too small for the class it is in: neither `malloc` nor an in-place `realloc` leaves a block like that.
        let class = class_of(size, align_for(size));
        if kind as usize <= CLASSES
            && kind != FOREIGN
            && size <= stride(kind as usize) as usize / 2
            && class != kind
        {
            misuse::report(function, block, Fault::FreedSize);
        }
    }
    // SAFETY: passed on.
    unsafe { free_aligned_sized(block, size, function) }
}

/// `free_aligned_sized`, on behalf of `function`; the alignment may have asked for a larger class than the size.
///
/// # Safety
///
/// As [`free`].
pub unsafe fn free_aligned_sized(block: *mut u8, size: usize, function: &str) {
    if !block.is_null() {
        let usable = slow_path::usable(block, pagemap::kind(block), function);
        if usable < size {
            if usable == 0 {
                return;
            }
            misuse::report(function, block, Fault::FreedSize);
        }
    }
    // SAFETY: passed on.
    unsafe { free(block) }
}

/// Gives back what can be given back; how many bytes.
pub fn purge() -> usize {
    crate::api::global::purge()
}

/// Sets the limits. False, and nothing changed, if the soft one is above the hard one.
pub fn set_limits(soft: usize, hard: usize) -> bool {
    limits::set_limits(limits::Limits { soft, hard }).is_ok()
}

/// Sets what is called when the soft limit has been crossed.
pub fn on_soft_limit(hook: Option<CHook>, argument: *mut core::ffi::c_void) {
    limits::on_soft_limit_c(hook, argument);
}

/// Starts the background thread; 0 or the number of an error.
pub fn start_background() -> i32 {
    process::start_background()
}

/// Ends the background thread.
pub fn stop_background() {
    crate::reclaim::background::stop();
}

/// See [`crate::api::global::few_syscalls`].
pub fn few_syscalls() {
    crate::api::global::few_syscalls();
}

/// Whether libraries that the program loads keep the flag that would give them another allocator.
pub fn keeps_deepbind() -> bool {
    // The options are read before the first heap.
    thread::with_heap(None, |_| ());
    crate::base::options::get().keep_deepbind
}

/// The program has used up the C library's keys for thread-local data: gives up the one that is ours. False when that is not to be
/// had. Ends of threads are then found out later.
pub fn give_up_key() -> bool {
    thread::give_up_key()
}

/// For the library's constructor: has the allocator hear of forks and of the end. A process that was given options hears about the
/// bad ones, and is counted, even if it never allocates. From here on threads can be started.
pub fn on_load() {
    let mut given = false;
    os::env::each(b"HAKMEM_", |_, _| given = true);
    if given {
        thread::with_heap(None, |_| ());
    }
    process::hook();
    crate::reclaim::background::ready();
}

/// One line, then abort.
pub fn fatal(what: &str) -> ! {
    os::message::line(format_args!("{what}"));
    os::message::abort()
}

/// For the library's panic handler: one line, then abort.
pub fn internal_error(what: &core::panic::PanicInfo<'_>) -> ! {
    os::message::line(format_args!("internal error: {what}"));
    os::message::abort()
}

/// Memory as `mallinfo2` wants it.
pub struct Info {
    /// Bytes of address space in SuperSlabs.
    pub arena: usize,
    /// Large blocks with a mapping of their own count here with the runs.
    pub large_blocks: usize,
    /// Bytes in large blocks.
    pub large_bytes: usize,
    /// Bytes in blocks that the program holds, large ones not counted.
    pub in_use: usize,
    /// Bytes in SuperSlabs that hold no such block.
    pub free: usize,
    /// Bytes that a purge could give back now.
    pub releasable: usize,
}

/// The figures for `mallinfo2`.
pub fn info() -> Info {
    Snapshot::with(|now| {
        let (runs, direct) = (&now.classes[ClassStats::RUNS], &now.classes[ClassStats::DIRECT]);
        let large_bytes = (runs.allocated_bytes + direct.allocated_bytes) as usize;
        let in_use = now.stats.allocated_bytes as usize - large_bytes;
        Info {
            arena: now.superslabs as usize,
            large_blocks: (runs.blocks + direct.blocks) as usize,
            large_bytes,
            in_use,
            free: (now.superslabs as usize).saturating_sub(in_use),
            releasable: now.stats.dirty_bytes as usize,
        }
    })
}

/// The figures of size class `index`, as `hakmem::class_stats` counts them; `None` when there is no such class.
pub fn class_stats(index: usize) -> Option<ClassStats> {
    Snapshot::with(|now| now.classes.get(index).copied())
}

/// Writes the statistics to standard error.
pub fn print_stats(json: bool) {
    crate::stats::write(2, json);
}
