//! The live figures: exact to the byte while nobody allocates, and their sums hold.

#[path = "support/figures.rs"]
mod support;

use hakmem::{ClassStats, class_stats, purge, stats};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use support::*;

#[test]
fn every_block_is_somewhere_whoever_has_it() {
    let _alone = alone();
    let workers = [Worker::new(), Worker::new(), Worker::new()];
    let mut live: Vec<_> = workers.iter().flat_map(|w| w.run(|| take_some(500))).collect();
    let full = assert_live(&live);
    assert!(full.fresh_bytes > 0 && full.slack_bytes > 0 && full.untouched_bytes > 0, "{full:?}");

    // A third of everybody's blocks, freed by the next one: a part waits in outboxes, a part on the slabs'
    // stacks.
    for w in &workers {
        let gone = third(&mut live);
        w.run(move || gone.into_iter().for_each(give));
        let s = assert_live(&live);
        assert!(s.cached_bytes > 0 && s.free_bytes > 0 && s.dirty_bytes > 0, "{s:?}");
    }
    // What waited is taken in, in part.
    for w in &workers {
        live.extend(w.run(|| take_some(100)));
        assert_live(&live);
    }
    // Two leave orphans behind, and blocks are freed into these.
    let [first, second, third_worker] = workers;
    first.end();
    second.end();
    assert_live(&live);
    let gone = third(&mut live);
    third_worker.run(move || gone.into_iter().for_each(give));
    assert_live(&live);
    // They are adopted.
    live.extend(third_worker.run(|| take_some(300)));
    assert_live(&live);

    let rest = std::mem::take(&mut live);
    third_worker.run(move || rest.into_iter().for_each(give));
    let s = assert_live(&[]);
    assert!(s.cached_bytes > 0 && s.dirty_bytes > 0, "{s:?}");
    third_worker.run(purge);
    let s = assert_live(&[]);
    assert_eq!((s.active_bytes, s.cached_bytes, s.free_bytes, s.dirty_bytes), (0, 0, 0, 0), "{s:?}");
    assert!(class_stats().iter().all(|c| !c.is_used()));
    third_worker.end();
}

#[test]
fn the_parts_of_one_class() {
    let _alone = alone();
    let worker = Worker::new();
    // 64 KiB pages, 65 blocks of 1,000 bytes (class 1,024: 64 of them) in each slab, 60 in one behind the
    // header.
    let mut blocks: Vec<_> = worker.run(|| (0..10).map(|_| (take(1024), 1024)).collect());
    let c = class(1024);
    let (page, header) = (64 * KIB as u64, 4 * KIB as u64);
    assert!([page, page - header].contains(&c.active_bytes), "{c:?}");
    let per_slab = c.active_bytes / 1024;
    assert_eq!((c.slabs, c.blocks, c.allocated_bytes, c.slack_bytes), (1, 10, 10 * 1024, 0));
    assert_eq!((c.cached_blocks, c.free_blocks, c.fresh_blocks), (0, 0, per_slab - 10));
    // Ten blocks reach into the third page of the system.
    assert_eq!(c.resident_bytes, 12 * KIB as u64);

    // Up to eight fit into a magazine at first, so they stay there.
    let gone: Vec<_> = blocks.drain(..5).collect();
    worker.run(move || gone.into_iter().for_each(give));
    let c = class(1024);
    assert_eq!((c.blocks, c.cached_blocks, c.free_blocks), (5, 5, 0), "{c:?}");
    worker.run(purge);
    let c = class(1024);
    assert_eq!((c.blocks, c.cached_blocks, c.free_blocks, c.fresh_blocks), (5, 0, 5, per_slab - 10), "{c:?}");

    // Another thread's frees wait in its outbox, then at the slab.
    let other = Worker::new();
    let gone: Vec<_> = blocks.drain(..3).collect();
    other.run(move || {
        let own = (take(1024), 1024);
        gone.into_iter().for_each(give);
        give(own);
    });
    let c = class(1024);
    assert_eq!((c.slabs, c.blocks, c.cached_blocks, c.free_blocks), (2, 2, 4, 5), "{c:?}");
    other.run(purge);
    let c = class(1024);
    assert_eq!((c.slabs, c.blocks, c.cached_blocks, c.free_blocks), (1, 2, 0, 8), "{c:?}");
    // Its owner ends; what it leaves behind counts on.
    worker.end();
    let c = class(1024);
    assert_eq!((c.slabs, c.blocks, c.cached_blocks, c.free_blocks), (1, 2, 0, 8), "{c:?}");
    assert_eq!(c.fresh_blocks, per_slab - 10);
    other.run(move || blocks.into_iter().for_each(give));
    other.run(purge);
    assert!(!class(1024).is_used());
    other.end();
    check();
}

