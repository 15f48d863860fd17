//! Models of visits to slabs that are in a list: what others have freed is taken in, and what is idle is
//! purged, while the owner takes and frees blocks and others free some.
//!
//! In the end every block of a slab is in one place: in use, with what was written into it; on the slab's
//! list; in memory that was never handed out; or in what was purged. No slab keeps a visitor's mark, and once
//! all blocks are freed the pool has all slices back, and none counts as idle. Loom looks at each use of the
//! record and the blocks, which nobody else may use then: those of the visitor, too.

use super::{Carry, end, free, heap};
use crate::front::heap::Heap;
use crate::front::visitor;
use crate::reclaim::idle_heaps::take_in;
use crate::reclaim::idle_heaps::visit::Visit;
use crate::superslab::model::{ground, slices_in_use};
use crate::superslab::pool;
use crate::superslab::slab::{Block, Listed, Owner, Slab};
use crate::sync::Ordering::Relaxed;
use crate::sync::loom::{aside, beside, model_of_statics as model, second, spare};
use crate::sync::{Node, reads, wrote};
use crate::tiny::bins::Bins;
use crate::tiny::classes::class_of;
use crate::tiny::free::push_remote;
use crate::tiny::idle;
use crate::tiny::partial_purge::{Among, block_at};
use core::ptr;
use loom::thread::JoinHandle;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::vec::Vec;

std::thread_local! {
    /// Whether a slab that a visitor has released was another thread's afterwards, in some run of the model.
    static REUSED: Cell<bool> = const { Cell::new(false) };
}

/// A class with two blocks to a page of the system, and 30 or 32 to a slab.
const CLASS: u8 = class_of(2048, 1);

/// What the owner does.
#[derive(Clone, Copy)]
enum Move {
    /// Frees the block of this number.
    Free(usize),
    /// Allocates a block.
    Take,
}
use Move::{Free, Take};

/// What there is before a visit, and what is done beside it. Blocks are numbered by their place in the slab.
#[derive(Clone, Copy)]
struct Case {
    /// How many blocks of the slab have been handed out.
    blocks: usize,
    /// Those that the owner has freed, the last one first to be handed out again.
    freed: &'static [usize],
    /// Those that others have freed, so that the slab is published.
    sent: &'static [usize],
    /// Whether the slab is its class's current one. Else it is listed.
    current: bool,
    /// What the owner does meanwhile.
    moves: &'static [Move],
    /// Those that another thread frees meanwhile.
    remote: &'static [usize],
}

/// What the program writes into a block.
fn fill(block: *mut u8) {
    wrote(block);
    // SAFETY: the block is the caller's, and has that many bytes.
    unsafe { block.cast::<[usize; 2]>().write([block.addr(), 1]) }
}

/// Whether a block still has what the program has written there.
fn is_filled(block: *mut u8) -> bool {
    reads(block);
    // SAFETY: as in `fill`.
    unsafe { block.cast::<[usize; 2]>().read() == [block.addr(), 1] }
}

/// Frees blocks as another thread does; whether somebody should visit the owner now.
fn send(slab: *mut Slab, blocks: impl IntoIterator<Item = *mut u8>) -> *mut Owner {
    blocks.into_iter().fold(ptr::null_mut(), |visit, block| {
        assert!(is_filled(block));
        let block = block.cast::<Block>();
        // SAFETY: a block of that slab, which nobody uses any more.
        let sent = unsafe { push_remote(slab, block, block, 1) };
        if visit.is_null() { sent.visit } else { visit }
    })
}

