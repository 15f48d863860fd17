//! Blocks that grow, in a program with the default options and, as tests are built, every check of Rust's
//! switched on.

#[path = "support/huge.rs"]
mod advice;
mod support;

use advice::{advice_can_be_seen, is_flagged};
use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};
use support::skips::skip;
use support::{in_own_process, in_own_processes};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

const PAGE: usize = 4096;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 1).unwrap()
}

/// Every size in pages from 1 to 10 MiB that is odd, and some that are not: doubled, halved, and grown by a
/// page.
#[test]
fn mappings_of_any_number_of_pages_grow_and_shrink() {
    in_own_process("mappings_of_any_number_of_pages_grow_and_shrink", || {
        for pages in (257..2600).step_by(34).flat_map(|pages| [pages, pages + 1]) {
            for to in [2 * pages, pages / 2, pages + 1, 3 * pages] {
                // SAFETY: the sizes are not zero; blocks are freed with their layout.
                unsafe {
                    let block = GLOBAL.alloc(layout(pages * PAGE));
                    assert!(!block.is_null());
                    (0..pages).for_each(|page| block.add(page * PAGE).write(page as u8));
                    let block = GLOBAL.realloc(block, layout(pages * PAGE), to * PAGE);
                    assert!(!block.is_null());
                    let kept = (0..pages.min(to)).all(|page| block.add(page * PAGE).read() == page as u8);
                    assert!(kept, "{pages} pages to {to}");
                    GLOBAL.dealloc(block, layout(to * PAGE));
                }
            }
        }
    });
}

/// A mapping that shrinks, and grows again into what it has left, was never mapped twice.
#[test]
fn the_most_that_was_mapped_counts_a_resized_block_once() {
    in_own_process("the_most_that_was_mapped_counts_a_resized_block_once", || {
        let size = 256 << 20;
        // SAFETY: the sizes are not zero; the block is freed with its layout.
        unsafe {
            let mut block = GLOBAL.alloc(layout(size));
            for pages in [1, 2, 3] {
                block = GLOBAL.realloc(block, layout(size), size - pages * PAGE);
                assert!(!block.is_null());
                block = GLOBAL.realloc(block, layout(size - pages * PAGE), size);
            }
            let stats = hakmem::stats();
            assert!(stats.bytes_mapped_peak < 3 * size as u64 / 2, "{stats:?}");
            GLOBAL.dealloc(block, layout(size));
        }
    });
}

/// What a program does with blocks of an odd number of pages is seen like that of all others: it fills them,
/// so larger ones get huge pages.
#[test]
fn blocks_of_an_odd_number_of_pages_that_are_filled_and_grow_get_huge_pages() {
    let name = "blocks_of_an_odd_number_of_pages_that_are_filled_and_grow_get_huge_pages";
    in_own_process(name, || {
        if !advice_can_be_seen() {
            return skip("the kernel has no huge pages, or does not show the advice");
        }
        // None is freed before the last look.
        let mut blocks = Vec::new();
        for i in 0..24 {
            let pages = 1025 + 2 * i;
            // SAFETY: the sizes are not zero, and all is inside of the block.
            unsafe {
                let block = GLOBAL.alloc(layout(pages * PAGE));
                block.write_bytes(1, pages * PAGE);
                let block = GLOBAL.realloc(block, layout(pages * PAGE), 2 * pages * PAGE);
                block.write_bytes(1, 2 * pages * PAGE);
                blocks.push((block, layout(2 * pages * PAGE)));
            }
        }
        // Whether the system has any to give does not matter.
        assert!(
            blocks.iter().any(|(block, _)| is_flagged(block.wrapping_add(6 << 20), "hg")),
            "none is advised"
        );
        for (block, layout) in blocks {
            // SAFETY: made with this layout.
            unsafe { GLOBAL.dealloc(block, layout) };
        }
    });
}

