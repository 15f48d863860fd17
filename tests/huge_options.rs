//! Huge pages where an option decides: all blocks have them, or none.

use advice::{MIB, advice_can_be_seen, advised, free, is_flagged, make};
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

/// Whether this runs under an emulator, which does not show advice.
fn is_emulated() -> bool {
    let emulated = std::env::var_os("EXPECT_PAGE_SIZE").is_some();
    if emulated {
        skip("under an emulator");
    }
    emulated
}

/// Neither new mappings nor those that grow, however they are filled.
#[test]
fn with_never_none_have_them() {
    if is_emulated() {
        return;
    }
    options::succeeds("with_never_none_have_them", &[("HAKMEM_THP", "never")], || {
        let (before, page) = (advised(), 4096);
        let blocks = [make(2, 5 * MIB, page), make(20 << 14, 64, 64)];
        let (block, layout) = make(1, 8 * MIB, page)[0];
        // SAFETY: made with this layout.
        let block = unsafe { GLOBAL.realloc(block, layout, 12 * MIB) };
        assert_eq!(advised(), before);
        blocks.into_iter().for_each(free);
        free(vec![(block, Layout::from_size_align(12 * MIB, 16).unwrap())]);
    });
}

/// Also what was too short for one at first: such blocks are made without, while others are in use that may
/// show whether they are filled.
#[test]
fn with_always_what_grows_has_them() {
    if is_emulated() {
        return;
    }
    options::succeeds("with_always_what_grows_has_them", &[("HAKMEM_THP", "always")], || {
        if !advice_can_be_seen() {
            return skip("the kernel has no huge pages, or does not show the advice");
        }
        let page = 4096;
        let others = make(4, 5 * MIB, page);
        let before = advised();
        assert!(before >= 20 * MIB);
        let short = make(1, 3 * MIB / 2, page);
        let (block, layout) = short[0];
        // SAFETY: made with this layout.
        let block = unsafe { GLOBAL.realloc(block, layout, 64 * MIB) };
        assert!(!block.is_null() && advised() - before >= 62 * MIB);
        free(vec![(block, Layout::from_size_align(64 * MIB, 16).unwrap())]);
        free(others);
    });
}

/// Arrays that a program makes before it fills them. CI's machine has `madvise`; the other half was seen by
/// hand.
#[test]
fn very_long_blocks_have_what_the_system_gives_to_all_memory() {
    if is_emulated() {
        return;
    }
    options::succeeds("very_long_blocks_have_what_the_system_gives_to_all_memory", &[], || {
        if !advice_can_be_seen() {
            return skip("the kernel has no huge pages, or does not show the advice");
        }
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
        let given = setting.contains("[always]");
        let (short, long) = (make(2, 20 * MIB, 20 * MIB), make(3, 64 * MIB, 64 * MIB));
        assert!(short.iter().all(|&(block, _)| is_flagged(block, "nh")));
        assert!(
            long.iter().all(|&(block, _)| is_flagged(block, if given { "hg" } else { "nh" })),
            "{setting}"
        );
        // From then on it is known how blocks are used. Nothing is kept that the next one could be made of.
        free(short);
        hakmem::purge();
        let sparse = make(1, 64 * MIB, 64 * MIB);
        assert!(is_flagged(sparse[0].0, "nh"));
        [long, sparse].into_iter().for_each(free);
    });
}

/// One of these that is hardly touched says so when it is freed.
#[test]
fn a_very_long_block_that_was_hardly_used_is_the_last_with_huge_pages() {
    if is_emulated() {
        return;
    }
    options::succeeds("a_very_long_block_that_was_hardly_used_is_the_last_with_huge_pages", &[], || {
        let used = make(1, 64 * MIB, 64 * MIB);
        free(used);
        hakmem::purge();
        let next = make(1, 64 * MIB, 64 * MIB);
        assert!(!is_flagged(next[0].0, "hg"));
        free(next);
    });
}
