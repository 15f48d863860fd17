//! The entries' ways into the hardened heap.

use crate::api::{process, profile, profile_file, request};
use crate::base::misuse::{self, Fault};
use crate::base::options::Options;
use crate::front::heap::Heap;
use crate::front::{lease, thread};
use crate::guard;
use crate::hardened::{self, State};
use crate::reclaim::background;
use crate::reclaim::retry::or_reclaim;
use crate::sampling;
use crate::superslab::slab::Allocation;
use crate::tiny::classes::MAX_SMALL;
use core::ptr;

pub(super) use crate::base::misuse::Said;
pub(super) use crate::hardened::class_with_trailer;
pub(super) use crate::hardened::is_on;

/// Allocates a block of any size and alignment. It counts as zero, which says that there is no mark of a free
/// block to remove: its trailer may lie where that would be. Who wants zeros calls [`alloc_zeroed`].
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn alloc(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    Allocation { zeroed: true, ..allocate(size, align, false, options) }
}

/// Allocates a block of any size and alignment that is zero.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn alloc_zeroed(size: usize, align: usize, options: Option<&Options>) -> Allocation {
    let allocation = allocate(size, align, false, options);
    if !allocation.zeroed && !allocation.ptr.is_null() {
        // SAFETY: just allocated, with at least that many bytes.
        unsafe { allocation.ptr.write_bytes(0, size) };
    }
    Allocation { zeroed: true, ..allocation }
}

/// [`alloc`], for a block that may have to grow again if it `grows`.
#[unsafe(link_section = "hakmem_rare")]
fn allocate(size: usize, align: usize, grows: bool, options: Option<&Options>) -> Allocation {
    let heap = thread::own_heap();
    if size > isize::MAX as usize {
        return Allocation::NONE;
    }
    // Also for a program that has nothing but large blocks.
    background::tick();
    request::look();
    if !heap.is_null() {
        // SAFETY: the calling thread owns the heap.
        let allocation = unsafe { alloc_from(heap, size, align, grows) };
        if !allocation.ptr.is_null() {
            profile_file::tick_if_on();
            return allocation;
        }
    }
    profile_file::tick_if_on();
    or_reclaim(size, align, || {
        // SAFETY: `with_heap` passes null or a heap that the calling thread owns.
        process::with_heap(options, |heap| unsafe { alloc_from(heap, size, align, grows) })
    })
}

/// [`alloc`] for the thread that has `heap`.
///
/// # Safety
///
/// As [`alloc_from`].
#[inline(always)]
pub(super) unsafe fn alloc_unmarked(heap: *mut Heap, size: usize, align: usize) -> Allocation {
    // SAFETY: the caller's clause is the same.
    Allocation { zeroed: true, ..unsafe { alloc_from(heap, size, align, false) } }
}

/// Allocates a block for the thread that has `heap`, with room to grow in if it `grows`.
///
/// # Safety
///
/// `heap` is null, or the calling thread owns it; hardened mode is on.
#[inline(always)]
pub(super) unsafe fn alloc_from(heap: *mut Heap, size: usize, align: usize, grows: bool) -> Allocation {
    if heap.is_null() {
        return Allocation::NONE;
    }
    // SAFETY: the calling thread owns the heap.
    let state = unsafe { Heap::hardened(heap) };
    let allocation = hardened::alloc(state, size, align, grows);
    if lease::is_armed() && !allocation.ptr.is_null() {
        allocated(state, allocation.ptr, size);
    }
    allocation
}

/// Shows a block that was just allocated to who asks for some: the heap profile, and the sampling of stacks.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn allocated(state: &State, block: *mut u8, size: usize) {
    if sampling::is_on() {
        sampling::allocated_large(block, size, thread::tag());
    }
    if guard::is_on() {
        guard::allocated(block, size, &state.sampler);
    }
}

/// Shows them a block that is about to be freed.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn freed(block: *mut u8) {
    if sampling::is_on() {
        sampling::freed_large(block);
    }
    if is_on() && guard::is_on() {
        guard::freed(block);
    }
}

/// Whether the blocks of the thread that has `heap` come from here.
///
/// # Safety
///
/// `heap` is the calling thread's, or a placeholder.
#[inline(always)]
pub(super) unsafe fn serves(heap: *mut Heap) -> bool {
    // SAFETY: mapped; the field is the owner's, and constant in placeholders.
    unsafe { (*heap).is_hardened.get() }
}

/// A block of `size` bytes at a multiple of `align`, if there is one ready for the thread that has `heap`.
/// Else null. `class` is that of blocks with so many bytes and the trailer.
///
/// # Safety
///
/// The calling thread owns the heap; hardened mode is on.
#[inline(always)]
pub(super) unsafe fn hit(heap: *mut Heap, size: usize, align: usize, class: usize) -> *mut u8 {
    // SAFETY: the calling thread owns the heap.
    let state = unsafe { Heap::hardened(heap) };
    let block = state.hit_of(size, align, class);
    if !block.is_null() && lease::is_armed() {
        allocated(state, block, size);
    }
    block
}

