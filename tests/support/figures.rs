//! For tests of the live figures: an allocator that is not the program's own, so that nothing but the test
//! moves its figures, and checks of their sums.

#![allow(dead_code, reason = "not every test uses all of it")]

use hakmem::{ClassStats, Hakmem, Options, Stats, Thp, class_stats, purge, stats};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

/// Nothing goes back for its age, so that no clock matters.
pub static HAKMEM: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(-1).thp(Thp::Never));

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// One test at a time, with nothing left of the one before but the records that everything needs.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    [64, 2 * MIB].into_iter().for_each(|size| give((take(size), size)));
    purge();
    let used: Vec<_> = class_stats().into_iter().filter(ClassStats::is_used).collect();
    assert_eq!(check().active_bytes, 0, "{used:?}");
    guard
}

pub fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// A block with something in every 4 KiB.
pub fn take(size: usize) -> usize {
    // SAFETY: no layout here is of size 0, and what is written to is inside.
    unsafe {
        let block = HAKMEM.alloc(layout(size));
        assert!(!block.is_null());
        (0..size).step_by(4096).for_each(|at| block.add(at).write(1));
        block as usize
    }
}

pub fn give((block, size): (usize, usize)) {
    // SAFETY: a block of `take`, which is freed once.
    unsafe { HAKMEM.dealloc(block as *mut u8, layout(size)) }
}

/// A thread that does what it is told, and is otherwise quiet.
pub struct Worker {
    jobs: Sender<Box<dyn FnOnce() + Send>>,
    handle: JoinHandle<()>,
}

impl Worker {
    pub fn new() -> Self {
        let (jobs, todo) = channel::<Box<dyn FnOnce() + Send>>();
        Self { jobs, handle: thread::spawn(move || todo.into_iter().for_each(|job| job())) }
    }

    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.jobs.send(Box::new(move || done.send(job()).unwrap())).unwrap();
        result.recv().unwrap()
    }

    pub fn end(self) {
        drop(self.jobs);
        self.handle.join().unwrap();
    }
}

/// The figures of this moment, whose sums are checked.
#[track_caller]
pub fn check() -> Stats {
    let (s, classes) = (stats(), class_stats());
    let parts = s.allocated_bytes + s.cached_bytes + s.free_bytes + s.fresh_bytes + s.slack_bytes;
    assert_eq!(s.active_bytes, parts, "{s:?}");
    assert_eq!(
        s.resident_bytes,
        s.active_bytes - s.untouched_bytes + s.dirty_bytes + s.metadata_bytes,
        "{s:?}"
    );
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
    assert_eq!(s.magazine_misses, s.refill_current + s.refill_bump, "{s:?}");
    assert_eq!(s.allocations, s.magazine_misses + s.large_allocs, "{s:?}");
    assert_eq!(s.outbox_blocks, s.home_foreign, "{s:?}");
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
pub fn class(size: usize) -> ClassStats {
    *class_stats().iter().find(|c| c.block_bytes == size as u64).unwrap()
}

/// Checks that the figures say that exactly the blocks of `live` are the program's.
#[track_caller]
pub fn assert_live(live: &[(usize, usize)]) -> Stats {
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

pub const SIZES: [usize; 9] = [8, 48, 200, 1000, 5000, 30_000, 64 * KIB, 200_000, 3 * MIB];

/// Blocks of all `SIZES`, at most `count` of each.
pub fn take_some(count: usize) -> Vec<(usize, usize)> {
    let of = |size: usize| (0..count.min((4 * MIB / size).max(1))).map(move |_| (take(size), size));
    SIZES.iter().copied().flat_map(of).collect()
}

/// Every third of the blocks, which are taken out.
pub fn third(blocks: &mut Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    let (mut gone, mut kept) = (Vec::new(), Vec::new());
    for (i, block) in blocks.drain(..).enumerate() {
        if i % 3 == 0 { gone.push(block) } else { kept.push(block) }
    }
    *blocks = kept;
    gone
}

/// Checks the figures, of which the program has `blocks` blocks of `stride` bytes and no others.
#[track_caller]
pub fn assert_class(stride: u64, blocks: usize) -> ClassStats {
    let s = check();
    let c = class(stride as usize);
    assert_eq!((c.blocks, s.allocated_bytes), (blocks as u64, blocks as u64 * stride), "{c:?}");
    c
}
