//! Hardened mode where the system does not take memory back for a while: it is used again, or goes back
//! later.

#[path = "support/options.rs"]
mod support;

use hakmem::{Hakmem, Hardened, Options, stats};
use hakmem_shadow::faults::{self, ADVISE, MAP, PROTECT, REMAP, UNMAP};
use std::alloc::{GlobalAlloc, Layout};
use support::succeeds;

hakmem_shadow::interpose!();

/// Not the process's: the test's own blocks are not to come between.
static HEAP: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON).purge_delay_ms(0));

const MIB: usize = 1 << 20;
/// Bytes of a large block.
const LARGE: usize = 300_000;

/// 64 MiB of blocks of this size come, and go while these calls fail. They are zero when they come, and then
/// filled.
fn come_and_go(size: usize, refused: u8) {
    let layout = Layout::from_size_align(size, 8).unwrap();
    let one = |_| {
        // SAFETY: the size is not 0, and the block has it.
        unsafe {
            let block = HEAP.alloc_zeroed(layout);
            assert!(!block.is_null());
            let mut some = (0..size).step_by(61);
            assert!(some.all(|at| *block.add(at) == 0), "{size} bytes");
            block.write_bytes(7, size);
            block
        }
    };
    let blocks: Vec<_> = (0..64 * MIB / size).map(one).collect();
    faults::plan(refused, 0, u16::MAX);
    for &block in &blocks {
        // SAFETY: of this layout, and freed once.
        unsafe { HEAP.dealloc(block, layout) };
    }
    hakmem::purge();
    faults::plan(0, 0, 0);
}

/// Comes and goes, again and again, while these calls fail, and then goes back.
fn nothing_is_lost(name: &str, refused: u8) {
    succeeds(name, &[("HAKMEM_HARDENED", "on")], || {
        for size in [100, 4000, 50_000, 2 * MIB] {
            for _ in 0..4 {
                come_and_go(size, refused);
            }
            let first = stats().bytes_held;
            for _ in 0..4 {
                come_and_go(size, refused);
            }
            // Some more, since slabs lie elsewhere each time; and of large blocks not all that was set aside
            // is looked through.
            let (held, most) = (stats().bytes_held, first + if size < MIB { 16 << 20 } else { 64 << 20 });
            assert!(held <= most, "blocks of {size} bytes: {first}, then {held} bytes held");
            hakmem::purge();
            assert_eq!(stats().bytes_held, 0, "blocks of {size} bytes");
        }
    });
}

#[test]
fn nothing_is_lost_that_cannot_be_unmapped() {
    nothing_is_lost("nothing_is_lost_that_cannot_be_unmapped", UNMAP);
}

#[test]
fn nothing_is_lost_that_cannot_be_purged_either() {
    nothing_is_lost("nothing_is_lost_that_cannot_be_purged_either", UNMAP | ADVISE);
}

#[test]
fn nothing_is_lost_that_cannot_be_made_inaccessible_either() {
    nothing_is_lost("nothing_is_lost_that_cannot_be_made_inaccessible_either", UNMAP | ADVISE | MAP);
}

/// A block of the first of these sizes, which is zero, comes, gets the others if it can, and goes, while of
/// these calls `pass` succeed, and `fail` fail.
fn one_block(sizes: &[usize], refused: u8, pass: u16, fail: u16) -> bool {
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    let (&size, others) = sizes.split_first().unwrap();
    faults::plan(refused, pass, fail);
    // SAFETY: the sizes are not 0, and what is there has them.
    unsafe {
        let mut block = HEAP.alloc_zeroed(layout(size));
        let (is_there, mut now) = (!block.is_null(), size);
        if is_there {
            assert!((0..size).step_by(61).all(|at| *block.add(at) == 0));
            block.write_bytes(7, size);
            for &other in others {
                let moved = HEAP.realloc(block, layout(now), other);
                if !moved.is_null() {
                    (block, now) = (moved, other);
                }
            }
            assert!((0..size.min(now)).step_by(61).all(|at| *block.add(at) == 7));
            block.write_bytes(7, now);
            HEAP.dealloc(block, layout(now));
        }
        faults::plan(0, 0, 0);
        is_there
    }
}

fn nothing_is_held() {
    hakmem::purge();
    assert_eq!(stats().bytes_held, 0);
}

/// As at the limit of mappings, where guard pages need more, and a hole is one more.
#[test]
fn a_block_that_gets_no_guard_pages_is_not_lost() {
    succeeds("a_block_that_gets_no_guard_pages_is_not_lost", &[("HAKMEM_HARDENED", "on")], || {
        assert!(one_block(&[LARGE], 0, 0, 0));
        for _ in 0..500 {
            assert!(one_block(&[LARGE], PROTECT | UNMAP, 0, 2));
        }
        // 64 freed ones, of 384 KiB each, and some of the others.
        let held = stats().bytes_held;
        assert!(held < 48 << 20, "{held} bytes held");
        for _ in 0..500 {
            assert!(one_block(&[LARGE], PROTECT | UNMAP, 0, u16::MAX));
        }
        nothing_is_held();
    });
}

