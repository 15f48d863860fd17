//! Model tests: loom runs the shipped lock-free types through every interleaving and every outcome that the
//! memory model allows. `RUSTFLAGS="--cfg loom" cargo test --release --lib model`.
//!
//! Nodes carry a payload in a loom cell. Whoever takes a node reads what its pusher wrote there. If an
//! ordering is too weak, that read races with the write, and loom reports it.

use crate::lockfree::ready_list::ReadyList;
use crate::lockfree::remote_stack::{Pushed, RemoteStack};
use crate::sync::Node;
use crate::sync::loom::model;
use crate::sync::{AtomicUsize, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::ptr;

mod record_stack;
mod slice_sets;
mod visit;
mod waker;

/// Stands for a block on the remote stack.
#[repr(align(8))]
struct Item {
    next: UnsafeCell<*mut Item>,
    payload: UnsafeCell<u32>,
}

// SAFETY: the link is a loom cell of its own, and neither function touches anything else.
unsafe impl Node for Item {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: `node` is valid by the contract of `Node::next`; loom checks that nobody writes the link.
        unsafe { (*node).next.with(|p| *p) }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: `node` is valid by the contract of `Node::set_next`; loom checks that the link is the
        // caller's alone.
        unsafe { (*node).next.with_mut(|p| *p = next) }
    }
}

fn item() -> *mut Item {
    Box::into_raw(Box::new(Item { next: UnsafeCell::new(ptr::null_mut()), payload: UnsafeCell::new(0) }))
}

/// Writes the payload, which whoever takes the node must see.
fn fill(node: *mut Item, value: u32) {
    // SAFETY: the node is a box of the test that nobody has freed; loom checks the access.
    unsafe { (*node).payload.with_mut(|p| *p = value) }
}

/// Frees a chain; returns the sum and the number of its payloads.
fn consume(mut node: *mut Item) -> (u32, u32) {
    let (mut sum, mut count) = (0, 0);
    while !node.is_null() {
        // SAFETY: the chain has been taken off, so each of its boxes is ours to read and free; loom checks
        // the accesses.
        unsafe {
            sum += (*node).payload.with(|p| *p);
            count += 1;
            let next = Item::next(node);
            drop(Box::from_raw(node));
            node = next;
        }
    }
    (sum, count)
}

/// A slab as far as the protocol goes: a remote stack, and how often it was published on its owner's ready
/// list.
struct Slab {
    remote: RemoteStack<Item>,
    published: AtomicUsize,
}
// SAFETY: the stack holds addresses of `Item`s, which loom guards, and the rest is an atomic.
unsafe impl Sync for Slab {}
// SAFETY: as for `Sync`; nothing in it belongs to a thread.
unsafe impl Send for Slab {}

fn slab() -> Arc<Slab> {
    Arc::new(Slab { remote: RemoteStack::constant(), published: AtomicUsize::new(0) })
}

/// Pushes one node with a payload; returns the outcome.
fn push_one(slab: &Slab, value: u32) -> Pushed {
    let node = item();
    fill(node, value);
    // SAFETY: a chain of one node, made here and known to nobody else.
    let outcome = unsafe { slab.remote.push(node, node, 1).0 };
    if outcome == Pushed::Publish {
        slab.published.fetch_add(1, Ordering::Relaxed);
    }
    outcome
}

#[test]
fn remote_stack_loses_nothing_and_publishes_once_per_arming() {
    model(None, || {
        let shared = slab();
        let threads: Vec<_> = [1, 2]
            .into_iter()
            .map(|value| {
                let slab = shared.clone();
                thread::spawn(move || push_one(&slab, value))
            })
            .collect();
        // The owner takes a chain in between.
        let early = shared.remote.take_chain();
        let early = (early.count, consume(early.head));
        let outcomes: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let late = shared.remote.rearm();
        let late = (late.count, consume(late.head));
        assert_eq!(early.1.0 + late.1.0, 3);
        assert_eq!((early.0, late.0), (early.1.1, late.1.1), "counts match the chains");
        assert_eq!(outcomes.iter().filter(|&&o| o == Pushed::Publish).count(), 1);
        assert!(shared.remote.is_armed());
    });
}

