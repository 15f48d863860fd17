//! Blocks of which a program uses a part only, behind others that it has filled: what was found of those is
//! not what is true of these. And what is filled has huge pages.

use advice::{MIB, advice_can_be_seen, advised, free, make, resident};
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

/// What a process does.
#[derive(Clone, Copy)]
enum Does {
    FillsRuns,
    FillsLongSlabs,
    FillsLongSlabsLater,
    HasSparseSlabs,
    /// Of that many bytes each.
    HasSparseRuns(usize),
    HasSparseRunsBehindFilledOnes(usize),
    FillsRunsWithZeros,
    HasSparseMappings,
    FillsMappingsWithZeros,
    HasSparseTables,
    DoublesItsTable,
    GrowsWhereATableWas,
    GrowsWhereASparseTableWas,
}

/// Blocks of zeros, a byte written in every `step`.
fn make_zeroed(count: usize, size: usize, step: usize) -> Vec<(*mut u8, Layout)> {
    let layout = Layout::from_size_align(size, 16).unwrap();
    let one = |_| {
        // SAFETY: the size is not zero.
        let block = unsafe { GLOBAL.alloc_zeroed(layout) };
        assert!(!block.is_null());
        for at in (0..size).step_by(step) {
            // SAFETY: inside the block.
            unsafe { block.add(at).write(1) };
        }
        (block, layout)
    };
    (0..count).map(one).collect()
}

/// Blocks of zeros that have been written.
fn make_of_zeros(count: usize, size: usize) -> Vec<(*mut u8, Layout)> {
    let layout = Layout::from_size_align(size, 16).unwrap();
    let one = |_| {
        // SAFETY: the size is not zero.
        let block = unsafe { GLOBAL.alloc(layout) };
        assert!(!block.is_null());
        // SAFETY: as long as the block.
        unsafe { block.write_bytes(0, size) };
        (block, layout)
    };
    (0..count).map(one).collect()
}

