//! Blocks of no bytes. Programs must not ask `GlobalAlloc` for one, but some do.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashSet;

/// Makes such blocks in all ways at all alignments, between others, which keep their contents.
pub fn blocks_of_no_bytes(allocator: &impl GlobalAlloc) {
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    for align in (0..=21).map(|shift| 1 << shift) {
        // SAFETY: blocks are resized and freed with the layout that they have, and nothing beyond is touched.
        // That some have no bytes is what is tested.
        unsafe {
            let resized = |size| {
                let block = allocator.alloc(layout(size, align));
                allocator.realloc(block, layout(size, align), 0)
            };
            let (number, mut blocks) = if align > 4096 { (2, vec![]) } else { (200, vec![]) };
            for _ in 0..number {
                let beside = allocator.alloc(layout(8, 8));
                beside.cast::<u64>().write(7);
                let empty = [allocator.alloc(layout(0, align)), allocator.alloc_zeroed(layout(0, align))];
                blocks.push((beside, [empty[0], empty[1], resized(1), resized(5000)]));
            }
            let mut seen = HashSet::new();
            for (beside, empty) in blocks {
                assert_eq!(beside.cast::<u64>().read(), 7);
                allocator.dealloc(beside, layout(8, 8));
                for block in empty {
                    assert!(!block.is_null() && block.addr() % align == 0, "{block:?} at {align}");
                    assert!(seen.insert(block), "{block:?} twice");
                }
                let [grown, others @ ..] = empty;
                let grown = allocator.realloc(grown, layout(0, align), 100);
                assert!(!grown.is_null() && grown.addr() % align == 0);
                grown.write_bytes(1, 100);
                allocator.dealloc(grown, layout(100, align));
                others.into_iter().for_each(|block| allocator.dealloc(block, layout(0, align)));
            }
        }
    }
}
