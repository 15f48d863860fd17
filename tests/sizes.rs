//! How many bytes a block has, and how many one would have. The test program lives on the system's allocator.

#[path = "support/options.rs"]
mod support;

use hakmem::{Hakmem, Options, good_size, usable_size};
use std::alloc::{GlobalAlloc, Layout};
use support::{process, succeeds};

/// No freed mapping is kept, so that each block has what its size says.
static OURS: Hakmem = Hakmem::with_options(Options::new().large_cache(0));

const KIB: usize = 1 << 10;
/// The largest run.
const MAX_RUN: usize = 960 * KIB;
const MOST: usize = isize::MAX as usize;
/// Whether blocks have what was asked for, whatever the options.
const WATCHED: bool = cfg!(any(feature = "asan", feature = "valgrind"));

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

fn page() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Layouts of all kinds, with each size at which something ends, and its neighbours.
fn layouts() -> impl Iterator<Item = Layout> {
    let small = (1..=1100).chain((1100..70_000).step_by(509));
    let edges = (8..17).flat_map(|shift| [4, 5, 6, 7].map(|quarters| quarters << (shift - 2)));
    let large = [64, 128, 512, 896, 960, 961, 1024, 5000].map(|kib| kib * KIB);
    let around = edges.chain(large).flat_map(|size| [size - 1, size, size + 1]);
    let sizes: Vec<usize> = small.chain(around).collect();
    let aligns = [1, 8, 16, 32, 256, 4096, 64 * KIB, 128 * KIB, 2048 * KIB];
    aligns.into_iter().flat_map(move |align| {
        let sizes: Vec<usize> =
            if align <= 16 { sizes.clone() } else { sizes.iter().copied().step_by(29).collect() };
        sizes.into_iter().map(move |size| layout(size, align))
    })
}

/// The bytes that a block of this layout has, all of which are written to.
fn usable(layout: Layout) -> usize {
    // SAFETY: no size here is zero; the block has the bytes that are written, and is freed with its layout.
    unsafe {
        let block = OURS.alloc(layout);
        assert!(!block.is_null(), "{layout:?}");
        let usable = usable_size(block);
        block.write_bytes(0x5a, usable);
        OURS.dealloc(block, layout);
        usable
    }
}

/// What `HAKMEM_*` says is not for these tests: each is in a process of its own.
fn by_default(name: &str, f: impl FnOnce()) {
    succeeds(name, &[("HAKMEM_HARDENED", "off"), ("HAKMEM_GUARD", "off"), ("HAKMEM_LARGE_CACHE", "0")], f);
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_block_has_what_its_layout_is_good_for() {
    by_default("a_block_has_what_its_layout_is_good_for", || {
        for wanted in layouts() {
            let good = good_size(wanted);
            assert!(good >= wanted.size(), "{wanted:?}: {good}");
            let whole = layout(good, wanted.align());
            assert_eq!(good_size(whole), good, "{wanted:?}");
            assert_eq!((usable(wanted), usable(whole)), (good, good), "{wanted:?}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)]
fn sizes_are_those_of_classes_slices_and_pages() {
    by_default("sizes_are_those_of_classes_slices_and_pages", || {
        // The options count, which the first block has read.
        usable(layout(1, 1));
        let pages = |size: usize| size.next_multiple_of(page());
        for (size, align, good) in [
            (0, 1, 8),
            (0, 16, 16),
            (1, 1, 8),
            (17, 8, 24),
            (17, 16, 32),
            (100, 8, 112),
            (100, 64, 128),
            (1025, 8, 1280),
            (5000, 16, 5120),
            (50_000, 16, 56 * KIB),
            (64 * KIB, 16, 64 * KIB),
            (64 * KIB + 1, 16, 128 * KIB),
            (1, 64 * KIB, 64 * KIB),
            (MAX_RUN - 1, 16, MAX_RUN),
            (MAX_RUN + 1, 16, pages(MAX_RUN + 1)),
            (5_000_000, 4096, pages(5_000_000)),
            (1, 128 * KIB, 64 * KIB),
            (70_000, 128 * KIB, pages(70_000)),
            // The system has no such block; of these bytes there is still a layout.
            (MOST - page(), 1, MOST + 1 - page()),
            (MOST + 1 - page(), 1, MOST + 1 - page()),
            (MOST + 2 - page(), 1, MOST + 2 - page()),
            (MOST, 1, MOST),
        ] {
            let good = if WATCHED { size } else { good };
            assert_eq!(good_size(layout(size, align)), good, "{size} at {align}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)]
fn no_block_has_no_bytes_and_a_resized_one_others() {
    by_default("no_block_has_no_bytes_and_a_resized_one_others", || {
        // SAFETY: null may be asked about; blocks are resized and freed with their layouts.
        unsafe {
            assert_eq!(usable_size(std::ptr::null()), 0);
            let mut before = layout(10, 8);
            let mut block = OURS.alloc(before);
            for size in [100, 3000, 200_000, 3_000_000, 150_000, 40, 1] {
                block = OURS.realloc(block, before, size);
                before = layout(size, 8);
                assert!(usable_size(block) >= size, "{size}");
                assert!(size > 200_000 || usable_size(block) == good_size(before), "{size}");
            }
            OURS.dealloc(block, before);
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)]
fn in_hardened_mode_blocks_have_what_was_asked_for() {
    for level in ["on", "light"] {
        succeeds("in_hardened_mode_blocks_have_what_was_asked_for", &[("HAKMEM_HARDENED", level)], || {
            for wanted in layouts().step_by(7) {
                assert_eq!(usable(wanted), wanted.size(), "{wanted:?}");
                assert_eq!(good_size(wanted), wanted.size(), "{wanted:?}");
            }
            for size in [0, MOST] {
                assert_eq!(good_size(layout(size, 1)), size);
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn between_guard_pages_blocks_have_all_bytes_of_their_class() {
    let options = [("HAKMEM_GUARD", "1"), ("HAKMEM_HARDENED", "off")];
    succeeds("between_guard_pages_blocks_have_all_bytes_of_their_class", &options, || {
        for wanted in layouts().step_by(7) {
            assert_eq!(usable(wanted), good_size(wanted), "{wanted:?}");
        }
        // Where freed blocks are kept for the tools, they keep their places.
        assert!(hakmem::stats().guard_samples > if WATCHED { 0 } else { 100 });
    });
}

#[test]
#[cfg_attr(miri, ignore)]
fn what_is_no_block_is_reported() {
    let options = [("HAKMEM_FOREIGN", "warn"), ("HAKMEM_HARDENED", "off")];
    let output = process("what_is_no_block_is_reported", &options, || {
        usable(layout(1, 1));
        let other = [0u64; 8];
        // SAFETY: not as the function wants it, but what it does then is documented: it looks at the page map
        // only.
        assert_eq!(unsafe { usable_size((&raw const other).cast::<u8>().wrapping_add(16)) }, 0);
    });
    if let Some(output) = output.filter(|_| !WATCHED) {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("usable_size"), "{output:?}");
    }
}
