//! Huge pages for large blocks in hardened mode: as the option says, or where others like them were filled.
//! Each case is a process of its own. Whether the system has any does not matter here.

#[path = "support/huge.rs"]
mod advice;
#[path = "support/options.rs"]
mod support;

use advice::{MIB, advice_can_be_seen, advised, flagged, free, make};
use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{Layout, alloc, dealloc, realloc};
use support::succeeds;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

const PAGE: usize = 4096;

/// MiB of `len` bytes of address space or a little more.
fn mib(len: usize) -> usize {
    len / MIB
}

#[test]
fn the_next_large_block_has_them_if_one_was_filled() {
    succeeds("the_next_large_block_has_them_if_one_was_filled", &[], || {
        if !advice_can_be_seen() {
            return;
        }
        let (before, refused) = (advised(), flagged("nh"));
        let first = make(1, 3 * MIB, PAGE);
        assert_eq!(advised(), before, "nothing is known yet");
        assert_eq!(mib(flagged("nh") - refused), 3, "so they are refused");
        free(first);
        let second = make(1, 5 * MIB, PAGE);
        assert_eq!(mib(advised() - before), 5);
        free(second);
    });
}

#[test]
fn what_is_hardly_touched_has_none() {
    succeeds("what_is_hardly_touched_has_none", &[], || {
        if !advice_can_be_seen() {
            return;
        }
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
    succeeds("a_block_that_grows_has_them", &[], || {
        if !advice_can_be_seen() {
            return;
        }
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

#[test]
fn with_always_all_have_them() {
    succeeds("with_always_all_have_them", &[("HAKMEM_THP", "always")], || {
        if advice_can_be_seen() {
            let before = advised();
            let blocks = make(2, 5 * MIB, MIB);
            assert_eq!(mib(advised() - before), 10);
            free(blocks);
        }
    });
}

#[test]
fn with_never_all_refuse_them() {
    succeeds("with_never_all_refuse_them", &[("HAKMEM_THP", "never")], || {
        if advice_can_be_seen() {
            let (before, refused) = (advised(), flagged("nh"));
            free(make(4, 5 * MIB, PAGE));
            let blocks = make(2, 5 * MIB, PAGE);
            assert_eq!(advised(), before);
            assert!(mib(flagged("nh") - refused) >= 10);
            free(blocks);
        }
    });
}

/// Memory that refused huge pages would have no folios either.
#[test]
fn with_folios_none_refuse_them() {
    succeeds("with_folios_none_refuse_them", &[("HAKMEM_THP", "folios")], || {
        if advice_can_be_seen() {
            let refused = flagged("nh");
            let blocks = make(2, 3 * MIB, PAGE);
            assert_eq!(flagged("nh"), refused);
            free(blocks);
        }
    });
}
