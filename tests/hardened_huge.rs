//! Huge pages for large blocks in hardened mode: as the option says, or where others like them were filled.
//! Each case is a process of its own. Whether the system has any does not matter here.

#[path = "support/huge.rs"]
mod advice;
#[path = "support/options.rs"]
mod support;

use advice::{MIB, advice_can_be_seen, advised, flagged, free, is_flagged, make};
use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{Layout, alloc, dealloc, realloc};
use support::succeeds;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

const PAGE: usize = 4096;

/// Runs the test `name` in a process with these options, where it does `f`, if advice can be seen here.
fn case(name: &str, options: &[(&str, &str)], f: impl FnOnce()) {
    succeeds(name, options, || {
        if advice_can_be_seen() {
            f();
        }
    });
}

#[test]
fn the_next_large_block_has_them_if_one_was_filled() {
    case("the_next_large_block_has_them_if_one_was_filled", &[], || {
        let (before, refused) = (advised(), flagged("nh"));
        let first = make(1, 3 * MIB, PAGE);
        assert_eq!(advised(), before, "nothing is known yet");
        assert_eq!((flagged("nh") - refused) / MIB, 3, "so they are refused");
        free(first);
        let second = make(1, 5 * MIB, PAGE);
        assert_eq!((advised() - before) / MIB, 5);
        free(second);
    });
}

#[test]
fn what_is_hardly_touched_has_none() {
    case("what_is_hardly_touched_has_none", &[], || {
        let before = advised();
        for _ in 0..20 {
            free(make(2, 5 * MIB, MIB));
        }
        let blocks = make(2, 5 * MIB, MIB);
        assert_eq!(advised(), before);
        free(blocks);
    });
}

/// What was copied is touched, and a table that has grown once is filled.
#[test]
fn a_block_that_grows_has_them() {
    case("a_block_that_grows_has_them", &[], || {
        let before = advised();
        let layout = |len| Layout::from_size_align(len, 16).unwrap();
        // SAFETY: the sizes are not zero; the block is freed with its layout.
        unsafe {
            let block = alloc(layout(2 * MIB));
            block.write_bytes(1, 2 * MIB);
            let block = realloc(block, layout(2 * MIB), 8 * MIB);
            assert!(advised() - before >= 8 * MIB);
            // Where it is, with the same pages.
            let block = realloc(block, layout(8 * MIB), 12 * MIB);
            assert!(advised() - before >= 12 * MIB && *block.add(2 * MIB - 1) == 1);
            dealloc(block, layout(12 * MIB));
        }
    });
}

/// Slabs of blocks longer than a page.
#[test]
fn long_blocks_that_are_filled_have_them() {
    case("long_blocks_that_are_filled_have_them", &[], || {
        for size in [6000, 20_000, 50_000] {
            let before = advised();
            let blocks = make(60 * MIB / size, size, PAGE);
            let more = (advised() - before) / MIB;
            assert!(more >= 40, "{more} MiB of 60 in blocks of {size}");
            free(blocks);
        }
    });
}

/// A buffer of each connection, of which the beginning is used.
#[test]
fn long_blocks_that_are_hardly_touched_have_none() {
    case("long_blocks_that_are_hardly_touched_have_none", &[], || {
        for size in [20_000, 50_000] {
            let before = advised();
            let blocks = make(60 * MIB / size, size, size);
            assert_eq!(advised(), before, "blocks of {size}");
            free(blocks);
        }
    });
}

#[test]
fn with_always_all_have_them() {
    case("with_always_all_have_them", &[("HAKMEM_THP", "always")], || {
        let before = advised();
        let blocks = make(2, 5 * MIB, MIB);
        assert_eq!((advised() - before) / MIB, 10);
        let long = make(30 * MIB / 50_000, 50_000, 50_000);
        assert!((advised() - before) / MIB >= 30);
        free([blocks, long].concat());
    });
}

#[test]
fn with_never_all_refuse_them() {
    case("with_never_all_refuse_them", &[("HAKMEM_THP", "never")], || {
        let before = advised();
        free(make(4, 5 * MIB, PAGE));
        let blocks = [make(2, 5 * MIB, PAGE), make(1000, 100, PAGE)].concat();
        assert_eq!(advised(), before);
        assert!(blocks.iter().all(|&(block, _)| is_flagged(block, "nh")));
        free(blocks);
    });
}

/// Memory that refused huge pages would have no folios either.
#[test]
fn with_folios_none_refuse_them() {
    case("with_folios_none_refuse_them", &[("HAKMEM_THP", "folios")], || {
        let blocks = [make(2, 3 * MIB, PAGE), make(1000, 100, PAGE)].concat();
        assert!(!blocks.iter().any(|&(block, _)| is_flagged(block, "nh")));
        free(blocks);
    });
}
