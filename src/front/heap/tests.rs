//! Tests of heaps.

use super::*;
extern crate std;
use super::refill::MORE_BYTES;
use crate::front::{counts, heap, registry, thread};
use crate::os::child;
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::{Block, LEFT, Slab};
use crate::tiny::classes::{C_TABLE, CLASSES};
use crate::tiny::free;
use std::collections::HashSet;
use std::vec::Vec;

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

/// What a refill takes to the magazine besides was freed, as far as another thread has freed it: C's `free`
/// still finds that. In Rust they carry none.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn blocks_taken_from_a_shared_slab_in_advance_carry_half_the_mark() {
    const CLASS: usize = C_TABLE[1024 / 8] as usize;
    const TAKEN: usize = 8;
    let are_so = |c| {
        child::is_so(|| {
            counts::STARTED.fetch_add(100, Relaxed);
            thread::with_heap(None, |heap| {
                thread::set_in_c(c);
                // SAFETY: the calling thread owns the heap, and its blocks.
                unsafe {
                    let bins = &raw const (*heap).bins;
                    let take = || {
                        let block = Heap::refill(heap, CLASS as u8).ptr;
                        assert!(!block.is_null() && (*Slab::of(block)).class as usize == CLASS);
                        block
                    };
                    let pop = || MagazineTops::pop(&(*heap).tops, CLASS);
                    let freed: Vec<_> = (0..TAKEN).map(|_| take()).collect();
                    let slab = Slab::of(freed[0]);
                    for &block in &freed {
                        assert!(pop().is_null());
                        Block::set_mark(block.cast(), (*bins).secret, true);
                        free::push_remote(slab, block.cast(), block.cast(), 1);
                    }
                    // Before an untouched page.
                    let first =
                        core::iter::from_fn(|| Some(take())).find(|block| freed.contains(block)).unwrap();
                    assert!(!Block::looks_free(first.cast(), (*bins).secret), "this one is in use");
                    assert!((*slab).owner.load(Relaxed).addr() & LEFT != 0, "the slab is anybody's");
                    let got: Vec<_> =
                        core::iter::from_fn(|| Some(pop()).filter(|block| !block.is_null())).collect();
                    assert_eq!(got.len(), MORE_BYTES / 1024);
                    got.iter().all(|&block| {
                        freed.contains(&block)
                            && block != first
                            && Block::is_half_marked(block.cast(), (*bins).secret) == c
                    })
                }
            })
        })
    };
    assert!(are_so(true) && are_so(false));
}

#[test]
fn who_needs_shared_slabs_often_without_a_free_in_between_is_in_a_burst() {
    let mut heap = placeholder();
    let heap = &raw mut heap;
    // SAFETY: the heap is this thread's alone.
    let needs = |class| unsafe { Heap::is_in_burst(heap, class) };
    for _ in 0..3 {
        for class in [5, 6] {
            assert!((0..2).all(|_| !needs(class)) && (0..1000).all(|_| needs(class)));
        }
        // SAFETY: the heap is this thread's alone.
        unsafe { (*heap).counters.home_foreign.add(1) };
    }
    for _ in 0..1000 {
        assert!(!needs(5) && !needs(6) && !needs(5) && !needs(6));
        // SAFETY: the heap is this thread's alone.
        unsafe { (*heap).counters.home_foreign.add(3) };
    }
}

/// Among many threads. A class of which it has allocated some has a magazine, also where slabs are shared.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn who_only_frees_blocks_of_others_keeps_none() {
    const CLASS: usize = C_TABLE[1024 / 8] as usize;
    let kept_and_sent = |heap: *mut Heap, block| {
        // SAFETY: the calling thread owns the heap. The block is in use and is freed once.
        unsafe {
            if !MagazineTops::push(&(*heap).tops, CLASS, block) {
                if let heap::frees::Freed::Remote(slab) = Heap::free_to_slab(heap, block, CLASS) {
                    Heap::free_remote(heap, slab, block, CLASS);
                } else {
                    Heap::free(heap, block, CLASS as u8);
                }
            }
            let first = (*heap).magazines.first(&(*heap).tops, CLASS);
            let top = (&(*heap).tops.top)[CLASS].load(Relaxed);
            (first.map_or(0, |first| top.offset_from(first)), (*heap).counters.home_foreign.get())
        }
    };
    // SAFETY: the calling thread owns the heap.
    let take = |heap| unsafe { Heap::refill(heap, CLASS as u8).ptr };
    // SAFETY: the calling thread owns the heap.
    let has_sent = |heap: *mut Heap| unsafe { (*heap).counters.home_foreign.add(1) };
    assert!(child::is_so(|| {
        thread::with_heap(None, |other| {
            let few = registry::borrow();
            let heap = registry::borrow();
            for heap in [few, heap] {
                has_sent(heap);
            }
            assert_eq!(kept_and_sent(few, take(other)), (1, 1));
            counts::STARTED.fetch_add(100, Relaxed);
            // Whoever has a magazine already keeps it, and it grows.
            let kept = [(); 9].map(|()| kept_and_sent(few, take(other)));
            assert_eq!(kept[8], (10, 1));
            let free = |block| kept_and_sent(heap, block);
            assert_eq!([(); 3].map(|()| free(take(other))), [(0, 2), (0, 3), (0, 4)]);
            let own = [(); 2].map(|()| take(heap));
            assert_eq!((free(take(other)), free(own[0]), free(own[1])), ((1, 4), (2, 4), (3, 4)));
            true
        })
    }));
    assert!(child::is_so(|| {
        thread::with_heap(None, |other| {
            counts::STARTED.fetch_add(100, Relaxed);
            let heap = registry::borrow();
            has_sent(heap);
            assert_eq!(kept_and_sent(heap, take(other)), (0, 2));
            // SAFETY: the calling thread owns the heap.
            unsafe { (*heap).bins.shares = true };
            let own = take(heap);
            let taken = kept_and_sent(heap, own).0;
            assert!(taken > 1, "some more came with it");
            let more = [(); 9].map(|()| kept_and_sent(heap, take(other)));
            assert_eq!(more[8], (taken + 9, 2));
            true
        })
    }));
}
