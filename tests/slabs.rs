//! Slabs between threads: what becomes of one that is published, left behind, adopted or emptied, and of the
//! memory that magazines and outboxes hold back. Few steps each, in a fixed order.

#[path = "support/slabs.rs"]
mod support;
#[path = "support/waiting.rs"]
mod waiting;

use hakmem::{purge, stats};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use support::*;

/// 64 of them in a slab of one page.
const SIZE: usize = KIB;
const PER_SLAB: usize = 64;

#[test]
fn a_slab_that_is_published_while_it_is_current_serves_on() {
    alone(|| {
        let (mut first, mut mine) = (Vec::new(), take_many(SIZE, 1));
        // The first page of a SuperSlab has fewer blocks; leave it behind.
        while mine[0] >> 16 == first.first().unwrap_or(&mine[0]) >> 16 {
            first.push(std::mem::replace(&mut mine[0], take(SIZE)));
        }
        mine.extend(take_many(SIZE, PER_SLAB / 2));
        let current = mine[0] >> 16;
        for _ in 0..3 {
            let gone: Vec<usize> = mine.drain(..10).collect();
            assert_eq!(added(|s| s.publishes, || apart(|| give_many(gone, SIZE))).0, 1);
            // It has all its blocks to give, those that came back last of all, and no other slab is asked.
            let (spans, more) = added(|s| s.refill_span, || take_many(SIZE, PER_SLAB - mine.len()));
            assert_eq!(spans, 0);
            assert!(more.iter().all(|block| block >> 16 == current) && distinct(&more));
            mine.extend(more);
            assert!(distinct(&mine) && mine.len() == PER_SLAB);
            // Its arrival on the ready list comes after what it announced was taken.
            mine.extend(take_many(SIZE, 1));
            let next = mine.pop().unwrap();
            assert_ne!(next >> 16, current);
            give(next, SIZE);
            purge();
            give_many(mine.drain(PER_SLAB / 2..), SIZE);
            purge();
            // Now it is a partial one, and becomes the current one again.
            mine.extend(take_many(SIZE, 1));
            assert_eq!(mine.last().unwrap() >> 16, current);
        }
        give_many(mine, SIZE);
        give_many(first, SIZE);
    });
}

#[test]
fn a_chain_left_on_the_stack_goes_with_its_slab_to_an_orphan_and_its_adopter() {
    alone(|| {
        const GONE: usize = 20;
        let (kept, slab) = apart(|| {
            let all = take_many(SIZE, 4 * PER_SLAB);
            let slabs = by_slab(&all);
            let (gone, rest) = slabs[0].split_at(GONE);
            let gone = gone.to_vec();
            apart(|| give_many(gone, SIZE));
            // Takes note of the chain and leaves it where it is.
            assert_eq!(added(|s| s.refill_ready, purge).0, 1);
            assert_eq!(stats().allocated_bytes as usize, (all.len() - GONE) * SIZE);
            // More comes on top of it: seen, and not seen before this thread ends.
            let (seen, rest) = rest.split_at(5);
            let (unseen, rest) = rest.split_at(7);
            let (seen, unseen) = (seen.to_vec(), unseen.to_vec());
            apart(|| give_many(seen, SIZE));
            assert_eq!(added(|s| s.refill_ready, purge).0, 1);
            apart(|| give_many(unseen, SIZE));
            assert_eq!(stats().allocated_bytes as usize, (all.len() - GONE - 12) * SIZE);
            let mut kept: Vec<usize> = slabs[1..].concat();
            kept.extend(rest);
            (kept, slabs[0][0] >> 16)
        });
        assert_eq!(stats().allocated_bytes as usize, kept.len() * SIZE);
        // All orphans together have what was freed, and what was never handed out.
        let (orphans, got) = added(
            |s| s.refill_orphan,
            || {
                let mut got = Vec::new();
                while added(|s| s.refill_span, || got.push(take(SIZE))).0 == 0 {}
                got
            },
        );
        assert!(orphans >= 1);
        assert_eq!(got.iter().filter(|&block| block >> 16 == slab).count(), GONE + 12);
        let all: Vec<usize> = got.iter().chain(&kept).copied().collect();
        assert!(distinct(&all));
        assert_eq!(stats().allocated_bytes as usize, all.len() * SIZE);
        give_many(all, SIZE);
    });
}

