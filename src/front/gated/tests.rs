//! Tests of armed heaps. In children of a fork, because they arm the process's heaps.

#![cfg(not(miri))]

use super::*;
use crate::lockfree::magazine_slots::Slot;
extern crate std;
use crate::front::heap::Heap;
use crate::front::lease::{Gate, set_epoch};
use crate::front::registry;
use crate::large::child;
use crate::tiny::classes::class_of;
use std::collections::HashSet;
use std::vec::Vec;

/// A heap that is armed, without any client.
fn armed() -> *mut Heap {
    registry::init();
    set_epoch(7);
    let heap = registry::acquire();
    // SAFETY: the heap is this thread's.
    unsafe {
        let _entered = Heap::enter(heap);
        assert!(!Heap::is_armed(heap) && Heap::is_gated(heap));
        assert!(Heap::follow(heap) && Heap::is_armed(heap) && Heap::follow(heap));
    }
    heap
}

fn class(size: usize) -> usize {
    class_of(size, 8).into()
}

fn gate<'a>(heap: *mut Heap) -> &'a Gate {
    // SAFETY: an armed heap, which is this thread's.
    unsafe { Heap::gate(heap) }
}

/// Lets the owner make `left` allocations before the next one of a client.
fn set_left(heap: *mut Heap, class: usize, left: u64) {
    // SAFETY: the heap is this thread's.
    unsafe {
        let _entered = Heap::enter(heap);
        Heap::settle(heap, class);
        Heap::lease(heap, class, left);
    }
}

fn pop(heap: *mut Heap, class: usize) -> *mut u8 {
    // SAFETY: the heap is this thread's.
    unsafe { MagazineTops::pop(&raw const (*heap).tops, class) }
}

fn pop_all(heap: *mut Heap, class: usize) -> usize {
    core::iter::repeat_with(|| pop(heap, class)).take_while(|block| !block.is_null()).count()
}

/// Blocks in the magazine of `class`, and those that have gone to their slabs.
fn kept(heap: *mut Heap, class: usize) -> u64 {
    // SAFETY: the heap is this thread's.
    unsafe {
        let (tops, magazines) = (&(*heap).tops, &(*heap).magazines);
        let top = tops.top[class].load(Relaxed).addr();
        let held = magazines.first(tops, class).map_or(0, |first| (top - first.addr()) / size_of::<Slot>());
        held as u64 + (*heap).counters.home_local.get()
    }
}

/// Allocates a block as every entry does, and says who has asked for it.
fn alloc(heap: *mut Heap, class: usize) -> (*mut u8, u8) {
    match pop(heap, class) {
        block if block.is_null() => {
            // SAFETY: the heap is this thread's.
            let (allocation, due) = unsafe { Heap::refill_gated(heap, class as u8) };
            assert!(!allocation.ptr.is_null());
            // SAFETY: the heap is this thread's.
            let top = unsafe { (&(*heap).tops.top)[class].load(Relaxed) };
            assert!(top <= gate(heap).limits[class].load(Relaxed));
            (allocation.ptr, due.0)
        }
        block => (block, 0),
    }
}

/// Frees a block as C does; with `looked_at`, as if a profile might have it.
fn free(heap: *mut Heap, class: usize, block: *mut u8, looked_at: bool) {
    // SAFETY: the heap is this thread's, and nobody uses the block.
    unsafe {
        let (gate, tops) = (gate(heap), &(*heap).tops);
        let full = tops.top[class].load(Relaxed) >= gate.limits[class].load(Relaxed);
        let to_slab = full && gate.notices[class].get() == QUIET;
        assert_eq!(Heap::returns_to_slab(heap, class), to_slab);
        let first = if looked_at { Pushed::Unserved } else { Heap::push_armed(heap, block, class) };
        let freed = match first {
            Pushed::Done => {
                assert!(!full);
                return;
            }
            Pushed::Full => {
                assert!(full);
                Heap::free_armed_full(heap, block, class)
            }
            Pushed::Unserved => Heap::free_armed(heap, block, class),
            Pushed::Unarmed => panic!("it is armed"),
        };
        match freed {
            Freed::Done => assert!(!full || to_slab),
            Freed::Relist(slab) => {
                assert!(to_slab);
                Heap::relist(heap, slab);
            }
            Freed::Unserved => {
                assert!(full && !to_slab);
                let before = kept(heap, class);
                Heap::take_back(heap, block, class as u8);
                assert_eq!(kept(heap, class), before + 1);
            }
            Freed::Remote(_) | Freed::Invalid => panic!("it is a block of this heap"),
        }
    }
}

