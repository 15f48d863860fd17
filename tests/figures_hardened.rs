//! The live figures in hardened mode: exact to the byte while nobody allocates, class by class.

#[path = "support/figures.rs"]
mod support;

use hakmem::{ClassStats, Hakmem, Hardened, Options, Thp, class_stats, purge};
use std::alloc::GlobalAlloc;
use std::collections::BTreeSet;
use std::sync::{MutexGuard, Once};
use support::{KIB, MIB, Worker, check, class, give, layout, take};

/// Whoever allocates first says what the options are.
static HARDENED: Hakmem =
    Hakmem::with_options(Options::new().hardened(Hardened::ON).purge_delay_ms(-1).thp(Thp::Never));

/// [`support::alone`], in hardened mode.
fn alone() -> MutexGuard<'static, ()> {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        // SAFETY: a block of this layout, which is freed once.
        unsafe { HARDENED.dealloc(HARDENED.alloc(layout(8)), layout(8)) };
        // This thread's quarantine: it may not be the first one to be alone.
        purge();
    });
    support::alone()
}

/// Bytes of the pages of 4 KiB that blocks begin on.
fn pages(blocks: &[(usize, usize)]) -> u64 {
    blocks.iter().map(|(block, _)| block / (4 * KIB)).collect::<BTreeSet<_>>().len() as u64 * 4 * KIB as u64
}

#[test]
fn the_parts_of_one_class() {
    let _alone = alone();
    let worker = Worker::new();
    // With the trailer they are of the class of 1,024 bytes: 60 in 64 KiB, whose last page is a guard.
    let (fresh, guard) = (50, 4 * KIB as u64);
    let mut blocks: Vec<_> = worker.run(|| (0..10).map(|_| (take(1000), 1000)).collect());
    let c = class(1024);
    assert_eq!((c.slabs, c.active_bytes, c.slack_bytes), (1, 64 * KIB as u64, guard), "{c:?}");
    assert_eq!((c.blocks, c.allocated_bytes, c.cached_blocks, c.free_blocks), (10, 10 * 1024, 0, 0), "{c:?}");
    // Which blocks are handed out is random, and so is on how many pages they lie.
    assert_eq!((c.fresh_blocks, c.resident_bytes), (fresh, pages(&blocks)), "{c:?}");
    check();

    // What is in quarantine counts as cached.
    let gone: Vec<_> = blocks.drain(..5).collect();
    worker.run(move || gone.into_iter().for_each(give));
    let c = class(1024);
    assert_eq!((c.blocks, c.cached_blocks, c.free_blocks, c.fresh_blocks), (5, 5, 0, fresh), "{c:?}");
    check();
    worker.run(purge);
    let c = class(1024);
    assert_eq!((c.blocks, c.cached_blocks, c.free_blocks, c.fresh_blocks), (5, 0, 5, fresh), "{c:?}");
    check();

    // What another thread frees is in its own, with a block of the same slab that was fresh, or free.
    let other = Worker::new();
    let gone: Vec<_> = blocks.drain(..3).collect();
    let cached = other.run(move || {
        let own = (take(1000), 1000);
        gone.into_iter().for_each(give);
        give(own);
        class(1024)
    });
    assert_eq!((cached.slabs, cached.blocks, cached.cached_blocks), (1, 2, 4), "{cached:?}");
    assert_eq!(cached.free_blocks + cached.fresh_blocks, 54, "{cached:?}");
    // Pages of blocks that were handed out once and lie apart, or by fours.
    let (handed_out, resident) = (60 - cached.fresh_blocks, cached.resident_bytes / (4 * KIB as u64));
    assert!((handed_out.div_ceil(4)..=handed_out.min(15)).contains(&resident), "{cached:?}");
    check();
    // An owner that ends changes nothing, and nobody is left to purge for it.
    worker.end();
    assert_eq!(class(1024), cached);
    other.run(move || blocks.into_iter().for_each(give));
    let c = class(1024);
    assert_eq!((c.blocks, c.cached_blocks, c.free_blocks), (0, 6, cached.free_blocks), "{c:?}");
    other.run(purge);
    assert!(!class(1024).is_used());
    check();
}

#[test]
fn slabs_of_a_class_add_up() {
    let _alone = alone();
    let blocks: Vec<_> = (0..1000).map(|_| (take(1000), 1000)).collect();
    let c = class(1024);
    // Big slabs come with growth.
    assert!(c.slabs > 1 && c.active_bytes > 1000 * 1024, "{c:?}");
    assert_eq!(
        (c.blocks, c.allocated_bytes, c.cached_blocks, c.free_blocks),
        (1000, 1000 * 1024, 0, 0),
        "{c:?}"
    );
    assert_eq!(c.resident_bytes, pages(&blocks), "{c:?}");
    let s = check();
    assert_eq!((s.allocated_bytes, s.cached_bytes), (1000 * 1024, 0), "{s:?}");
    blocks.into_iter().for_each(give);
    // What is in quarantine goes, rather than when this thread ends.
    purge();
    assert_eq!(check().active_bytes, 0);
}

#[test]
fn every_large_block_is_a_mapping() {
    let _alone = alone();
    let large = [(take(100_000), 100_000), (take(3 * MIB), 3 * MIB)];
    // They end at a guard page, and have no trailer.
    let bytes: u64 = large.iter().map(|&(_, size)| (size as u64).next_multiple_of(4096)).sum();
    let rows: Vec<_> = class_stats().into_iter().enumerate().filter(|(_, c)| c.is_used()).collect();
    let [(ClassStats::DIRECT, c)] = rows[..] else { panic!("{rows:?}") };
    assert_eq!((c.blocks, c.allocated_bytes, c.active_bytes), (2, bytes, bytes), "{c:?}");
    let s = check();
    assert_eq!(
        (s.allocated_bytes, s.active_bytes, s.large_allocs - s.large_frees),
        (bytes, bytes, 2),
        "{s:?}"
    );
    large.into_iter().for_each(give);
    assert!(!class_stats().iter().any(ClassStats::is_used));
    // They are kept for a while, where nobody can touch them.
    assert_eq!(check().allocated_bytes, 0);
}
