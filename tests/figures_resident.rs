//! The live figures of residence, beside what the kernel says.

#[path = "support/figures.rs"]
mod support;

use hakmem::{Stats, purge};
use std::alloc::GlobalAlloc;
use support::*;

/// The kernel counts in steps; everything else that the process does is small beside this.
const NEAR: u64 = 2 * MIB as u64;

/// Checks that between two moments the two figures of residence have risen by about as much; how much by the
/// kernel's.
#[track_caller]
fn assert_near(before: &Stats, now: &Stats, what: &str) -> i64 {
    let of = |f: fn(&Stats) -> u64| f(now) as i64 - f(before) as i64;
    let (estimate, kernel) = (of(|s| s.resident_bytes), of(|s| s.resident_kernel_bytes));
    assert!(estimate.abs_diff(kernel) < NEAR, "{what}: {estimate} by the estimate, {kernel} by the kernel");
    kernel
}

/// The two figures of residence agree about memory that the program touches, frees and gives back.
#[test]
#[cfg_attr(miri, ignore)]
fn the_estimate_follows_the_kernel() {
    let _alone = alone();
    const SIZES: [usize; 5] = [64, 700, 20_000, 320 * KIB, 7_000_000];
    const TOUCHED: usize = 64 * MIB;
    let worker = Worker::new();
    // Resident from the start.
    let mut list = vec![1usize; TOUCHED / SIZES[0]];
    let mut before = check();
    let mut step = |what: &str, rises: i64| {
        let now = check();
        let kernel = assert_near(&before, &now, what);
        assert!(kernel.abs_diff(rises) < 2 * NEAR, "{what}: {kernel}");
        before = now;
        now
    };
    for size in SIZES {
        let count = TOUCHED / size;
        let bytes = (count * size) as i64;
        list = worker.run(move || {
            list.iter_mut().take(count).for_each(|block| *block = take(size));
            list
        });
        step("touched", bytes);
        list = worker.run(move || {
            list.iter().take(count).for_each(|&block| give((block, size)));
            list
        });
        worker.run(purge);
        step("given back", -bytes);
    }
    // Address space alone is not resident: a mapping of which one page is touched counts as a whole all the
    // same, and so the estimate is above what the kernel says, never below. SAFETY: the size is not zero.
    let block = unsafe { HAKMEM.alloc(layout(64 * MIB)) };
    let now = check();
    assert!(now.resident_bytes >= before.resident_bytes + 64 * MIB as u64);
    give((block as usize, 64 * MIB));
    purge();
    worker.end();
}

/// Slabs of which all but some blocks are free are given back in part; what is then free there is fresh, and
/// not resident.
#[test]
#[cfg_attr(miri, ignore)]
fn slabs_given_back_in_part() {
    let _alone = alone();
    const TOUCHED: usize = 100 * MIB;
    // SAFETY: it only asks. In longer pages than 4 KiB each would have a block of the last two that stays.
    let sizes = if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } == 4096 { 6 } else { 4 };
    for (size, keep) in
        [(200, 100), (2048, 50), (5000, 40), (48, 1000), (4000, 4), (3000, 5)].into_iter().take(sizes)
    {
        let (worker, count) = (Worker::new(), TOUCHED / size);
        // Resident from the start.
        let mut list = vec![(1, size); count];
        let before = check();
        list = worker.run(move || {
            list.iter_mut().for_each(|block| *block = (take(size), size));
            list
        });
        let stride = check().allocated_bytes / count as u64;
        let full = assert_class(stride, count);
        assert_near(&before, &check(), "touched");
        list = worker.run(move || {
            list.iter().enumerate().filter(|(i, _)| i % keep != 0).for_each(|(_, &block)| give(block));
            list
        });
        let kept = count.div_ceil(keep);
        assert_class(stride, kept);
        worker.run(purge);
        let after = assert_class(stride, kept);
        let what = format!("{size}: purged");
        assert_near(&before, &check(), &what);
        assert!(after.resident_bytes < full.resident_bytes / 2, "{what}: {after:?}");
        assert!(
            after.fresh_blocks * stride > full.active_bytes / 2 && after.cached_blocks == 0,
            "{what}: {after:?}"
        );

        // What was given back is handed out again, run by run: a half first.
        for (part, what) in [(count / 2, "a half again"), (count, "all again")] {
            list = worker.run(move || {
                let gone = list[..part].iter_mut().enumerate().filter(|(i, _)| i % keep != 0);
                // Those of the first half have been taken in the first round.
                gone.skip(if part == count { (count / 2) - (count / 2).div_ceil(keep) } else { 0 })
                    .for_each(|(_, block)| *block = (take(size), size));
                list
            });
            let taken = if part == count { count } else { part + kept - part.div_ceil(keep) };
            assert_class(stride, taken);
            assert_near(&before, &check(), &format!("{size}: {what}"));
        }
        assert_eq!(class(stride as usize).slabs, full.slabs, "no other slab was needed");
        // And once more, by a thread that finds them with nobody.
        list = worker.run(move || {
            list.iter().enumerate().filter(|(i, _)| i % keep != 0).for_each(|(_, &block)| give(block));
            list
        });
        worker.end();
        purge();
        assert_class(stride, kept);
        assert_near(&before, &check(), &format!("{size}: orphans"));
        let last = Worker::new();
        list = last.run(move || {
            let gone = list.iter_mut().enumerate().filter(|(i, _)| i % keep != 0);
            gone.for_each(|(_, block)| *block = (take(size), size));
            list
        });
        assert_class(stride, count);
        assert_near(&before, &check(), &format!("{size}: adopted"));
        last.run(move || list.into_iter().for_each(give));
        last.run(purge);
        assert_eq!(check().active_bytes, 0);
        last.end();
    }
}

