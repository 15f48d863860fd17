//! Models of visits: a heap as it ships, its owner at work beside its lock, and a visitor in it.

use super::visit::{Visit, mark};
use crate::front::heap::Heap;
use crate::front::heap::frees::Freed;
use crate::front::{registry, visitor};
use crate::superslab::model::{figures_agree, ground, level, owner};
use crate::superslab::pool;
use crate::superslab::slab::{Block, Slab};
use crate::sync::loom::{aside, beside, model_of_statics as model, second};
use crate::tiny::classes::stride;
use crate::tiny::free::push_remote;
use loom::thread;
use std::vec::Vec;

mod listed;

const CLASS: u8 = 4;

/// What may be passed to another thread.
#[derive(Clone, Copy)]
struct Carry<T>(T);
// SAFETY: the model decides who uses it.
unsafe impl<T> Send for Carry<T> {}

/// A heap with a current slab, of which so many blocks are in use.
fn heap(class: u8, blocks: usize) -> (*mut Heap, Vec<*mut u8>) {
    aside(|| {
        let heap = registry::acquire();
        assert!(!heap.is_null());
        let blocks = (0..blocks).map(|i| {
            // SAFETY: the heap is this thread's.
            unsafe {
                if i == 0 { Heap::refill(heap, class) } else { Heap::alloc_from_slab(heap, class as usize) }
                    .ptr
            }
        });
        (heap, blocks.collect())
    })
}

/// The end of a model.
fn end() {
    aside(registry::unmap);
    level();
}

/// Frees a block as its owner does where the magazine has no room.
fn free(heap: *mut Heap, class: u8, block: *mut u8) {
    // SAFETY: the heap is this thread's, and nobody uses the block.
    unsafe {
        match Heap::return_to_slab(heap, block, class as usize) {
            Freed::Done => {}
            Freed::Relist(slab) => Heap::relist(heap, slab),
            // The outbox would send it a little later.
            Freed::Remote(slab) => {
                let block = block.cast::<Block>();
                push_remote(slab, block, block, 1);
            }
            // A part of the slab is purged, so the block has to be looked at more closely.
            Freed::Invalid => Heap::free_suspect(heap, block, class),
            Freed::Unserved => panic!("not freed"),
        }
    }
}

/// How many blocks of the heap's slabs are in use, in the end, when only one thread is left.
fn in_use(heap: *mut Heap, slab: *mut Slab) -> u32 {
    // SAFETY: nobody else uses the heap any more.
    unsafe {
        let _entered = Heap::enter(heap);
        (*heap).bins.collect(&(*heap).counters);
        Slab::in_use_beside_waiting(slab)
    }
}

/// Runs the owner's `moves` (a number: frees that block; none: takes one) beside a visit.
fn visited(moves: &'static [Option<usize>], visit: fn(&Visit)) {
    model(Some(3), move || {
        ground();
        let (heap, mut blocks) = heap(CLASS, 3);
        // SAFETY: the heap's slab, which the third block keeps.
        let slab = unsafe { Slab::of(blocks[2]) };
        let theirs = Carry(heap);
        let visitor = thread::spawn(move || {
            let theirs = theirs;
            let _visits = visitor::try_lock().unwrap();
            // SAFETY: the only visitor of the model.
            if let Some(inside) = unsafe { Visit::enter(theirs.0) } {
                visit(&inside);
            }
        });
        let mut left = 3;
        for step in moves {
            match *step {
                Some(at) => {
                    free(heap, CLASS, blocks[at]);
                    left -= 1;
                }
                None => {
                    // SAFETY: the heap is this thread's.
                    let block = unsafe { Heap::alloc_from_slab(heap, CLASS as usize).ptr };
                    if !block.is_null() {
                        assert_eq!(unsafe { Slab::of(block) }, slab);
                        blocks.push(block);
                        left += 1;
                    }
                }
            }
        }
        visitor.join().unwrap();
        assert_eq!(in_use(heap, slab), left);
        end();
    });
}

/// Statistics look at a slab that was made, and marked by a visitor, just now.
#[test]
fn statistics_see_a_marked_slab_whole() {
    model(None, || {
        ground();
        let owner = owner();
        let span = pool::take_span(1, CLASS, |_| None).unwrap();
        let other = beside(move || {
            // SAFETY: the span is this thread's; nobody follows the owner.
            unsafe {
                Slab::make(span.slab, stride(CLASS as usize), span.zero, owner);
                mark(span.slab, owner);
            }
        });
        second(move || figures_agree(span.slab, stride(CLASS as usize) as usize));
        other.join().unwrap();
        level();
    });
}

#[test]
fn a_current_slab_is_withdrawn_beside_frees() {
    visited(&[Some(0), Some(1)], |visit| visit.withdraw(true));
}

#[test]
fn a_current_slab_is_withdrawn_beside_allocations() {
    visited(&[None, Some(0)], |visit| visit.withdraw(true));
}

#[test]
fn a_withdrawn_slab_comes_back_whole() {
    visited(&[Some(0), None, Some(1)], |visit| visit.withdraw(true));
}
