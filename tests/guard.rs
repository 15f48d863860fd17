//! Sampled guard pages, as a Rust program has them: what works still works, every free finds the slot, and
//! misuse ends the process with a report. The C side: `hakmem-capi/tests/guard.rs`.

#[path = "support/child.rs"]
mod child;
#[path = "support/resized.rs"]
mod support;

use child::child;
use hakmem::{Hakmem, Options, stats};
use hakmem_shadow::faults;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use support::resized;

hakmem_shadow::interpose!();

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().guard(1).guard_slots(2000));

/// Tests that look at the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// A block of `size` bytes that are 7.
fn block(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0, and the block has it.
    unsafe {
        let block = GLOBAL.alloc(layout(size, 8));
        block.write_bytes(7, size);
        block
    }
}

/// Blocks of many sizes, as numbers, and their sizes; so many of them have guard pages at least.
fn blocks(guarded: u64) -> Vec<(usize, usize)> {
    let before = stats().guard_blocks;
    let blocks: Vec<_> =
        (1..300).map(|n| n * 37).map(|size| (block(size).expose_provenance(), size)).collect();
    let now = stats().guard_blocks;
    assert!(now >= before + guarded, "{before} blocks with guard pages, then {now}");
    blocks
}

fn free_all(blocks: &[(usize, usize)]) {
    for &(block, size) in blocks {
        // SAFETY: a block of this layout, which is not used again.
        unsafe { GLOBAL.dealloc(std::ptr::with_exposed_provenance_mut(block), layout(size, 8)) };
    }
}

/// Whatever a thread has done before it frees its first block: nothing, frees only, or anything.
#[test]
fn every_free_finds_the_slot() {
    let _alone = ALONE.lock().unwrap();
    let before = stats().guard_blocks;
    let (mine, first, other) = (blocks(250), blocks(250), blocks(250));
    free_all(&mine);
    std::thread::scope(|scope| {
        scope.spawn(|| free_all(&first));
        scope.spawn(|| {
            for size in 1..5000 {
                drop(vec![1u8; size]);
            }
            free_all(&other);
        });
    });
    let after = stats().guard_blocks;
    // What the harness and the threads keep.
    assert!(after < before + 150, "{before} blocks with guard pages before, {after} after");
}

#[test]
fn programs_work() {
    let _alone = ALONE.lock().unwrap();
    let before = stats().guard_samples;
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut map = HashMap::new();
                for n in 0..3000usize {
                    map.insert(n * 7 + seed, "x".repeat(n % 300));
                    map.remove(&(n * 5 + seed));
                }
                map
            })
        })
        .collect();
    // Freed here, by another thread than allocated.
    let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(
        all.iter().all(|map| map.values().all(|text| text.len() < 300 && text.bytes().all(|b| b == b'x')))
    );
    let taken = stats().guard_samples - before;
    assert!(taken > 500, "{taken} blocks with guard pages");
}

#[test]
fn sizes_alignments_and_contents() {
    let _alone = ALONE.lock().unwrap();
    for align in [1, 8, 16, 64, 4096, 1 << 14, 1 << 16] {
        // Also those that `realloc` leaves in place, without anybody knowing of the guard page.
        for size in [1, 7, 8, 9, 24, 100, 145, 152, 1000, 4097, 5000, 20_000, 60_000, 65_536, 70_000] {
            // SAFETY: layouts as allocated; no byte beyond the size is touched.
            unsafe {
                let block = GLOBAL.alloc_zeroed(layout(size, align));
                assert_eq!(block.addr() % align, 0, "{size} at {align}");
                assert!(std::slice::from_raw_parts(block, size).iter().all(|&byte| byte == 0));
                resized(&GLOBAL, block, layout(size, align));
            }
        }
    }
}

/// Also where the last block but one was, and had its pages refused when it was freed.
#[test]
fn blocks_are_zero_where_pages_could_not_be_given_back() {
    const SIZE: usize = 30_000;
    let _alone = ALONE.lock().unwrap();
    let before = stats().guard_blocks;
    let refused: Vec<_> = (0..40).map(|_| block(SIZE)).collect();
    assert!(stats().guard_blocks > before + 20);
    for block in refused {
        faults::plan(faults::MAP, 0, 1);
        // SAFETY: of this layout, and not used again.
        unsafe { GLOBAL.dealloc(block, layout(SIZE, 8)) };
        faults::plan(0, 0, 0);
    }
    // Slots are used in turn; each of them a few times, at either side.
    for _ in 0..5 * 2000 {
        // SAFETY: a block of this layout.
        unsafe {
            let block = GLOBAL.alloc_zeroed(layout(SIZE, 8));
            assert!(std::slice::from_raw_parts(block, SIZE).iter().all(|&byte| byte == 0));
            block.write_bytes(7, SIZE);
            GLOBAL.dealloc(block, layout(SIZE, 8));
        }
    }
}

