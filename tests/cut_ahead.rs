//! Untouched blocks that are cut ahead: in order, each once, counted, and cleared where that is promised.
//!
//! The allocator under test is not the program's own, so its figures are exact.

use hakmem::{Hakmem, purge, stats};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::thread;

static HAKMEM: Hakmem = Hakmem::new();

/// Runs `f` on a thread of its own, one such thread at a time.
fn alone(f: impl FnOnce() + Send) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| scope.spawn(f).join().unwrap());
    purge();
    assert_eq!(stats().allocated_bytes, 0);
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// A thread that allocates and frees nothing gets untouched memory in the order of addresses, each block
/// once, though the magazine has had most of them; what lies there is not the program's.
#[test]
fn a_heap_that_grows_cuts_ahead_in_order() {
    alone(|| {
        let mut in_all = 0;
        for size in [16, 64, 384, 512] {
            let before = stats();
            // SAFETY: no layout here is of size 0.
            let take = || unsafe { HAKMEM.alloc(layout(size)) }.expose_provenance();
            let blocks: Vec<usize> = (0..20_000).map(|_| take()).collect();
            let now = stats();
            let distinct: BTreeSet<usize> = blocks.iter().copied().collect();
            assert_eq!(distinct.len(), blocks.len(), "{size}: a block was handed out twice");
            // Only from slab to slab, and at its end where the rest of it is cut, is there a step back.
            let ascending = blocks.windows(2).filter(|pair| pair[1] == pair[0] + size).count();
            let slabs = (now.refill_span - before.refill_span) as usize;
            assert!(ascending + 1 + slabs >= blocks.len(), "{size}: {ascending} steps, {slabs} slabs");
            assert_eq!(now.allocated_bytes - before.allocated_bytes, (size * blocks.len()) as u64);
            let cut = now.refill_bump - before.refill_bump;
            let ahead = cut as usize - blocks.len();
            assert!(ahead < 64, "{size}: {ahead} blocks ahead");
            in_all += ahead;
            assert_eq!(now.cached_bytes - before.cached_bytes, (ahead * size) as u64, "{size}");
            for block in blocks {
                // SAFETY: each is freed once, with its layout.
                unsafe { HAKMEM.dealloc(std::ptr::with_exposed_provenance_mut(block), layout(size)) };
            }
            purge();
        }
        assert!(in_all > 0, "nothing was cut ahead");
    });
}

/// What was cut ahead for one is there for `calloc`, too, and is cleared, though another slab's blocks lay
/// there before.
#[test]
fn what_is_cut_ahead_is_cleared() {
    alone(|| {
        for _ in 0..3 {
            // SAFETY: the layout has a size; the blocks are written to as far as they reach.
            let blocks: Vec<_> = (0..20_000).map(|_| unsafe { HAKMEM.alloc_zeroed(layout(48)) }).collect();
            for &block in &blocks {
                // SAFETY: a block of 48 bytes.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block, 48) };
                assert!(bytes.iter().all(|&byte| byte == 0));
                bytes.fill(0xa5);
            }
            // SAFETY: each is freed once, with its layout.
            blocks.into_iter().for_each(|block| unsafe { HAKMEM.dealloc(block, layout(48)) });
        }
    });
}
