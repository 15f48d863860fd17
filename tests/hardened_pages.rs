//! In hardened mode the pages of large blocks that were freed serve the next ones, elsewhere. Each case is a
//! process of its own.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/options.rs"]
mod support;

use faults::page_faults;
use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::os::unix::process::ExitStatusExt;
use support::{process, succeeds};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// A block of `size` bytes, which is zero, and filled then.
fn filled(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0, and the block has it.
    unsafe {
        let block = alloc_zeroed(layout(size));
        assert!(!block.is_null());
        let mut some = (0..size).step_by(61).chain(size - 1..size);
        assert!(some.all(|at| *block.add(at) == 0), "{size} bytes");
        block.write_bytes(7, size);
        block
    }
}

/// How many times all sizes of [`faults_of`].
const PASSES: usize = 20;

/// Page faults of blocks of these sizes, of which each is freed before the next one is made.
fn faults_of(sizes: &[usize]) -> usize {
    let pass = || {
        for &size in sizes {
            // SAFETY: made with this layout, and freed once.
            unsafe { dealloc(filled(size), layout(size)) };
        }
    };
    (0..6).for_each(|_| pass());
    let before = page_faults();
    (0..PASSES).for_each(|_| pass());
    page_faults() - before
}

#[test]
fn freed_pages_are_not_faulted_in_again() {
    for (level, thp) in [("on", "never"), ("on", "always"), ("light", "never"), ("checks", "never")] {
        // However long it takes.
        let options = [("HAKMEM_HARDENED", level), ("HAKMEM_THP", thp), ("HAKMEM_PURGE_DELAY", "-1")];
        let output = process("freed_pages_are_not_faulted_in_again", &options, || {
            for size in [200 * KIB, 1500 * KIB, 2500 * KIB, 7 * MIB + 5000] {
                let faults = faults_of(&[size]);
                assert!(faults < PASSES * size / 4096 / 8, "{size} bytes: {faults} page faults");
            }
        });
        let Some(output) = output else { return };
        assert!(output.status.success(), "{options:?}: {output:?}");
    }
}

/// As far as they reach; what is longer than half of them, or twice, has some use for them.
#[test]
fn blocks_of_other_sizes_have_them() {
    let options = [("HAKMEM_THP", "never"), ("HAKMEM_PURGE_DELAY", "-1")];
    succeeds("blocks_of_other_sizes_have_them", &options, || {
        let sizes = [300 * KIB, 450 * KIB, 700 * KIB + 9, 1000 * KIB, 800 * KIB, 500 * KIB];
        let all: usize = sizes.iter().map(|size| size / 4096).sum();
        let faults = faults_of(&sizes);
        assert!(faults < PASSES * all / 2, "{faults} page faults");
    });
}

/// To clear all of it would cost more than to fault in what is touched.
#[test]
fn what_is_hardly_touched_gives_them_back() {
    succeeds("what_is_hardly_touched_gives_them_back", &[("HAKMEM_THP", "never")], || {
        let (size, before) = (20 * MIB, page_faults());
        for _ in 0..20 {
            // SAFETY: this test's block, which is freed once.
            unsafe {
                let block = alloc(layout(size));
                (0..size).step_by(MIB).for_each(|at| block.add(at).write_volatile(1));
                dealloc(block, layout(size));
            }
        }
        // To clear all of it once would be 5,120.
        let faults = page_faults() - before;
        assert!(faults < 1000, "{faults} page faults");
    });
}

/// No more than the large cache may have, however many are freed.
#[test]
fn they_are_bounded() {
    for (cache, most) in [("8M", "8"), ("0", "0")] {
        let options = [("HAKMEM_LARGE_CACHE", cache), ("MOST", most), ("HAKMEM_THP", "never")];
        let output = process("they_are_bounded", &options, || {
            let most = MIB * std::env::var("MOST").unwrap().parse::<usize>().unwrap();
            let resident = || {
                let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
                4096 * statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
            };
            let before = resident();
            for size in [MIB, 3 * MIB, 9 * MIB] {
                let blocks: Vec<_> = (0..10).map(|_| filled(size)).collect();
                for block in blocks {
                    // SAFETY: made with this layout, and freed once.
                    unsafe { dealloc(block, layout(size)) };
                }
                let kept = resident().saturating_sub(before);
                assert!(kept < most + 2 * MIB, "{size}: {kept} bytes, of {most}");
            }
        });
        let Some(output) = output else { return };
        assert!(output.status.success(), "{options:?}: {output:?}");
    }
}

