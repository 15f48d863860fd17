//! The slow paths that Rust's entries and C's share: when the fast path has no block, or no room for one.
//!
//! A `free` from top to bottom: if the magazine has room, the entry itself pushes the block there. If it has
//! not ([`free_second_level`]), the block returns to its slab, which belongs to this heap or to another one
//! ([`free_remote`]). [`free_cold`] does everything else.
//!
//! Functions that are not inlined are `extern "C"`: nothing unwinds out of them, in any profile.

use crate::api::hardened::{self, Said};
use crate::api::{checked, process, profile, request};
use crate::base::misuse::{self, Fault};
use crate::base::options::Options;
use crate::front::fast_path::MagazineTops;
use crate::front::gated::Pushed;
use crate::front::heap::Heap;
use crate::front::heap::frees::{Freed, RemoteFreed};
use crate::front::{large_blocks, thread, tls};
use crate::large;
use crate::reclaim::retry::{self, or_reclaim};
use crate::reclaim::{background, idle_heaps};
use crate::sampling;
use crate::superslab::pagemap::{self, FOREIGN, HARDENED};
use crate::superslab::slab::{Allocation, Slab};
use crate::tiny::classes::{CLASSES, class_of, stride};
use core::ptr;

/// Allocates a block of `class` when neither the magazine nor the current slab has one. `size` and `align`
/// are what was asked for, or have at least the same class.
pub(super) fn refill(class: u8, size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if hardened::is_on() {
        return hardened::alloc(size, align, options);
    }
    request::look();
    background::tick();
    or_reclaim(stride(class as usize) as usize, || {
        process::with_heap(options, |heap| {
            if heap.is_null() {
                return Allocation::NONE;
            }
            // SAFETY: `with_heap` passes a heap that the calling thread owns; the callers pass a size class.
            unsafe {
                // The options may have been read just now.
                if hardened::is_on() {
                    return hardened::alloc_from(heap, size, align, false);
                }
                let allocation = Heap::refill(heap, class);
                let due = Heap::take_due(heap);
                if !due.is_null() {
                    profile::sampled(due, stride(class as usize) as usize, (*heap).tag.get());
                }
                allocation
            }
        })
    })
}

/// Allocates a block of any size and alignment.
pub(super) fn alloc(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if size > isize::MAX as usize {
        return Allocation::NONE;
    }
    // A block of size 0 has the alignment that was asked for, too.
    let size = size.max(1);
    let class = class_of(size, align);
    if class == 0 {
        // SAFETY: the calling thread's heap.
        return large_block(size, align, options, |heap| unsafe { large_blocks::alloc(heap, size, align) });
    }
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder; `class` is a size class.
    let block = unsafe { MagazineTops::pop(heap.cast(), class as usize) };
    if !block.is_null() {
        return Allocation { ptr: block, zeroed: false };
    }
    // SAFETY: the calling thread's heap or a placeholder; `class` is a size class.
    let allocation = unsafe { Heap::alloc_from_slab(heap, class as usize) };
    if allocation.ptr.is_null() { refill(class, size, align, options) } else { allocation }
}

/// A large block of at least `size` bytes by `allocate`, which gets the calling thread's heap; in hardened
/// mode one of its own.
fn large_block(
    size: usize,
    align: usize,
    options: Option<&Options>,
    allocate: impl Fn(*mut Heap) -> Allocation,
) -> Allocation {
    if hardened::is_on() {
        return hardened::alloc(size, align, options);
    }
    request::look();
    background::tick();
    if sampling::is_on() {
        profile::tick();
    }
    or_reclaim(size, || {
        process::with_heap(options, |heap| {
            if hardened::is_on() {
                // SAFETY: `with_heap` passes null or a heap that the calling thread owns.
                return unsafe { hardened::alloc_from(heap, size, align, false) };
            }
            allocate(heap)
        })
    })
}

