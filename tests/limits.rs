//! The soft and the hard limit on what is held from the system. The test program lives on the system's
//! allocator, so that only the blocks made here meet the limits.

use hakmem::{Hakmem, InvalidLimits, Limits, Options, Stats, Thp};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, Once};

const MIB: usize = 1 << 20;

/// Nothing goes back for its age, so that no clock matters.
static OURS: Hakmem = Hakmem::with_options(
    Options::new().purge_delay_ms(-1).thp(Thp::Never).soft_limit(16 * MIB).hard_limit(20 * MIB),
);

/// Limits are the process's, so one test at a time. The first finds those of the options in force.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static FIRST: Once = Once::new();
    let guard = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    FIRST.call_once(limits_of_the_options);
    hakmem::on_soft_limit(None);
    limit(0, 0);
    hakmem::purge();
    let s = hakmem::stats();
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
    guard
}

fn limits_of_the_options() {
    hakmem::on_soft_limit(Some(count));
    let blocks = fill_up(2 * MIB);
    assert_eq!((blocks.len(), held(), calls()), (10, 20 * MIB, 1));
    assert!(stats().soft_limit_hits >= 1 && stats().hard_limit_hits == 1, "{:?}", stats());
    free_all(blocks, 2 * MIB);
}

fn limit(soft: usize, hard: usize) {
    hakmem::set_limits(Limits { soft, hard }).unwrap();
}

fn stats() -> Stats {
    hakmem::stats()
}