/// The same of the slabs that threads share.
///
/// # Safety
///
/// As [`hit`].
#[inline(always)]
pub(super) unsafe fn hit_shared(heap: *mut Heap, size: usize, align: usize) -> *mut u8 {
    if thread::is_placeholder(heap) || size > isize::MAX as usize {
        return ptr::null_mut();
    }
    // SAFETY: the calling thread owns the heap.
    let state = unsafe { Heap::hardened(heap) };
    let block = state.hit_shared(size, align);
    if lease::is_armed() && !block.is_null() {
        allocated(state, block, size);
    }
    block
}

/// C's `free`, for the thread that has `heap`, or a placeholder.
///
/// # Safety
///
/// The page map says that the address belongs to the hardened heap. Nobody uses the block any more.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe extern "C" fn free_plain(block: *mut u8, heap: *mut Heap) {
    // SAFETY: what serves the thread is its own heap; the other clauses are the caller's.
    unsafe {
        if !serves(heap) || lease::is_armed() {
            return free(block, Said::Nothing, "free");
        }
        hardened::free(Some(Heap::hardened(heap)), block, Said::Nothing, "free");
    }
}

/// Frees a block on behalf of `function`, of which the program says `said`.
///
/// # Safety
///
/// As [`free_plain`].
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn free(block: *mut u8, said: Said, function: &str) {
    if lease::is_armed() {
        freed(block);
    }
    if !is_on() {
        // SAFETY: the caller's clauses are the same.
        return unsafe { guard::free(block, said, function) };
    }
    // A thread that only frees has a quarantine, too.
    // SAFETY: the calling thread owns the heap, if it has one. The rest is the caller's clause.
    thread::with_heap_to_hold(|heap| unsafe {
        let state = if heap.is_null() { None } else { Some(Heap::hardened(heap)) };
        hardened::free(state, block, said, function);
    });
}

/// Resizes a block, which has `said` bytes if the program says so: `realloc`. Null, and nothing changed, when
/// there is no memory.
///
/// # Safety
///
/// As [`free`]; after success the caller uses the result instead.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn realloc(
    block: *mut u8,
    said: Option<usize>,
    size: usize,
    align: usize,
    options: Option<&Options>,
) -> *mut u8 {
    let Some(old) = hardened::usable(block, "realloc") else { return ptr::null_mut() };
    // One of no bytes may have been made as one of one.
    if said.is_some_and(|said| said.max(1) != old.max(1)) {
        misuse::report("realloc", block, Fault::FreedSize);
    }
    if size <= isize::MAX as usize {
        // As if it were allocated: a program may need nothing else for long.
        request::look();
        profile_file::tick_if_on();
        // SAFETY: in use, by the answer, and only the caller uses it.
        if seen_in_place(block, old, size, || unsafe { hardened::resize(block, old, size, align) }) {
            return block;
        }
        // Who asks for samples is shown what is allocated and what is freed: not so here.
        if !lease::is_armed() {
            // SAFETY: in use, by the answer above, and only the caller uses it.
            let moved = unsafe { hardened::grow(block, old, size, align, "realloc") };
            if !moved.is_null() {
                return moved;
            }
        }
    }
    let new = allocate(size, align, size > old, options).ptr;
    if !new.is_null() {
        // SAFETY: two blocks with at least that many bytes. Nobody uses the old one after the copy.
        unsafe {
            ptr::copy_nonoverlapping(block, new, old.min(size));
            free(block, Said::Nothing, "realloc");
        }
    } else if size <= old {
        // Where it is it needs no memory.
        // SAFETY: in use, by the answer above, and only the caller uses it.
        let shorten = || unsafe { hardened::shorten(block, old, size, align) };
        if seen_in_place(block, old, size, shorten) {
            return block;
        }
    }
    new
}

/// Has a block resized where it is by `resize`, which says whether it did, and shows that to the profile if
/// the block is large. A small one stays in its class.
fn seen_in_place(block: *mut u8, old: usize, size: usize, resize: impl FnOnce() -> bool) -> bool {
    if !sampling::is_on() || old.max(size) < MAX_SMALL {
        return resize();
    }
    let lifted = sampling::lift(block);
    let resized = resize();
    if let Some(lifted) = lifted {
        sampling::put_down(lifted, !resized);
    }
    if resized {
        profile::resized(block, size);
    }
    resized
}

/// The bytes that were asked for; 0 after reporting misuse on behalf of `function`.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn usable(block: *mut u8, function: &str) -> usize {
    if !is_on() {
        return guard::usable(block, function).unwrap_or(0);
    }
    hardened::usable(block, function).unwrap_or(0)
}