/// Like [`alloc`], for a block that will be cleared unless it is known to be zero.
pub(super) fn alloc_to_clear(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if hardened::is_on() {
        return hardened::alloc_zeroed(size, align, options);
    }
    if large::run_slices(size, align).is_some() || size > isize::MAX as usize {
        return alloc(size, align, options);
    }
    large_block(size, align, options, |_| large_blocks::seen(large::alloc_to_clear(size, align), size))
}

/// Frees a block of `class`.
///
/// # Safety
///
/// `class` is a size class. `block` was allocated as one of it, and nobody uses it any more.
#[inline(always)]
pub(super) unsafe fn free_small(block: *mut u8, class: u8) {
    checked::free(block, class);
    let heap = tls::get();
    // SAFETY: the calling thread's heap or a placeholder. By the caller's clause the block is of this class,
    // and nobody uses it.
    if !unsafe { MagazineTops::push(heap.cast(), class as usize, block) } {
        // SAFETY: the same heap, block and class, which the push has left alone.
        unsafe { free_slow(heap, block, class) }
    }
}

/// [`free_small`] when the magazine is full. The class is the layout's; here the page map is asked for its
/// answer, too.
///
/// # Safety
///
/// As [`free_small`]; `heap` is the calling thread's, or a placeholder.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(heap: *mut Heap, block: *mut u8, class: u8) {
    // SAFETY: nobody uses the block. Where the page map agrees about the class, that is its answer.
    unsafe {
        if pagemap::kind_index(block) != class as usize {
            return free_mismatched(block, class);
        }
        free_second_level(block, heap, class as usize, free_armed);
    }
}

/// Frees a block where the page map does not agree with the layout's class.
///
/// # Safety
///
/// As [`free_small`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_mismatched(block: *mut u8, class: u8) {
    // SAFETY: nobody uses the block.
    unsafe {
        if pagemap::kind(block) == HARDENED {
            return hardened::free(block, Said::Class(class), "dealloc");
        }
        free_cold(block, class as usize);
    }
}

/// Frees a block when the magazine of its `kind` is full: returns it to its slab. `unserved` is called if
/// that is not what should be done: [`free_armed`], in the end.
///
/// # Safety
///
/// `heap` is the calling thread's, or a placeholder. `kind` is the page map's answer for `block`, which
/// nobody uses any more.
#[inline(always)]
pub(super) unsafe fn free_second_level(
    block: *mut u8,
    heap: *mut Heap,
    kind: usize,
    unserved: unsafe extern "C" fn(*mut u8, *mut Heap, usize),
) {
    // SAFETY: the clauses of `free_to_slab` are the caller's. What each answer calls for is done at once,
    // with the slab that it names; where it says that nothing was done, still nobody uses the block.
    unsafe {
        match Heap::free_to_slab(heap, block, kind) {
            Freed::Done => (),
            Freed::Relist(slab) => Heap::relist(heap, slab),
            Freed::Remote(slab) => free_remote(block, heap, kind, slab),
            Freed::Unserved => unserved(block, heap, kind),
            Freed::Invalid => free_suspect(block, heap, kind),
        }
    }
}

/// Frees a block that the second level does not serve: to the magazine, if the heap is armed.
///
/// # Safety
///
/// As [`free_second_level`].
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn free_armed(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same.
    unsafe {
        match Heap::push_armed(heap, block, kind) {
            Pushed::Done => (),
            Pushed::Full => free_armed_full(block, heap, kind),
            Pushed::Unserved => free_armed_rest(block, heap, kind),
            // Here, for the sake of threads that end soon: most of their frees come this way.
            Pushed::Unarmed => free_cold(block, kind),
        }
    }
}

/// [`free_armed`] when the magazine is full.
///
/// # Safety
///
/// As [`free_second_level`]; the heap is armed.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_armed_full(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same.
    unsafe { finish(Heap::free_armed_full(heap, block, kind), block, heap, kind) }
}