#[test]
fn the_owner_stops_where_the_client_wants_to_look() {
    assert!(child::is_so(|| {
        let (heap, class) = (armed(), class(48));
        // More than a magazine has room for at first.
        let blocks: Vec<_> = (0..20).map(|_| alloc(heap, class).0).collect();
        pop_all(heap, class);
        for held in 0..=blocks.len() {
            for left in 0..23 {
                blocks[..held].iter().for_each(|&block| free(heap, class, block, false));
                set_left(heap, class, left as u64);
                let (cut, stop) = (left < held, left.min(held));
                assert_eq!(gate(heap).is_cut(class), cut, "{held} {left}");
                for at in 0..stop {
                    assert_eq!(pop(heap, class), blocks[held - 1 - at]);
                }
                assert!(pop(heap, class).is_null());
                assert_eq!(cut && gate(heap).has_cut(class, blocks[held - 1 - stop]), cut);
                // SAFETY: the heap is this thread's.
                unsafe {
                    let _entered = Heap::enter(heap);
                    assert_eq!(Heap::settle(heap, class), (left - stop) as u64);
                }
                assert!(!gate(heap).is_cut(class));
                for &block in blocks[..held - stop].iter().rev() {
                    assert_eq!(pop(heap, class), block);
                }
                set_left(heap, class, 99);
            }
        }
        true
    }));
}

#[test]
fn blocks_of_another_heap_go_home() {
    assert!(child::is_so(|| {
        let (heap, other) = (armed(), registry::acquire());
        // SAFETY: the heaps are this thread's.
        unsafe {
            let _entered = Heap::enter(other);
            assert!(Heap::follow(other));
        }
        // Room for those of its own, as it has many: more than for others'.
        let large = class(60 << 10);
        let many: Vec<_> = (0..40).map(|_| alloc(heap, large).0).collect();
        for &block in &many {
            gate(heap).notices[large].set(MISSED);
            // SAFETY: the heap is this thread's, and nobody uses the block.
            unsafe { Heap::take_back(heap, block, large as u8) };
        }
        // Of a heap that has sent others what is theirs, whose magazines may grow for more of that, or not:
        // from two slots to sixteen.
        let sizes = [(12 << 10, [21, 9, 3, 0]), (10 << 10, [18, 8, 3, 0])];
        for (size, counted, lent) in
            sizes.into_iter().flat_map(|(size, c)| [(size, c, 0), (size, c, u8::MAX)])
        {
            let class = class(size);
            // SAFETY: the heap is this thread's.
            unsafe {
                (*heap).counters.home_foreign.add(1);
                (*heap).lent.set(lent);
            }
            // SAFETY: the heap is this thread's.
            let home = || unsafe { (*heap).counters.home_foreign.get() };
            let (before, own) = (home(), alloc(heap, class).0);
            let theirs: Vec<_> = (0..8).map(|_| alloc(other, class).0).collect();
            pop_all(heap, class);
            // Room for it there is from the start.
            free(heap, class, own, false);
            for &block in &theirs {
                gate(heap).notices[class].set(MISSED);
                // SAFETY: the heap is this thread's, and nobody uses the block.
                unsafe { Heap::take_back(heap, block, class as u8) };
            }
            let (sent, now) = if lent == 0 { (0, counted[0]) } else { (theirs.len() as u64, lent) };
            // SAFETY: the heap is this thread's.
            let counts = || unsafe { (*heap).lent.get() };
            assert_eq!((home() - before, counts()), (sent, now));
            // SAFETY: the heap is this thread's.
            unsafe {
                let _entered = Heap::enter(heap);
                for &left in counted.iter().skip(1).take(if lent == 0 { 3 } else { 0 }) {
                    Heap::shrink_magazine(heap, class);
                    assert_eq!(counts(), left);
                }
            }
        }
        true
    }));
}

/// Of classes whose magazines grow, and of such that soon are as large as they may be.
#[test]
fn the_client_gets_exactly_the_allocations_that_it_has_asked_for() {
    assert!(child::is_so(|| {
        let heap = armed();
        for size in [16, 600, 8 << 10, 40 << 10] {
            let (class, mut state, mut left) = (class(size), 7 * size as u64 + 1, 5);
            let mut random = |below: u64| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 33) % below
            };
            let (mut blocks, mut used, mut asked) = (Vec::new(), HashSet::new(), 0);
            set_left(heap, class, left);
            for step in 0..6000 {
                // Up and down.
                if blocks.is_empty() || random(10) < if step / 500 % 2 == 0 { 6 } else { 4 } {
                    let (block, due) = alloc(heap, class);
                    assert!(used.insert(block), "two blocks in one place");
                    blocks.push(block);
                    assert_eq!(due != 0, left == 0, "step {step} of size {size}");
                    if left == 0 {
                        asked += 1;
                        left = random(30) * random(8);
                        set_left(heap, class, left);
                    } else {
                        left -= 1;
                    }
                } else {
                    let block = blocks.swap_remove(random(blocks.len() as u64) as usize);
                    used.remove(&block);
                    free(heap, class, block, random(4) == 0);
                }
            }
            assert!(asked > 10, "{asked}");
        }
        set_epoch(0);
        // SAFETY: the heap is this thread's.
        unsafe {
            let _entered = Heap::enter(heap);
            !Heap::follow(heap) && !Heap::is_armed(heap) && !Heap::is_gated(heap)
        }
    }));
}

