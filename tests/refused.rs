//! Where the system does not take back what was just mapped and is not wanted after all, that is used again,
//! or goes back later.

#[path = "support/options.rs"]
mod support;

use hakmem::{__c, Hakmem, Options, stats};
use hakmem_shadow::faults::{self, MAP, UNMAP};
use std::alloc::{GlobalAlloc, Layout};
use support::succeeds;

hakmem_shadow::interpose!();

/// Not the process's: the test's own blocks are not to come between.
static HEAP: Hakmem = Hakmem::with_options(Options::new().large_cache(0));

const MIB: usize = 1 << 20;

/// A block comes, and is not given back while `munmap` fails.
fn one_block(layout: Layout) -> *mut u8 {
    faults::plan(UNMAP, 0, u16::MAX);
    // SAFETY: the size is not 0.
    let block = unsafe { HEAP.alloc_zeroed(layout) };
    faults::plan(0, 0, 0);
    assert!(!block.is_null(), "{layout:?}");
    // SAFETY: the block has that length.
    unsafe {
        assert!((0..layout.size()).step_by(61).all(|at| *block.add(at) == 0));
        block.write_bytes(7, layout.size());
    }
    block
}

/// What lies before and behind it is cut off from each such block.
#[test]
fn what_is_cut_off_is_not_lost() {
    for mode in ["off", "on"] {
        succeeds("what_is_cut_off_is_not_lost", &[("HAKMEM_HARDENED", mode)], || {
            let layouts = [(3 * MIB, 2 * MIB), (MIB + 5, 8 * MIB), (100, 8), (5 * MIB, 16 * MIB)];
            let layouts = layouts.map(|(size, align)| Layout::from_size_align(size, align).unwrap());
            let round = |count: usize| {
                let blocks = layouts.iter().cycle().take(count).map(|&layout| (one_block(layout), layout));
                for (block, layout) in blocks.collect::<Vec<_>>() {
                    // SAFETY: of this layout, and freed once.
                    unsafe { HEAP.dealloc(block, layout) };
                }
                hakmem::purge();
                stats().bytes_mapped
            };
            round(4);
            let first = round(16);
            let later = (0..5).map(|_| round(16)).max().unwrap();
            // The records of hardened blocks stay.
            assert!(later < first + MIB as u64, "{mode}: {first}, then {later} bytes mapped");
        });
    }
}

/// Memory that is used for a moment only, while the system takes nothing back.
#[test]
fn what_is_needed_for_a_moment_is_used_again() {
    succeeds("what_is_needed_for_a_moment_is_used_again", &[], || {
        hakmem::purge();
        let first = stats().bytes_mapped;
        faults::plan(UNMAP, 0, u16::MAX);
        let figures = |_| {
            // By way of a mapping of its own.
            assert!(__c::class_stats(0).is_some());
            stats().bytes_mapped
        };
        let later = (0..100).map(figures).max().unwrap();
        faults::plan(0, 0, 0);
        assert!(later <= first + (64 << 10), "{first}, then {later} bytes mapped");
        hakmem::purge();
        assert_eq!(stats().bytes_mapped, first);
    });
}

/// The first ones of a process, for which the page map has no room: of all calls, first none succeeds, then
/// one, and so on.
#[test]
fn what_has_no_place_in_the_page_map_is_not_lost() {
    for size in [100, 100_000, 3 * MIB] {
        succeeds("what_has_no_place_in_the_page_map_is_not_lost", &[("SIZE", &size.to_string())], || {
            let size = std::env::var("SIZE").unwrap().parse().unwrap();
            let layout = Layout::from_size_align(size, 8).unwrap();
            let one_block = |pass| {
                faults::plan(MAP | UNMAP, pass, u16::MAX);
                // SAFETY: the size is not 0, and the block is freed once.
                unsafe {
                    let block = HEAP.alloc_zeroed(layout);
                    if !block.is_null() {
                        HEAP.dealloc(block, layout);
                    }
                    faults::plan(0, 0, 0);
                    !block.is_null()
                }
            };
            let failed = (0..).take_while(|&pass| !one_block(pass)).count();
            assert!(failed > 0);
            hakmem::purge();
            assert_eq!(stats().bytes_held, 0, "{size} bytes");
        });
    }
}