/// Who still has the address of a freed block has nothing, though its pages serve another block by then.
#[test]
fn the_old_addresses_cannot_be_touched() {
    for size in ["300000", "2500000"] {
        let output = process("the_old_addresses_cannot_be_touched", &[("CASE", size)], || {
            let size = std::env::var("CASE").unwrap().parse().unwrap();
            let block = filled(size);
            // SAFETY: to read a freed block ends the process, which is what is tested.
            unsafe {
                dealloc(block, layout(size));
                let next = filled(size);
                assert_ne!(next, block);
                block.read_volatile();
            }
        });
        let Some(output) = output else { return };
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    }
}

/// And to free it again is a double free.
#[test]
fn a_block_whose_pages_are_gone_is_freed_once() {
    let output = process("a_block_whose_pages_are_gone_is_freed_once", &[], || {
        let block = filled(2_500_000);
        // SAFETY: the second free ends the process, which is what is tested.
        unsafe {
            dealloc(block, layout(2_500_000));
            filled(2_500_000);
            dealloc(block, layout(2_500_000));
        }
    });
    let Some(output) = output else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("double free") && said.contains("2500000 bytes asked for"), "{said}");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
}

/// The system takes back no memory that is locked: without guard pages it is cleared instead.
#[test]
fn locked_memory_is_used_again() {
    succeeds("locked_memory_is_used_again", &[("HAKMEM_HARDENED", "canary,zero")], || {
        // SAFETY: what the process may not lock is not locked.
        let locked = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } == 0;
        if !locked {
            support::skips::skip("memory cannot be locked here: it is done without");
        }
        let pass = || {
            let mut blocks = Vec::with_capacity(20_000);
            for size in (6..24).map(|n| 2usize.pow(n / 2) * (2 + n as usize % 2)) {
                blocks.extend((0..100_000 / size).map(|_| (untouched(size), size)));
            }
            for (block, size) in blocks {
                // SAFETY: made with this layout, and freed once.
                unsafe { dealloc(block, layout(size)) };
            }
            hakmem::purge();
            hakmem::stats().bytes_held
        };
        let first = (0..3).map(|_| pass()).max().unwrap();
        (0..20).for_each(|_| _ = pass());
        let last = pass();
        assert!(last <= first + (2 << 20), "{first} bytes, and then {last}; locked: {locked}");
    });
}

/// While there are very many blocks without guard pages their places are kept for others. Long ones are not:
/// no process has the address space.
#[test]
fn long_mappings_go_back_beside_many_blocks() {
    let options = [("HAKMEM_HARDENED", "checks"), ("HAKMEM_HARD_LIMIT", "2G")];
    succeeds("long_mappings_go_back_beside_many_blocks", &options, || {
        let blocks: Vec<_> = (0..8300).map(|_| untouched(70_000)).collect();
        for mib in 1..200 {
            // SAFETY: made with this layout, and freed once.
            unsafe { dealloc(untouched(mib * MIB), layout(mib * MIB)) };
        }
        // SAFETY: as above.
        blocks.into_iter().for_each(|block| unsafe { dealloc(block, layout(70_000)) });
    });
}

/// A block that nobody has touched.
fn untouched(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0.
    let block = unsafe { alloc(layout(size)) };
    assert!(!block.is_null(), "{size} bytes");
    block
}

