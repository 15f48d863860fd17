//! What hardened mode gives back, and when: by the options that say so of the usual heap. Each case is a
//! process of its own, with the options in its environment. Nothing depends on how long something takes: what
//! has to happen is waited for, and what must not happen does not, however long it takes.

#[path = "support/child.rs"]
mod child;
#[path = "support/options.rs"]
mod support;
#[path = "support/waiting.rs"]
mod waiting;

use child::child;
use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{GlobalAlloc, Layout};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use support::{process, succeeds};
use waiting::{background_sleeps, until};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

const MIB: usize = 1 << 20;
/// Small blocks, and how many of them are 64 MiB.
const SMALL: usize = 4000;
const MANY: usize = 16_000;
/// What may stay of these: the slab that the thread allocates from, and those of the blocks in quarantine, of
/// 2 MiB each; and less than would stay without the option.
const LITTLE: u64 = 8 * MIB as u64;

fn blocks(count: usize, size: usize) -> Vec<*mut u8> {
    let one = |_| {
        // SAFETY: the size is not 0, and the block has it.
        unsafe {
            let block = GLOBAL.alloc(Layout::from_size_align(size, 8).unwrap());
            assert!(!block.is_null());
            block.write_bytes(7, size);
            block
        }
    };
    (0..count).map(one).collect()
}

fn free(blocks: &[*mut u8], size: usize) {
    for &block in blocks {
        // SAFETY: of that layout; that each is freed once is up to the caller.
        unsafe { GLOBAL.dealloc(block, Layout::from_size_align(size, 8).unwrap()) };
    }
}

/// Bytes of slabs. Asking for them allocates nothing.
fn slabs() -> u64 {
    hakmem::stats().active_bytes
}

/// Bytes of freed large blocks whose pages are there.
fn kept() -> u64 {
    hakmem::stats().dirty_bytes
}

/// 64 MiB of small blocks come and go. Returns the bytes of slabs before, in between and after.
fn come_and_go() -> [u64; 3] {
    let before = slabs();
    let many = blocks(MANY, SMALL);
    let most = slabs();
    assert!(most - before > 60 * MIB as u64);
    free(&many, SMALL);
    [before, most, slabs()]
}

/// The program does a little, in no class of which it has freed much.
fn do_a_little() {
    free(&blocks(200, 24), 24);
}

#[test]
fn without_a_delay_empty_slabs_go_at_once() {
    for options in [("HAKMEM_PURGE_DELAY", "0"), ("HAKMEM_PRESET", "memory")] {
        succeeds("without_a_delay_empty_slabs_go_at_once", &[options], || {
            let [before, _, after] = come_and_go();
            assert!(after - before < LITTLE, "{} KiB stay", (after - before) >> 10);
            free(&blocks(2, MIB), MIB);
            assert_eq!(kept(), 0);
        });
    }
}

#[test]
fn with_a_negative_delay_all_stays_until_it_is_asked_for() {
    for options in [("HAKMEM_PURGE_DELAY", "-1"), ("HAKMEM_PRESET", "latency")] {
        succeeds("with_a_negative_delay_all_stays_until_it_is_asked_for", &[options], || {
            let [before, most, after] = come_and_go();
            free(&blocks(2, MIB), MIB);
            let large = kept();
            assert!(large >= 2 * MIB as u64);
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(50));
                do_a_little();
            }
            // Nothing but what other threads of the test may have used.
            assert!(most - after.min(slabs()) < LITTLE, "{most} {after} {}", slabs());
            assert_eq!(kept(), large);
            hakmem::purge();
            assert!(slabs() - before < LITTLE && kept() == 0);
        });
    }
}

#[test]
fn empty_slabs_go_after_the_delay() {
    let name = "empty_slabs_go_after_the_delay";
    succeeds(name, &[("HAKMEM_PURGE_DELAY", "10")], || {
        let [before, ..] = come_and_go();
        until("slabs go", || {
            do_a_little();
            slabs() - before < LITTLE
        });
    });
}