/// Makes the heap of a case: the heap, its slab, and all blocks.
fn prepare(case: &Case) -> (*mut Heap, *mut Slab, Vec<*mut u8>) {
    ground();
    let (heap, blocks) = heap(CLASS, case.blocks);
    // SAFETY: the slab's first block.
    let slab = unsafe { Slab::of(blocks[0]) };
    aside(|| {
        blocks.iter().for_each(|&block| fill(block));
        case.freed.iter().for_each(|&at| free(heap, CLASS, blocks[at]));
        if !case.current {
            // SAFETY: the heap is this thread's.
            unsafe {
                let _entered = Heap::enter(heap);
                Bins::set_all_aside(&raw mut (*heap).bins);
            }
        }
        send(slab, case.sent.iter().map(|&at| blocks[at]));
    });
    (heap, slab, blocks)
}

/// Does what the case says of the owner. Returns the blocks that are in use then, and nobody else's.
fn work(heap: *mut Heap, case: &Case, blocks: &[*mut u8]) -> Vec<*mut u8> {
    let others = [case.freed, case.sent, case.remote].concat();
    let mut live: Vec<_> = (0..blocks.len()).filter(|at| !others.contains(at)).map(|at| blocks[at]).collect();
    for &step in case.moves {
        match step {
            Free(at) => {
                assert!(is_filled(blocks[at]));
                live.retain(|&block| block != blocks[at]);
                free(heap, CLASS, blocks[at]);
            }
            Take => {
                // SAFETY: the heap is this thread's.
                let mut block = unsafe { Heap::alloc_from_slab(heap, CLASS as usize).ptr };
                if block.is_null() {
                    // SAFETY: the heap is this thread's, as above.
                    block = unsafe { Heap::refill(heap, CLASS).ptr };
                }
                assert!(!block.is_null() && !live.contains(&block), "handed out twice");
                fill(block);
                live.push(block);
            }
        }
    }
    live
}

/// Each block of the slab is in one place, and of the blocks in use nothing was purged.
///
/// # Safety
///
/// The calling thread has entered the heap, and is the only one. The slab is the heap's.
unsafe fn count(heap: *mut Heap, slab: *mut Slab, live: &[*mut u8]) {
    // SAFETY: this function's contract.
    unsafe {
        let bins = &mut (*heap).bins;
        assert_eq!((*slab).owner.load(Relaxed), bins.owner, "a mark has stayed");
        assert_ne!((*slab).list, Listed::None, "nobody would find it");
        assert!((*slab).remote.is_armed(), "what is freed next would never be published");
        // Takes in what waits.
        assert!(!bins.holds(slab, ptr::null_mut()));
        let (mut free, mut block) = (Vec::new(), (*slab).free);
        while !block.is_null() {
            free.push(block.cast::<u8>());
            block = Block::next(block);
        }
        let stride = (*slab).stride as usize;
        let all: Vec<_> =
            (0..=(*slab).last as usize / stride).map(|at| (*slab).start.wrapping_add(at * stride)).collect();
        assert!(free.iter().all(|block| all.contains(block)));
        for &block in &all {
            let fresh = ((*slab).bump..(*slab).end).contains(&block);
            let purged = block_at(slab, block).unwrap();
            let times = |list: &[*mut u8]| list.iter().filter(|&&other| other == block).count();
            let places = [times(live), times(&free), fresh.into(), purged.into()];
            assert_eq!(places.iter().sum::<usize>(), 1, "in use, free, fresh, purged: {places:?}");
        }
        let used = live.iter().filter(|block| all.contains(block)).count();
        assert_eq!(Slab::in_use(slab) as usize, used);
    }
}

/// The end of a model, in its only thread: looks at all slabs that have a block in use, and then frees these.
fn finish(heap: *mut Heap, live: &[*mut u8]) {
    live.iter().for_each(|&block| assert!(is_filled(block), "purged"));
    aside(|| {
        // SAFETY: nobody else uses the heap any more, and the blocks keep their slabs.
        unsafe {
            let _entered = Heap::enter(heap);
            (*heap).bins.collect(&(*heap).counters);
            assert!((*Heap::owner(heap)).ready.is_empty());
            let slabs: BTreeSet<_> = live.iter().map(|&block| Slab::of(block)).collect();
            slabs.iter().for_each(|&slab| count(heap, slab, live));
        }
        live.iter().for_each(|&block| free(heap, CLASS, block));
        // SAFETY: the heap is this thread's, and nobody visits it any more.
        unsafe {
            Heap::trim(heap, false);
            assert_eq!((*heap).bins.bytes(), 0, "a slab is lost");
            // This adds what the heap has counted, too.
            assert!((*heap).bins.abandon(&(*heap).counters, false));
        }
        assert_eq!(idle::told(), 0, "of sparse slabs");
        // That of `ground`.
        assert_eq!(slices_in_use(), 1, "slices are lost");
    });
    end();
}

