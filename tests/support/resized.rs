//! Blocks that grow and shrink.

use std::alloc::{GlobalAlloc, Layout};

/// Resizes a block up and down again, in place or not, then frees it. Its contents stay as far as they reach.
///
/// # Safety
///
/// The caller gives up the block, which is one of this allocator and layout.
pub unsafe fn resized(allocator: &impl GlobalAlloc, mut block: *mut u8, layout: Layout) {
    let (size, align) = (layout.size(), layout.align());
    let mut now = layout;
    // SAFETY: the caller's block, with the layout that it has at each time; no byte beyond that is touched.
    unsafe {
        block.write_bytes(3, size);
        for to in [size + 1, size + 7, 2 * size, 5 * size, size, size.div_ceil(3)] {
            block = allocator.realloc(block, now, to);
            assert_eq!(block.addr() % align, 0);
            let kept = std::slice::from_raw_parts(block, to.min(now.size()));
            assert!(kept.iter().all(|&byte| byte == 3), "{size} at {align}, to {to}");
            block.write_bytes(3, to);
            now = Layout::from_size_align(to, align).unwrap();
        }
        allocator.dealloc(block, now);
    }
}