#[test]
fn an_orphan_goes_with_its_last_block() {
    alone(|| {
        let blocks = apart(|| {
            let blocks = take_many(SIZE, 3 * PER_SLAB);
            let half: Vec<usize> = blocks.iter().copied().step_by(2).collect();
            apart(|| give_many(half, SIZE));
            purge();
            blocks.into_iter().skip(1).step_by(2).collect::<Vec<_>>()
        });
        purge();
        assert!(superslab_bytes() > 0);
        apart(|| give_many(blocks, SIZE));
        purge();
        assert_eq!((stats().allocated_bytes, superslab_bytes()), (0, 0));
    });
}

#[test]
fn slabs_that_another_thread_empties_come_back_with_the_next_refill() {
    alone(|| {
        const BLOCKS: usize = 100 * PER_SLAB;
        for size in [8, SIZE, 4 * KIB, 64 * KIB] {
            let count = BLOCKS * KIB / size.max(64);
            let blocks = take_many(size, count);
            assert!(distinct(&blocks));
            let (foreign, ()) = added(|s| s.home_foreign, || apart(|| give_many(blocks, size)));
            assert_eq!(foreign as usize, count, "size {size}");
            assert_eq!(stats().allocated_bytes, 0, "size {size}");
            // Still the owner's: it has not looked yet. One refill, and all but the current slab are the
            // pool's.
            let mut blocks = Vec::new();
            while added(|s| s.refill_ready, || blocks.push(take(size))).0 == 0 {}
            apart(purge);
            assert!(superslab_bytes() <= 2 << 20, "size {size}");
            give_many(blocks, size);
            purge();
            assert_eq!(superslab_bytes(), 0, "size {size}");
        }
    });
}

/// A slab may be emptied by its owner while a chain that it has taken note of still waits there.
#[test]
fn a_slab_goes_with_a_chain_on_its_stack() {
    alone(|| {
        let blocks = take_many(SIZE, 3 * PER_SLAB);
        let mut slab = by_slab(&blocks).swap_remove(0);
        let page = slab[0] >> 16;
        let foreign: Vec<usize> = slab.drain(..PER_SLAB / 2).collect();
        apart(|| give_many(foreign, SIZE));
        purge();
        give_many(slab, SIZE);
        purge();
        apart(purge);
        let others: Vec<usize> = blocks.into_iter().filter(|block| block >> 16 != page).collect();
        assert_eq!(stats().allocated_bytes as usize, others.len() * SIZE);
        // What is made of its pages then is new.
        let again = take_many(SIZE, 2 * PER_SLAB);
        assert!(distinct(&again) && again.iter().all(|block| !others.contains(block)));
        give_many(again, SIZE);
        give_many(others, SIZE);
    });
}

/// What lies above the last block of a slab that nobody owns goes back once.
#[test]
#[cfg_attr(miri, ignore)]
fn an_orphan_is_purged_once() {
    alone(|| {
        // Memory that is still resident when the next thread gets it.
        apart(|| give_many(take_many(SIZE, PER_SLAB), SIZE));
        let block = apart(|| take(SIZE));
        assert!(purge() >= 32 * KIB);
        assert_eq!(purge(), 0);
        give(block, SIZE);
    });
}

/// The first blocks that a thread frees lie one in each slab and fill its magazine; all the others go home.
/// Without a look at the magazine they would keep all the slabs.
#[test]
fn a_few_blocks_in_a_magazine_do_not_keep_their_slabs() {
    alone(|| {
        for size in [8, 64, 512, SIZE, 1792, 2 * KIB, 4 * KIB] {
            let blocks = take_many(size, 8 << 20 >> size.ilog2());
            let slabs = by_slab(&blocks);
            assert!(slabs.len() >= 120);
            let held = superslab_bytes();
            // The magazine runs empty and full, and grows. In the end it is empty.
            (0..12).for_each(|_| give_many(take_many(size, 1000), size));
            let last = take_many(size, 1023);
            slabs.iter().for_each(|blocks| give(blocks[0], size));
            give_many(last, size);
            give_many(slabs.iter().flat_map(|blocks| blocks[1..].to_vec()), size);
            assert_eq!(stats().allocated_bytes, 0);
            // Another thread purges: it does not touch this one's magazine.
            apart(purge);
            assert!(superslab_bytes() <= held / 2, "size {size}: {} of {held}", superslab_bytes());
            purge();
        }
    });
}