/// A thread that visits the heap.
fn visitor(heap: *mut Heap, visit: fn(&Visit)) -> JoinHandle<()> {
    let theirs = Carry(heap);
    beside(move || {
        let theirs = theirs;
        let _visits = visitor::try_lock().unwrap();
        // SAFETY: the only visitor of the model.
        if let Some(inside) = unsafe { Visit::enter(theirs.0) } {
            visit(&inside);
        }
    })
}

/// Runs a case beside a visit, with so many changes of thread at most.
fn visited(bound: usize, case: Case, visit: fn(&Visit)) {
    spare(160);
    model(Some(bound), move || {
        let (heap, slab, blocks) = prepare(&case);
        let visitor = visitor(heap, visit);
        let remote: Vec<_> = case.remote.iter().map(|&at| blocks[at]).collect();
        let freer = (!remote.is_empty()).then(|| beside(move || _ = send(slab, remote)));
        let live = work(heap, &case, &blocks);
        visitor.join().unwrap();
        freer.into_iter().for_each(|freer| freer.join().unwrap());
        finish(heap, &live);
    });
}

/// A slab with three blocks in use, one of which another thread has freed.
const PUBLISHED: Case = Case { blocks: 4, freed: &[1], sent: &[2], current: false, moves: &[], remote: &[] };

#[test]
fn what_was_published_is_taken_in_beside_frees() {
    visited(3, Case { moves: &[Free(0), Free(3)], ..PUBLISHED }, |visit| _ = visit.take_in(false));
}

#[test]
fn what_was_published_is_taken_in_beside_a_refill() {
    visited(3, Case { moves: &[Free(0), Take], ..PUBLISHED }, |visit| _ = visit.take_in(false));
}

/// The owner may be taking blocks of it, so it stays published.
#[test]
fn a_current_slab_is_not_taken_in() {
    visited(3, Case { current: true, moves: &[Take, Free(0)], ..PUBLISHED }, |visit| {
        _ = visit.take_in(false)
    });
}

/// Another thread frees the others meanwhile, and publishes the slab, before the visit or once more after it.
#[test]
fn a_slab_is_taken_in_beside_those_who_publish_it() {
    visited(2, Case { moves: &[Free(0)], remote: &[3], ..PUBLISHED }, |visit| _ = visit.take_in(false));
    visited(2, Case { sent: &[], moves: &[Free(0)], remote: &[2, 3], ..PUBLISHED }, |visit| {
        _ = visit.take_in(false);
    });
}

/// Who looks for whole slabs alone leaves the others to be found, and has changed nothing.
#[test]
fn what_is_not_whole_stays_published() {
    visited(2, Case { moves: &[Free(0)], remote: &[3], ..PUBLISHED }, |visit| {
        assert_eq!(visit.take_in(true), 1);
    });
}

/// What a visitor releases another thread takes at once.
#[test]
fn a_slab_that_was_released_is_left_alone() {
    const EMPTY: Case = Case { blocks: 2, freed: &[], sent: &[0, 1], ..PUBLISHED };
    spare(160);
    model(Some(2), || {
        let (heap, slab, _) = prepare(&EMPTY);
        let visitor = visitor(heap, |visit| _ = visit.take_in(false));
        let span = second(|| {
            let span = pool::take_span(1, CLASS, |_| None).unwrap();
            // SAFETY: the span was taken just now, and nobody else knows it.
            unsafe { pool::give_span(span.slab, 1) };
            span.slab
        });
        visitor.join().unwrap();
        if span == slab {
            REUSED.set(true);
        }
        finish(heap, &[]);
    });
    assert!(REUSED.get(), "it never was another's");
}