/// A block that is made shorter step by step is not copied at each: it stays where it is while it loses
/// little. What it loses cannot be touched, and what is written behind its end is still seen.
#[test]
fn a_block_that_shrinks_in_steps_hardly_moves() {
    const STEP: usize = 40 * KIB + 16;
    let shrink = |to: usize| {
        let mut size = 16 * MIB;
        let mut block = filled(size);
        let (mut steps, mut moves) = (0, 0);
        while size > to {
            // SAFETY: made with this layout, and used by nobody else.
            let now = unsafe { realloc(block, layout(size), size - STEP) };
            size -= STEP;
            (steps, moves) = (steps + 1, moves + usize::from(now != block));
            // SAFETY: its last byte, and the block has one more.
            assert!(unsafe { now.add(size - 1).read() == 7 && now.read() == 7 });
            block = now;
        }
        (block, size, steps, moves)
    };
    for (level, far) in [("on", false), ("light", false), ("checks", false), ("guard", true)] {
        let options = [("HAKMEM_HARDENED", level), ("FAR", "1")];
        let options = &options[..1 + usize::from(far)];
        let output = process("a_block_that_shrinks_in_steps_hardly_moves", options, || {
            let (block, size, steps, moves) = shrink(2 * MIB);
            assert!(steps > 350 && moves < 4, "{moves} of {steps}");
            // SAFETY: made with this layout, and freed once.
            unsafe { dealloc(block, layout(size)) };
            // A cut of a quarter does move: the block ends where it can be touched last.
            let block = filled(4 * MIB);
            // SAFETY: as above.
            unsafe {
                let now = realloc(block, layout(4 * MIB), 3 * MIB);
                assert!(now != block);
                dealloc(now, layout(3 * MIB));
            }
            let (block, size, ..) = shrink(12 * MIB);
            // SAFETY: what is behind its end is what is tried here.
            unsafe {
                if std::env::var_os("FAR").is_some() {
                    block.add(size + 64 * KIB).read_volatile();
                }
                block.add(size).write(0);
                dealloc(block, layout(size));
            }
        });
        let Some(output) = output else { return };
        let errors = String::from_utf8_lossy(&output.stderr);
        match level {
            "checks" => assert!(output.status.success(), "{errors}"),
            "guard" => assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{errors}"),
            _ => {
                assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{errors}");
                assert!(errors.contains("overflow"), "{errors}");
            }
        }
    }
}

/// Frees blocks of `long` bytes, each before one of `short` bytes is made. Where that lies behind the first
/// one's beginning, in the same mapping, `look` sees that beginning and the bytes between the two. Returns
/// how often it said that it saw something.
fn before_shorter_blocks(long: usize, short: usize, look: impl Fn(*mut u8, usize) -> bool) -> usize {
    let mut found = 0;
    for _ in 0..100 {
        let old = filled(long);
        // SAFETY: made with these layouts, and freed once.
        unsafe {
            dealloc(old, layout(long));
            let new = filled(short);
            let len = new.addr().wrapping_sub(old.addr());
            found += usize::from(len < long && look(old, len));
            dealloc(new, layout(short));
        }
    }
    found
}

/// Without guard pages all of a mapping can be touched, and a block does not begin where the last one did.
#[test]
fn nothing_is_left_of_a_longer_block() {
    let options = [("HAKMEM_HARDENED", "zero,canary"), ("HAKMEM_PURGE_DELAY", "-1")];
    succeeds("nothing_is_left_of_a_longer_block", &options, || {
        let found = before_shorter_blocks(100_000, 90_000, |from, len| {
            let page = len & !4095;
            // SAFETY: all of the mapping can be touched. Who reads a freed block has what is asked about.
            assert!((0..page).all(|at| unsafe { from.add(at).read_volatile() } == 0), "{len} bytes before");
            page > 0
        });
        assert!(found > 0, "none was used again");
    });
}

/// With guard pages nobody can see what is left, but it would be memory that nobody uses.
#[test]
fn pages_of_a_longer_block_go_back() {
    // SAFETY: this only asks the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    if page != 4096 {
        return support::skips::skip("blocks of one mapping have as many pages");
    }
    let options = [("HAKMEM_HARDENED", "light"), ("HAKMEM_PURGE_DELAY", "-1"), ("HAKMEM_THP", "never")];
    succeeds("pages_of_a_longer_block_go_back", &options, || {
        // Of the same mapping, with their guard pages.
        let found = before_shorter_blocks(118_000, 70_000, |from, len| {
            let whole = (from.addr() % page + len) / page;
            let from = from.map_addr(|at| at & !(page - 1));
            let mut pages = vec![0; whole];
            // SAFETY: the system is asked about a part of a mapping, and writes a byte for each page.
            assert_eq!(unsafe { libc::mincore(from.cast(), whole * page, pages.as_mut_ptr()) }, 0);
            assert!(pages.iter().all(|page| page & 1 == 0), "{pages:?}");
            whole > 1
        });
        assert!(found > 0, "none was used again");
    });
}
