//! Hardened mode, as a Rust program has it: what works still works, and misuse ends the process with its own
//! message. The C side and the kinds of misuse that are counted: `hakmem-capi/tests/security.rs`.

#[path = "support/child.rs"]
mod child;
#[path = "support/empty.rs"]
mod empty;
#[path = "support/resized.rs"]
mod support;

use child::child;
use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use support::resized;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

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

#[test]
fn programs_work() {
    let _alone = ALONE.lock().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut map = HashMap::new();
                for n in 0..20_000usize {
                    map.insert(n * 7 + seed, "x".repeat(n % 300));
                    map.remove(&(n * 5 + seed));
                }
                map
            })
        })
        .collect();
    // Freed here, by another thread than allocated.
    let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(all.iter().all(|map| map.iter().all(|(key, text)| text.len() < 300 && *key < 140_010)));
    let ordered: BTreeMap<_, _> = all[0].iter().collect();
    assert_eq!(ordered.len(), all[0].len());
}

#[test]
fn sizes_alignments_and_contents() {
    let _alone = ALONE.lock().unwrap();
    for align in [1, 8, 16, 64, 4096, 1 << 16, 1 << 20] {
        for size in [1, 7, 8, 9, 24, 100, 1000, 5000, 65_528, 65_536, 70_000, 1 << 20, 3 << 20] {
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

#[test]
fn blocks_of_no_bytes() {
    let _alone = ALONE.lock().unwrap();
    empty::blocks_of_no_bytes(&GLOBAL);
}

#[test]
fn sums_hold_to_the_byte() {
    let _alone = ALONE.lock().unwrap();
    let before = hakmem::stats();
    let blocks: Vec<_> = (0..3000).map(|n| vec![1u8; n * 40 + 1]).collect();
    let s = hakmem::stats();
    let asked: usize = blocks.iter().map(Vec::len).sum();
    let held = s.allocated_bytes - before.allocated_bytes;
    assert!(held as usize >= asked && held as usize <= asked * 5 / 4 + (1 << 20), "{held} for {asked}");
    let sum = s.allocated_bytes + s.cached_bytes + s.free_bytes + s.fresh_bytes + s.slack_bytes;
    assert_eq!(s.active_bytes, sum, "{s:?}");
    assert_eq!(s.resident_bytes, s.active_bytes - s.untouched_bytes + s.dirty_bytes + s.metadata_bytes);
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
    assert!(s.allocations - before.allocations >= 3000);
    drop(blocks);
    hakmem::purge();
    let after = hakmem::stats();
    assert!(after.allocated_bytes <= before.allocated_bytes + (64 << 10), "{before:?} {after:?}");
    assert!(after.bytes_held < s.bytes_held, "{s:?} {after:?}");
}

#[test]
fn blocks_come_back_late_and_in_no_order() {
    let _alone = ALONE.lock().unwrap();
    let blocks: Vec<_> = (0..1000).map(|_| block(40)).collect();
    let steps: HashSet<_> = blocks.windows(2).map(|two| two[1].addr().wrapping_sub(two[0].addr())).collect();
    assert!(steps.len() > 50, "{} different distances", steps.len());
    let freed = block(40);
    // SAFETY: a block of this layout, which is not used again but as a number.
    unsafe { GLOBAL.dealloc(freed, layout(40, 8)) };
    for _ in 0..1000 {
        let other = block(40);
        assert_ne!(other, freed);
        // SAFETY: as above.
        unsafe { GLOBAL.dealloc(other, layout(40, 8)) };
    }
    for block in blocks {
        // SAFETY: as above.
        unsafe { GLOBAL.dealloc(block, layout(40, 8)) };
    }
}

#[test]
fn neighbours_of_two_threads_are_intact_all_the_time() {
    let _alone = ALONE.lock().unwrap();
    let mut blocks: Vec<_> = (0..1500).map(|_| block(24).expose_provenance()).collect();
    blocks.sort_unstable();
    let rewrite = |first: usize| {
        for _ in 0..400 {
            for &block in blocks.iter().skip(first).step_by(2) {
                // SAFETY: this thread's blocks, of 24 bytes. One byte less or more changes neither class nor
                // place.
                unsafe {
                    let block = std::ptr::with_exposed_provenance_mut::<u8>(block);
                    assert_eq!(GLOBAL.realloc(block, layout(24, 8), 23), block);
                    assert_eq!(GLOBAL.realloc(block, layout(23, 8), 24), block);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| rewrite(0));
        rewrite(1);
    });
    for block in blocks {
        // SAFETY: a block of this layout, which is not used again.
        unsafe { GLOBAL.dealloc(std::ptr::with_exposed_provenance_mut(block), layout(24, 8)) };
    }
}

#[test]
fn the_child_of_a_fork_goes_on() {
    let _alone = ALONE.lock().unwrap();
    let kept = block(100);
    let status = child(|| {
        // SAFETY: allocated with these layouts, and each freed once here.
        unsafe {
            for n in 1..5000 {
                let mine = block(n);
                GLOBAL.dealloc(mine, layout(n, 8));
            }
            GLOBAL.dealloc(kept, layout(100, 8));
        }
    });
    assert_eq!(status, 0);
    // SAFETY: as above.
    unsafe { GLOBAL.dealloc(kept, layout(100, 8)) };
}

#[test]
fn realloc_to_the_same_size_changes_nothing() {
    for size in [1, 24, 5000, 70_000, 1 << 20, 5 << 20] {
        let block = block(size);
        // SAFETY: this test's block, which is freed once, and its last byte.
        unsafe {
            assert_eq!(GLOBAL.realloc(block, layout(size, 8), size), block, "{size}");
            assert_eq!(block.add(size - 1).read(), 7);
            GLOBAL.dealloc(block, layout(size, 8));
        }
    }
}

/// Else who has seen one worker of a server would know where the next one's blocks lie.
#[test]
fn children_hand_out_blocks_in_orders_of_their_own() {
    let _alone = ALONE.lock().unwrap();
    // SAFETY: memory that the children share, of this test alone.
    let orders = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0).cast::<u64>()
    };
    // The first ones may come from a word that the parent has taken.
    let order =
        || (0..1000).fold(7u64, |hash, _| (hash ^ block(100).addr() as u64).wrapping_mul(0x9e37_79b9));
    std::thread::spawn(order).join().unwrap();
    for n in 0..6 {
        let status = child(|| {
            // In the thread that forked, and in the next one to have what the one above had.
            let order = if n < 3 { order() } else { std::thread::spawn(order).join().unwrap() };
            // SAFETY: inside the page.
            unsafe { orders.add(n).write(order) };
        });
        assert_eq!(status, 0);
    }
    // SAFETY: written by the children, which have ended.
    let all: HashSet<u64> = (0..6).map(|n| unsafe { orders.add(n).read() }).collect();
    assert_eq!(all.len(), 6);
}

#[test]
fn a_confined_process_goes_on() {
    let _alone = ALONE.lock().unwrap();
    drop(vec![block(100)]);
    let status = child(|| {
        // For the child alone: what it does cannot be undone.
        hakmem::few_syscalls();
        assert!(!hakmem::start_background());
        for n in 1..20_000 {
            // SAFETY: blocks that are not freed are leaked.
            unsafe {
                let (small, large) = (GLOBAL.alloc(layout(100, 8)), GLOBAL.alloc(layout(70_000 + n, 8)));
                assert!(!small.is_null() && !large.is_null());
                GLOBAL.dealloc(large, layout(70_000 + n, 8));
            }
        }
        std::thread::scope(|scope| _ = scope.spawn(|| drop(vec![1; 100])));
    });
    assert_eq!(status, 0);
}

/// Mappings of the process, and bytes that are resident.
fn held() -> (usize, usize) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap();
    let pages = read("statm").split(' ').nth(1).unwrap().parse::<usize>().unwrap();
    (read("maps").lines().count(), pages * 4096)
}

/// The system allows a process 65,530 mappings, and each hole in a row of blocks would be one.
#[test]
fn many_large_blocks_leave_no_holes() {
    let _alone = ALONE.lock().unwrap();
    let size = 70_000;
    let blocks: Vec<_> = (0..30_000).map(|_| block_of_zeros(size)).collect();
    let (before, _) = held();
    blocks.iter().step_by(2).for_each(|&block| free(block, size));
    let (half, _) = held();
    assert!(half < before, "{before} mappings, {half} without every other block");
    // What is set aside serves again, and is zero.
    let again: Vec<_> = (0..5_000).map(|_| block_of_zeros(size)).collect();
    assert!(held().0 <= before);
    again.iter().chain(blocks.iter().skip(1).step_by(2)).for_each(|&block| free(block, size));
    hakmem::purge();
    assert!(held().0 < 2_000, "{} mappings in the end", held().0);
}

/// A block whose first page is touched, and was zero.
fn block_of_zeros(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0, and the block has it.
    unsafe {
        let block = GLOBAL.alloc_zeroed(layout(size, 8));
        assert!(!block.is_null());
        assert!(std::slice::from_raw_parts(block, 64).iter().all(|&byte| byte == 0));
        block.write_bytes(7, 64);
        block
    }
}

/// How a child process ends that does this: the signal, if it does not end well.
fn in_child(misuse: impl Fn()) -> Option<i32> {
    let status = child(|| {
        let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the child's own limit and descriptor. What is said of it is looked at elsewhere.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &core);
            libc::close(2);
        }
        misuse();
    });
    assert!(status == 0 || libc::WIFSIGNALED(status), "{status}");
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

#[test]
fn slabs_of_much_used_classes_are_big_and_guarded() {
    const BIG: usize = 2 << 20;
    const SIZE: usize = 500;
    let _alone = ALONE.lock().unwrap();
    let blocks: Vec<_> = (0..40_000).map(|_| block(SIZE)).collect();
    let last = *blocks.last().unwrap();
    let base = last.map_addr(|at| at & !(BIG - 1));
    let in_it = blocks.iter().filter(|block| block.addr() & !(BIG - 1) == base.addr()).count();
    assert!(in_it * SIZE > 256 << 10, "{in_it} blocks there");
    // SAFETY: in the children: that is what is tested.
    unsafe {
        assert_eq!(in_child(|| _ = base.read_volatile()), None);
        assert_eq!(in_child(|| _ = base.wrapping_add(BIG).read_volatile()), Some(libc::SIGSEGV));
    }
    assert_eq!(in_child(|| free(last, SIZE)), None);
    assert_eq!(in_child(|| (0..2).for_each(|_| free(last, SIZE))), Some(libc::SIGABRT));
    assert_eq!(in_child(|| poke(last, SIZE, SIZE)), Some(libc::SIGABRT));
    blocks.into_iter().for_each(|block| free(block, SIZE));
}

/// What a child process does wrong, by name, and what is to be said about it.
type Fault = (&'static str, fn(usize), &'static str);

const FAULTS: [Fault; 10] = [
    ("double free", |size| free(free_(size), size), "double free"),
    ("interior", |size| free(block(size).wrapping_add(8), size), "interior pointer"),
    ("another layout", |size| free(block(size), size * 2), "size mismatch"),
    ("a smaller layout", |size| free(block(size), size / 2), "size mismatch"),
    ("one byte too many", |size| poke(block(size), size, size), "overflow"),
    ("a zero too many", |size| poke_zero(block(size), size), "overflow"),
    ("32 bytes before", |size| before(size), "underflow"),
    ("a write after free", |size| after_free(size), "write after free"),
    ("realloc of the stack", |size| realloc([0u64; 2].as_mut_ptr().cast(), size), "foreign pointer"),
    ("realloc after free", |size| realloc(free_(size), size), "use after free"),
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

fn poke(block: *mut u8, at: usize, size: usize) {
    // Even, as no byte of a canary is: an odd one may be what stands there.
    // SAFETY: as above.
    unsafe { block.add(at).write_volatile(8) };
    free(block, size);
}

fn poke_zero(block: *mut u8, size: usize) {
    // SAFETY: as above.
    unsafe { block.add(size).write_volatile(0) };
    free(block, size);
}

fn before(size: usize) {
    // One that has another right before it: what was never handed out has no trailer that could be damaged.
    let mut blocks: Vec<_> = (0..200).map(|_| block(size)).collect();
    blocks.sort_unstable();
    let nearest = blocks.windows(2).min_by_key(|two| two[1].addr() - two[0].addr());
    let block = nearest.unwrap()[1];
    // SAFETY: as above.
    unsafe { block.wrapping_sub(32).write_bytes(9, 32) };
    free(block, size);
}

fn after_free(size: usize) {
    let freed = free_(size);
    // SAFETY: as above.
    unsafe { freed.add(size / 2).write_volatile(9) };
    // Until it is handed out again.
    for _ in 0..1_000_000 {
        free(block(size), size);
    }
}

fn realloc(block: *mut u8, size: usize) {
    // SAFETY: as above.
    unsafe { GLOBAL.realloc(block, layout(size, 8), size * 4) };
}

/// Names the fault that a process is to commit, and the size of the block.
const WANTED: &str = "HARDENED_FAULT";

/// Does what the variable asks for, which should end the process.
fn misuse(wanted: &str) {
    let (name, size) = wanted.rsplit_once(' ').unwrap();
    let (_, misuse, _) = FAULTS.iter().find(|(known, ..)| *known == name).unwrap();
    misuse(size.parse().unwrap());
}

#[test]
fn each_fault_has_its_message() {
    if let Ok(wanted) = std::env::var(WANTED) {
        return misuse(&wanted);
    }
    for (name, _, said) in FAULTS {
        for size in [24, 3000, 200_000] {
            // What large blocks do instead: the processor faults.
            let faults = size == 200_000
                && ["one byte too many", "a zero too many", "a write after free"].contains(&name);
            // A large block lies alone: what is before it is its own page.
            if size == 200_000 && name == "32 bytes before" {
                continue;
            }
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "each_fault_has_its_message", "--nocapture", "--test-threads=1"])
                .env(WANTED, format!("{name} {size}"))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().find(|line| line.starts_with("hakmem: ")).unwrap_or_default();
            if faults {
                let signal = output.status.signal();
                // The end of the block need not be that of its last 16 bytes.
                assert!(signal == Some(libc::SIGSEGV) || line.contains(said), "{name}, {size}: {output:?}");
            } else {
                assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{name}, {size}: {output:?}");
                assert!(line.contains(said), "{name}, {size}: {text}");
            }
        }
    }
}