/// The same, block by block: two blocks hold one slab, whose other pages are given back and used again.
#[test]
#[cfg_attr(miri, ignore)]
fn the_pages_of_one_slab() {
    let _alone = alone();
    const PAGE: usize = 4 * KIB;
    // Does not divide a page, and is a class.
    const SIZE: usize = 208;
    let worker = Worker::new();
    let mut blocks = worker.run(|| vec![take(SIZE)]);
    let c = class(SIZE);
    let (first, per_slab) = (blocks[0], c.active_bytes as usize / SIZE);
    // A second slab is the one that serves.
    blocks.extend(worker.run(move || (0..per_slab).map(|_| take(SIZE)).collect::<Vec<_>>()));
    assert_eq!((class(SIZE).slabs, first % PAGE), (2, 0));
    assert!(blocks[..per_slab].iter().enumerate().all(|(i, &block)| block == first + i * SIZE));
    // The first block, and one that lies in two pages.
    let keep = [0, 8 * PAGE / SIZE, per_slab];
    let gone: Vec<_> = (0..per_slab).filter(|i| !keep.contains(i)).map(|i| (blocks[i], SIZE)).collect();
    let full = class(SIZE);
    worker.run(move || gone.into_iter().for_each(give));
    worker.run(purge);
    let pages = |block: usize| block * SIZE / PAGE..=((block + 1) * SIZE - 1) / PAGE;
    let stays: Vec<_> = keep[..2].iter().flat_map(|&block| pages(block)).collect();
    assert_eq!(stays, [0, 7, 8]);
    let free = (0..per_slab).filter(|&block| pages(block).all(|page| stays.contains(&page))).count() - 2;
    let rest = full.active_bytes - full.slack_bytes;
    let fresh = rest / SIZE as u64 - free as u64 - 3;
    let c = assert_class(SIZE as u64, 3);
    assert_eq!((c.cached_blocks, c.free_blocks, c.fresh_blocks), (0, free as u64, fresh), "{c:?}");
    assert_eq!((c.slabs, c.resident_bytes), (2, 4 * PAGE as u64), "{c:?}");

    // A block from a page that was given back makes that resident, and no other; those before and behind are
    // what they were.
    let (mut live, mut last) = (3, c);
    while last.fresh_blocks + last.free_blocks > 0 {
        let block = worker.run(|| take(SIZE));
        live += 1;
        let c = assert_class(SIZE as u64, live);
        assert_eq!((c.slabs, c.cached_blocks), (2, 0), "{c:?}");
        assert_eq!(c.free_blocks + c.fresh_blocks, last.free_blocks + last.fresh_blocks - 1);
        let more = c.resident_bytes - last.resident_bytes;
        assert!(more <= 2 * PAGE as u64, "{more} for one block");
        if c.free_blocks < last.free_blocks {
            assert_eq!(more, 0, "{c:?}");
        }
        blocks.push(block);
        last = c;
    }
    // But for what has no block in it.
    assert!(last.active_bytes - last.resident_bytes <= last.slack_bytes, "{last:?}");
    let mut all = blocks.split_off(per_slab + 1);
    all.extend(keep.map(|i| blocks[i]));
    worker.run(move || all.into_iter().for_each(|block| give((block, SIZE))));
    worker.run(purge);
    assert!(!class(SIZE).is_used());
    worker.end();
}

