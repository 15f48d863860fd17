//! Visits: who is inside a heap, whose a slab is, and who gets a block out of a magazine.

use crate::lockfree::biased_lock::BiasedLock;
use crate::lockfree::magazine_slots::{self, Slot, steal};
use crate::sync::loom::model;
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::ptr;

struct Heap {
    bias: BiasedLock,
    /// What only the owner or the visitor may touch, whoever is inside.
    lists: UnsafeCell<u32>,
    /// Whether the slab's record names the owner.
    own: AtomicBool,
    /// Whether the slab is in the current one's place.
    current: AtomicBool,
    /// The block on top of the slab's list.
    top: AtomicUsize,
    /// What the owner may touch while the record names it, or it is current, and the visitor while neither is
    /// so.
    slab: UnsafeCell<u32>,
}

// SAFETY: the atomics may be shared, and loom checks the cells.
unsafe impl Sync for Heap {}
// SAFETY: as for `Sync`; nothing in it belongs to a thread.
unsafe impl Send for Heap {}

/// The slab's class.
const CLASS: usize = 1;
/// Two blocks of the slab, and one of another.
const FIRST: usize = 8;
const SECOND: usize = 16;
const OTHER: usize = 24;

fn heap() -> Arc<Heap> {
    Arc::new(Heap {
        bias: BiasedLock::new(),
        lists: UnsafeCell::new(0),
        own: AtomicBool::new(true),
        current: AtomicBool::new(true),
        top: AtomicUsize::new(0),
        slab: UnsafeCell::new(0),
    })
}

/// Reads and writes a cell.
fn touch(cell: &UnsafeCell<u32>) {
    // SAFETY: the pointer is valid inside `with_mut`; loom checks that no other access is concurrent, and
    // that all earlier ones happened before.
    cell.with_mut(|p| unsafe { *p += 1 });
}

#[test]
fn owner_and_visitor_are_never_in_together() {
    model(None, || {
        let shared = heap();
        let other = shared.clone();
        let visitor = thread::spawn(move || {
            for _ in 0..2 {
                if other.bias.visit() {
                    touch(&other.lists);
                    other.bias.end_visit();
                }
            }
        });
        for _ in 0..2 {
            let before = shared.bias.enter(thread::yield_now);
            touch(&shared.lists);
            // Nested, as when a function that has entered calls another one that enters.
            let inner = shared.bias.enter(thread::yield_now);
            shared.bias.leave(inner);
            touch(&shared.lists);
            shared.bias.leave(before);
        }
        visitor.join().unwrap();
    });
}

/// Runs the owner's `moves`, each under that name (a class: takes a block of the current slab, else frees
/// that block), beside a visitor that takes the slab away from it.
fn visited(moves: &'static [usize]) {
    model(None, move || {
        let shared = heap();
        let other = shared.clone();
        let visitor = thread::spawn(move || {
            // The owner never enters here, so the visitor always gets in.
            assert!(other.bias.visit());
            other.current.store(false, Ordering::Relaxed);
            other.own.store(false, Ordering::Relaxed);
            let name = other.bias.hazard_after_barrier().unwrap().addr();
            // As in `Bins::is_named`. Acquire: pairs with the release below.
            let is_put = |name| other.top.load(Ordering::Acquire) == name;
            if name == CLASS || (name == FIRST || name == SECOND) && !is_put(name) {
                other.current.store(true, Ordering::Relaxed);
            } else {
                touch(&other.slab);
            }
            // Release: pairs with the owner's acquire below, as in the shipped `unmark` and `is_owned_by`.
            other.own.store(true, Ordering::Release);
            other.bias.end_visit();
        });
        for &name in moves {
            // What the slab has, because the owner did not get it back, is not freed again.
            if shared.top.load(Ordering::Relaxed) == name {
                continue;
            }
            shared.bias.name(ptr::without_provenance_mut(name));
            if name == CLASS {
                if shared.current.load(Ordering::Relaxed) {
                    touch(&shared.slab);
                    shared.top.store(0, Ordering::Relaxed);
                }
            // Acquire: pairs with the release above.
            } else if name != OTHER && shared.own.load(Ordering::Acquire) {
                touch(&shared.slab);
                // Release: pairs with the visitor's acquire, as in the shipped `push_free`.
                shared.top.store(name, Ordering::Release);
            }
        }
        visitor.join().unwrap();
    });
}