#[test]
fn rearming_publishes_again() {
    model(None, || {
        let shared = slab();
        let other = shared.clone();
        let pusher = thread::spawn(move || {
            push_one(&other, 1);
            push_one(&other, 2);
        });
        let first = shared.remote.rearm();
        let (mut sum, _) = consume(first.head);
        pusher.join().unwrap();
        // Whatever is left was announced after the owner had looked.
        if shared.remote.has_chain() {
            assert!(!shared.remote.is_armed());
            assert!(shared.published.load(Ordering::Relaxed) >= 1);
            sum += consume(shared.remote.rearm().head).0;
        }
        assert_eq!(sum, 3);
    });
}

/// The owner arms a stack and leaves the chain there. Whoever publishes the slab next may write the link that
/// the owner has read before; each block is counted once; and all of them are there when the chain is taken
/// at last.
#[test]
fn an_armed_chain_is_counted_once_and_lost_never() {
    model(None, || {
        let shared = slab();
        let link = Arc::new(UnsafeCell::new(0u32));
        // Published once: the owner has taken the slab off its ready list.
        assert_eq!(push_one(&shared, 1), Pushed::Publish);
        let (other, theirs) = (shared.clone(), link.clone());
        let pusher = thread::spawn(move || {
            let outcome = push_one(&other, 2);
            if outcome == Pushed::Publish {
                // SAFETY: the duty to publish makes the link ours, and the cell outlives the thread; loom
                // checks it.
                unsafe { theirs.with_mut(|p| *p = 7) };
            }
            outcome
        });
        // SAFETY: the link is the owner's until it arms the stack; loom checks it.
        assert_eq!(unsafe { link.with(|p| *p) }, 0);
        let seen = shared.remote.arm();
        let outcome = pusher.join().unwrap();
        assert_eq!(seen, if outcome == Pushed::Publish { 1 } else { 2 });
        assert_eq!(shared.remote.is_armed(), outcome != Pushed::Publish);
        let chain = shared.remote.take_chain();
        assert_eq!((chain.count, consume(chain.head)), (2, (3, 2)));
    });
}

/// An owner releases a slab with two blocks. One of them waits on the armed stack while another thread frees
/// the second. The owner takes the chain, and only then looks whether somebody is about to publish the slab.
/// When it releases the slab, everything that others do to it is over.
#[test]
fn a_slab_is_let_go_of_only_when_nobody_is_about_to_publish_it() {
    model(None, || {
        let shared = slab();
        // The slab's record and memory, which whoever gets the slices next will write to.
        let record = Arc::new(UnsafeCell::new(0u32));
        assert_eq!(push_one(&shared, 1), Pushed::Publish);
        let (other, theirs) = (shared.clone(), record.clone());
        let freer = thread::spawn(move || {
            // A thread that holds a block may read the record; loom checks it.
            theirs.with(|_| ());
            if push_one(&other, 2) == Pushed::Publish {
                // SAFETY: one with the duty to publish may even write the link; loom checks it.
                unsafe { theirs.with_mut(|p| *p = 7) };
            }
        });
        shared.remote.arm();
        let mut home = 0;
        if shared.remote.has_chain() {
            let chain = shared.remote.take_chain();
            home = chain.count;
            consume(chain.head);
        }
        if shared.remote.is_armed() && home == 2 {
            // SAFETY: the slab is released, so all of it is ours; loom checks it.
            unsafe { record.with_mut(|p| *p = 9) };
        }
        freer.join().unwrap();
        consume(shared.remote.take_chain().head);
    });
}

#[test]
fn ready_list_delivers_every_node() {
    model(None, || {
        let list = Arc::new(ReadyList::<Item>::new());
        let threads: Vec<_> = [1, 2]
            .into_iter()
            .map(|value| {
                let list = list.clone();
                thread::spawn(move || {
                    let node = item();
                    fill(node, value);
                    // SAFETY: a new node, in no list, which only this thread publishes.
                    unsafe { list.push(node) };
                })
            })
            .collect();
        let (early, _) = consume(list.take_all());
        for t in threads {
            t.join().unwrap();
        }
        let (late, _) = consume(list.take_all());
        assert_eq!(early + late, 3);
        assert!(list.is_empty());
    });
}

