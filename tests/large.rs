//! Large blocks: what is kept of them, what they hold, and how they grow, with Hakmem as the program's
//! allocator.

use hakmem::{Hakmem, Options, Thp};
use skips::skip;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard};

#[path = "support/skips.rs"]
mod skips;

/// Nothing goes back for its age, so that no clock matters.
#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(-1).thp(Thp::Never));

/// Figures of the whole process are compared, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;

fn alone() -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    hakmem::purge();
    guard
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// A block with a word in every 4 KiB that tells where it is.
fn make(size: usize) -> *mut u8 {
    // SAFETY: the size is not zero.
    let block = unsafe { GLOBAL.alloc(layout(size)) };
    assert!(!block.is_null());
    fill(block, 0, size);
    block
}

fn fill(block: *mut u8, from: usize, to: usize) {
    for at in (from..to).step_by(4096) {
        // SAFETY: inside the block, and a multiple of 8.
        unsafe { block.add(at).cast::<usize>().write(at ^ 0x5a5a) };
    }
}

fn check(block: *mut u8, size: usize) {
    for at in (0..size).step_by(4096) {
        // SAFETY: as in `fill`.
        assert_eq!(unsafe { block.add(at).cast::<usize>().read() }, at ^ 0x5a5a, "at {at} of {size}");
    }
}

fn free(block: *mut u8, size: usize) {
    // SAFETY: made with this layout.
    unsafe { GLOBAL.dealloc(block, layout(size)) };
}

fn grow(block: *mut u8, from: usize, to: usize) -> *mut u8 {
    // SAFETY: made with this layout.
    let grown = unsafe { GLOBAL.realloc(block, layout(from), to) };
    assert!(!grown.is_null());
    grown
}

#[test]
fn a_mapping_as_large_as_the_limit_is_kept() {
    let _alone = alone();
    let first = make(32 * MIB);
    free(first, 32 * MIB);
    let hits = hakmem::stats().large_cache_hits;
    let second = make(32 * MIB);
    assert_eq!(second, first);
    assert_eq!(hakmem::stats().large_cache_hits, hits + 1);
    check(second, 32 * MIB);
    free(second, 32 * MIB);
}

#[test]
fn what_is_kept_is_cut_and_grown_into() {
    let _alone = alone();
    let whole = make(16 * MIB);
    free(whole, 16 * MIB);
    let mapped = hakmem::stats().bytes_mapped;
    let mut block = make(2 * MIB);
    assert_eq!(block, whole);
    let mut size = 2 * MIB;
    while size < 16 * MIB {
        block = grow(block, size, 2 * size);
        assert_eq!(block, whole, "in place, to {} MiB", 2 * size / MIB);
        check(block, size);
        fill(block, size, 2 * size);
        size *= 2;
    }
    check(block, size);
    let more = hakmem::stats().bytes_mapped - mapped;
    assert!(more < 8 * MIB as u64, "hardly any memory but what was kept: {more}");
    free(block, size);
}

#[test]
fn blocks_that_grow_in_turn_do_not_stand_in_each_others_way() {
    // With pages of 16 KiB Debian's emulator (7.2) has lost a page of a library's data after such moves, in 3
    // of 14 runs of this file, and in each of this test alone. With 64 KiB 11 MiB more were mapped in 2 of 23
    // runs beside busy processes; why has not been found. On machines neither was seen.
    if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
        return skip("under an emulator");
    }
    let _alone = alone();
    free(make(32 * MIB), 32 * MIB);
    let mapped = hakmem::stats().bytes_mapped;
    let mut blocks = [0; 4].map(|_| make(900 << 10));
    let mut size = 900 << 10;
    while size < 4 * MIB {
        for block in &mut blocks {
            *block = grow(*block, size, 2 * size);
            fill(*block, size, 2 * size);
        }
        size *= 2;
    }
    let more = hakmem::stats().bytes_mapped - mapped;
    assert!(more < 8 * MIB as u64, "hardly any memory but what was kept: {more}");
    for block in blocks {
        check(block, size);
        free(block, size);
    }
}