#[test]
fn an_empty_magazine_gets_some_blocks_at_once() {
    assert!(child::is_so(|| {
        let heap = armed();
        for (size, at_least, at_most) in [(16, 2, BATCH), (2 << 10, 2, 4), (40 << 10, 1, 0)] {
            let class = class(size);
            // Until the magazine has room, and then has nothing.
            let blocks: Vec<_> = (0..300).map(|_| alloc(heap, class).0).collect();
            blocks.iter().for_each(|&block| free(heap, class, block, false));
            pop_all(heap, class);
            set_left(heap, class, 1000);
            alloc(heap, class);
            let got = 1 + pop_all(heap, class);
            assert!((at_least..=at_most + 1).contains(&got), "{got} blocks of {size} bytes");
        }
        true
    }));
}

#[test]
fn what_was_cut_out_is_there_for_whoever_takes_the_magazine_over() {
    assert!(child::is_so(|| {
        let (heap, class) = (armed(), class(48));
        let blocks: Vec<_> = (0..3).map(|_| alloc(heap, class).0).collect();
        pop_all(heap, class);
        let fill = || {
            blocks.iter().for_each(|&block| free(heap, class, block, false));
            set_left(heap, class, 1);
        };
        fill();
        // SAFETY: the heap is this thread's.
        unsafe {
            assert_eq!(pop(heap, class), blocks[2]);
            assert_eq!(Heap::take_saved(heap, class), blocks[1]);
            assert_eq!((pop(heap, class), pop(heap, class).is_null()), (blocks[0], true));
            assert!(Heap::take_saved(heap, class).is_null(), "only once");
            set_left(heap, class, 99);

            fill();
            let (gate, magazines) = (gate(heap), &(*heap).magazines);
            let _entered = Heap::enter(heap);
            let mut popped = 0;
            Heap::unleased(heap, class, || {
                assert!(!gate.is_cut(class) && !magazines.is_armed(class));
                popped = pop_all(heap, class);
            });
            assert_eq!((popped, Heap::settle(heap, class)), (3, 1));
            assert!(magazines.is_armed(class));
            Heap::lease(heap, class, 0);

            // Each class is told of a child of its own, and draws again there.
            let random = gate.random.get();
            Heap::reseed(heap);
            assert!(gate.random.get() != random && gate.is_inherited(class));
            Heap::disarm(heap);
            assert!(Heap::take_saved(heap, class).is_null());
            gate.leases[class].saved.store(blocks[0], Relaxed);
            Heap::take_saved(heap, class).is_null()
        }
    }));
}

#[test]
fn no_block_is_lost_where_a_visitor_has_taken_some() {
    assert!(child::is_so(|| {
        let (heap, class) = (armed(), class(48));
        let blocks: Vec<_> = (0..4).map(|_| alloc(heap, class).0).collect();
        pop_all(heap, class);
        blocks.iter().for_each(|&block| free(heap, class, block, false));
        // SAFETY: the heap is this thread's.
        unsafe {
            let (tops, magazines) = (&(*heap).tops, &(*heap).magazines);
            let second = magazines.first(tops, class).unwrap().add(1);
            (*second).store(core::ptr::null_mut(), Relaxed);
            magazines.set_drained(class);
        }
        set_left(heap, class, 0);
        [3, 2, 0].map(|at| blocks[at]) == [0; 3].map(|_| alloc(heap, class).0)
    }));
}

/// A profile must see the frees of its blocks, and a thread that it has ended.
#[test]
fn what_a_profile_may_have_is_not_freed_unseen() {
    assert!(child::is_so(|| {
        let (heap, class) = (armed(), class(48));
        let mut blocks: Vec<_> = (0..4).map(|_| alloc(heap, class).0).collect();
        blocks.sort();
        assert_eq!(blocks[0].addr() & !4095, blocks[2].addr() & !4095, "in one page");
        assert!(sampling::begin(1, true, || ()));
        sampling::allocated(blocks[0], 48, 0);
        // SAFETY: the heap is this thread's, and nobody uses the blocks.
        let free = |block| unsafe { Heap::free_armed(heap, block, class) };
        assert!(matches!(free(blocks[0]), Freed::Unserved));
        assert!(matches!(free(blocks[1]), Freed::Done));
        set_epoch(8);
        matches!(free(blocks[2]), Freed::Unserved)
    }));
}
