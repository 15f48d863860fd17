//! Any page size of the system, found at run time. `test.sh` runs this, and the tests of slabs and large
//! blocks, with 16 and 64 KiB, too: an emulator gives a program whatever size it is told to.
//!
//! The allocator under test is not the program's own, so what it does is all this test's.
#![cfg(not(miri))]

use hakmem::{Hakmem, Options, purge, stats};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard};

/// Nothing goes back for its age, so that no clock matters.
static HAKMEM: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(-1));

const KIB: usize = 1 << 10;
const SUPERSLAB: usize = 2048 * KIB;

/// Figures of the whole process are compared, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn page_size() -> usize {
    // SAFETY: asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// A block filled with ones.
fn make(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0; the block is as long as that.
    unsafe {
        let block = HAKMEM.alloc(layout(size));
        assert!(!block.is_null());
        block.write_bytes(0xff, size);
        block
    }
}

fn free(block: *mut u8, size: usize) {
    // SAFETY: made with this layout, and not used again.
    unsafe { HAKMEM.dealloc(block, layout(size)) };
}

/// What the emulator was told, so that nobody takes a run for another one.
#[test]
fn the_page_size_is_the_one_that_was_asked_for() {
    if let Ok(wanted) = std::env::var("EXPECT_PAGE_SIZE") {
        assert_eq!(page_size().to_string(), wanted);
    }
}

/// The first page of a SuperSlab lies behind its header, which never goes back: with larger pages the system
/// takes none of the blocks there, or only some, and the others still hold what they held.
#[test]
fn zeroed_blocks_are_zero_wherever_they_were_before() {
    let _alone = alone();
    for size in [64, KIB, 4 * KIB, 16 * KIB, 48 * KIB, 200 * KIB] {
        let mut blocks: Vec<_> = (0..4 * SUPERSLAB / size).map(|_| make(size)).collect();
        blocks.sort();
        // A block that keeps each SuperSlab from being unmapped as a whole.
        let last = |i: usize| {
            blocks.get(i + 1).is_none_or(|next| next.addr() / SUPERSLAB != blocks[i].addr() / SUPERSLAB)
        };
        let (kept, freed): (Vec<_>, Vec<_>) = (0..blocks.len()).partition(|&i| last(i));
        freed.iter().for_each(|&i| free(blocks[i], size));
        let before = stats().bytes_purged;
        purge();
        assert!(stats().bytes_purged > before + SUPERSLAB as u64, "size {size}: hardly anything came back");
        let again: Vec<_> = freed
            .iter()
            // SAFETY: the size is not 0.
            .map(|_| unsafe { HAKMEM.alloc_zeroed(layout(size)) })
            .collect();
        let behind_header = again.iter().filter(|block| block.addr() % SUPERSLAB < 64 * KIB).count();
        // Only slabs of one page lie there.
        assert!(size > 4 * KIB || behind_header > 0, "size {size}: no block behind a header");
        for &block in &again {
            assert!(!block.is_null());
            // SAFETY: live, and as long as that.
            let bytes = unsafe { std::slice::from_raw_parts(block, size) };
            assert!(bytes.iter().all(|&byte| byte == 0), "size {size}, at {block:?}");
        }
        again.into_iter().for_each(|block| free(block, size));
        for i in kept {
            // SAFETY: live, and as long as that.
            let bytes = unsafe { std::slice::from_raw_parts(blocks[i], size) };
            assert!(bytes.iter().all(|&byte| byte == 0xff), "size {size}: a block in use was damaged");
            free(blocks[i], size);
        }
        purge();
    }
}

/// Mappings are whole pages, whatever was asked for; what grows and shrinks keeps its contents to the last
/// byte.
#[test]
fn large_blocks_grow_and_shrink_by_odd_amounts() {
    let _alone = alone();
    let mut size = SUPERSLAB + 1;
    let mut block = make(size);
    for change in [4 * KIB, 12 * KIB, 60 * KIB, 100 * KIB, SUPERSLAB] {
        for new in [size + change, size + change - 4 * KIB, size + change / 2] {
            // SAFETY: live, of this layout.
            block = unsafe { HAKMEM.realloc(block, layout(size), new) };
            assert!(!block.is_null());
            // SAFETY: live, and as long as that.
            let bytes = unsafe { std::slice::from_raw_parts_mut(block, new) };
            assert!(bytes[..size.min(new)].iter().all(|&byte| byte == 0xff), "from {size} to {new}");
            bytes.fill(0xff);
            size = new;
            // A neighbour whose end may be anywhere.
            let other = make(SUPERSLAB + change + 1);
            free(other, SUPERSLAB + change + 1);
        }
    }
    free(block, size);
    assert_eq!(stats().allocated_bytes, 0);
}