/// [`free_armed`] when the block or the lease has to be looked at.
///
/// # Safety
///
/// As [`free_second_level`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_armed_rest(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same.
    unsafe { finish(Heap::free_armed(heap, block, kind), block, heap, kind) }
}

/// Does what a free of an armed heap calls for.
///
/// # Safety
///
/// As [`free_second_level`]; `freed` was the answer for the same block.
#[inline(always)]
unsafe fn finish(freed: Freed, block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same, and those of what each answer calls for are as in
    // `free_second_level`.
    unsafe {
        match freed {
            Freed::Done => (),
            Freed::Relist(slab) => Heap::relist(heap, slab),
            Freed::Remote(slab) => free_remote(block, heap, kind, slab),
            Freed::Unserved => free_cold(block, kind),
            Freed::Invalid => free_suspect(block, heap, kind),
        }
    }
}

/// Frees a block of another heap's slab, and visits that heap if too much waits there.
///
/// # Safety
///
/// As [`Heap::free_remote`].
#[cold]
#[inline(never)]
unsafe extern "C" fn free_remote(block: *mut u8, heap: *mut Heap, kind: usize, slab: *mut Slab) {
    // SAFETY: the caller's clauses are the same. An invalid block was left alone, and `free_suspect` reports
    // it.
    unsafe {
        match Heap::free_remote(heap, slab, block, kind) {
            RemoteFreed::Done => (),
            RemoteFreed::Look(owner) => {
                let owner = Heap::after_sending(heap, owner);
                if !owner.is_null() {
                    idle_heaps::take_in(owner);
                }
            }
            RemoteFreed::Invalid => free_suspect(block, heap, kind),
        }
    }
}

/// Frees a block that looks free already, or not like a block.
///
/// # Safety
///
/// The calling thread owns `heap`. `kind` is the page map's answer for `block`, and a size class. Nobody uses
/// the block any more.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn free_suspect(block: *mut u8, heap: *mut Heap, kind: usize) {
    // SAFETY: the caller's clauses are the same.
    unsafe { Heap::free_suspect(heap, block, kind as u8) }
}

/// Frees a block when the magazine may grow, the thread has no heap, the block is a large one, or something
/// is wrong with it.
///
/// # Safety
///
/// `kind` is the class as which the block is freed, or the page map's answer for it. Nobody uses the block
/// any more.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn free_cold(block: *mut u8, kind: usize) {
    if kind == FOREIGN as usize || kind > CLASSES {
        if kind == HARDENED as usize {
            // SAFETY: the page map's answer; nobody uses the block.
            return unsafe { hardened::free(block, Said::Nothing, "free") };
        }
        // Common in C, and nothing else here would have to be asked.
        if block.is_null() {
            return;
        }
        // SAFETY: no size class, so the page map's answer; nobody uses the block.
        return unsafe { free_large(block, kind as u8, "free", Said::Nothing) };
    }
    thread::with_heap(None, |heap| {
        if !heap.is_null() {
            // SAFETY: `with_heap` passes a heap that the calling thread owns. `kind` is a size class.
            unsafe { Heap::free(heap, block, kind as u8) }
        }
        // Without memory for a heap the block is lost. The next call may find some.
    });
}

/// Frees a block that is no slab's, or reports misuse on behalf of `function`. What the program has `said` of
/// the block only hardened mode minds.
///
/// # Safety
///
/// `kind` is the page map's answer for `block`, and no size class. Nobody uses the block any more.
pub(super) unsafe fn free_large(block: *mut u8, kind: u8, function: &str, said: Said) {
    if kind == HARDENED {
        // SAFETY: the caller's clauses are the same.
        return unsafe { hardened::free(block, said, function) };
    }
    // SAFETY: the calling thread's own heap, or null; the other clauses are the caller's.
    unsafe { large_blocks::free(thread::own_heap(), block, kind, function) }
}