#[test]
fn the_background_thread_gives_back_what_nobody_asks_for() {
    let name = "the_background_thread_gives_back_what_nobody_asks_for";
    succeeds(name, &[("HAKMEM_PURGE_DELAY", "10"), ("HAKMEM_BACKGROUND", "on")], || {
        let before = slabs();
        let many = blocks(MANY, SMALL);
        background_sleeps();
        free(&many, SMALL);
        until("slabs go", || slabs() - before < LITTLE);
        drop(many);
        let large = blocks(2, MIB);
        background_sleeps();
        free(&large, MIB);
        until("large blocks go", || kept() == 0);
        // With nothing left it sleeps again.
        background_sleeps();
    });
}

/// Where nothing but large blocks is allocated, it starts, too: in the child of a fork, since the test's own
/// process has started it long before.
#[test]
fn the_background_thread_starts_with_large_blocks() {
    let name = "the_background_thread_starts_with_large_blocks";
    succeeds(name, &[("HAKMEM_BACKGROUND", "on")], || {
        let large = blocks(8, MIB);
        let layout = Layout::from_size_align(MIB, 8).unwrap();
        background_sleeps();
        let before = hakmem::stats().background_passes;
        let status = child(|| {
            until("it starts", || {
                // SAFETY: the size is not 0, and the block has this layout.
                unsafe { GLOBAL.dealloc(GLOBAL.alloc(layout), layout) };
                hakmem::stats().background_passes > before
            });
        });
        assert_eq!(status, 0);
        free(&large, MIB);
    });
}

#[test]
fn without_a_large_cache_the_pages_of_large_blocks_go_at_once() {
    let name = "without_a_large_cache_the_pages_of_large_blocks_go_at_once";
    succeeds(name, &[("HAKMEM_LARGE_CACHE", "0"), ("HAKMEM_PURGE_DELAY", "-1")], || {
        // Of which an eighth could stay otherwise.
        let _in_use = blocks(40, MIB);
        free(&blocks(2, MIB), MIB);
        assert_eq!(kept(), 0);
    });
}

#[test]
fn a_small_large_cache_keeps_little() {
    let name = "a_small_large_cache_keeps_little";
    succeeds(name, &[("HAKMEM_LARGE_CACHE", "2M"), ("HAKMEM_PURGE_DELAY", "-1")], || {
        free(&blocks(3, MIB), MIB);
        assert!(kept() != 0 && kept() <= 2 * MIB as u64, "{}", kept());
    });
}

/// How many of the block's pages are resident; `None` if it is not mapped.
fn resident_pages(block: *mut u8, size: usize) -> Option<usize> {
    // SAFETY: no preconditions; the answer has a byte for each page, which has 4 KiB at least.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let mut pages = vec![0u8; size / page + 1];
        let from = block.map_addr(|at| at & !(page - 1));
        let len = (block.addr() + size).next_multiple_of(page) - from.addr();
        let done = libc::mincore(from.cast(), len, pages.as_mut_ptr().cast()) == 0;
        done.then(|| pages.iter().filter(|&page| page & 1 != 0).count())
    }
}

/// Their addresses stay nobody's.
#[test]
fn the_pages_of_large_blocks_go_after_the_delay() {
    let name = "the_pages_of_large_blocks_go_after_the_delay";
    let output = process(name, &[("HAKMEM_PURGE_DELAY", "10")], || {
        let large = blocks(3, MIB);
        free(&large, MIB);
        until("large blocks go", || {
            do_a_little();
            kept() == 0
        });
        for &block in &large {
            assert_eq!(resident_pages(block, MIB), Some(0), "none of its pages, but its addresses");
        }
        for _ in 0..10 {
            let other = blocks(1, MIB);
            assert!(!large.contains(&other[0]), "addresses that were used before");
            free(&other, MIB);
        }
        eprintln!("freed again");
        free(&large[..1], MIB);
    });
    if let Some(output) = output {
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("freed again") && text.contains("double free"), "{output:?}");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    }
}

/// The count of empty slabs is the child's own affair.
#[test]
fn the_child_of_a_fork_gives_back_what_it_has_inherited() {
    let name = "the_child_of_a_fork_gives_back_what_it_has_inherited";
    succeeds(name, &[("HAKMEM_PURGE_DELAY", "10")], || {
        let [before, ..] = come_and_go();
        let status = child(|| {
            until("slabs go", || {
                do_a_little();
                slabs() - before < LITTLE
            });
        });
        assert_eq!(status, 0);
    });
}
