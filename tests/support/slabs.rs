//! Blocks of an allocator that is not the program's own, so that its figures are exact, and tests of it that
//! leave nothing behind.

use hakmem::{Hakmem, Stats, purge, stats};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;

pub static HAKMEM: Hakmem = Hakmem::new();

pub const KIB: usize = 1 << 10;

/// Runs `f` on a thread of its own, one such thread at a time, after which there is nothing left of what it
/// did.
pub fn alone(f: impl FnOnce() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    apart(f);
    purge();
    let left = stats();
    assert_eq!(left.allocated_bytes, 0, "{left:?}");
    assert_eq!(superslab_bytes(), 0, "a slab without blocks in use was kept, or lost");
}

/// Runs `f` on a thread that has ended when this returns.
pub fn apart<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(f).join().unwrap())
}

/// Bytes of address space in SuperSlabs.
pub fn superslab_bytes() -> usize {
    hakmem::__c::info().arena
}

pub fn take(size: usize) -> usize {
    // SAFETY: no layout here is of size 0.
    let block = unsafe { HAKMEM.alloc(Layout::from_size_align(size, 8).unwrap()) };
    assert!(!block.is_null());
    // SAFETY: a new block.
    unsafe { block.cast::<u64>().write(block as u64) };
    block as usize
}

pub fn take_many(size: usize, count: usize) -> Vec<usize> {
    (0..count).map(|_| take(size)).collect()
}

/// Frees a block, if it still holds what `take` wrote there.
pub fn give(block: usize, size: usize) {
    let block = block as *mut u8;
    // SAFETY: a block of `take`, which is freed once.
    unsafe {
        assert_eq!(block.cast::<u64>().read(), block as u64, "somebody else wrote to a block in use");
        HAKMEM.dealloc(block, Layout::from_size_align(size, 8).unwrap());
    }
}

pub fn give_many(blocks: impl IntoIterator<Item = usize>, size: usize) {
    blocks.into_iter().for_each(|block| give(block, size));
}

/// The blocks by the page they lie in, which for sizes up to 4 KiB is their slab. Fullest pages first.
pub fn by_slab(blocks: &[usize]) -> Vec<Vec<usize>> {
    let mut slabs = BTreeMap::<usize, Vec<usize>>::new();
    blocks.iter().for_each(|block| slabs.entry(block >> 16).or_default().push(*block));
    let mut slabs: Vec<_> = slabs.into_values().collect();
    slabs.sort_by_key(|blocks| std::cmp::Reverse(blocks.len()));
    slabs
}

pub fn distinct(blocks: &[usize]) -> bool {
    blocks.iter().collect::<BTreeSet<_>>().len() == blocks.len()
}

/// What `f` added to a figure.
pub fn added<T>(figure: impl Fn(&Stats) -> u64, f: impl FnOnce() -> T) -> (u64, T) {
    let before = figure(&stats());
    let result = f();
    (figure(&stats()) - before, result)
}