/// Clears a block, unless it is null or known to be zero.
///
/// # Safety
///
/// The block, if there is one, has at least `size` bytes, and nobody else uses it.
#[inline(always)]
pub(super) unsafe fn cleared(allocation: Allocation, size: usize) -> *mut u8 {
    if !allocation.zeroed && !allocation.ptr.is_null() {
        // SAFETY: not null; the rest is the caller's clause.
        unsafe { allocation.ptr.write_bytes(0, size) };
    }
    allocation.ptr
}

/// Whether `block` is a large block, as its layout says; false after a complaint on behalf of `function`.
/// `kind` is the page map's answer for it.
pub(super) fn is_large(block: *mut u8, kind: u8, function: &str) -> bool {
    if stride(kind as usize) != 0 {
        misuse::report(function, block, Fault::Size);
        return false;
    }
    large::usable_checked(block, kind, function) != 0
}

/// Resizes a block of `old` bytes and of `kind` to `size` bytes. `kind` is a size class, or for a large block
/// the page map's answer. A large block that stays large is resized in place if possible, any other is
/// copied.
///
/// Null, and nothing changed, when there is no memory. But if a large block should shrink then, it stays as
/// it is and is returned, provided that it `may_stay`.
///
/// # Safety
///
/// The block has at least `old` bytes, and only the caller uses it. After success the caller uses the result
/// instead.
pub(super) unsafe fn reallocate(
    block: *mut u8,
    kind: u8,
    old: usize,
    align: usize,
    size: usize,
    may_stay: bool,
    options: Option<&Options>,
) -> *mut u8 {
    let is_large = stride(kind as usize) == 0;
    if is_large && class_of(size, align) == 0 && size <= isize::MAX as usize {
        let lifted = if sampling::is_on() { sampling::lift(block) } else { None };
        // SAFETY: a large block of that kind, which only the caller uses.
        let moved = unsafe { retry::resize(block, kind, size, align) };
        if let Some(lifted) = lifted {
            sampling::put_down(lifted, moved.is_null());
        }
        if !moved.is_null() {
            if sampling::is_on() {
                profile::resized(moved, size);
            }
            return moved;
        }
    }
    let new = if size > old { alloc_growing(size, align, options) } else { alloc(size, align, options) };
    if new.ptr.is_null() {
        return if is_large && size <= old && may_stay { block } else { ptr::null_mut() };
    }
    if is_large && sampling::is_on() {
        sampling::freed_large(block);
    }
    // SAFETY: two different blocks, of at least `old` and `size` bytes. After the copy nobody uses the old
    // one, and its kind says how it is freed.
    unsafe {
        ptr::copy_nonoverlapping(block, new.ptr, old.min(size));
        if !is_large {
            free_small(block, kind);
        } else if !new.zeroed || !large::free_replaced(block, kind, new.ptr) {
            free_large(block, kind, "realloc", Said::Nothing);
        }
    }
    new.ptr
}

/// Allocates a block of `size` bytes for contents that have outgrown their block. A large one lies where it
/// can grow further, if there is such a place.
pub(super) fn alloc_growing(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    if size > isize::MAX as usize || class_of(size, align) != 0 {
        return alloc(size, align, options);
    }
    // SAFETY: the calling thread's heap.
    large_block(size, align, options, |heap| unsafe { large_blocks::alloc_growing(heap, size, align) })
}

/// The bytes that a block of `kind` has, a size class or the page map's answer. 0 after reporting misuse on
/// behalf of `function`, when that is no block.
pub(super) fn usable(block: *mut u8, kind: u8, function: &str) -> usize {
    match stride(kind as usize) {
        0 => usable_rest(block, kind, function),
        stride => stride as usize,
    }
}

/// [`usable`] of what lies in no slab, but perhaps in the hardened heap.
#[inline(never)]
fn usable_rest(block: *mut u8, kind: u8, function: &str) -> usize {
    if kind == HARDENED {
        return hardened::usable(block, function);
    }
    large::usable_checked(block, kind, function)
}