/// Nor is one for which the page map has no room.
#[test]
fn a_block_that_is_not_found_is_not_lost() {
    succeeds("a_block_that_is_not_found_is_not_lost", &[("HAKMEM_HARDENED", "on")], || {
        let failed = (0..).take_while(|&pass| !one_block(&[LARGE], MAP | UNMAP, pass, u16::MAX)).count();
        assert!(failed > 2, "{failed}");
        nothing_is_held();
    });
}

/// Whatever call it is that fails first, and all that follow.
#[test]
fn nothing_is_lost_whatever_fails() {
    succeeds("nothing_is_lost_whatever_fails", &[("HAKMEM_HARDENED", "on")], || {
        const ALL: u8 = MAP | UNMAP | ADVISE | PROTECT | REMAP;
        for size in [100, 5000, 20_000, 60_000, 300_000, MIB] {
            for refused in
                [MAP, MAP | UNMAP, REMAP | UNMAP, PROTECT | UNMAP, MAP | PROTECT | UNMAP, ADVISE | UNMAP, ALL]
            {
                for pass in 0..12 {
                    for fail in [1, u16::MAX] {
                        one_block(&[size, 2 * size, 7 * size, 3 * size, size / 2], refused, pass, fail);
                    }
                }
                hakmem::purge();
                assert_eq!(stats().bytes_held, 0, "{size} bytes, {refused}");
            }
        }
    });
}

/// At the hard limit: what was freed and is set aside, since to unmap it would leave a hole, goes back for
/// whom that lets in. Also just after one that could not be had.
#[test]
fn what_is_set_aside_can_be_had_at_the_limit() {
    let options = [("HAKMEM_HARDENED", "canary"), ("HAKMEM_HARD_LIMIT", "1100M")];
    succeeds("what_is_set_aside_can_be_had_at_the_limit", &options, || {
        // 128 KiB each.
        let (one, many) = [70_000, 120 * MIB].map(|size| Layout::from_size_align(size, 8).unwrap()).into();
        let block = |layout| {
            // SAFETY: the size is not 0.
            let block = unsafe { HEAP.alloc(layout) };
            (!block.is_null()).then_some(block)
        };
        let mut blocks: Vec<_> = std::iter::from_fn(|| block(one)).collect();
        assert!(blocks.len() > 8500, "{}", blocks.len());
        for _ in 0..120 {
            assert!(block(many).is_none());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for block in blocks.split_off(7400) {
            // SAFETY: of this layout, and freed once.
            unsafe { HEAP.dealloc(block, one) };
        }
        assert!(block(many).is_some());
    });
}

/// At the hard limit: as many small blocks as were freed, also if hardly any of each slab were. Also after
/// requests that could not be had.
#[test]
fn freed_small_blocks_can_be_had_at_the_limit() {
    for hardened in ["on", "light", "checks"] {
        let options = [("HAKMEM_HARDENED", hardened), ("HAKMEM_HARD_LIMIT", "16M")];
        succeeds("freed_small_blocks_can_be_had_at_the_limit", &options, || {
            for size in [16, 100, 1000, 3000, 50_000] {
                at_the_limit(Layout::from_size_align(size, 8).unwrap());
                hakmem::purge();
                assert_eq!(stats().bytes_held, 0, "{size} bytes");
            }
        });
    }
}

/// That, for blocks of this layout.
fn at_the_limit(layout: Layout) {
    // SAFETY: the sizes are not 0.
    let alloc = |layout| unsafe { HEAP.alloc(layout) };
    // SAFETY: each is freed once, of this layout.
    let free = |block: *mut u8| unsafe { HEAP.dealloc(block, layout) };
    let all = || std::iter::from_fn(|| Some(alloc(layout)).filter(|block| !block.is_null()));
    let mut blocks: Vec<_> = all().collect();
    assert!(blocks.len() > 100, "{} blocks of {} bytes", blocks.len(), layout.size());
    // Each at once.
    for (i, block) in blocks.iter_mut().enumerate().take(100) {
        free(*block);
        *block = alloc(layout);
        assert!(!block.is_null(), "{} bytes, block {i}", layout.size());
    }
    let large = Layout::from_size_align(12 * MIB, 8).unwrap();
    for every in [30, 10] {
        let before = blocks.len();
        let mut n = 0;
        blocks.retain(|&block| {
            n += 1;
            if n % every == 0 {
                free(block);
            }
            n % every != 0
        });
        let freed = before - blocks.len();
        assert!(alloc(large).is_null());
        let again = all().inspect(|&block| blocks.push(block)).count();
        assert!(again >= freed, "{} bytes: of {freed} blocks {again}", layout.size());
    }
    blocks.into_iter().for_each(free);
}

/// As at the limit of mappings: then there are none.
#[test]
fn small_blocks_can_be_had_where_guard_pages_are_refused() {
    let name = "small_blocks_can_be_had_where_guard_pages_are_refused";
    succeeds(name, &[("HAKMEM_HARDENED", "on")], || {
        let layout = Layout::from_size_align(100, 8).unwrap();
        // SAFETY: the size is not 0.
        let block = unsafe { HEAP.alloc(layout) };
        for size in [200, 5000, 60_000] {
            assert!(one_block(&[size], PROTECT, 0, u16::MAX), "{size} bytes");
        }
        // SAFETY: of this layout, and freed once.
        unsafe { HEAP.dealloc(block, layout) };
        nothing_is_held();
    });
}
