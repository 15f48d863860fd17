//! Tests of visits. In children of a fork, which have no other thread, and no other heaps than these.

#![cfg(not(miri))]

use super::*;
use crate::large::child;
use crate::superslab::layout::SLICE;
use crate::superslab::slab::{Block, LEFT, Slab};
use crate::sync::Ordering::Relaxed;
use crate::tiny::free::push_remote;
use core::cell::Cell;

const CLASS: u8 = 5;

/// The calling thread's heap, and one of a thread that is somewhere else. All others are nobody's.
fn heaps() -> (*mut Heap, *mut Heap) {
    visitor::inherit();
    // SAFETY: records, which stay mapped; nobody is there who could use one.
    registry::each(|heap| unsafe { (*heap).live.store(false, Relaxed) });
    let (mine, other) = (thread::lasting_heap(), registry::acquire());
    assert!(!mine.is_null() && !other.is_null() && mine != other);
    (mine, other)
}

/// Blocks in the magazine of the heap.
fn held(heap: *mut Heap) -> usize {
    let mut held = 0;
    // SAFETY: a record, which stays mapped.
    unsafe {
        Heap::each_cached(heap, |class, blocks| held += if class == CLASS.into() { blocks } else { 0 })
    };
    held
}

/// Puts four blocks into the magazine of a heap.
fn fill(heap: *mut Heap) {
    // SAFETY: nobody else uses the heap.
    unsafe {
        let blocks = [(); 4].map(|()| Heap::refill(heap, CLASS).ptr);
        for block in blocks {
            assert!(!block.is_null());
            Heap::free(heap, block, CLASS);
        }
    }
    assert_eq!(held(heap), 4);
}

#[test]
fn each_heap_is_tried_until_it_was_visited_or_too_often() {
    assert!(child::is_so(|| {
        let (mine, other) = heaps();
        let calls = Cell::new(0);
        let tried = |tries, f: &dyn Fn(usize) -> Outcome| {
            calls.set(0);
            let missed = each_other(mine, tries, |heap| {
                assert!(heap == other);
                calls.set(calls.get() + 1);
                f(calls.get())
            });
            (calls.get(), missed)
        };
        assert_eq!(tried(9, &|_| Outcome::Done), (1, false));
        assert_eq!(tried(9, &|_| Outcome::Locked), (1, true));
        assert_eq!(tried(1, &|n| if n < 20 { Outcome::More } else { Outcome::Done }), (20, false));
        assert_eq!(tried(1, &|_| Outcome::NotEntered), (1, true));
        if !os::barrier::is_missing() {
            assert_eq!(tried(3, &|_| Outcome::NotEntered), (3, true));
            assert_eq!(tried(20, &|n| if n < 20 { Outcome::NotEntered } else { Outcome::Done }), (20, false));
        }
        // SAFETY: nobody uses that heap.
        unsafe { (*other).live.store(false, Relaxed) };
        tried(9, &|_| Outcome::Done) == (0, false)
    }));
}

#[test]
fn a_heap_is_emptied_once_its_owner_has_been_idle_for_the_delay() {
    assert!(child::is_so(|| {
        let (_, other) = heaps();
        let delay = options::get().purge_delay as u32;
        fill(other);
        if os::barrier::is_missing() {
            return !idle(0);
        }
        assert_eq!((idle(1000), held(other)), (true, 4), "it is new");
        assert_eq!((idle(1000 + delay - 1), held(other)), (true, 4));
        // All but the topmost block.
        assert_eq!((idle(1000 + delay), held(other)), (false, 1));
        assert_eq!((idle(3000 + delay), held(other)), (false, 1));

        // What others have freed is taken in, whatever the owner does.
        // SAFETY: nobody else uses the heap, and the block is nobody's.
        let ready = unsafe {
            let block = Heap::refill(other, CLASS + 1).ptr.cast::<Block>();
            push_remote(Slab::of(block.cast()), block, block, 1);
            // It is done with what it has named.
            Heap::lock(other).name(ptr::null_mut());
            &(*Heap::owner(other)).ready
        };
        assert!(!ready.is_empty());
        idle(3000 + delay);
        ready.is_empty()
    }));
}

#[test]
fn a_slab_that_an_owner_was_giving_up_when_a_fork_stopped_it_is_left_alone() {
    assert!(child::is_so(|| {
        let (_, other) = heaps();
        // SAFETY: nobody else uses the heap, and the block is nobody's.
        unsafe {
            let block = Heap::refill(other, CLASS).ptr.cast::<Block>();
            let slab = Slab::of(block.cast());
            push_remote(slab, block, block, 1);
            let (owner, list) = (Heap::owner(other), (*slab).list);
            let left = owner.map_addr(|a| a | LEFT);
            (*slab).owner.store(left, Relaxed);
            Visit::enter(other).unwrap().take_in(false);
            (*owner).ready.is_empty() && (*slab).owner.load(Relaxed) == left && (*slab).list == list
        }
    }));
}

#[test]
fn an_owner_that_is_unsettled_comes_to_its_slow_paths() {
    assert!(child::is_so(|| {
        let (_, other) = heaps();
        fill(other);
        if os::barrier::is_missing() {
            return true;
        }
        // SAFETY: nobody else uses the heap.
        unsafe {
            // It is done with what it has named.
            Heap::lock(other).name(ptr::null_mut());
            (*other).run_cache.reset(1);
            let run = crate::large::alloc(2 * SLICE, 1).ptr;
            let entered = Heap::enter(other);
            assert!((*other).run_cache.put_freed(run));
            // An owner that is inside is left alone.
            unsettle();
            assert!(held(other) == 4 && (*other).run_cache.has(2));
            drop(entered);
            unsettle();
            assert!(held(other) == 1 && (*other).run_cache.is_closed() && !(*other).run_cache.has(2));
            assert!(Heap::alloc_from_slab(other, CLASS.into()).ptr.is_null());
            everyone(true);
            held(other) == 1
        }
    }));
}
