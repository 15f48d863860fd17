//! Frees of what looks free already: finding out whether it is. And frees of threads that can't have a heap.

use crate::base::misuse::{self, Fault};
use crate::front::heap::{GATE_AT, Heap};
use crate::front::registry;
use crate::sampling;
use crate::superslab::pagemap;
use crate::superslab::slab::{Block, Slab};
use crate::tiny::bins::UNMARKED;
use crate::tiny::classes::CLASSES;
use crate::tiny::free;

impl Heap {
    /// Whether blocks in the heap's magazine of `kind` can carry half a mark, where C's `free` has put them
    /// there. Not in a placeholder.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap, or it is a placeholder; `kind` is an answer of the page map.
    #[inline(always)]
    pub(crate) unsafe fn can_mark(heap: *const Heap, kind: usize) -> bool {
        // SAFETY: the field is the owner's, and constant in placeholders.
        let secret = unsafe { (*heap).bins.secret };
        secret != 0 && kind > UNMARKED && kind <= CLASSES
    }

    /// Whether the heap is armed, for a `kind` that is a size class: then a profile, if there is one, sees
    /// every free.
    ///
    /// # Safety
    ///
    /// As [`Heap::can_mark`].
    #[inline(always)]
    pub(crate) unsafe fn is_armed_for(heap: *const Heap, kind: usize) -> bool {
        // SAFETY: the field is the owner's, and constant in placeholders.
        unsafe { (*heap).magazines.is_armed(kind) }
    }

    /// Frees a block that C's `free` had from a thread without a heap, which has got this one for it: marks
    /// the block, or frees it as a suspect if it looks free. While there is a profile nothing is marked.
    ///
    /// # Safety
    ///
    /// As [`Heap::free`]; `class` is the page map's answer for the block.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn free_newcomer(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: the caller's clauses are the same. A block of a class that is aligned as all are has a
        // second word, if it is one.
        unsafe {
            let marks = Heap::can_mark(heap, class as usize) && block.addr() % size_of::<Block>() == 0;
            if marks && !sampling::is_on() && !Block::half_mark_once(block.cast(), (*heap).bins.secret) {
                return Heap::free_suspect(heap, block, class);
            }
            Heap::free(heap, block, class)
        }
    }

    /// Frees a block that looks free already, or not like a block. Reports misuse if it is not one, or is in
    /// a magazine or on its slab's list.
    ///
    /// # Safety
    ///
    /// The calling thread owns the heap. `block` lies in a slab of `class`, and was freed.
    pub(crate) unsafe fn free_suspect(heap: *mut Heap, block: *mut u8, class: u8) {
        // SAFETY: the calling thread owns the heap and enters it. The page map says that the block's memory
        // is a slab's, so it can be read.
        unsafe {
            let _entered = Heap::enter(heap);
            let secret = (*heap).bins.secret;
            // Without a search data of the program that looks like a mark would be taken for one.
            if class as usize != UNMARKED
                && Block::is_half_marked(block.cast(), secret)
                && is_in_a_magazine(block, class as usize)
            {
                misuse::report("free", block, Fault::DoubleFree);
            }
            let is_listed = class as usize != UNMARKED && Block::is_marked(block.cast(), secret);
            if Heap::is_gated(heap) && Heap::follow(heap) && !is_listed {
                return Heap::free_gated(heap, block, class);
            }
            if is_listed && is_elsewhere(heap, block.cast()) {
                return;
            }
            // Here the rest is found: what is no block, and what is on a list.
            Heap::send_home(heap, block, class);
        }
    }
}

/// Frees a block for a thread that has no heap, because there is no memory for one: when memory is short,
/// what is freed is needed most.
///
/// # Safety
///
/// The block was freed as one of `class`, a size class, and the program does not use it any more. The calling
/// thread has no heap.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn free_without_heap(block: *mut u8, class: u8) {
    if sampling::is_on() && sampling::may_hold(block) {
        sampling::freed(block);
    }
    // SAFETY: the caller's clauses are the same. The page map says that the block's memory is a slab's, or it
    // is not looked at.
    unsafe {
        let secret = registry::secret();
        if class as usize != UNMARKED
            && block.addr() % size_of::<Block>() == 0
            && pagemap::kind(block) == class
            && Block::is_half_marked(block.cast(), secret)
            && is_in_a_magazine(block, class as usize)
        {
            return misuse::report("free", block, Fault::DoubleFree);
        }
        free::send_without_heap(secret, block, class as usize)
    }
}

/// Whether a block that is marked as free may be in another thread's outbox, on its way to a slab of this
/// heap. Nobody but that thread can look, so it is not reported; but it must not be on two lists. A block in
/// use that has the mark in its contents is lost then.
///
/// # Safety
///
/// The calling thread owns the heap and has entered it. `block` lies in a slab.
#[cold]
#[inline(never)]
unsafe fn is_elsewhere(heap: *mut Heap, block: *mut Block) -> bool {
    // SAFETY: by the caller's clause.
    let slab = unsafe { Slab::of(block.cast()) };
    let mut may_be = false;
    // SAFETY: records stay mapped, and the references are to what other threads may read.
    registry::each(|heap| may_be |= unsafe { (*heap).outbox.may_hold(slab, block) });
    // The list last: what was sent since then is there.
    // SAFETY: the caller's heap; the list of the slab is looked at only if that belongs to it.
    unsafe {
        let bins = &mut (*heap).bins;
        may_be && free::is_owned_by(slab, bins.owner) && !bins.holds(slab, block)
    }
}

/// Whether any thread's magazine of `class` holds the block.
///
/// A magazine of another thread may change meanwhile. But a block that is in none, and has been in none since
/// the program got it, is not found by mistake.
fn is_in_a_magazine(block: *mut u8, class: usize) -> bool {
    let mut found = false;
    registry::each(|heap| {
        let slots = heap.wrapping_add(1).addr()..heap.addr() + GATE_AT;
        // SAFETY: records stay mapped, and the references are to what other threads may read.
        found |= unsafe { (*heap).magazines.holds(&(*heap).tops, class, block, slots) };
    });
    found
}