/// Slabs that are far from empty do not cost a thread its magazine, however often other threads publish them.
#[test]
fn a_magazine_is_not_emptied_for_slabs_that_are_well_used() {
    alone(|| {
        let blocks = take_many(SIZE, 20 * PER_SLAB);
        let slabs = by_slab(&blocks);
        for round in 0..2 {
            let foreign: Vec<usize> = slabs[..15].iter().map(|blocks| blocks[round]).collect();
            apart(|| give_many(foreign, SIZE));
            purge();
        }
        // Fills the magazine, and puts the last of them, from a full slab, on its slab's list.
        let mut frees = 0;
        let (home, ()) = added(
            |s| s.home_local,
            || {
                for &block in slabs[16..19].iter().flat_map(|blocks| &blocks[..10]) {
                    give(block, SIZE);
                    frees += 1;
                }
            },
        );
        assert!(home > 0 && home < frees - 8, "{home} of {frees} blocks went home");
        let freed: BTreeSet<usize> = slabs[..15]
            .iter()
            .flat_map(|blocks| &blocks[..2])
            .chain(slabs[16..19].iter().flat_map(|blocks| &blocks[..10]))
            .copied()
            .collect();
        give_many(blocks.into_iter().filter(|block| !freed.contains(block)), SIZE);
    });
}

/// A thread that frees what others allocated and then does nothing any more withholds 256 KiB in its outbox
/// at most, and what its magazine holds.
#[test]
fn a_thread_that_stops_withholds_little() {
    alone(|| {
        for size in [64, 512, 4 * KIB] {
            let blocks = take_many(size, 130 * 64 * KIB / size);
            // Slabs that have places of their own in the outbox; the other ones would make it send now and
            // then.
            let places = by_slab(&blocks).into_iter().map(|blocks| ((blocks[0] >> 16) % 128, blocks));
            let slabs: Vec<Vec<usize>> = places.collect::<BTreeMap<_, _>>().into_values().collect();
            assert!(slabs.len() >= 64);
            // One block of each, then another one of each, so that all bundles fill up together.
            let in_turns: Vec<usize> = (0..64 * KIB / size)
                .flat_map(|i| slabs.iter().filter_map(move |blocks| blocks.get(i).copied()))
                .collect();
            let (gone, _) = in_turns.split_at(slabs.len() * (64 * KIB / size).min(31) / 2);
            let (stop, stopped) = channel::<()>();
            let (done, ready) = channel();
            let again = thread::scope(|scope| {
                let thread = scope.spawn(move || {
                    let sent = added(|s| s.home_foreign, || give_many(gone.iter().copied(), size)).0;
                    done.send(sent as usize).unwrap();
                    stopped.recv().unwrap_err();
                });
                let sent = ready.recv().unwrap();
                let live = (blocks.len() - gone.len()) * size;
                assert_eq!(stats().allocated_bytes as usize, live, "what waits in the outbox is free");
                // What has come back can be had again.
                let mut again = Vec::new();
                while added(|s| s.refill_span, || again.push(take(size))).0 == 0 {}
                let back = again.iter().filter(|block| gone.contains(block)).count();
                let withheld = (sent - back) * size;
                drop(stop);
                thread.join().unwrap();
                assert!(withheld <= 256 * KIB, "size {size}: {} KiB", withheld / KIB);
                again
            });
            assert!(distinct(&again));
            give_many(again, size);
            let gone: BTreeSet<usize> = gone.iter().copied().collect();
            give_many(blocks.into_iter().filter(|block| !gone.contains(block)), size);
        }
    });
}