#[test]
fn a_slab_is_the_owners_or_the_visitors() {
    visited(&[FIRST, OTHER, SECOND]);
}

#[test]
fn a_slab_is_the_visitors_once_a_block_is_put() {
    visited(&[FIRST, SECOND]);
    visited(&[FIRST, CLASS, FIRST]);
}

#[test]
fn a_slab_is_current_or_the_visitors() {
    visited(&[CLASS, FIRST, CLASS]);
}

#[test]
fn a_slab_is_current_again_when_the_owner_may_use_it() {
    visited(&[CLASS, OTHER, CLASS]);
}

struct Magazine {
    slots: Vec<Slot>,
    top: AtomicPtr<Slot>,
    limit: AtomicPtr<Slot>,
}

impl Magazine {
    /// With the blocks 8, 16 and 24, above the null at the bottom, and room for three more.
    fn new() -> Magazine {
        let slots = [0, 8, 16, 24, 0, 0, 0].map(|block| Slot::new(ptr::without_provenance_mut(block)));
        let slots = Vec::from(slots);
        let at = |index| AtomicPtr::new(slots.as_ptr().cast_mut().wrapping_add(index));
        let (top, limit) = (at(4), at(7));
        Magazine { slots, top, limit }
    }

    /// How many blocks lie below the top, or did before some were taken out.
    fn held(&self) -> usize {
        (self.top.load(Ordering::Relaxed).addr() - self.slots.as_ptr().addr()) / size_of::<Slot>() - 1
    }
}

/// Runs the owner's `moves` (0: pop, else push that block) beside a visitor that takes the two lowest of
/// three blocks. Each block ends up with exactly one of them, or in the magazine.
fn drained(moves: &'static [usize]) {
    model(None, move || {
        let shared = Arc::new(Magazine::new());
        let other = shared.clone();
        let visitor = thread::spawn(move || {
            let mut taken = Vec::new();
            assert!(steal(&other.slots[1..3], || other.held(), |block| taken.push(block.addr())));
            taken
        });
        let mut had: Vec<usize> = Vec::new();
        let mut pushed = Vec::new();
        for &block in moves {
            let pushing = ptr::without_provenance_mut(block);
            // SAFETY: this thread is the owner. Below the top there is a block or the null at the bottom, and
            // from there to the limit every slot is free.
            unsafe {
                if block == 0 {
                    had.push(magazine_slots::pop(&shared.top).addr());
                } else {
                    assert!(magazine_slots::push(&shared.top, &shared.limit, pushing));
                    pushed.push(block);
                }
            }
        }
        let mut all = visitor.join().unwrap();
        all.extend(had.iter().filter(|&&block| block != 0));
        let rest = shared.slots[1..=shared.held()].iter().map(|slot| slot.load(Ordering::Relaxed).addr());
        all.extend(rest.filter(|&block| block != 0));
        all.sort_unstable();
        let mut expected = vec![8, 16, 24];
        expected.extend(pushed);
        expected.sort_unstable();
        assert_eq!(all, expected);
    });
}

#[test]
fn a_block_is_popped_or_robbed() {
    drained(&[0, 0, 0]);
}

#[test]
fn nor_is_it_both_when_the_owner_comes_back() {
    drained(&[0, 0, 32, 40]);
}

#[test]
fn nor_when_it_goes_down_again() {
    drained(&[0, 0, 32, 0, 0]);
}
