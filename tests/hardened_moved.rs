//! Large blocks of hardened mode that grow take their pages along. Each case is a process of its own.

#[path = "support/faults.rs"]
mod faults;
#[path = "support/options.rs"]
mod support;

use faults::page_faults;
use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{Layout, alloc, dealloc, realloc};
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use support::{process, succeeds};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

const KIB: usize = 1 << 10;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// What stands at `at` in a block: another value on each page, and not the same everywhere in one.
fn value(at: usize) -> u8 {
    (at / 4096 * 7 + at % 251 + 1) as u8
}

/// A block of `size` bytes that has values, all of them touched.
fn filled(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0, and the block has it.
    unsafe {
        let block = alloc(layout(size));
        (0..size).for_each(|at| *block.add(at) = value(at));
        block
    }
}

/// Resizes a block from `old` to `new` bytes, looks whether its contents are the same, and fills the rest.
///
/// # Safety
///
/// The caller's block; afterwards it uses the result instead.
unsafe fn grown(block: *mut u8, old: usize, new: usize) -> *mut u8 {
    // SAFETY: by the caller's clause.
    unsafe {
        let block = realloc(block, layout(old), new);
        assert!(block.addr() % 16 == 0 && (0..old).all(|at| *block.add(at) == value(at)), "{old} to {new}");
        (old..new).for_each(|at| *block.add(at) = value(at));
        block
    }
}

#[test]
fn contents_move_without_page_faults() {
    // Else longer ones would have huge pages, into which they are copied.
    succeeds("contents_move_without_page_faults", &[("HAKMEM_THP", "never")], || {
        // These begin anywhere in a page, since they end with their mappings.
        for size in [65 * KIB, 100_000, 300_001, 1000 * KIB + 8] {
            let mut block = filled(size);
            let (mut now, mut places) = (size, 0);
            while now < 3 << 20 {
                let (from, before) = (block, page_faults());
                // SAFETY: this test's block.
                block = unsafe { realloc(block, layout(now), 5 * now / 2) };
                places += usize::from(block != from);
                let faults = page_faults() - before;
                assert!(faults < 8 + now / 4096 / 4, "{now} bytes: {faults} page faults");
                // SAFETY: as above; it has these bytes.
                unsafe {
                    assert!((0..now).all(|at| *block.add(at) == value(at)), "{now} bytes");
                    (now..5 * now / 2).for_each(|at| *block.add(at) = value(at));
                }
                now = 5 * now / 2;
            }
            assert!(places >= 1, "{size}");
            // SAFETY: as above.
            unsafe { dealloc(block, layout(now)) };
        }
    });
}

/// What is left of its old place is like any freed block: it cannot be touched, and not freed again.
#[test]
fn its_old_place_is_a_freed_block() {
    for frees in [false, true] {
        let name = "its_old_place_is_a_freed_block";
        let output = process(name, &[("CASE", if frees { "free" } else { "touch" })], || {
            let block = filled(200 * KIB);
            // SAFETY: what this does with the old place ends the process, which is what is tested.
            unsafe {
                let new = grown(block, 200 * KIB, 600 * KIB);
                assert_ne!(new, block);
                if std::env::var("CASE").unwrap() == "free" {
                    dealloc(block, layout(200 * KIB));
                } else {
                    block.add(100 * KIB).read_volatile();
                }
            }
        });
        let Some(output) = output else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        if frees {
            assert!(said.contains("double free") && said.contains("204800 bytes asked for"), "{said}");
            assert_eq!(output.status.signal(), Some(libc::SIGABRT));
        } else {
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{said}");
        }
    }
}

/// What stands behind the bytes asked for is looked at before a block moves, and written anew.
#[test]
fn overflows_are_noticed_before_and_after() {
    for function in ["realloc(", "dealloc(", "realloc( in place"] {
        let output = process("overflows_are_noticed_before_and_after", &[("CASE", function)], || {
            let size = 200_001;
            let block = filled(size);
            // SAFETY: one byte too many is written, which is what is tested.
            unsafe {
                let case = std::env::var("CASE").unwrap();
                if case == "realloc(" {
                    block.add(size).write_volatile(0);
                    grown(block, size, 3 * size);
                } else if case == "realloc( in place" {
                    let block = grown(block, size, 2 * size);
                    block.add(2 * size).write_volatile(0);
                    assert_eq!(realloc(block, layout(2 * size), 2 * size + 9000), block);
                } else {
                    let block = grown(block, size, 3 * size);
                    block.add(3 * size).write_volatile(0);
                    dealloc(block, layout(3 * size));
                }
            }
        });
        let Some(output) = output else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        let function = function.split(' ').next().unwrap();
        assert!(said.contains("overflow") && said.contains(function), "{function}: {said}");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    }
}

/// A block of which the program has advised a part is several mappings to the system, which does not move
/// them at once: so it is copied.
#[test]
fn what_the_system_does_not_move_is_copied() {
    succeeds("what_the_system_does_not_move_is_copied", &[], || {
        let mut blocks = Vec::new();
        for _ in 0..20 {
            let block = filled(300 * KIB);
            // SAFETY: advice about two pages in the middle of this test's block.
            unsafe {
                let middle = block.map_addr(|at| (at + 100 * KIB) & !4095);
                assert_eq!(libc::madvise(middle.cast::<c_void>(), 8192, libc::MADV_DONTFORK), 0);
                let block = grown(block, 300 * KIB, 800 * KIB);
                blocks.push(grown(block, 800 * KIB, 1000 * KIB));
            }
        }
        for block in blocks {
            // SAFETY: each is this test's, and freed once.
            unsafe { dealloc(block, layout(1000 * KIB)) };
        }
        assert!(hakmem::stats().allocated_bytes < 1 << 20);
        hakmem::purge();
        let held = hakmem::stats().bytes_held;
        assert!(held < 16 << 20, "{held} bytes");
    });
}