/// The last blocks of a slab come home while its owner ends, which has taken note of a chain there: it may
/// let go of the slab only when nobody is about to publish it.
#[test]
fn the_last_frees_race_with_the_end_of_the_owner() {
    const BIG: usize = 4 * KIB;
    alone(|| {
        for round in 0..if cfg!(debug_assertions) { 500 } else { 3000 } {
            let barrier = Barrier::new(2);
            let (give_away, given) = channel();
            thread::scope(|scope| {
                let barrier = &barrier;
                let owner = scope.spawn(move || {
                    let all = take_many(BIG, 40);
                    let slabs = by_slab(&all);
                    let others = take_many(2 * BIG, 2);
                    give_away.send((slabs[0].clone(), others[0])).unwrap();
                    barrier.wait();
                    purge();
                    barrier.wait();
                    give(others[1], 2 * BIG);
                    give_many(slabs[1..].concat(), BIG);
                    barrier.wait();
                });
                let (mut slab, other) = given.recv().unwrap();
                let last = slab.pop().unwrap();
                give_many(slab, BIG);
                purge();
                barrier.wait();
                // The owner takes note of the chain. Then it has another slab published, for which it will
                // look at its ready list when it ends.
                barrier.wait();
                give(other, 2 * BIG);
                purge();
                barrier.wait();
                (0..round % 100 * 20).for_each(|_| std::hint::spin_loop());
                give(last, BIG);
                purge();
                owner.join().unwrap();
            });
            assert_eq!(stats().allocated_bytes, 0);
        }
    });
}

/// Full slabs that a thread has left have nothing for the next one that needs a block, however many they are.
#[test]
fn a_refill_adopts_few_full_slabs() {
    alone(|| {
        let left = apart(|| take_many(SIZE, 40 * PER_SLAB));
        let mut mine = Vec::new();
        // Those that have something come first.
        let (spans, adopted) = loop {
            let (spans, (adopted, block)) =
                added(|s| s.refill_span, || added(|s| s.refill_orphan, || take(SIZE)));
            mine.push(block);
            if spans != 0 || adopted > 1 {
                break (spans, adopted);
            }
        };
        assert_eq!((spans, adopted), (1, 16));
        give_many(mine, SIZE);
        give_many(left, SIZE);
    });
}

/// An owner makes something new of a slab that others have emptied and knows that they have done with it from
/// the slab alone. For ThreadSanitizer: nothing else orders what they did to the blocks before what it does.
#[test]
fn what_others_did_to_a_slab_is_over_when_its_pages_serve_again() {
    static STEP: AtomicUsize = AtomicUsize::new(0);
    let reach = |step| waiting::until("the other thread hangs", || STEP.load(Relaxed) == step);
    alone(|| {
        let blocks = take_many(SIZE, 10 * PER_SLAB);
        let slabs = by_slab(&blocks);
        // The magazine of the freer takes the first. Then a bundle of each slab publishes it, and the others
        // of each slab come after that, without any lock.
        let parts = |from: usize, to: usize| slabs[..8].iter().flat_map(move |slab| &slab[from..to]);
        let order: Vec<usize> =
            slabs[8..].iter().flatten().chain(parts(0, 16)).chain(parts(16, 64)).copied().collect();
        thread::scope(|scope| {
            let freer = scope.spawn(|| {
                for &block in &order {
                    // SAFETY: in use, and this thread's now.
                    unsafe { (block as *mut u64).add(3).write(1) };
                    give(block, SIZE);
                }
                STEP.store(1, Relaxed);
                reach(2);
            });
            reach(1);
            // Takes in all slabs; what comes next, of another class, lies where they were.
            let mut again = Vec::new();
            while added(|s| s.refill_ready, || again.push(take(SIZE))).0 == 0 {}
            let others = take_many(2 * SIZE, 8 * PER_SLAB / 2);
            let reused =
                others.iter().filter(|&other| slabs[..8].iter().any(|s| s[0] >> 16 == other >> 16)).count();
            assert!(reused > 0);
            for &block in &others {
                // SAFETY: as above.
                unsafe { (block as *mut u8).add(8).write_bytes(2, 2 * SIZE - 8) };
            }
            give_many(others, 2 * SIZE);
            give_many(again, SIZE);
            STEP.store(2, Relaxed);
            freer.join().unwrap();
        });
    });
}