#[test]
fn a_block_is_expected_to_outgrow_runs_where_an_earlier_one_has() {
    let _alone = alone();
    let grown = || {
        let (mut block, mut size, mut moves) = (make(64 << 10), 64 << 10, 0);
        while size < 4 * MIB {
            let before = block;
            block = grow(block, size, 2 * size);
            moves += usize::from(block != before && size > 64 << 10);
            fill(block, size, 2 * size);
            size *= 2;
        }
        check(block, size);
        free(block, size);
        moves
    };
    assert_ne!(grown(), 0, "out of the largest run");
    assert_eq!(grown(), 0, "no more");
}

#[test]
fn pieces_come_together_again() {
    let _alone = alone();
    let whole = make(24 * MIB);
    free(whole, 24 * MIB);
    let pieces: Vec<*mut u8> = (0..8).map(|_| make(3 * MIB)).collect();
    assert!(pieces.iter().all(|p| (whole.addr()..whole.addr() + 24 * MIB).contains(&p.addr())));
    for i in [3, 1, 5, 7, 0, 2, 6, 4] {
        check(pieces[i], 3 * MIB);
        free(pieces[i], 3 * MIB);
    }
    let again = make(24 * MIB);
    assert_eq!(again, whole);
    free(again, 24 * MIB);
}

#[test]
fn the_cache_holds_no_more_than_its_limit() {
    let _alone = alone();
    let before = hakmem::stats().bytes_held;
    let blocks: Vec<*mut u8> = (0..40).map(|_| make(2 * MIB)).collect();
    for block in blocks {
        free(block, 2 * MIB);
    }
    // Half of what is in use may be kept, which is nothing in the end: so the option's 32 MiB.
    let kept = hakmem::stats().bytes_held - before;
    assert!(kept <= 48 * MIB as u64, "{kept}");
    assert!(hakmem::purge() as u64 >= kept / 2);
    assert!(hakmem::stats().bytes_held <= before);
}

/// The limit is half of what is in use, if that is more than the option: so it falls with the last blocks.
#[test]
fn what_was_kept_beside_large_blocks_goes_with_them() {
    let _alone = alone();
    let dirty = || hakmem::stats().dirty_bytes as usize;
    let before = dirty();
    for sizes in [&[400 * MIB, 400 * MIB][..], &[100 * MIB; 6], &[40 * MIB; 3]] {
        // Beside the last of them, mappings that were kept while the others were there.
        let blocks: Vec<_> = sizes.iter().chain(&[60 * MIB]).map(|&size| (make(size), size)).collect();
        let (last, rest) = blocks.split_first().unwrap();
        rest.iter().rev().for_each(|&(block, size)| free(block, size));
        free(last.0, last.1);
        let kept = dirty() - before;
        assert!(kept <= 34 * MIB, "{} of {} bytes: {kept}", sizes.len(), sizes[0]);
        hakmem::purge();
    }
}

/// What is kept of large blocks would lie idle while new memory is touched beside it.
#[test]
fn the_heap_grows_into_what_is_kept() {
    let _alone = alone();
    let before = hakmem::stats().bytes_held;
    let large = make(24 * MIB);
    let range = large.addr()..large.addr() + 24 * MIB;
    free(large, 24 * MIB);
    let mapped = hakmem::stats().bytes_mapped;
    // SAFETY: the size is not zero.
    let blocks: Vec<*mut u8> = (0..16_000).map(|_| unsafe { GLOBAL.alloc_zeroed(layout(1000)) }).collect();
    for &block in &blocks {
        // SAFETY: the block has that many bytes.
        assert!(unsafe { core::slice::from_raw_parts(block, 1000) }.iter().all(|&b| b == 0));
        fill(block, 0, 1000);
    }
    let inside = blocks.iter().filter(|block| range.contains(&block.addr())).count();
    assert!(inside >= 12_000, "{inside} of {}", blocks.len());
    let grown = hakmem::stats().bytes_mapped - mapped;
    assert!(grown <= 2 * MIB as u64, "{grown}");
    // What is left of it serves large blocks as before.
    let rest = make(5 * MIB);
    assert!(range.contains(&rest.addr()));
    check(rest, 5 * MIB);
    free(rest, 5 * MIB);
    blocks.into_iter().for_each(|block| free(block, 1000));
    hakmem::purge();
    let held = hakmem::stats().bytes_held;
    assert!(held <= before + 4 * MIB as u64, "{before} {held}");
}

