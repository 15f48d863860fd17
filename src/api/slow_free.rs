//! The slow paths of frees that Rust's entries and C's share: when the magazine has no room.
//!
//! From top to bottom: if the magazine has room, the entry itself pushes the block there. If it has not
//! ([`free_second_level`]), the block returns to its slab, which belongs to this heap or to another one
//! ([`free_remote`]). [`free_cold`] does everything else.
//!
//! Functions that are not inlined are `extern "C"`: nothing unwinds out of them, in any profile.

use crate::api::checked;
use crate::api::hardened::{self, Said};
use crate::front::fast_path::MagazineTops;
use crate::front::gated::Pushed;
use crate::front::heap::Heap;
use crate::front::heap::frees::{Freed, RemoteFreed};
use crate::front::{large_blocks, suspects, thread, tls};
use crate::reclaim::idle_heaps;
use crate::superslab::pagemap::{self, FOREIGN, HARDENED};
use crate::superslab::slab::Slab;
use crate::tiny::classes::CLASSES;

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
        // SAFETY: no size class, so the page map's answer; nobody uses the block.
        return unsafe { free_large(block, kind as u8, "free", Said::Nothing) };
    }
    // SAFETY: `with_heap_to_free` passes a heap that the calling thread owns, or null if it has none. `kind`
    // is a size class.
    thread::with_heap_to_free(|heap| unsafe {
        if heap.is_null() {
            suspects::free_without_heap(block, kind as u8)
        } else {
            Heap::free(heap, block, kind as u8)
        }
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
