//! What is held from the system, and the hard limit on that.

#[path = "support/limits.rs"]
mod support;

use hakmem::{InvalidLimits, Limits};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use support::*;

#[test]
fn held_is_exact() {
    let _alone = alone();
    let start = held();
    let block = make(5 * MIB);
    assert_eq!(held(), start + 5 * MIB);
    assert_eq!(hakmem::bytes_held(), held(), "the figure by itself");
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
    assert_eq!((held(), hakmem::bytes_held()), (start, start));
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

/// The system may refuse to move a mapping, for which nothing is purged, however far away the limit is.
#[test]
#[cfg_attr(miri, ignore = "has no madvise")]
fn only_what_a_limit_keeps_from_growing_is_purged_for() {
    let _alone = alone();
    hakmem::purge();
    limit(0, held() + 1024 * MIB);
    let block = make(8 * MIB);
    // Behind it nothing is free, and in two parts it cannot be moved.
    let page = 64 << 10;
    let middle = (block.addr() + 4 * MIB).next_multiple_of(page) - block.addr();
    // SAFETY: inside the block.
    assert_eq!(unsafe { libc::madvise(block.add(middle).cast(), page, libc::MADV_DONTDUMP) }, 0);
    free(make(20 * MIB), 20 * MIB);
    let before = stats();
    // SAFETY: made with this layout.
    let block = unsafe { OURS.realloc(block, layout(8 * MIB), 9 * MIB) };
    assert!(!block.is_null());
    assert_eq!(stats().bytes_purged, before.bytes_purged);
    mark(block, 9 * MIB);
    free(block, 9 * MIB);
    limit(0, 0);
}

#[test]
fn impossible_limits_change_nothing() {
    let _alone = alone();
    limit(0, held() + 10 * MIB);
    assert_eq!(hakmem::set_limits(Limits { soft: 2, hard: 1 }), Err(InvalidLimits));
    assert!(InvalidLimits.to_string().contains("soft limit is above the hard limit"));
    assert!(make(11 * MIB).is_null(), "those of before");
    assert_ne!(hakmem::limits(), Limits { soft: 2, hard: 1 });
    assert_eq!(hakmem::set_limits(Limits { soft: 1, hard: 0 }), Ok(()));
    assert_eq!(hakmem::limits(), Limits { soft: 1, hard: 0 });
    let block = make(11 * MIB);
    assert!(!block.is_null());
    free(block, 11 * MIB);
}