/// The layout of a large block with a small one: told before anything is read or freed.
#[test]
fn the_layout_of_another_block_is_told() {
    use std::os::unix::process::ExitStatusExt;
    const BAD: &str = "TEST_BAD_LAYOUT";
    if std::env::var_os(BAD).is_some() {
        // SAFETY: none is needed: the process ends in this call.
        unsafe {
            let block = GLOBAL.alloc(layout(100));
            GLOBAL.realloc(block, layout(2 << 20), 3 << 20);
        }
        return;
    }
    let name = "the_layout_of_another_block_is_told";
    let exe = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(exe);
    let child = child.args([name, "--exact", "--nocapture"]).env(BAD, "1").output().unwrap();
    let error = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{error}");
    assert!(error.contains("realloc(") && error.contains("size mismatch"), "{error}");
}

fn address_space() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<usize>().unwrap() * PAGE
}

fn limit_address_space(most: usize) {
    let limit = libc::rlimit { rlim_cur: most as u64, rlim_max: most as u64 };
    // SAFETY: a limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// A block may be too long for a copy, and grow by what is kept of another one.
#[test]
fn what_is_kept_goes_back_before_a_block_cannot_grow() {
    // By itself; and beside so many small blocks that a copy might find room, if they were not in use.
    in_own_processes("what_is_kept_goes_back_before_a_block_cannot_grow", &[0, 30_000], |small| {
        const MIB: usize = 1 << 20;
        // SAFETY: the size is not zero; they are not freed.
        (0..small).for_each(|_| assert!(!unsafe { GLOBAL.alloc(layout(32 << 10)) }.is_null()));
        // SAFETY: the sizes are not zero; blocks are freed with their layout.
        unsafe {
            // What lies behind the one that grows is in use: it can't just take the other one's memory.
            let sizes = [8 * MIB, 600 * MIB, 8 * MIB, 60 * MIB];
            let [behind, block, between, freed] = sizes.map(|size| GLOBAL.alloc(layout(size)));
            assert!([behind, block, between, freed].iter().all(|block| !block.is_null()));
            // So that it is worth keeping.
            (0..60 * MIB).step_by(PAGE).for_each(|at| freed.add(at).write(1));
            block.write(7);
            limit_address_space(address_space() + 20 * MIB);
            GLOBAL.dealloc(freed, layout(60 * MIB));
            let grown = GLOBAL.realloc(block, layout(600 * MIB), 650 * MIB);
            assert!(!grown.is_null() && grown.read() == 7);
            // More than there is fails as ever, and leaves it alone.
            assert!(GLOBAL.realloc(grown, layout(650 * MIB), 900 * MIB).is_null() && grown.read() == 7);
            GLOBAL.dealloc(grown, layout(650 * MIB));
            [behind, between].into_iter().for_each(|block| GLOBAL.dealloc(block, layout(8 * MIB)));
        }
    });
}

/// Address space that the system has refused for a move is not lost: a buffer that doubles as far as there is
/// room takes no more the next time.
#[test]
fn refused_moves_cost_no_address_space() {
    in_own_process("refused_moves_cost_no_address_space", || {
        limit_address_space(address_space() + (1000 << 20));
        let double = || {
            let mut size = 1 << 20;
            // SAFETY: the sizes are not zero; the block is freed with its layout.
            unsafe {
                let mut block = GLOBAL.alloc(layout(size));
                loop {
                    block.write(1);
                    let next = GLOBAL.realloc(block, layout(size), 2 * size);
                    if next.is_null() {
                        break;
                    }
                    (block, size) = (next, 2 * size);
                }
                GLOBAL.dealloc(block, layout(size));
            }
            hakmem::purge();
            size
        };
        let (first, before) = (double(), address_space());
        for _ in 0..5 {
            assert_eq!(double(), first);
            let lost = address_space().saturating_sub(before);
            assert!(lost < 16 << 20, "{lost} bytes");
        }
    });
}