#[test]
fn zeroed_blocks_are_zero_whoever_had_the_memory() {
    let _alone = alone();
    for size in [70_000, MIB / 2, MIB, 2 * MIB, 9 * MIB, 33 * MIB] {
        free(make(size), size);
        free(make(size * 2), size * 2);
        // SAFETY: the size is not zero.
        let block = unsafe { GLOBAL.alloc_zeroed(layout(size)) };
        // SAFETY: the block has that many bytes.
        assert!(unsafe { core::slice::from_raw_parts(block, size) }.iter().all(|&b| b == 0), "{size}");
        free(block, size);
    }
}

#[test]
fn contents_survive_all_kinds_of_growing() {
    let _alone = alone();
    let others: Vec<*mut u8> = (1..6).map(|i| make(i * MIB)).collect();
    free(others[1], 2 * MIB);
    free(others[3], 4 * MIB);
    for step in [1 << 16, MIB - 4096, 5 * MIB] {
        let (mut block, mut size) = (make(1 << 16), 1 << 16);
        while size < 40 * MIB {
            block = grow(block, size, size + step);
            check(block, size);
            fill(block, 0, size + step);
            size += step;
        }
        while size > 2 * step {
            block = grow(block, size, size / 2);
            size /= 2;
            check(block, size);
        }
        free(block, size);
    }
    for i in [0, 2, 4] {
        check(others[i], (i + 1) * MIB);
        free(others[i], (i + 1) * MIB);
    }
}

#[test]
fn a_shelf_holds_what_it_may_and_counts_right() {
    let _alone = alone();
    let before = hakmem::stats();
    let blocks: Vec<(*mut u8, usize)> =
        (2..40).map(|i| (make(i * 30_000 + 40_000), i * 30_000 + 40_000)).collect();
    let bytes: usize = blocks.iter().map(|b| b.1).sum();
    let during = hakmem::stats();
    assert_eq!(during.large_allocs - before.large_allocs, 38);
    assert!(during.allocated_bytes - before.allocated_bytes >= bytes as u64);
    for (block, size) in blocks {
        check(block, size);
        free(block, size);
    }
    let after = hakmem::stats();
    assert_eq!(after.large_frees - before.large_frees, 38);
    let left = after.allocated_bytes.saturating_sub(before.allocated_bytes);
    assert!(left < 70_000, "what lies on the shelf is not the program's: {left}");
    // Another thread's shelf is emptied when it ends, and each of its blocks can be had again.
    let at = std::thread::spawn(|| {
        let block = make(200_000);
        free(block, 200_000);
        assert_eq!(make(200_000), block, "last in, first out");
        check(block, 200_000);
        free(block, 200_000);
        block.addr()
    });
    let at = at.join().unwrap();
    let blocks: Vec<*mut u8> = (0..400).map(|_| make(200_000)).collect();
    assert!(blocks.iter().any(|b| b.addr().abs_diff(at) < 256 << 10));
    for block in blocks {
        check(block, 200_000);
        free(block, 200_000);
    }
}

#[test]
fn what_is_kept_and_too_short_is_made_longer() {
    let _alone = alone();
    let first = make(20 * MIB);
    let layout = layout(30 * MIB);
    free(first, 20 * MIB);
    let mapped = hakmem::stats().bytes_mapped;
    let longer = make(30 * MIB);
    check(longer, 30 * MIB);
    assert!(hakmem::stats().bytes_mapped - mapped <= 12 * MIB as u64, "not beside what is kept");
    free(longer, 30 * MIB);
    // A block that is to be zero is not: what is new of it would have to be touched.
    free(make(10 * MIB), 10 * MIB);
    // SAFETY: the size is not zero.
    let zeroed = unsafe { GLOBAL.alloc_zeroed(layout) };
    // SAFETY: the block has that many bytes.
    assert!(unsafe { core::slice::from_raw_parts(zeroed, 30 * MIB) }.iter().all(|&b| b == 0));
    free(zeroed, 30 * MIB);
}
