//! The soft limit on what is held from the system, and the hook that is called when it is crossed.

#[path = "support/limits.rs"]
mod support;

use std::alloc::GlobalAlloc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use support::*;

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

/// More than a step at once, which the hard limit refuses each time it is asked for.
#[test]
fn what_is_refused_again_purges_nothing() {
    let _alone = alone();
    for size in [200, 70_000] {
        refused_again(size);
    }
}

/// Beside blocks of this size: small ones, or with gaps as long as each.
fn refused_again(size: usize) {
    hakmem::purge();
    let start = held();
    limit(start + 32 * MIB, start + 48 * MIB);
    let mut blocks = Vec::new();
    while hakmem::bytes_held() < start + 42 * MIB {
        blocks.push(make(size));
    }
    if size > 200 {
        let mut gap = false;
        blocks.retain(|&block| {
            gap = !gap;
            if gap {
                free(block, size);
            }
            !gap
        });
        hakmem::purge();
    }
    let hits = stats().soft_limit_hits;
    for _ in 0..20 {
        assert!(make(12 * MIB).is_null());
    }
    // After 16 ms, 32 and so on it is tried again.
    assert!(stats().soft_limit_hits <= hits + 10, "{:?}", stats());
    // What can be had beyond the soft limit is purged for even so, if that is due.
    let hits = stats().soft_limit_hits;
    let block = make(4 * MIB);
    assert!(!block.is_null() && stats().soft_limit_hits == hits + 1, "{:?}", stats());
    free(block, 4 * MIB);
    free_all(blocks, size);
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