fn held() -> usize {
    stats().bytes_held as usize
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// A block with its first and last words written, or null.
fn make(size: usize) -> *mut u8 {
    // SAFETY: the size is not zero.
    let block = unsafe { OURS.alloc(layout(size)) };
    if !block.is_null() {
        mark(block, size);
    }
    block
}

fn mark(block: *mut u8, size: usize) {
    // SAFETY: inside the block.
    unsafe {
        block.write(size as u8 | 1);
        block.add(size - 1).write(size as u8 | 1);
    }
}

fn marked(block: *mut u8, size: usize) -> bool {
    // SAFETY: inside the block.
    unsafe { block.read() == size as u8 | 1 && block.add(size - 1).read() == size as u8 | 1 }
}

fn free(block: *mut u8, size: usize) {
    assert!(marked(block, size));
    // SAFETY: made with this layout.
    unsafe { OURS.dealloc(block, layout(size)) };
}

fn free_all(blocks: Vec<*mut u8>, size: usize) {
    blocks.into_iter().for_each(|block| free(block, size));
}

fn fill_up(size: usize) -> Vec<*mut u8> {
    let blocks: Vec<*mut u8> =
        (0..=64 * MIB / size).map(|_| make(size)).take_while(|b| !b.is_null()).collect();
    assert!(blocks.len() * size <= 64 * MIB, "nothing is refused");
    blocks
}

/// What the hook has heard.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static HEARD: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

fn count(held: usize, limit: usize) {
    CALLS.fetch_add(1, SeqCst);
    HEARD[0].store(held, SeqCst);
    HEARD[1].store(limit, SeqCst);
}

/// Calls since this was last asked.
fn calls() -> usize {
    CALLS.swap(0, SeqCst)
}

#[test]
fn held_is_exact() {
    let _alone = alone();
    let start = held();
    let block = make(5 * MIB);
    assert_eq!(held(), start + 5 * MIB);
    // SAFETY: made with this layout.
    let block = unsafe { OURS.realloc(block, layout(5 * MIB), 9 * MIB) };
    assert_eq!(held(), start + 9 * MIB);
    // SAFETY: as above.
    let block = unsafe { OURS.realloc(block, layout(9 * MIB), 3 * MIB) };
    assert_eq!(held(), start + 3 * MIB);
    mark(block, 3 * MIB);
    free(block, 3 * MIB);
    assert_eq!(held(), start + 3 * MIB, "kept for reuse");
    hakmem::purge();
    assert_eq!(held(), start);
    // Alignments for which more is mapped at first.
    let aligned = Layout::from_size_align(3 * MIB, 64 * MIB).unwrap();
    // SAFETY: the size is not zero; freed with its layout.
    unsafe { OURS.dealloc(OURS.alloc(aligned), aligned) };
    assert_eq!(held(), start + 3 * MIB);
    hakmem::purge();
    let blocks: Vec<*mut u8> = (0..100_000).map(|_| make(200)).collect();
    assert_eq!((held() - start) % (2 * MIB), 0);
    assert!(held() >= start + 18 * MIB);
    free_all(blocks, 200);
    hakmem::purge();
    assert!(held() <= start);
}

/// Slabs of the larger classes have several pages side by side; at the limit single ones have to do.
#[test]
fn at_the_limit_free_pages_need_not_lie_side_by_side() {
    let _alone = alone();
    let start = held();
    limit(0, start + 20 * MIB);
    let small = fill_up(4000);
    let (kept, given): (Vec<_>, Vec<_>) = small.into_iter().partition(|block| block.addr() >> 16 & 1 == 0);
    let bytes = given.len() * 4000;
    free_all(given, 4000);
    hakmem::purge();
    for size in [5000, 12_373, 33_000, 60_000, 65_536] {
        let mut blocks = fill_up(size);
        let (got, at_least) = (blocks.len() * size, bytes / 3);
        assert!(got >= at_least, "{size}: {got} of {bytes} bytes");
        let mut pages: Vec<_> = blocks.iter().flat_map(|b| [b.addr(), b.addr() + size - 1]).collect();
        pages.sort();
        assert!(pages.chunks(2).all(|two| two[1] - two[0] == size - 1), "{size}: blocks overlap");
        // They come and go like others, and go home from other threads.
        for block in blocks.iter_mut().step_by(2) {
            free(*block, size);
            *block = make(size);
            assert!(!block.is_null());
        }
        let there: Vec<usize> = blocks.iter().map(|block| block.expose_provenance()).collect();
        std::thread::spawn(move || {
            there.into_iter().for_each(|block| free(std::ptr::with_exposed_provenance_mut(block), size));
        })
        .join()
        .unwrap();
        hakmem::purge();
    }
    free_all(kept, 4000);
    limit(0, 0);
    hakmem::purge();
}

#[test]
fn the_hard_limit_refuses_and_the_process_recovers() {
    let _alone = alone();
    for size in [40, 1000, 60_000, 300_000, MIB, 3 * MIB / 2, 7 * MIB] {
        let (start, before) = (held(), stats().hard_limit_hits);
        let hard = start + 21 * MIB;
        limit(0, hard);
        // A SuperSlab holds three runs of 300,000 bytes and their page: a good third may be left over.
        let mut blocks = fill_up(size);
        assert!(held() <= hard && held() + size.max(2 * MIB) > hard, "{size}: {} of {hard}", held());
        assert!(blocks.len() * size <= 21 * MIB + 2 * MIB && blocks.len() * size > 9 * MIB, "{size}");
        assert_eq!(stats().hard_limit_hits, before + 1, "{size}");
        // Every way to ask for more.
        let last = blocks.pop().unwrap();
        mark(last, size);
        // SAFETY: the sizes are not zero; made with this layout.
        unsafe {
            assert!(OURS.alloc_zeroed(layout(22 * MIB)).is_null());
            assert!(OURS.alloc(Layout::from_size_align(22 * MIB, 1 << 16).unwrap()).is_null());
            assert!(OURS.realloc(last, layout(size), size + 22 * MIB).is_null());
        }
        assert_eq!(stats().hard_limit_hits, before + 4, "{size}");
        assert!(marked(last, size), "what could not grow is as it was");
        free(last, size);
        blocks.extend([make(size)]);
        assert!(!blocks.last().unwrap().is_null(), "{size}: one was freed");
        free_all(blocks, size);
        let again = fill_up(size);
        assert!(again.len() * size > 9 * MIB, "{size}: all was freed");
        free_all(again, size);
        limit(0, 0);
        hakmem::purge();
        let more = make(22 * MIB);
        assert!(!more.is_null(), "no limit any more");
        free(more, 22 * MIB);
        hakmem::purge();
    }
}

#[test]
fn a_limit_below_what_is_held_stops_growth_only() {
    let _alone = alone();
    let small: Vec<*mut u8> = (0..1000).map(|_| make(100)).collect();
    let large = make(10 * MIB);
    limit(1, 1);
    assert!(make(2 * MIB).is_null());
    // There is room in the SuperSlab, and a thread's heap is not counted.
    let others = std::thread::spawn(|| {
        let blocks: Vec<usize> = (0..1000).map(|_| make(500).expose_provenance()).collect();
        assert!(!blocks.contains(&0));
        blocks
    });
    let others: Vec<*mut u8> =
        others.join().unwrap().into_iter().map(std::ptr::with_exposed_provenance_mut).collect();
    // Shrinking: in place, or not at all.
    // SAFETY: made with this layout.
    let shrunk = unsafe { OURS.realloc(large, layout(10 * MIB), 4 * MIB) };
    mark(shrunk, 4 * MIB);
    free(shrunk, 4 * MIB);
    free_all(small, 100);
    free_all(others, 500);
}

#[test]
fn a_large_block_that_cannot_shrink_stays() {
    let _alone = alone();
    hakmem::purge();
    let block = make(3 * MIB);
    // As a run it would need a SuperSlab; fill those that there are.
    limit(0, held().max(1));
    let runs = fill_up(MIB);
    let rest = fill_up(100_000);
    // SAFETY: made with this layout.
    let shrunk = unsafe { OURS.realloc(block, layout(3 * MIB), 100_001) };
    assert_eq!(shrunk, block);
    mark(shrunk, 100_001);
    free(shrunk, 100_001);
    free_all(runs, MIB);
    free_all(rest, 100_000);
}

#[test]
fn what_is_free_goes_before_anything_is_refused() {
    let _alone = alone();
    let start = held();
    let hits = stats().hard_limit_hits;
    limit(0, start + 40 * MIB);
    // A freed mapping that does not fit.
    free(make(20 * MIB), 20 * MIB);
    let block = make(30 * MIB);
    assert!(!block.is_null());
    // A mapping that grows, by moving if need be, has only the difference added.
    let other = make(9 * MIB);
    free(other, 9 * MIB);
    // SAFETY: made with this layout.
    let grown = unsafe { OURS.realloc(block, layout(30 * MIB), 38 * MIB) };
    assert!(!grown.is_null());
    assert_eq!(held(), start + 38 * MIB);
    mark(grown, 38 * MIB);
    free(grown, 38 * MIB);
    // SuperSlabs that hold nothing but what this thread has in its magazines.
    free_all((0..150_000).map(|_| make(200)).collect(), 200);
    let block = make(39 * MIB);
    assert!(!block.is_null());
    free(block, 39 * MIB);
    hakmem::purge();
    free(make(39 * MIB), 39 * MIB);
    // And the other way round.
    free_all((0..150_000).map(|_| make(200)).collect(), 200);
    assert_eq!(stats().hard_limit_hits, hits);
    assert!(held() <= start + 40 * MIB);
}

/// What the system gave, by another count than the allocator's: lengths of live mappings.
#[test]
fn racing_threads_never_exceed_the_hard_limit() {
    let _alone = alone();
    let start = held();
    let hard = start + 24 * MIB;
    limit(start + 16 * MIB, hard);
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    static DONE: AtomicBool = AtomicBool::new(false);
    let refused = AtomicUsize::new(0);
    let rounds = if cfg!(miri) { 5 } else { 3000 };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8usize)
            .map(|n| {
                let refused = &refused;
                scope.spawn(move || {
                    let mut random = n as u64 + 1;
                    let mut next = move || {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        random as usize
                    };
                    let mut mine: Vec<(*mut u8, usize)> = Vec::new();
                    for _ in 0..rounds {
                        if mine.len() > 4 || next() % 3 == 0 && !mine.is_empty() {
                            let (block, size) = mine.swap_remove(next() % mine.len());
                            LIVE.fetch_sub(size, SeqCst);
                            free(block, size);
                            continue;
                        }
                        let size = MIB + (1 + next() % 800) * 4096;
                        let block = make(size);
                        if block.is_null() {
                            refused.fetch_add(1, SeqCst);
                            // What grows is refused, too, and stays.
                            if let Some(last) = mine.last_mut() {
                                // SAFETY: made with this layout.
                                let grown = unsafe { OURS.realloc(last.0, layout(last.1), last.1 + size) };
                                if !grown.is_null() {
                                    *last = (grown, last.1 + size);
                                    mark(grown, last.1);
                                    assert!(LIVE.fetch_add(size, SeqCst) + size <= hard - start);
                                }
                            }
                            continue;
                        }
                        assert!(LIVE.fetch_add(size, SeqCst) + size <= hard - start);
                        mine.push((block, size));
                    }
                    for (block, size) in mine {
                        LIVE.fetch_sub(size, SeqCst);
                        free(block, size);
                    }
                })
            })
            .collect();
        let watcher = scope.spawn(|| {
            while !DONE.load(SeqCst) {
                assert!(held() <= hard);
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        DONE.store(true, SeqCst);
        watcher.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert!(cfg!(miri) || refused.into_inner() > 0, "the limit was never met");
    limit(0, 0);
    hakmem::purge();
    assert!(held() <= start, "{} more are held, and nobody has them", held() - start);
}

#[test]
fn memory_is_given_back_before_the_soft_limit_is_crossed() {
    let _alone = alone();
    hakmem::on_soft_limit(Some(count));
    let start = held();
    limit(start + 40 * MIB, 0);
    let hits = stats().soft_limit_hits;
    let block = make(12 * MIB);
    free(make(20 * MIB), 20 * MIB);
    // Zeroed, or what is kept would be made longer.
    // SAFETY: the size is not zero.
    let other = unsafe { OURS.alloc_zeroed(layout(26 * MIB)) };
    mark(other, 26 * MIB);
    assert_eq!(held(), start + 38 * MIB, "what was kept has gone");
    assert_eq!((stats().soft_limit_hits, calls()), (hits + 1, 0));
    // A mapping that grows.
    free(other, 26 * MIB);
    // SAFETY: made with this layout.
    let block = unsafe { OURS.realloc(block, layout(12 * MIB), 39 * MIB) };
    assert_eq!((held(), calls()), (start + 39 * MIB, 0));
    mark(block, 39 * MIB);
    free(block, 39 * MIB);
    hakmem::purge();
    // Small blocks that are free, for a large one; and runs that are free, for small ones.
    let hits = stats().soft_limit_hits;
    free_all((0..150_000).map(|_| make(200)).collect(), 200);
    let block = make(38 * MIB);
    assert!(held() <= start + 40 * MIB);
    assert_eq!((stats().soft_limit_hits, calls()), (hits + 1, 0));
    free(block, 38 * MIB);
}

#[test]
fn the_hook_is_called_once_for_each_crossing() {
    let _alone = alone();
    hakmem::on_soft_limit(Some(count));
    let soft = held() + 32 * MIB;
    limit(soft, 0);
    let mut blocks: Vec<*mut u8> = (0..16).map(|_| make(2 * MIB)).collect();
    assert_eq!((held(), calls()), (soft, 0), "at the limit is not beyond");
    for _ in 0..16 {
        blocks.push(make(2 * MIB));
    }
    assert_eq!((held(), calls()), (soft + 32 * MIB, 1));
    assert_eq!((HEARD[0].load(SeqCst), HEARD[1].load(SeqCst)), (soft + 2 * MIB, soft));
    let give_back = |blocks: &mut Vec<*mut u8>, count: usize| {
        free_all(blocks.split_off(blocks.len() - count), 2 * MIB);
        hakmem::purge();
    };
    // A little below is not below.
    give_back(&mut blocks, 17);
    assert_eq!(held(), soft - 2 * MIB);
    let hits = stats().soft_limit_hits;
    blocks.extend((0..17).map(|_| make(2 * MIB)));
    assert_eq!(calls(), 0);
    assert!(stats().soft_limit_hits >= hits + 4, "but growing again is growing");
    // An eighth is; be the limit crossed by small blocks.
    give_back(&mut blocks, 20);
    assert!(held() < soft - soft / 8);
    let small: Vec<*mut u8> = (0..100_000).map(|_| make(200)).collect();
    assert!(held() > soft);
    assert_eq!(calls(), 1);
    // Setting a limit counts as not crossed; taking the hook or the limit away is enough.
    limit(soft, 0);
    blocks.push(make(2 * MIB));
    assert_eq!(calls(), 1);
    limit(soft, 0);
    hakmem::on_soft_limit(None);
    blocks.push(make(2 * MIB));
    hakmem::on_soft_limit(Some(count));
    limit(0, 0);
    let hits = stats().soft_limit_hits;
    blocks.extend((0..20).map(|_| make(2 * MIB)));
    assert_eq!((calls(), stats().soft_limit_hits), (0, hits));
    // By one large step that the hard limit lets pass; and not by one that it does not.
    limit(held() + MIB, held() + 30 * MIB);
    assert!(make(31 * MIB).is_null());
    assert_eq!(calls(), 0);
    blocks.push(make(20 * MIB));
    assert_eq!(calls(), 1);
    free(blocks.pop().unwrap(), 20 * MIB);
    free_all(blocks, 2 * MIB);
    free_all(small, 200);
}

#[test]
fn racing_threads_cross_once() {
    let _alone = alone();
    hakmem::on_soft_limit(Some(count));
    let address = |block: *mut u8| block.expose_provenance();
    for round in 0..20 {
        limit(held() + 20 * MIB, 0);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(move || -> Vec<usize> {
                    fill_some(3 * MIB / 2, 6).into_iter().map(address).collect()
                })
            })
            .collect();
        // None is freed before all are there.
        let blocks: Vec<usize> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        for block in blocks {
            assert_ne!(block, 0, "a soft limit refuses nothing");
            free(std::ptr::with_exposed_provenance_mut(block), 3 * MIB / 2);
        }
        assert_eq!(calls(), 1, "in round {round}");
        hakmem::purge();
    }
}

#[test]
fn purges_beyond_the_soft_limit_are_few() {
    let _alone = alone();
    let soft = held() + 64 * MIB;
    for size in [5 * MIB / 4, 500_000, 200] {
        limit(soft, 0);
        let hits = stats().soft_limit_hits;
        let blocks = fill_some(size, 3 * soft / size);
        let (step, beyond) = (soft / 16, held() - soft);
        let purges = (stats().soft_limit_hits - hits) as usize;
        assert!(beyond > soft && purges >= beyond / step / 2, "{size}: {purges} purges on {beyond} bytes");
        assert!(purges <= beyond / step + 2, "{size}: {purges} purges on {beyond} bytes");
        // Coming and going within a step costs none.
        let hits = stats().soft_limit_hits;
        for _ in 0..100 {
            free(make(3 * MIB), 3 * MIB);
            hakmem::purge();
        }
        assert!(stats().soft_limit_hits - hits <= 1);
        limit(0, 0);
        free_all(blocks, size);
        hakmem::purge();
    }
}

#[test]
fn purges_just_below_the_soft_limit_are_few() {
    let _alone = alone();
    limit(held() + 128 * MIB, 0);
    let most = make(125 * MIB);
    let hits = stats().soft_limit_hits;
    for i in 0..50 {
        // Each a little longer than the one before, which is kept: so each needs a mapping, and a purge would
        // make room.
        let size = 2 * MIB + i * 16384;
        // SAFETY: the size is not zero.
        let block = unsafe { OURS.alloc_zeroed(layout(size)) };
        mark(block, size);
        free(block, size);
    }
    let purges = stats().soft_limit_hits - hits;
    assert!((1..=25).contains(&purges), "{purges}");
    free(most, 125 * MIB);
}

/// A hook that allocates, frees so much that the limit could be crossed again, and crosses it again.
fn busy(held_then: usize, soft: usize) {
    assert_eq!(CALLS.fetch_add(1, SeqCst), 0, "called again while it runs");
    assert!(held_then > soft);
    let reserve: *mut u8 = std::ptr::with_exposed_provenance_mut(RESERVE.swap(0, SeqCst));
    free(reserve, 30 * MIB);
    hakmem::purge();
    assert!(held() < soft - soft / 8);
    let small: Vec<*mut u8> = (0..1000).map(|_| make(300)).collect();
    let large = make(40 * MIB);
    assert!(held() > soft && !large.is_null());
    limit(soft, 0);
    free_all(fill_some(2 * MIB, 20), 2 * MIB);
    free(large, 40 * MIB);
    free_all(small, 300);
    hakmem::purge();
}

static RESERVE: AtomicUsize = AtomicUsize::new(0);

fn fill_some(size: usize, count: usize) -> Vec<*mut u8> {
    (0..count).map(|_| make(size)).collect()
}

#[test]
fn the_hook_may_allocate_and_free() {
    let _alone = alone();
    let soft = held() + 40 * MIB;
    hakmem::on_soft_limit(Some(busy));
    limit(soft, 0);
    RESERVE.store(make(30 * MIB).expose_provenance(), SeqCst);
    calls();
    let blocks = fill_some(2 * MIB, 8);
    assert_eq!(calls(), 1);
    assert!(held() < soft);
    // After it has returned, it can be called again.
    hakmem::on_soft_limit(Some(count));
    let more = fill_some(2 * MIB, 20);
    assert_eq!(calls(), 1);
    free_all(more, 2 * MIB);
    free_all(blocks, 2 * MIB);
}

#[test]
fn impossible_limits_change_nothing() {
    let _alone = alone();
    limit(0, held() + 10 * MIB);
    assert_eq!(hakmem::set_limits(Limits { soft: 2, hard: 1 }), Err(InvalidLimits));
    assert!(InvalidLimits.to_string().contains("soft limit is above the hard limit"));
    assert!(make(11 * MIB).is_null(), "those of before");
    assert_eq!(hakmem::set_limits(Limits { soft: 1, hard: 0 }), Ok(()));
    let block = make(11 * MIB);
    assert!(!block.is_null());
    free(block, 11 * MIB);
}

/// Run by the next test, in a process of its own.
#[test]
#[ignore = "ends the process"]
fn with_a_hook_that_panics() {
    let _alone = alone();
    hakmem::on_soft_limit(Some(|_, _| panic!("from the hook")));
    let block = make(3 * MIB);
    limit(1, 0);
    // Of the ways to the hook the one without a function that cannot unwind.
    // SAFETY: made with this layout.
    unsafe { OURS.realloc(block, layout(3 * MIB), 5 * MIB) };
    println!("alive");
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_hook_that_panics_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "with_a_hook_that_panics", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text =
        [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert_eq!(output.status.signal(), Some(6), "{text}");
    assert!(text.contains("from the hook") && !text.contains("alive"), "{text}");
}