#[test]
fn what_is_not_filled_is_not_resident_whatever_was() {
    // Set where test.sh emulates other page sizes: there no processes can be started, nor advice be seen.
    if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
        return skip("under an emulator");
    }
    // SAFETY: asks for a number.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != 4096 {
        return skip("the bounds are those of small pages");
    }
    let cases = [
        Does::FillsRuns,
        Does::FillsLongSlabs,
        Does::FillsLongSlabsLater,
        Does::HasSparseSlabs,
        Does::HasSparseRuns(100 << 10),
        Does::HasSparseRuns(256 << 10),
        Does::HasSparseRuns(512 << 10),
        Does::HasSparseRunsBehindFilledOnes(256 << 10),
        Does::HasSparseRunsBehindFilledOnes(512 << 10),
        Does::FillsRunsWithZeros,
        Does::HasSparseMappings,
        Does::FillsMappingsWithZeros,
        Does::HasSparseTables,
        Does::DoublesItsTable,
        Does::GrowsWhereATableWas,
        Does::GrowsWhereASparseTableWas,
    ];
    support::in_own_processes("what_is_not_filled_is_not_resident_whatever_was", &cases, |does| {
        if !advice_can_be_seen() {
            return;
        }
        let page = 4096;
        let before = advised();
        let more = || (advised() - before) / MIB;
        match does {
            // SuperSlabs of blocks of which nobody knows whether they are filled, but by asking.
            Does::FillsRuns => {
                let blocks = make(300, 300 << 10, page);
                assert!(more() >= 30, "{} MiB of 88", more());
                free(blocks);
            }
            // Slabs of blocks longer than a page, at whose ends a part of a span is left.
            Does::FillsLongSlabs => {
                let few = make(18 * MIB / 12_000, 12_000, page);
                assert!(more() >= 12, "{} MiB of 18", more());
                free(few);
                hakmem::purge();
                for size in [6 << 10, 12_000, 20_000, 50_000] {
                    let before = more();
                    let blocks = make(100 * MIB / size, size, page);
                    assert!(more() - before >= 70, "{} MiB of 100 in blocks of {size}", more() - before);
                    free(blocks);
                    hakmem::purge();
                }
            }
            // What a program begins with, hardly touched, says nothing of what follows.
            Does::FillsLongSlabsLater => {
                let first: Vec<_> = (1..60).flat_map(|i| make(1, i * 1000, i * 1000)).collect();
                let later = make(34 * MIB / 12_000, 12_000, page);
                assert!(more() >= 16, "{} MiB of 34", more());
                free([first, later].concat());
            }
            // Each is used in its first page, as a buffer of a connection that says little.
            Does::HasSparseSlabs => {
                // Nor do others, all of them filled, which are older; and what others of the same length were
                // like is soon forgotten.
                let others = [make(60, 300 << 10, page), make(40 * MIB / 12_000, 12_000, page)].concat();
                for size in [12_000, 20_000, 50_000] {
                    let before = resident();
                    let blocks = make(200 * MIB / size, size, size);
                    let most = blocks.len() * page * 5 / 4 + 24 * MIB;
                    let longer = resident().saturating_sub(before);
                    assert!(longer < most, "{} MiB for a byte in each {size}", longer / MIB);
                    free(blocks);
                    hakmem::purge();
                }
                free(others);
            }
            // Behind a heap of small blocks, all of them filled.
            Does::HasSparseRuns(size) => {
                let small = make(20 * MIB / 200, 200, 200);
                let before = resident();
                let runs = make(120 * MIB / size, size, size);
                let most = runs.len() * page + 16 * MIB;
                let longer = resident().saturating_sub(before);
                assert!(longer < most, "{} MiB for a byte in each", longer / MIB);
                free([small, runs].concat());
            }
            Does::HasSparseRunsBehindFilledOnes(size) => {
                let filled = make((60 * MIB) >> 18, 256 << 10, page);
                assert!(more() >= 30, "{} MiB of 60", more());
                let before = resident();
                let runs = make(200 * MIB / size, size, size);
                let longer = resident().saturating_sub(before);
                assert!(longer < 30 * MIB, "{} MiB for a byte in each", longer / MIB);
                free([filled, runs].concat());
            }
            // What huge pages hold does not tell whether these are filled; what is resident without them
            // does.
            Does::FillsRunsWithZeros => {
                let filled = make((60 * MIB) >> 18, 256 << 10, page);
                let before = more();
                let runs = make_of_zeros((200 * MIB) >> 18, 256 << 10);
                assert!(more() - before >= 170, "{} MiB of 200", more() - before);
                free([filled, runs].concat());
            }
            Does::HasSparseMappings => {
                for (dense, size, most) in [(20, 3 * MIB, 16), (14, 3 * MIB, 16), (20, 3 * MIB / 2, 45)] {
                    let filled = make(dense, size, page);
                    let before = resident();
                    let sparse = make(60, size, size);
                    let longer = resident().saturating_sub(before);
                    assert!(longer < most * MIB, "{} MiB for a byte in each of {size}", longer / MIB);
                    free([filled, sparse].concat());
                }
            }
            Does::FillsMappingsWithZeros => {
                let filled = make(5, 3 * MIB, page);
                let before = more();
                let zeros = make_of_zeros(60, 3 * MIB);
                assert!(more() - before >= 120, "{} MiB of 180", more() - before);
                free([filled, zeros].concat());
            }
            // Much longer than the arrays that were filled. Still longer ones would have huge pages where the
            // system gives them to everybody.
            Does::HasSparseTables => {
                let filled = make(2, 5 * MIB, page);
                let before = resident();
                let tables = make_zeroed(5, 30 * MIB, 2 * MIB);
                let longer = resident().saturating_sub(before);
                assert!(longer < 4 * MIB, "{} MiB for a byte in 2 MiB", longer / MIB);
                free([filled, tables].concat());
            }
            Does::DoublesItsTable => {
                let mut table = make_zeroed(1, 2 * MIB, page);
                for (size, most) in (2..5).map(|i| (MIB << i, 1 << i)) {
                    let next = make_zeroed(1, size, page);
                    assert!(more() >= most, "{} MiB of {most}", more());
                    free(core::mem::replace(&mut table, next));
                }
                free(table);
            }
            // The heap is too small for huge pages, but what is resident anyway costs nothing.
            Does::GrowsWhereATableWas => {
                let first = make(1, 8 * MIB, page);
                let table = make(1, 8 * MIB, page);
                assert_eq!(more(), 8);
                free(table);
                let before = resident();
                let small = make(6 * MIB / 1000, 1000, 1000);
                let longer = resident().saturating_sub(before);
                assert!(longer < 3 * MIB, "{} KiB beside 8 MiB that nobody uses", longer >> 10);
                free([first, small].concat());
            }
            // And what is not stays so.
            Does::GrowsWhereASparseTableWas => {
                let first = make(1, 8 * MIB, page);
                let table = make(1, 8 * MIB, 8 * MIB);
                assert_eq!(more(), 8);
                free(table);
                let before = resident();
                let few = (1..60).flat_map(|i| make(1, i * 1000, i * 1000)).collect();
                let longer = resident().saturating_sub(before);
                assert!(longer < MIB, "{} KiB for a byte in each of 59", longer >> 10);
                free([first, few].concat());
            }
        }
    });
}