#[test]
fn blocks_in_an_outbox_count_as_cached() {
    let _alone = alone();
    let (owner, other) = (Worker::new(), Worker::new());
    // So many that a magazine of the other thread overflows into its outbox, in which a few are left over.
    let blocks: Vec<_> = owner.run(|| (0..1003).map(|_| (take(2048), 2048)).collect());
    let sent = stats().outbox_blocks;
    let freed = blocks.clone();
    other.run(move || freed.into_iter().take(1001).for_each(give));
    let (c, s) = (class(2048), check());
    assert!(s.outbox_blocks > sent, "some went through the outbox");
    assert_eq!((c.blocks, c.cached_blocks + c.free_blocks), (2, 1001), "{c:?}");
    assert_eq!(s.cached_bytes, c.cached_blocks * 2048);
    owner.run(move || blocks.into_iter().skip(1001).for_each(give));
    other.end();
    assert_eq!(class(2048).blocks, 0);
    owner.end();
    check();
}

/// Blocks of so many slabs that they are in each other's way in the outbox, where some are set aside.
#[test]
#[cfg_attr(miri, ignore)]
fn blocks_that_an_outbox_sets_aside_count_as_cached() {
    let _alone = alone();
    const SLABS: usize = 300;
    const PER_SLAB: usize = 1023;
    let (owner, other) = (Worker::new(), Worker::new());
    let mut blocks: Vec<_> = owner.run(|| (0..SLABS * PER_SLAB).map(|_| (take(64), 64)).collect());
    // The other thread's magazine grows, and is full.
    let kept = blocks.split_off(4 * PER_SLAB);
    other.run(move || blocks.into_iter().for_each(give));
    // Three times a block of each slab.
    let gone: Vec<_> = (0..3).flat_map(|i| kept.iter().skip(i).step_by(PER_SLAB).copied()).collect();
    let (mut left, sent) = (kept.len(), stats().outbox_pushes);
    for part in gone.chunks(50) {
        let part = part.to_vec();
        left -= part.len();
        other.run(move || part.into_iter().for_each(give));
        let (c, s) = (class(64), check());
        assert_eq!(c.blocks, left as u64, "{c:?}");
        assert_eq!(s.cached_bytes, c.cached_blocks * 64);
    }
    assert!(stats().outbox_pushes > sent, "some were in the way");
    other.end();
    assert_eq!(class(64).blocks, left as u64);
    let gone: std::collections::BTreeSet<_> = gone.into_iter().collect();
    owner.run(move || kept.into_iter().filter(|block| !gone.contains(block)).for_each(give));
    assert_eq!(class(64).blocks, 0);
    owner.end();
    check();
}

#[test]
fn large_blocks_have_rows_of_their_own() {
    let _alone = alone();
    let worker = Worker::new();
    let before = check();
    let (runs, direct) = worker.run(|| {
        let runs: Vec<_> = [65 * KIB + 1, 128 * KIB, 960 * KIB].map(|size| (take(size), size)).into();
        let direct: Vec<_> = [960 * KIB + 1, 5 * MIB].map(|size| (take(size), size)).into();
        (runs, direct)
    });
    let all = || (class_stats()[ClassStats::RUNS], class_stats()[ClassStats::DIRECT]);
    let (r, d) = all();
    let pages = 2 + 2 + 15;
    assert_eq!((r.blocks, r.active_bytes, r.slabs), (3, pages * 64 * KIB as u64, 0), "{r:?}");
    assert_eq!((d.blocks, d.active_bytes, d.slabs), (2, (5 * MIB + 964 * KIB) as u64, 0), "{d:?}");
    let during = check();
    assert_eq!(
        (during.dirty_bytes, during.allocated_bytes),
        (before.dirty_bytes, r.active_bytes + d.active_bytes)
    );

    // Runs go to the shelf, as far as they fit, mappings to the cache: all of it may be resident.
    worker.run(move || runs.into_iter().chain(direct).for_each(give));
    let after = check();
    assert_eq!(all(), Default::default());
    let freed = r.active_bytes + d.active_bytes;
    assert_eq!((after.dirty_bytes, after.active_bytes), (before.dirty_bytes + freed, before.active_bytes));
    assert_eq!(after.resident_bytes - after.metadata_bytes, during.resident_bytes - during.metadata_bytes);
    // One of each comes from there.
    let again = worker.run(|| [(take(960 * KIB), 960 * KIB), (take(5 * MIB), 5 * MIB)]);
    let (r, d) = all();
    assert_eq!((r.blocks, r.active_bytes, d.blocks), (1, 960 * KIB as u64, 1));
    assert_eq!(check().dirty_bytes, after.dirty_bytes - r.active_bytes - d.active_bytes);
    worker.run(move || again.into_iter().for_each(give));
    worker.run(purge);
    assert_eq!(check().dirty_bytes, 0);
    worker.end();
}

