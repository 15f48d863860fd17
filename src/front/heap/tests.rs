//! Tests of heaps.

use super::*;
extern crate std;
use crate::superslab::pagemap::KINDS;
use crate::tiny::classes::CLASSES;
use std::collections::HashSet;

#[test]
fn placeholders_are_empty_and_full() {
    for heap in [&EMPTY, &AFTER_EXIT] {
        let heap = ptr::from_ref(heap).cast_mut();
        for kind in 0..KINDS {
            // SAFETY: placeholders; nothing is written to a magazine that is empty and full at once.
            unsafe {
                assert!(MagazineTops::pop(heap.cast(), kind).is_null());
                assert!(!MagazineTops::push(heap.cast(), kind, ptr::without_provenance_mut(8)));
            }
        }
        for class in 1..=CLASSES {
            // SAFETY: placeholders; nothing is written to `NO_SLAB`.
            assert!(unsafe { Heap::alloc_from_slab(heap, class) }.ptr.is_null());
        }
    }
}

/// Otherwise a visitor takes a heap for idle, and a thread that ends its destructors for done.
#[test]
fn whatever_an_owner_does_changes_its_heaps_activity() {
    let mut heap = placeholder();
    let heap = &raw mut heap;
    let mut seen = HashSet::new();
    let mut look = || {
        // SAFETY: the heap is this thread's alone.
        let (activity, own) = unsafe { (Heap::activity(heap), Heap::own_activity(heap)) };
        activity == own && seen.insert(activity)
    };
    assert!(look() && !look());
    // SAFETY: as above; tops that nobody follows.
    unsafe {
        for class in 1..=CLASSES {
            let top = &(&(*heap).tops.top)[class];
            top.store(top.load(Relaxed).wrapping_add(1), Relaxed);
            assert!(look(), "{class}");
        }
        for counter in
            [&(*heap).counters.home_local, &(*heap).counters.home_foreign, &(*heap).run_cache.frees]
        {
            counter.add(1);
            assert!(look());
        }
    }
}