/// An owner gives up a slab with two blocks in use while another thread frees both. Exactly one of them ends
/// up with the slab, and sees everything that the other did to it.
#[test]
fn an_orphan_that_is_emptied_is_claimed_once() {
    model(None, || {
        let shared = slab();
        let fields = Arc::new(UnsafeCell::new(0u32));
        let (other, seen) = (shared.clone(), fields.clone());
        let freer = thread::spawn(move || {
            let outcomes = [push_one(&other, 1), push_one(&other, 2)];
            if outcomes.contains(&Pushed::Emptied) {
                // The slab is ours: what the owner wrote before giving it up must be visible.
                // SAFETY: the push has answered that the slab is ours; loom checks it.
                assert_eq!(unsafe { seen.with(|p| *p) }, 7);
                return 1;
            }
            0
        });
        // SAFETY: the slab is still its owner's; loom checks it.
        unsafe { fields.with_mut(|p| *p = 7) };
        let abandoned = shared.remote.orphan(2);
        let claims = freer.join().unwrap();
        assert_eq!(claims, abandoned as i32, "an orphan is emptied by the last free, and only an orphan is");
        if !abandoned {
            // It was published before: it is on the ready list, with a chain.
            assert_eq!(shared.published.load(Ordering::Relaxed), 1);
            assert_eq!(consume(shared.remote.rearm().head).0, 3);
        }
    });
}

/// A thread adopts an orphan while another frees its last block. One of the two gets the slab, no block is
/// lost, and a free that has to publish the slab finds the new owner.
#[test]
fn adoption_races_with_the_last_free() {
    model(None, || {
        const OLD: usize = 1;
        const NEW: usize = 2;
        let shared = slab();
        let fields = Arc::new(UnsafeCell::new(7u32));
        let owner = Arc::new(AtomicUsize::new(OLD));
        assert!(shared.remote.orphan(1));
        let (other, seen, whose) = (shared.clone(), fields.clone(), owner.clone());
        let freer = thread::spawn(move || {
            let outcome = push_one(&other, 5);
            match outcome {
                // SAFETY: the push has answered that the slab is ours; loom checks it.
                Pushed::Emptied => unsafe { seen.with_mut(|p| *p += 1) },
                Pushed::Publish => {
                    assert_eq!(whose.load(Ordering::Relaxed), NEW, "published to the dead owner")
                }
                Pushed::Queued => {}
            }
            outcome
        });
        let adopted = shared.remote.adopt();
        let mut sum = 0;
        let mine = adopted.is_some();
        if let Some((chain, in_use)) = adopted {
            // SAFETY: the slab has been adopted, so it is ours; loom checks it.
            unsafe { fields.with_mut(|p| *p += 1) };
            assert_eq!((in_use, consume(chain.head).1), (1, 0));
            owner.store(NEW, Ordering::Relaxed);
            sum += consume(shared.remote.rearm().head).0;
        }
        let outcome = freer.join().unwrap();
        assert_ne!(mine, outcome == Pushed::Emptied, "exactly one thread gets the slab");
        if mine {
            let late = consume(shared.remote.rearm().head).0;
            assert_eq!(outcome == Pushed::Publish, late == 5, "a push after the adoption publishes the slab");
            assert_eq!(sum + late, 5);
        }
    });
}

/// Frees that do not empty an orphan leave their blocks, and what was written to them, to whoever adopts it.
#[test]
fn an_adopter_sees_what_was_freed_before() {
    model(None, || {
        let shared = slab();
        assert!(shared.remote.orphan(3));
        let other = shared.clone();
        let freer = thread::spawn(move || assert_ne!(push_one(&other, 5), Pushed::Emptied));
        let (chain, in_use) = shared.remote.adopt().expect("nobody else adopts");
        let (sum, count) = consume(chain.head);
        assert_eq!(in_use + count, 3);
        freer.join().unwrap();
        let (late, _) = consume(shared.remote.rearm().head);
        assert_eq!(sum + late, 5);
    });
}

/// A free that empties an orphan sees the blocks that others have freed before.
#[test]
fn the_last_free_sees_the_ones_before() {
    model(None, || {
        let shared = slab();
        assert!(shared.remote.orphan(2));
        let written = Arc::new([UnsafeCell::new(0u32), UnsafeCell::new(0u32)]);
        let threads: Vec<_> = [0usize, 1]
            .into_iter()
            .map(|i| {
                let (slab, written) = (shared.clone(), written.clone());
                thread::spawn(move || {
                    // SAFETY: each thread has a cell of its own until it pushes; loom checks it.
                    unsafe { written[i].with_mut(|p| *p = 1) };
                    if push_one(&slab, 1) == Pushed::Emptied {
                        // SAFETY: all blocks are free, so both cells were written before and are ours now;
                        // loom checks it.
                        return unsafe { written.iter().map(|cell| cell.with(|p| *p)).sum() };
                    }
                    0
                })
            })
            .collect();
        let sums: Vec<u32> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(sums.iter().sum::<u32>(), 2, "one thread emptied it and saw both");
    });
}
