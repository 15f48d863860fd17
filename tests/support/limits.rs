//! For tests of the limits. The test program lives on the system's allocator, so that only the blocks made
//! here meet them.

#![allow(dead_code, reason = "not every test uses all of it")]

use hakmem::{Hakmem, Limits, Options, Stats, Thp};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

pub const MIB: usize = 1 << 20;

/// Nothing goes back for its age, so that no clock matters.
pub static OURS: Hakmem = Hakmem::with_options(
    Options::new().purge_delay_ms(-1).thp(Thp::Never).soft_limit(16 * MIB).hard_limit(20 * MIB),
);

/// Limits are the process's, so one test at a time. The first finds those of the options in force.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static FIRST: Once = Once::new();
    let guard = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    FIRST.call_once(limits_of_the_options);
    hakmem::on_soft_limit(None);
    limit(0, 0);
    others_have_ended();
    hakmem::purge();
    let s = hakmem::stats();
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
    guard
}

/// A thread lets the next test begin before it ends, and its slabs go back only then: amid that test, which
/// measures what is held.
fn others_have_ended() {
    free(make(16), 16);
    let start = Instant::now();
    while stats().threads_started - stats().threads_exited > 1 {
        assert!(start.elapsed() < Duration::from_secs(100), "a thread of another test does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn limits_of_the_options() {
    hakmem::on_soft_limit(Some(count));
    let blocks = fill_up(2 * MIB);
    assert_eq!((blocks.len(), held(), calls()), (10, 20 * MIB, 1));
    assert!(stats().soft_limit_hits >= 1 && stats().hard_limit_hits == 1, "{:?}", stats());
    free_all(blocks, 2 * MIB);
}

pub fn limit(soft: usize, hard: usize) {
    hakmem::set_limits(Limits { soft, hard }).unwrap();
}

pub fn stats() -> Stats {
    hakmem::stats()
}

pub fn held() -> usize {
    stats().bytes_held as usize
}

pub fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// A block with its first and last words written, or null.
pub fn make(size: usize) -> *mut u8 {
    // SAFETY: the size is not zero.
    let block = unsafe { OURS.alloc(layout(size)) };
    if !block.is_null() {
        mark(block, size);
    }
    block
}

pub fn mark(block: *mut u8, size: usize) {
    // SAFETY: inside the block.
    unsafe {
        block.write(size as u8 | 1);
        block.add(size - 1).write(size as u8 | 1);
    }
}

pub fn marked(block: *mut u8, size: usize) -> bool {
    // SAFETY: inside the block.
    unsafe { block.read() == size as u8 | 1 && block.add(size - 1).read() == size as u8 | 1 }
}

pub fn free(block: *mut u8, size: usize) {
    assert!(marked(block, size));
    // SAFETY: made with this layout.
    unsafe { OURS.dealloc(block, layout(size)) };
}

pub fn free_all(blocks: Vec<*mut u8>, size: usize) {
    blocks.into_iter().for_each(|block| free(block, size));
}

pub fn fill_up(size: usize) -> Vec<*mut u8> {
    let blocks: Vec<*mut u8> =
        (0..=64 * MIB / size).map(|_| make(size)).take_while(|b| !b.is_null()).collect();
    assert!(blocks.len() * size <= 64 * MIB, "nothing is refused");
    blocks
}

/// What the hook has heard.
pub static CALLS: AtomicUsize = AtomicUsize::new(0);
pub static HEARD: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

pub fn count(held: usize, limit: usize) {
    CALLS.fetch_add(1, SeqCst);
    HEARD[0].store(held, SeqCst);
    HEARD[1].store(limit, SeqCst);
}

/// Calls since this was last asked.
pub fn calls() -> usize {
    CALLS.swap(0, SeqCst)
}