#[test]
fn idle_records_are_retained_address_space() {
    let _alone = alone();
    let before = check();
    let workers: Vec<Worker> = (0..20).map(|_| Worker::new()).collect();
    let blocks: Vec<_> = workers.iter().map(|w| w.run(|| (take(64), 64))).collect();
    let during = check();
    // Each has a record with a page in use; a slab of which a page is in use.
    let records = during.metadata_bytes - before.metadata_bytes;
    assert!(records <= 20 * 4096 + 3 * 4096, "{records}");
    let c = class(64);
    assert_eq!((c.blocks, c.slabs, c.resident_bytes), (20, 20, 20 * 4096), "{c:?}");
    assert_eq!(c.resident_bytes, c.active_bytes - during.untouched_bytes);
    for (w, block) in workers.iter().zip(blocks) {
        w.run(move || give(block));
    }
    assert_eq!(class(64).cached_blocks, 20);
    workers.into_iter().for_each(Worker::end);
    let after = check();
    assert_eq!((class(64).is_used(), after.active_bytes), (false, 0));
}

/// What a slab has not handed out counts as resident where something else was before.
#[test]
fn a_slab_in_dirty_pages_is_resident() {
    let _alone = alone();
    let worker = Worker::new();
    let first = worker.run(|| (take(64 * KIB), 64 * KIB));
    let all = worker.run(|| (0..15).map(|_| (take(64 * KIB), 64 * KIB)).collect::<Vec<_>>());
    // The slabs are given back when their thread ends, and their pages stay as they are.
    worker.run(move || all.into_iter().for_each(give));
    worker.run(move || give(first));
    worker.end();
    let s = check();
    assert_eq!((s.active_bytes, s.dirty_bytes), (0, MIB as u64), "{s:?}");
    let worker = Worker::new();
    let block = worker.run(|| (take(24 * KIB), 24 * KIB));
    let c = class(24 * KIB);
    assert_eq!((c.slabs, c.active_bytes, c.resident_bytes), (1, 256 * KIB as u64, 256 * KIB as u64), "{c:?}");
    let s = check();
    assert_eq!((s.untouched_bytes, s.dirty_bytes), (0, (MIB - 256 * KIB) as u64), "{s:?}");
    // Given back to the system, and taken again, it is not resident before it is used.
    worker.run(move || give(block));
    worker.run(purge);
    let block = worker.run(|| (take(24 * KIB), 24 * KIB));
    assert_eq!(class(24 * KIB).resident_bytes, 24 * KIB as u64);
    worker.run(move || give(block));
    worker.end();
}

/// A thread's record grows with its magazines and when its outbox is first used, and stays when the thread
/// ends.
#[test]
fn records_count_as_far_as_they_are_used() {
    let _alone = alone();
    // Heaps that were used before may serve again: so enough of them that one is new.
    let workers: Vec<Worker> = (0..64).map(|_| Worker::new()).collect();
    for worker in &workers {
        worker.run(|| give((take(64), 64)));
    }
    let metadata = || check().metadata_bytes;
    let newest = &workers[63];
    let before = metadata();
    // Slots for 255 blocks each of ten classes, and those that the magazines had before they grew.
    newest.run(|| {
        for size in 1..=10 {
            let blocks: Vec<_> = (0..300).map(|_| take(8 * size)).collect();
            blocks.into_iter().for_each(|block| give((block, 8 * size)));
        }
    });
    let grown = metadata() - before;
    assert!((20 << 10..64 << 10).contains(&grown), "{grown}");
    let blocks: Vec<_> = workers[0].run(|| (0..10).map(|_| (take(6_000), 6_000)).collect());
    let before = metadata();
    newest.run(move || blocks.into_iter().for_each(give));
    assert_eq!(metadata() - before, 4096, "the outbox");
    // Of so many slabs that blocks are in each other's way there, after others for which the magazine grows.
    let blocks: Vec<_> = workers[0].run(|| (0..300 * 1023).map(|_| (take(64), 64)).collect());
    let (first, rest) = blocks.split_at(4 * 1023);
    let first = first.to_vec();
    newest.run(move || first.into_iter().for_each(give));
    let (spread, rest): (Vec<_>, Vec<_>) =
        rest.iter().enumerate().map(|(i, block)| (i, *block)).partition(|(i, _)| i % 1023 == 0);
    let before = metadata();
    newest.run(move || spread.into_iter().for_each(|(_, block)| give(block)));
    assert_eq!(metadata() - before, 4096, "what is set aside");
    workers[0].run(move || rest.into_iter().for_each(|(_, block)| give(block)));
    let before = metadata();
    workers.into_iter().for_each(Worker::end);
    assert_eq!(metadata(), before);
    // The next thread takes over the record that was given up last.
    let next = Worker::new();
    next.run(|| give((take(64), 64)));
    assert_eq!(metadata(), before);
    next.end();
}