/// Figures of a heap that another thread has visited: magazines with holes, and slabs given back while their
/// owner sleeps.
#[test]
fn what_visitors_leave_counts() {
    let _alone = alone();
    let (owner, other) = (Worker::new(), Worker::new());
    let count = if cfg!(miri) { 500 } else { 100_000 };
    let mut blocks = owner.run(move || (0..count).map(|_| (take(200), 200)).collect::<Vec<_>>());
    let stride = check().allocated_bytes / count as u64;
    // The owner's magazine holds some, a slab here and there gets a block back from it.
    let gone: Vec<_> = blocks.iter().copied().step_by(100).collect();
    let mut i = 0;
    blocks.retain(|_| {
        i += 1;
        (i - 1) % 100 != 0
    });
    owner.run(move || gone.into_iter().for_each(give));
    let before = assert_class(stride, blocks.len());
    assert!(before.cached_blocks > 2, "{before:?}");
    let overflows = stats().magazine_overflows;
    other.run(purge);
    let robbed = assert_class(stride, blocks.len());
    // The topmost block stays, and the owner's calls find it.
    assert_eq!(robbed.cached_blocks, 1, "{robbed:?}");
    assert_eq!(robbed.free_blocks, before.free_blocks + before.cached_blocks - 1, "{robbed:?}");
    assert_eq!(stats().magazine_overflows, overflows);

    // A magazine with holes is filled again, emptied in part, and robbed again.
    let few = owner.run(|| (0..3).map(|_| (take(200), 200)).collect::<Vec<_>>());
    assert_class(stride, blocks.len() + 3);
    owner.run(move || few.into_iter().for_each(give));
    let c = assert_class(stride, blocks.len());
    assert!(c.cached_blocks >= 3, "{c:?}");
    other.run(purge);
    assert_eq!(assert_class(stride, blocks.len()).cached_blocks, 1);

    // The other thread frees all but a few while the owner sleeps, and gives back what lies idle.
    let mut i = 0;
    let (kept, gone): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|_| {
        i += 1;
        i % 100 == 0
    });
    other.run(move || gone.into_iter().for_each(give));
    assert_class(stride, kept.len());
    other.run(purge);
    let c = assert_class(stride, kept.len());
    if cfg!(not(miri)) {
        assert!(c.resident_bytes < before.resident_bytes / 2, "{c:?}");
        assert!(c.fresh_blocks > before.blocks / 2, "{c:?}");
    }
    // The owner uses it again.
    let some = owner.run(move || (0..count / 2).map(|_| (take(200), 200)).collect::<Vec<_>>());
    assert_class(stride, kept.len() + some.len());
    owner.run(move || kept.into_iter().chain(some).for_each(give));
    assert_class(stride, 0);
    owner.end();
    other.run(purge);
    assert_eq!(check().active_bytes, 0);
    other.end();
}

/// While others work the figures are glimpses; asking disturbs nobody, and nothing in the figures goes below
/// zero.
#[test]
fn asking_disturbs_nobody() {
    let _alone = alone();
    let rounds = if cfg!(miri) { 1 } else { 30 };
    let busy = AtomicUsize::new(4);
    let asked = thread::scope(|scope| {
        let work = || {
            for _ in 0..rounds {
                // Threads that end, blocks that others free, large ones, and slabs that come and go.
                let mut blocks = thread::scope(|s| s.spawn(|| take_some(100)).join().unwrap());
                third(&mut blocks).into_iter().for_each(give);
                blocks.extend(take_some(30));
                blocks.into_iter().for_each(give);
                purge();
            }
            busy.fetch_sub(1, Relaxed);
        };
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        let asking = scope.spawn(|| {
            let mut asked = 0;
            while busy.load(Relaxed) > 0 {
                let (s, classes) = (stats(), class_stats());
                let sum: u64 = classes.iter().map(|c| c.active_bytes).sum();
                assert!(s.active_bytes < 1 << 32 && s.resident_bytes < 1 << 32 && sum < 1 << 32, "{s:?}");
                assert!(classes.iter().all(|c| c.resident_bytes <= c.active_bytes));
                asked += 1;
            }
            asked
        });
        // The scope's end would not wait for their destructors, in which they give back what they have.
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        asking.join().unwrap()
    });
    assert!(asked > 0);
    purge();
    let rest: Vec<_> = class_stats().into_iter().filter(ClassStats::is_used).collect();
    assert_eq!(check().active_bytes, 0, "{rest:?}");
}

#[test]
fn there_is_a_row_for_every_class() {
    let _alone = alone();
    let classes = class_stats();
    assert_eq!(classes.len(), ClassStats::COUNT);
    assert_eq!((ClassStats::RUNS, ClassStats::DIRECT), (classes.len() - 2, classes.len() - 1));
    let sizes: Vec<u64> = classes[..ClassStats::RUNS].iter().map(|c| c.block_bytes).collect();
    assert!(sizes.windows(2).all(|w| w[0] < w[1]) && sizes[0] == 8 && sizes[sizes.len() - 1] == 65536);
    assert!(classes[ClassStats::RUNS..].iter().all(|c| c.block_bytes == 0));
    for (row, &size) in sizes.iter().enumerate() {
        let block = take(size as usize);
        assert_eq!(class_stats()[row].blocks, 1, "{size}");
        check();
        give((block, size as usize));
        assert_eq!((class_stats()[row].blocks, class_stats()[row].cached_blocks), (0, 1), "{size}");
    }
    let mut names = Vec::new();
    classes[0].each(|name, value| names.push((name, value)));
    assert_eq!((names.len(), names[0]), (10, ("block_bytes", 8)));
    purge();
}
