//! Huge pages must not make resident what a program does not touch; and what it does touch, such as tables
//! that double, should have them. Whether the system has any does not matter here.

use advice::{
    MIB, advice_can_be_seen, advised, bytes, flagged, free, is_flagged, make, resident, resident_with_advice,
};
use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};
use support::skips::skip;

#[path = "support/huge.rs"]
mod advice;
#[path = "support/options.rs"]
mod options;
mod support;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

fn a_program_with_sparse_blocks() {
    let before = resident();
    let touched = resident_with_advice();
    let sparse = [make(64, 5 * MIB, 256 << 10), make(200, 400 << 10, 128 << 10)];
    // At least what is touched is seen, where advice is at all.
    let seen = resident_with_advice().saturating_sub(touched);
    assert!(seen > 5 * MIB || !advice_can_be_seen(), "{seen} bytes");
    let more = resident().saturating_sub(before);
    assert!(more < 128 * MIB, "{} MiB for a byte here and there", more / MIB);
    for blocks in sparse {
        free(blocks);
    }
}

fn a_sparse_table_of_a_dense_program() {
    // Dense ones, so that huge pages are thought of: mappings, and SuperSlabs full of runs and of small
    // blocks.
    free(make(40, 3 * MIB, 4096));
    let dense = [make(24, 2 * MIB, 4096), make(200, 300 << 10, 4096), make(20_000, 1000, 500)];
    let before = resident();
    // A table that is hardly touched.
    let table = make(1, 1024 * MIB, 4 * MIB);
    let more = resident().saturating_sub(before);
    assert!(more < 64 * MIB, "{} MiB for a byte in every 4 MiB", more / MIB);
    free(table);
    for blocks in dense {
        free(blocks);
    }
}

fn a_program_that_grows() {
    if !advice_can_be_seen() {
        return;
    }
    let before = advised();
    // One block each of some classes, as a program has when it starts; then small blocks, 2 MiB of them.
    let first: Vec<_> = (1..9).flat_map(|i| make(1, i * 100, 1 << 20)).collect();
    let few = make(2 << 14, 64, 64);
    assert_eq!(advised(), before, "a small program");
    let many = make(20 << 14, 64, 64);
    let more = advised() - before;
    assert!(more >= 12 * MIB, "{} MiB of 20", more / MIB);
    for blocks in [first, few, many] {
        free(blocks);
    }
}

/// One test: what is known of the process's blocks grows as it goes.
#[test]
fn what_is_not_touched_is_not_resident() {
    a_program_that_grows();
    a_program_with_sparse_blocks();
    a_sparse_table_of_a_dense_program();
}

/// What a process does that has made no mapping of a MiB before.
#[derive(Clone, Copy)]
enum First {
    FreesOne,
    FillsOne,
    FillsLater,
    GrowsOne,
    GrowsALittle,
    ThenSparse,
    ClearsAgain,
    ClearsWhatIsFull,
    FillsBuffers,
    HasSparseBuffers,
    FillsBuffersNoMore,
    GrowsWhatWasThere,
    GivesParts,
    Shrinks,
    IsShortOfAddresses,
    IsSparse,
}

