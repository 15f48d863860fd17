//! The live figures: exact to the byte while nobody allocates, and their sums hold.
//!
//! The allocator under test is not the program's own, so nothing but the test moves its figures.

use hakmem::{ClassStats, Hakmem, Options, Stats, Thp, class_stats, purge, stats};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

/// Nothing goes back for its age, so that no clock matters.
static HAKMEM: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(-1).thp(Thp::Never));

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// One test at a time, with nothing left of the one before but the records that everything needs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    [64, 2 * MIB].into_iter().for_each(|size| give((take(size), size)));
    purge();
    assert_eq!(check().active_bytes, 0);
    guard
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// A block with something in every 4 KiB.
fn take(size: usize) -> usize {
    // SAFETY: no layout here is of size 0, and what is written to is inside.
    unsafe {
        let block = HAKMEM.alloc(layout(size));
        assert!(!block.is_null());
        (0..size).step_by(4096).for_each(|at| block.add(at).write(1));
        block as usize
    }
}

fn give((block, size): (usize, usize)) {
    // SAFETY: a block of `take`, which is freed once.
    unsafe { HAKMEM.dealloc(block as *mut u8, layout(size)) }
}

/// A thread that does what it is told, and is otherwise quiet.
struct Worker {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
    handle: JoinHandle<()>,
}

impl Worker {
    fn new() -> Self {
        let (jobs, todo) = channel::<Box<dyn FnOnce() + Send>>();
        Self { jobs, handle: thread::spawn(move || todo.into_iter().for_each(|job| job())) }
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.jobs.send(Box::new(move || done.send(job()).unwrap())).unwrap();
        result.recv().unwrap()
    }

    fn end(self) {
        drop(self.jobs);
        self.handle.join().unwrap();
    }
}

/// The figures of this moment, whose sums are checked.
#[track_caller]
fn check() -> Stats {
    let (s, classes) = (stats(), class_stats());
    let parts = s.allocated_bytes + s.cached_bytes + s.free_bytes + s.fresh_bytes + s.slack_bytes;
    assert_eq!(s.active_bytes, parts, "{s:?}");
    assert_eq!(
        s.resident_bytes,
        s.active_bytes - s.untouched_bytes + s.dirty_bytes + s.metadata_bytes,
        "{s:?}"
    );
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
    for c in &classes {
        let blocks = c.cached_blocks + c.free_blocks + c.fresh_blocks;
        assert_eq!(c.active_bytes, c.allocated_bytes + blocks * c.block_bytes + c.slack_bytes, "{c:?}");
        assert!(c.resident_bytes <= c.active_bytes, "{c:?}");
        assert_eq!(c.is_used(), c.active_bytes > 0);
    }
    let sum = |f: fn(&ClassStats) -> u64| classes.iter().map(f).sum::<u64>();
    assert_eq!(s.allocated_bytes, sum(|c| c.allocated_bytes));
    assert_eq!(s.cached_bytes, sum(|c| c.cached_blocks * c.block_bytes));
    assert_eq!(s.free_bytes, sum(|c| c.free_blocks * c.block_bytes));
    assert_eq!(s.fresh_bytes, sum(|c| c.fresh_blocks * c.block_bytes));
    assert_eq!(s.slack_bytes, sum(|c| c.slack_bytes));
    assert_eq!(s.active_bytes, sum(|c| c.active_bytes));
    assert_eq!(s.active_bytes - s.untouched_bytes, sum(|c| c.resident_bytes));
    s
}

/// The figures of the class with blocks of `size` bytes.
fn class(size: usize) -> ClassStats {
    *class_stats().iter().find(|c| c.block_bytes == size as u64).unwrap()
}

/// Checks that the figures say that exactly the blocks of `live` are the program's.
#[track_caller]
fn assert_live(live: &[(usize, usize)]) -> Stats {
    let s = check();
    let mut expected = BTreeMap::<usize, (u64, u64)>::new();
    for &(_, size) in live {
        let (row, bytes) = if size > 960 * KIB {
            (ClassStats::DIRECT, size.next_multiple_of(4096))
        } else if size > 64 * KIB {
            (ClassStats::RUNS, size.next_multiple_of(64 * KIB))
        } else {
            let row = class_stats().iter().position(|c| c.block_bytes >= size as u64).unwrap();
            (row, class_stats()[row].block_bytes as usize)
        };
        let (blocks, all) = expected.entry(row).or_default();
        (*blocks, *all) = (*blocks + 1, *all + bytes as u64);
    }
    for (row, c) in class_stats().iter().enumerate() {
        let (blocks, bytes) = expected.get(&row).copied().unwrap_or_default();
        assert_eq!((c.blocks, c.allocated_bytes), (blocks, bytes), "row {row}: {c:?}");
    }
    s
}

const SIZES: [usize; 9] = [8, 48, 200, 1000, 5000, 30_000, 64 * KIB, 200_000, 3 * MIB];

/// Blocks of all `SIZES`, at most `count` of each.
fn take_some(count: usize) -> Vec<(usize, usize)> {
    let of = |size: usize| (0..count.min((4 * MIB / size).max(1))).map(move |_| (take(size), size));
    SIZES.iter().copied().flat_map(of).collect()
}

/// Every third of the blocks, which are taken out.
fn third(blocks: &mut Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    let (mut gone, mut kept) = (Vec::new(), Vec::new());
    for (i, block) in blocks.drain(..).enumerate() {
        if i % 3 == 0 { gone.push(block) } else { kept.push(block) }
    }
    *blocks = kept;
    gone
}

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

/// Slabs of which all but a few blocks are free are given back in part; what is then free there is fresh, and
/// not resident.
#[test]
#[cfg_attr(miri, ignore)]
fn slabs_given_back_in_part() {
    let _alone = alone();
    const TOUCHED: usize = 100 * MIB;
    for (size, keep) in [(200, 100), (2048, 50), (5000, 40), (48, 1000)] {
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

/// Checks the figures, of which the program has `blocks` blocks of `stride` bytes and no others.
#[track_caller]
fn assert_class(stride: u64, blocks: usize) -> ClassStats {
    let s = check();
    let c = class(stride as usize);
    assert_eq!((c.blocks, s.allocated_bytes), (blocks as u64, blocks as u64 * stride), "{c:?}");
    c
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
    let blocks: Vec<_> = workers[0].run(|| (0..10).map(|_| (take(40_000), 40_000)).collect());
    let before = metadata();
    newest.run(move || blocks.into_iter().for_each(give));
    assert_eq!(metadata() - before, 4096, "the outbox");
    let before = metadata();
    workers.into_iter().for_each(Worker::end);
    assert_eq!(metadata(), before);
    // The next thread takes over the record that was given up last.
    let next = Worker::new();
    next.run(|| give((take(64), 64)));
    assert_eq!(metadata(), before);
    next.end();
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