/// The last block of a slab comes back: whoever has freed it visits the owner, which is about to look itself.
#[test]
fn who_frees_the_last_block_visits_beside_the_owner() {
    const ALL: Case = Case { blocks: 30, freed: &[], sent: &[], current: false, moves: &[Take], remote: &[] };
    spare(160);
    model(Some(3), || {
        let (heap, slab, mut blocks) = prepare(&ALL);
        aside(|| {
            // Where the slab has 32 blocks, the owner has them all.
            // SAFETY: the heap is this thread's, and the slab has a block in use.
            unsafe {
                let _entered = Heap::enter(heap);
                while Slab::in_use(slab) * (*slab).stride <= (*slab).last {
                    let block = Heap::refill(heap, CLASS).ptr;
                    fill(block);
                    blocks.push(block);
                }
                Bins::set_all_aside(&raw mut (*heap).bins);
                // One slice less than what a visit is worth.
                (*Heap::owner(heap)).idle.store(127, Relaxed);
            }
            assert!(send(slab, blocks.drain(1..)).is_null());
        });
        let last = blocks.pop().unwrap();
        let freer = beside(move || {
            let owner = send(slab, [last]);
            if !owner.is_null() {
                take_in(owner);
            }
        });
        let live = work(heap, &ALL, &[]);
        freer.join().unwrap();
        finish(heap, &live);
    });
}

/// A slab of which two pages are free, and two more but for blocks 5 and 6. It is partial, and what was never
/// handed out begins behind block 6.
const IDLE: Case =
    Case { blocks: 7, freed: &[4, 0, 1, 2, 3], sent: &[], current: false, moves: &[], remote: &[] };
/// The same with block 5 alone, so that the slab is sparse.
const SPARSE: Case = Case { freed: &[4, 6, 0, 1, 2, 3], ..IDLE };

fn purge_partial(visit: &Visit) {
    let mut among = Among::PARTIAL;
    visit.purge_batches(&mut among);
}

fn purge_sparse(visit: &Visit) {
    visit.purge_batches(&mut Among::Sparse(0));
}

#[test]
fn a_partial_slab_is_purged_beside_its_owner() {
    visited(3, Case { moves: &[Free(5), Take], ..IDLE }, purge_partial);
    visited(3, Case { moves: &[Take, Free(5)], ..IDLE }, purge_partial);
}

#[test]
fn a_partial_slab_is_purged_beside_other_frees() {
    visited(2, Case { moves: &[Free(6)], remote: &[5], ..IDLE }, purge_partial);
}

/// The owner frees the last block, and releases the slab.
#[test]
fn a_sparse_slab_is_purged_beside_its_last_free() {
    visited(3, Case { moves: &[Free(5)], ..SPARSE }, purge_sparse);
    visited(3, Case { moves: &[Free(5), Take], ..SPARSE }, purge_sparse);
}

/// Another thread frees it.
#[test]
fn a_sparse_slab_is_purged_beside_a_free_from_elsewhere() {
    visited(2, Case { moves: &[Take], remote: &[5], ..SPARSE }, purge_sparse);
}

/// All that is done in one visit to an owner which has done nothing for a while, and now comes back.
#[test]
fn a_current_slab_is_withdrawn_taken_in_and_purged() {
    let all = |visit: &Visit| {
        visit.withdraw(false);
        visit.take_in(false);
        visit.purge_batches(&mut Among::Sparse(0));
    };
    visited(2, Case { current: true, moves: &[Take, Free(5)], ..SPARSE }, all);
    visited(2, Case { current: true, sent: &[6], moves: &[Free(5), Take], ..IDLE }, all);
}