/// While there is a profile, and after it.
#[test]
fn beside_a_profile() {
    let _alone = ALONE.lock().unwrap();
    for rate in [1, 4096] {
        hakmem::profile::start(rate).unwrap();
        let during = blocks(150);
        hakmem::profile::stop();
        free_all(&during);
        free_all(&blocks(150));
    }
}

#[test]
fn sums_hold_to_the_byte() {
    let _alone = ALONE.lock().unwrap();
    let blocks = blocks(200);
    let s = stats();
    let sum = s.allocated_bytes + s.cached_bytes + s.free_bytes + s.fresh_bytes + s.slack_bytes;
    assert_eq!(s.active_bytes, sum, "{s:?}");
    assert_eq!(s.resident_bytes, s.active_bytes - s.untouched_bytes + s.dirty_bytes + s.metadata_bytes);
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
    free_all(&blocks);
}

#[test]
fn children_go_on_even_if_they_confine_themselves() {
    let _alone = ALONE.lock().unwrap();
    let kept = blocks(100);
    for confined in [false, true] {
        let status = child(|| {
            if confined {
                // For the child alone: what it does cannot be undone.
                hakmem::few_syscalls();
            }
            for n in 1..5000 {
                let mine = block(n);
                // SAFETY: allocated with this layout, and freed once.
                unsafe { GLOBAL.dealloc(mine, layout(n, 8)) };
            }
            free_all(&kept);
        });
        assert_eq!(status, 0, "confined: {confined}");
    }
    free_all(&kept);
}

/// What a child process does wrong, by name, by which signals it may end, and what is to be said about it.
type Fault = (&'static str, fn(usize), &'static [i32], &'static str);

const FAULTS: [Fault; 9] = [
    ("double free", |size| free(free_(size), size), &[libc::SIGABRT], "double free"),
    ("interior", |size| free(block(size).wrapping_add(8), size), &[libc::SIGABRT], "interior pointer"),
    ("another layout", |size| free(block(size), size * 3), &[libc::SIGABRT], "size mismatch"),
    ("beyond", |size| poke(block(size), size, 70_000), &[libc::SIGSEGV], "overflow: a write"),
    ("before", |size| poke(block(size).wrapping_sub(70_000), 0, 70_000), &[libc::SIGSEGV], "guard page: "),
    ("a read after free", |size| look(free_(size)), &[libc::SIGSEGV], "use after free: a read"),
    ("a write after free", |size| poke(free_(size), 0, 1), &[libc::SIGSEGV], "use after free: a write"),
    ("realloc after free", |size| realloc(free_(size), size), &[libc::SIGSEGV], "use after free: a read"),
    ("freed by another thread", by_another, &[libc::SIGSEGV], "use after free: a write"),
];

fn free(block: *mut u8, size: usize) {
    // SAFETY: none: that is what is tested, here and below.
    unsafe { GLOBAL.dealloc(block, layout(size, 8)) }
}

fn free_(size: usize) -> *mut u8 {
    let block = block(size);
    free(block, size);
    block
}

fn poke(block: *mut u8, at: usize, bytes: usize) {
    for at in at..at + bytes {
        // SAFETY: as above.
        unsafe { block.wrapping_add(at).write_volatile(9) };
    }
}

fn look(block: *mut u8) {
    // SAFETY: as above.
    unsafe { block.read_volatile() };
}

fn realloc(block: *mut u8, size: usize) {
    // SAFETY: as above.
    unsafe { GLOBAL.realloc(block, layout(size, 8), size * 4) };
}

fn by_another(size: usize) {
    let at = block(size).expose_provenance();
    std::thread::spawn(move || free(std::ptr::with_exposed_provenance_mut(at), size)).join().unwrap();
    poke(std::ptr::with_exposed_provenance_mut(at), 0, 1);
}

/// Names the fault that a process is to commit, and the size of the block.
const WANTED: &str = "GUARD_FAULT";

/// Does what the variable asks for, which should end the process.
fn misuse(wanted: &str) {
    let (name, size) = wanted.rsplit_once(' ').unwrap();
    let (_, misuse, ..) = FAULTS.iter().find(|(known, ..)| *known == name).unwrap();
    misuse(size.parse().unwrap());
}

#[test]
fn each_fault_is_reported() {
    if let Ok(wanted) = std::env::var(WANTED) {
        return misuse(&wanted);
    }
    let _alone = ALONE.lock().unwrap();
    for (name, _, signals, said) in FAULTS {
        for size in [24, 40_000] {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "each_fault_is_reported", "--nocapture", "--test-threads=1"])
                .env(WANTED, format!("{name} {size}"))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            let signal = output.status.signal().unwrap_or(0);
            assert!(signals.contains(&signal), "{name}, {size}: {} {text}", output.status);
            let line = text.lines().find(|line| line.starts_with("hakmem: ")).unwrap_or_default();
            assert!(line.contains(said), "{name}, {size}: {text}");
            let has = |what: &str| {
                text.lines().any(|line| line.starts_with(&format!("hakmem:   {what} by thread")))
            };
            let freed = name.contains("free");
            assert!(has("allocated") && has("freed") == freed, "{name}, {size}: {text}");
        }
    }
}
