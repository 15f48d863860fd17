//! A little of everything, in steps small enough for Miri, which runs this with strict provenance: blocks are
//! pointers all the time. What a path has done shows in the figures.
//!
//! The allocator under test is not the program's own, so its figures are exact.

use hakmem::{ClassStats, Hakmem, Options, Stats, Thp, class_stats, purge, stats};
use std::alloc::{GlobalAlloc, Layout};
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread;

/// Nothing goes back for its age, so that no clock matters.
static HAKMEM: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(-1).thp(Thp::Never));

const KIB: usize = 1 << 10;
const SLICE: usize = 64 * KIB;

/// Figures of the whole process are compared, so one test at a time; afterwards nothing is left.
struct Alone(#[allow(dead_code)] MutexGuard<'static, ()>);

fn alone() -> Alone {
    static ALONE: Mutex<()> = Mutex::new(());
    Alone(ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

impl Drop for Alone {
    fn drop(&mut self) {
        purge();
        if !thread::panicking() {
            assert_eq!((stats().allocated_bytes, hakmem::__c::info().arena), (0, 0));
        }
    }
}

/// A block in use, with a word at both ends that tells where it is.
struct Block {
    start: *mut u8,
    size: usize,
}

// SAFETY: a block belongs to nobody but whoever has this, in whatever thread.
unsafe impl Send for Block {}

impl Block {
    fn new(size: usize) -> Self {
        // SAFETY: no size here is 0.
        Self { start: unsafe { HAKMEM.alloc(layout(size)) }, size }.signed()
    }

    fn zeroed(size: usize) -> Self {
        // SAFETY: as above; the whole block may be read.
        unsafe {
            let start = HAKMEM.alloc_zeroed(layout(size));
            assert!(std::slice::from_raw_parts(start, size) == vec![0; size]);
            Self { start, size }.signed()
        }
    }

    fn ends(&self) -> [*mut usize; 2] {
        let first = self.start.cast::<usize>();
        [first, first.wrapping_add(self.size / 8 - 1)]
    }

    fn signed(self) -> Self {
        assert!(!self.start.is_null());
        for end in self.ends() {
            // SAFETY: inside the block.
            unsafe { end.write(!self.start.addr()) };
        }
        self
    }

    fn check(&self) {
        for end in self.ends() {
            // SAFETY: inside the block, written by `signed`.
            assert_eq!(unsafe { end.read() }, !self.start.addr());
        }
    }

    fn resize(self, size: usize) -> Self {
        self.check();
        let before = ManuallyDrop::new(self);
        // SAFETY: a block of this size; at its beginning is what was there.
        unsafe {
            let start = HAKMEM.realloc(before.start, layout(before.size), size);
            assert_eq!(start.cast::<usize>().read(), !before.start.addr());
            Self { start, size }.signed()
        }
    }

    fn slice(&self) -> usize {
        self.start.addr() / SLICE
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.check();
        // SAFETY: a block of this size, freed once.
        unsafe { HAKMEM.dealloc(self.start, layout(self.size)) };
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn many(count: usize, size: usize) -> Vec<Block> {
    (0..count).map(|_| Block::new(size)).collect()
}

/// Runs `f` on a thread that has ended when this returns.
fn apart<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(f).join().unwrap())
}

/// What `f` adds to a figure.
fn added<T>(figure: impl Fn(&Stats) -> u64, f: impl FnOnce() -> T) -> (u64, T) {
    let before = figure(&stats());
    let result = f();
    (figure(&stats()) - before, result)
}

/// The figures of the class with blocks of `size` bytes.
fn class(size: usize) -> ClassStats {
    *class_stats().iter().find(|c| c.block_bytes == size as u64).unwrap()
}

#[test]
fn every_class_serves() {
    let _alone = alone();
    let sizes: Vec<usize> =
        class_stats()[..ClassStats::RUNS].iter().map(|c| c.block_bytes as usize).collect();
    let blocks: Vec<_> = sizes.iter().map(|&size| (Block::new(size), Block::zeroed(size))).collect();
    assert!(class_stats()[..ClassStats::RUNS].iter().all(|class| class.blocks == 2));
    for (one, other) in blocks {
        let size = one.size;
        drop(one.resize(size + 1));
        drop(other);
        Block::zeroed(size);
    }
}

#[test]
fn slabs_fill_up_and_drain() {
    let _alone = alone();
    // 16 in a slab of one slice.
    let mut blocks = many(60, 4 * KIB);
    for step in [3, 2, 1] {
        let mut i = 0;
        blocks.retain(|_| {
            i += 1;
            i % step != 0
        });
        purge();
        let more = added(|s| s.refill_span, || many(if step == 1 { 0 } else { 10 }, 4 * KIB));
        assert_eq!(more.0, 0, "what was freed serves first");
        blocks.extend(more.1);
    }
    assert!(blocks.is_empty());
}

#[test]
fn magazines_grow_and_are_emptied_by_another_thread() {
    let _alone = alone();
    for _ in 0..2 {
        drop(many(100, 64));
        let cached = class(64).cached_blocks;
        assert!(cached > 8, "{cached}");
        apart(purge);
        assert_eq!(class(64).cached_blocks, 1, "the topmost stays");
        let few = many(20, 64);
        apart(purge);
        drop(few);
    }
}

#[test]
fn what_others_free_comes_back() {
    let _alone = alone();
    for size in [64, 4 * KIB] {
        let blocks = many(4 * SLICE / size.max(KIB), size);
        let (foreign, ()) = added(|s| s.home_foreign, || apart(|| drop(blocks)));
        assert!(foreign > 0, "{foreign}");
        // Pushed to the slabs' stacks, which this thread looks at when it has nothing else.
        let (ready, again) = added(|s| s.refill_ready, || many(4 * SLICE / size.max(KIB), size));
        assert!(ready > 0 || size == 64, "{ready}");
        drop(again);
    }
}

/// Slabs whose bundles have the same place in an outbox, 8 MiB apart: what comes second is set aside.
#[test]
fn blocks_in_each_others_way_are_sent_in_the_end() {
    const SIZE: usize = 8 * KIB;
    // Fewer than would be too much to wait.
    const PAIRS: usize = 20;
    let _alone = alone();
    let mut blocks = many(5 * 31 * SLICE / SIZE + 64, SIZE);
    let first = blocks.split_off(blocks.len() - 64);
    // One block of each slab, by place; then those of the places that two slabs have, one after the other.
    let mut places: [Vec<Block>; 128] = [const { Vec::new() }; 128];
    for block in blocks {
        let place = &mut places[block.slice() % 128];
        if place.iter().all(|other| other.slice() != block.slice()) {
            place.push(block);
        }
    }
    let shared = places.into_iter().filter(|slabs| slabs.len() > 1);
    let pairs: Vec<_> = shared.flatten().take(2 * PAIRS).collect();
    assert_eq!(pairs.len(), 2 * PAIRS, "with so many slabs");
    apart(|| {
        drop(first);
        let (sent, ()) = added(|s| s.outbox_pushes, || pairs.into_iter().for_each(drop));
        assert!(sent < PAIRS as u64, "not one for each that is in the way: {sent}");
    });
}

#[test]
fn threads_end_and_their_slabs_are_adopted_or_emptied() {
    let _alone = alone();
    let kept = apart(|| {
        let mut blocks = many(64, KIB);
        let kept = blocks.split_off(20);
        // Some wait on the slab's stack when its owner ends.
        apart(|| drop(blocks));
        kept
    });
    let slice = kept[0].slice();
    let (orphans, mine) = added(|s| s.refill_orphan, || many(40, KIB));
    assert!(orphans > 0 && mine.iter().any(|block| block.slice() == slice));
    drop((kept, mine));
    // The last free of an orphan takes it.
    let left = apart(|| many(5, 2 * KIB));
    apart(|| drop(left));
}

#[test]
fn two_threads_free_what_the_other_has() {
    let _alone = alone();
    thread::scope(|scope| {
        let (to_one, for_one) = channel();
        let (to_other, for_other) = channel();
        let work = |to: Sender<Block>, from: Receiver<Block>, size| {
            scope.spawn(move || {
                for block in many(40, size) {
                    to.send(block).unwrap();
                    drop(from.try_recv());
                }
                drop(to);
                from.into_iter().for_each(drop);
            })
        };
        let workers = [work(to_other, for_one, KIB), work(to_one, for_other, 3 * KIB)];
        purge();
        // The scope's end would not wait for what they do last.
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn large_blocks_are_cut_merged_moved_and_purged() {
    let _alone = alone();
    // Runs, which grow into what is free behind them.
    let (run, other) = (Block::new(2 * SLICE), Block::zeroed(3 * SLICE));
    drop(run.resize(4 * SLICE).resize(7 * SLICE).resize(2 * SLICE));
    apart(|| drop(other));
    // Mappings: too long for a run, from the system, kept when freed, cut, and grown into.
    drop(Block::new(64 * SLICE));
    let (hits, one) = added(|s| s.large_cache_hits, || Block::new(16 * SLICE));
    assert_eq!(hits, 1);
    let two = Block::zeroed(16 * SLICE);
    let place = one.start;
    drop(two);
    let one = one.resize(32 * SLICE);
    assert_eq!(one.start, place, "in place");
    // More than there is: its pages move, or its contents do.
    let one = one.resize(100 * SLICE).resize(99 * SLICE).resize(20 * SLICE);
    apart(|| drop(one));
    let before = stats().bytes_mapped;
    purge();
    assert!(stats().bytes_mapped < before);
    // Longer than what is kept, of which it begins with a good part.
    drop(Block::new(20 * SLICE));
    drop(Block::new(40 * SLICE));
}

#[test]
fn what_is_purged_inside_slabs_is_used_again() {
    let _alone = alone();
    const SIZE: usize = 3 * KIB;
    let survivors = |blocks: Vec<Block>| blocks.into_iter().step_by(40).collect::<Vec<_>>();
    // Of this thread's own slabs, and of those of a thread that has ended.
    for kept in [survivors(many(80, SIZE)), apart(|| survivors(many(80, SIZE)))] {
        let (purged, _) = added(|s| s.bytes_purged, purge);
        assert!(purged >= SLICE as u64, "{purged}");
        let c = class(SIZE);
        assert!(c.resident_bytes < c.active_bytes && c.fresh_blocks > 0, "{c:?}");
        let mut again = many(30, SIZE);
        kept.iter().chain(&again).for_each(Block::check);
        // Freed by another thread while a part is purged.
        apart(|| drop(again.split_off(15)));
        apart(purge);
        drop(again);
        drop(kept);
    }
}

#[test]
fn others_ask_for_figures_and_purge_meanwhile() {
    let _alone = alone();
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for _ in 0..if cfg!(miri) { 3 } else { 300 } {
                let (s, classes) = (stats(), class_stats());
                assert!(s.active_bytes < 1 << 32 && s.resident_bytes < 1 << 32, "{s:?}");
                assert!(classes.iter().all(|c| c.resident_bytes <= c.active_bytes));
                purge();
            }
        });
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        for size in [24, 700, 5 * KIB, 40 * KIB, 2 * SLICE, 17 * SLICE] {
            let mut blocks = many(12.min(40 * SLICE / size), size);
            kept.extend(blocks.split_off(1));
            drop(blocks);
            drop(many(3, size));
            let theirs = kept.split_off(kept.len() / 2);
            others.push(scope.spawn(|| drop(theirs)));
        }
        drop(kept);
        others.into_iter().for_each(|other| other.join().unwrap());
        asking.join().unwrap();
    });
}
