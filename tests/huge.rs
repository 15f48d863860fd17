//! Huge pages must not make resident what a program does not touch; and what it does touch, such as tables
//! that double, should have them. Whether the system has any does not matter here.

use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};

mod support;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

const MIB: usize = 1 << 20;

/// Resident bytes, or nothing where that cannot be said, or where the system gives huge pages to all that do
/// not refuse: Rust's own memory and the stacks then have them.
fn resident() -> Option<usize> {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    // In KiB, whatever the size of a page.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    (!enabled.contains("[always]")).then_some(bytes(line))
}

/// Blocks of `size` bytes, a byte written in every `step`.
fn make(count: usize, size: usize, step: usize) -> Vec<(*mut u8, Layout)> {
    let layout = Layout::from_size_align(size, 16).unwrap();
    let one = |_| {
        // SAFETY: the size is not zero.
        let block = unsafe { GLOBAL.alloc(layout) };
        assert!(!block.is_null());
        for at in (0..size).step_by(step) {
            // SAFETY: inside the block.
            unsafe { block.add(at).write(1) };
        }
        (block, layout)
    };
    (0..count).map(one).collect()
}

fn free(blocks: Vec<(*mut u8, Layout)>) {
    for (block, layout) in blocks {
        // SAFETY: made with this layout.
        unsafe { GLOBAL.dealloc(block, layout) };
    }
}

fn a_program_with_sparse_blocks() {
    let Some(before) = resident() else { return };
    let sparse = [make(64, 5 * MIB, 256 << 10), make(200, 400 << 10, 128 << 10)];
    let more = resident().unwrap().saturating_sub(before);
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
    let Some(before) = resident() else { return };
    // A table that is hardly touched.
    let table = make(1, 1024 * MIB, 4 * MIB);
    let more = resident().unwrap().saturating_sub(before);
    assert!(more < 64 * MIB, "{} MiB for a byte in every 4 MiB", more / MIB);
    free(table);
    for blocks in dense {
        free(blocks);
    }
}

/// The value of a line of /proc that is in KiB, in bytes.
fn bytes(value: &str) -> usize {
    value.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Bytes of mappings that have this flag: `hg` where huge pages have been advised, `nh` where they have been
/// advised against.
fn flagged(flag: &str) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut size, mut sum) = (0, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Size:") {
            size = bytes(kib);
        } else if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split(' ').any(|f| f == flag)) {
            sum += size;
        }
    }
    sum
}

/// Bytes of mappings for which huge pages have been advised.
fn advised() -> usize {
    flagged("hg")
}

/// Whether advice can be seen: an emulator does not pass it on, and not every kernel has huge pages.
fn advice_can_be_seen() -> bool {
    let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let before = advised();
    // SAFETY: a new mapping, which nothing else uses.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), 4 * MIB, read, private, -1, 0);
        let can = libc::madvise(map, 4 * MIB, libc::MADV_HUGEPAGE) == 0 && advised() > before;
        libc::munmap(map, 4 * MIB);
        can
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
    ThenSparse,
    ClearsAgain,
    IsShortOfAddresses,
    IsSparse,
}

/// A table, or a buffer, of a few MiB is enough to know by.
#[test]
fn the_second_table_has_huge_pages_if_the_first_was_filled() {
    // Set where test.sh emulates other page sizes: there no processes can be started, nor advice be seen.
    if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
        println!("SKIPPED: under an emulator");
        return;
    }
    let cases = [
        First::FreesOne,
        First::FillsOne,
        First::FillsLater,
        First::GrowsOne,
        First::ThenSparse,
        First::ClearsAgain,
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
                let longer = make(1, 7 * MIB, 7 * MIB);
                assert_eq!(more(), 0, "more than four times as long");
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
            First::ThenSparse => {
                free(make(1, small, page));
                let Some(before) = resident() else { return };
                let sparse = make(64, 5 * MIB, 256 << 10);
                let more = resident().unwrap().saturating_sub(before);
                assert!(more < 64 * MIB, "{} MiB for a byte here and there", more / MIB);
                free(sparse);
            }
            // Zeros in the same memory again: what nobody has touched of it stays as it is.
            First::ClearsAgain => {
                free(make(1, 8 * MIB, page));
                let Some(before) = resident() else { return };
                let layout = Layout::from_size_align(30 * MIB, 16).unwrap();
                for _ in 0..3 {
                    // SAFETY: the size is not zero; one byte of it is written to; freed with its layout.
                    unsafe {
                        let block = GLOBAL.alloc_zeroed(layout);
                        assert!(*block.add(12 * MIB) == 0);
                        *block.add(12 * MIB) = 1;
                        let more = resident().unwrap().saturating_sub(before);
                        assert!(more < 8 * MIB, "{} MiB for a byte", more / MIB);
                        GLOBAL.dealloc(block, layout);
                    }
                }
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
            }
        }
    });
}