/// Huge pages of which a part is mapped nowhere, of the whole system: it has all of such a page, until it is
/// short of memory. `None` where it does not say.
fn partly_mapped() -> Option<usize> {
    let path = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped";
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A table, or a buffer, of a few MiB is enough to know by.
#[test]
fn the_second_table_has_huge_pages_if_the_first_was_filled() {
    // Set where test.sh emulates other page sizes: there no processes can be started, nor advice be seen.
    if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
        return skip("under an emulator");
    }
    let cases = [
        First::FreesOne,
        First::FillsOne,
        First::FillsLater,
        First::GrowsOne,
        First::GrowsALittle,
        First::ThenSparse,
        First::ClearsAgain,
        First::ClearsWhatIsFull,
        First::FillsBuffers,
        First::HasSparseBuffers,
        First::FillsBuffersNoMore,
        First::GrowsWhatWasThere,
        First::GivesParts,
        First::Shrinks,
        First::IsShortOfAddresses,
        First::IsSparse,
    ];
    support::in_own_processes("the_second_table_has_huge_pages_if_the_first_was_filled", &cases, |first| {
        if !advice_can_be_seen() {
            return;
        }
        let (small, page) = (3 * MIB / 2, 4096);
        let before = advised();
        let more = || (advised() - before) / MIB;
        match first {
            First::FreesOne => {
                free(make(1, small, page));
                let longer = make(1, 13 * MIB, 13 * MIB);
                assert_eq!(more(), 0, "more than eight times as long");
                let second = make(1, 5 * MIB, page);
                assert_eq!(more(), 5);
                free([longer, second].concat());
            }
            First::FillsOne => {
                let first = make(1, 5 * MIB, page);
                assert_eq!(more(), 0);
                let second = make(1, 8 * MIB, page);
                assert_eq!(more(), 8);
                free([first, second].concat());
            }
            // All made, then all filled: nothing is known, and nothing is held against them.
            First::FillsLater => {
                let all = make(3, 5 * MIB, 5 * MIB);
                assert_eq!(more(), 0);
                for &(block, _) in &all {
                    // SAFETY: as long as the block.
                    unsafe { block.write_bytes(1, 5 * MIB) };
                }
                let next = make(1, 5 * MIB, page);
                assert_eq!(more(), 5);
                free([all, next].concat());
            }
            First::GrowsOne => {
                free(make(1, small, page));
                let (block, layout) = make(1, 5 * MIB, page)[0];
                // SAFETY: made with this layout.
                let block = unsafe { GLOBAL.realloc(block, layout, 7 * MIB) };
                let long = make(1, 18 * MIB, page);
                assert!(more() >= 18 + 5, "{} MiB", more());
                free(vec![(block, Layout::from_size_align(7 * MIB, 16).unwrap())]);
                free(long);
            }
            // Shorter than two huge pages it keeps what it has.
            First::GrowsALittle => {
                free(make(1, small, page));
                let (block, layout) = make(1, small, page)[0];
                let longer = Layout::from_size_align(3 * MIB, 16).unwrap();
                // SAFETY: made with these layouts.
                unsafe {
                    let block = GLOBAL.realloc(block, layout, longer.size());
                    assert_eq!(more(), 0);
                    let block = GLOBAL.realloc(block, longer, 5 * MIB);
                    assert!(more() >= 5, "{} MiB", more());
                    free(vec![(block, Layout::from_size_align(5 * MIB, 16).unwrap())]);
                }
            }
            First::ThenSparse => {
                free(make(1, small, page));
                let before = resident();
                let sparse = make(64, 5 * MIB, 256 << 10);
                let more = resident().saturating_sub(before);
                assert!(more < 64 * MIB, "{} MiB for a byte here and there", more / MIB);
                free(sparse);
            }
            // Zeros in the same memory again: what nobody has touched of it stays as it is.
            First::ClearsAgain => {
                free(make(1, 8 * MIB, page));
                let before = resident();
                let layout = Layout::from_size_align(30 * MIB, 16).unwrap();
                for _ in 0..3 {
                    // SAFETY: the size is not zero; one byte of it is written to; freed with its layout.
                    unsafe {
                        let block = GLOBAL.alloc_zeroed(layout);
                        assert!(*block.add(12 * MIB) == 0);
                        *block.add(12 * MIB) = 1;
                        let more = resident().saturating_sub(before);
                        assert!(more < 8 * MIB, "{} MiB for a byte", more / MIB);
                        GLOBAL.dealloc(block, layout);
                    }
                }
            }
            // And what is full is cleared where it is: to give it back would cost more.
            First::ClearsWhatIsFull => {
                free(make(1, 8 * MIB, page));
                let before = resident();
                let layout = Layout::from_size_align(8 * MIB, 16).unwrap();
                // SAFETY: the size is not zero; freed with its layout.
                unsafe {
                    let block = GLOBAL.alloc_zeroed(layout);
                    let less = before.saturating_sub(resident());
                    assert!(less < MIB, "{} KiB", less >> 10);
                    assert!((0..8 * MIB).step_by(page).all(|at| *block.add(at) == 0));
                    GLOBAL.dealloc(block, layout);
                }
            }
            // Blocks that are too short for a huge page of their own.
            First::FillsBuffers => {
                let few = make(7, MIB, page);
                assert_eq!(more(), 0, "a small program");
                let before = resident();
                let (one, more_than_two) = (make(60, MIB + page, page), make(20, 5 * MIB / 2, page));
                let longer = resident().saturating_sub(before) / MIB;
                assert!(more() >= 90, "{} MiB of 110", more());
                assert!((105..118).contains(&longer), "{longer} MiB for 110");
                [few, one, more_than_two].into_iter().for_each(free);
            }
            First::HasSparseBuffers => {
                let before = resident();
                let sparse = make(100, MIB + page, 128 << 10);
                let longer = resident().saturating_sub(before);
                assert_eq!(more(), 0);
                assert!(longer < 20 * MIB, "{} MiB for a byte here and there", longer / MIB);
                free(sparse);
            }
            // Huge pages do not say so, but controls do.
            First::FillsBuffersNoMore => {
                for size in [MIB + page, 5 * MIB / 2] {
                    let dense = make(60, size, page);
                    let before = resident();
                    let sparse = make(200, size, 128 << 10);
                    let more = resident().saturating_sub(before);
                    assert!(more < 60 * size, "{} MiB for a byte here and there", more / MIB);
                    free([dense, sparse].concat());
                }
                // Beside others that are filled, but never were part of a batch.
                let dense = make(60, MIB + page, page);
                let before = resident();
                let aligned = Layout::from_size_align(MIB + page, 64 << 10).unwrap();
                let pair = |_| {
                    // SAFETY: the size is not zero.
                    let block = unsafe { GLOBAL.alloc(aligned) };
                    // SAFETY: as long as the block.
                    unsafe { block.write_bytes(1, aligned.size()) };
                    [(block, aligned), make(1, MIB + page, 128 << 10)[0]]
                };
                let pairs: Vec<_> = (0..200).flat_map(pair).collect();
                let more = resident().saturating_sub(before);
                assert!(more < 260 * MIB, "{} MiB for 200 and a byte here and there", more / MIB);
                free([dense, pairs].concat());
            }
            // The half of it that is looked at is shorter than a huge page.
            First::GrowsWhatWasThere => {
                let (block, layout) = make(1, 3 * MIB, page)[0];
                free(make(1, small, page));
                // SAFETY: made with this layout.
                let block = unsafe { GLOBAL.realloc(block, layout, 18 * MIB) };
                assert!(more() >= 18, "{} MiB", more());
                free(vec![(block, Layout::from_size_align(18 * MIB, 16).unwrap())]);
            }
            // What is given back of huge pages, the system really has.
            First::GivesParts => {
                let [small, buffers] = [make(80 << 10, 1000, 1000), make(160, MIB, page)];
                assert!(more() >= 180, "{} MiB of 240", more());
                let Some(before) = partly_mapped() else { return };
                let keep = |blocks: &[_], few, of| {
                    let parts = blocks.chunks(of).map(|blocks| blocks.split_at(few));
                    let (few, most): (Vec<_>, Vec<_>) = parts.unzip();
                    free(most.concat());
                    few.concat()
                };
                let few_are = |of: &str| {
                    hakmem::purge();
                    let more = partly_mapped().unwrap().saturating_sub(before);
                    assert!(more < 20, "{more} huge pages of {of}");
                };
                let few = keep(&small, 16, 2048);
                few_are("small blocks");
                let resize = |(block, layout), size: usize| {
                    // SAFETY: made with this layout.
                    let block = unsafe { GLOBAL.realloc(block, layout, size) };
                    (block, Layout::from_size_align(size, 16).unwrap())
                };
                let grown = buffers[..80].iter().step_by(2).map(|&buffer| resize(buffer, 3 * MIB)).collect();
                free(grown);
                few_are("buffers that moved");
                let some = keep(&buffers[80..], 1, 2);
                few_are("buffers");
                let shrink = |_| {
                    let (block, layout) = make(1, 8 * MIB, 8 * MIB)[0];
                    // SAFETY: inside the block.
                    unsafe { block.write_bytes(1, 3 * MIB) };
                    resize((block, layout), 3 * MIB)
                };
                let shrunk: Vec<_> = (0..40).map(shrink).collect();
                few_are("what was cut off");
                let others = buffers[..80].iter().skip(1).step_by(2).copied().collect();
                [few, some, shrunk, others].into_iter().for_each(free);
            }
            // A heap that was full of small blocks and is not any more.
            First::Shrinks => {
                free(make(64 << 14, 64, 64));
                hakmem::purge();
                let before = advised();
                let blocks = make(24, 500 << 10, MIB);
                assert_eq!(advised(), before);
                free(blocks);
            }
            // What aligning for huge pages takes in addition must not be what fails.
            First::IsShortOfAddresses => {
                let first = make(1, 8 * MIB, page);
                let status = std::fs::read_to_string("/proc/self/status").unwrap();
                let mapped = bytes(status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap());
                // Lengths that the system does not align by itself.
                let size = 30 * MIB + page;
                let limit = |bytes: usize| {
                    let limit = libc::rlimit { rlim_cur: bytes as u64, rlim_max: libc::RLIM_INFINITY };
                    // SAFETY: a valid limit.
                    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
                };
                limit(mapped + size + MIB);
                // SAFETY: the size is not zero.
                let block = unsafe { GLOBAL.alloc(Layout::from_size_align(size, 16).unwrap()) };
                limit(libc::RLIM_INFINITY as usize);
                assert!(!block.is_null());
                free(vec![first[0], (block, Layout::from_size_align(size, 16).unwrap())]);
            }
            // The system may give huge pages to all that do not refuse them.
            First::IsSparse => {
                let before = flagged("nh");
                let blocks = make(3, 20 * MIB, 20 * MIB);
                assert!(flagged("nh") - before >= 60 * MIB);
                // One that grows, where it is or elsewhere.
                let (from, to) = (blocks[2].1, Layout::from_size_align(50 * MIB, 16).unwrap());
                // SAFETY: made with this layout.
                let grown = unsafe { GLOBAL.realloc(blocks[2].0, from, to.size()) };
                assert!(flagged("nh") - before >= 90 * MIB);
                free(vec![blocks[0], blocks[1], (grown, to)]);
                // SuperSlabs of a heap that is small.
                let few = make(2 << 14, 64, 64);
                assert!([few[0], few[few.len() - 1]].iter().all(|&(block, _)| is_flagged(block, "nh")));
                free(few);
            }
        }
    });
}

/// Else the tests here and in `hardened_huge.rs` look at nothing.
#[test]
fn advice_is_seen_where_the_kernel_has_huge_pages() {
    let has = std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists();
    if has && std::env::var_os("EXPECT_PAGE_SIZE").is_none() {
        // Not beside a test that counts what is advised.
        support::in_own_processes("advice_is_seen_where_the_kernel_has_huge_pages", &[()], |()| {
            assert!(advice_can_be_seen());
        });
    }
}