/// Bytes of address space that the process has.
fn address_space() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').next().unwrap().parse::<usize>().unwrap()
}

/// A move that the system refuses may leave its target mapped, for nobody: so it is asked before.
#[test]
fn refusals_cost_no_address_space() {
    succeeds("refusals_cost_no_address_space", &[("HAKMEM_THP", "never")], || {
        let mut before = 0;
        for round in 0..40 {
            // SAFETY: this test's blocks; the advice is about two pages in the middle of one.
            unsafe {
                let block = filled(300 * KIB);
                let middle = block.map_addr(|at| (at + 100 * KIB) & !4095);
                assert_eq!(libc::madvise(middle.cast::<c_void>(), 8192, libc::MADV_DONTFORK), 0);
                dealloc(grown(block, 300 * KIB, 2000 * KIB), layout(2000 * KIB));
                // One that is moved says that more may be tried.
                std::thread::sleep(std::time::Duration::from_millis(20));
                dealloc(grown(filled(300 * KIB), 300 * KIB, 800 * KIB), layout(800 * KIB));
            }
            hakmem::purge();
            if round == 5 {
                before = address_space();
            }
        }
        let more = address_space().saturating_sub(before);
        assert!(more < 16 << 20, "{more} bytes");
    });
}

/// Where there is little address space, systems that count what a move replaces refuse it: then it is copied.
#[test]
fn little_address_space_is_enough() {
    succeeds("little_address_space_is_enough", &[("HAKMEM_THP", "never")], || {
        let block = filled(20 << 20);
        let most = (address_space() + (45 << 20)) as u64;
        // SAFETY: this test's blocks, and a limit of its process.
        unsafe {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
            let block = realloc(block, layout(20 << 20), 21 << 20);
            assert!(!block.is_null() && (0..20 << 20).all(|at| *block.add(at) == value(at)));
            // With no room at all it becomes shorter where it is.
            let mut rest = Vec::with_capacity(1000);
            for size in [1 << 20, 70_000] {
                rest.extend(std::iter::from_fn(|| Some(alloc(layout(size))).filter(|p| !p.is_null())));
            }
            for (was, size) in [(21 << 20, 5 << 20), (5 << 20, 80_000)] {
                assert_eq!(realloc(block, layout(was), size), block);
                assert!((0..size).all(|at| *block.add(at) == value(at)), "{size} bytes");
            }
            // A small one, too: as what the program says of it then.
            let small = |size| Layout::from_size_align(size, 8).unwrap();
            let words: Vec<_> = (0..20).map(|_| alloc(small(32))).filter(|p| !p.is_null()).collect();
            while !alloc(small(24)).is_null() {}
            for &word in &words {
                dealloc(realloc(word, small(32), 24), small(24));
            }
            dealloc(block, layout(80_000));
            assert!(!words.is_empty() && rest.len() > 1 && !alloc(layout(70_000)).is_null());
        }
    });
}

/// What has become smaller where it is, and larger again, is as any other.
#[test]
fn a_block_that_was_smaller_grows() {
    succeeds("a_block_that_was_smaller_grows", &[("HAKMEM_THP", "never")], || {
        // SAFETY: this test's block, with the size that it has each time.
        unsafe {
            let block = grown(filled(100 * KIB), 100 * KIB, 400 * KIB);
            let block = realloc(block, layout(400 * KIB), 250 * KIB);
            let block = grown(block, 250 * KIB, 400 * KIB);
            let block = grown(block, 400 * KIB, 1000 * KIB);
            let block = grown(block, 1000 * KIB, 3000 * KIB);
            dealloc(block, layout(3000 * KIB));
        }
    });
}

/// For a moment nothing is mapped where the pages were. Who maps something there then keeps it.
#[test]
fn what_others_map_meanwhile_is_theirs() {
    succeeds("what_others_map_meanwhile_is_theirs", &[], || {
        let (done, mapped) = (AtomicBool::new(false), AtomicUsize::new(0));
        let map = || {
            let mut pages = Vec::with_capacity(64);
            while !done.load(SeqCst) {
                for n in 0..64usize {
                    // SAFETY: a page of this thread's own.
                    unsafe {
                        let access = libc::PROT_READ | libc::PROT_WRITE;
                        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                        let page = libc::mmap(ptr::null_mut(), 4096, access, flags, -1, 0).cast::<u8>();
                        page.write_bytes(n as u8, 4096);
                        pages.push(page);
                    }
                }
                for (n, page) in pages.drain(..).enumerate() {
                    // SAFETY: as above.
                    unsafe {
                        assert!((0..4096).all(|at| *page.add(at) == n as u8));
                        libc::munmap(page.cast(), 4096);
                    }
                }
                mapped.fetch_add(64, SeqCst);
            }
        };
        std::thread::scope(|scope| {
            (0..3).for_each(|_| _ = scope.spawn(map));
            for n in 0..400 {
                let size = 66 * KIB + n * 40;
                // SAFETY: this test's block.
                unsafe {
                    let block = grown(filled(size), size, 3 * size);
                    dealloc(block, layout(3 * size));
                }
            }
            done.store(true, SeqCst);
        });
        assert!(mapped.load(SeqCst) > 0);
    });
}
