//! With the preset `memory` free memory goes back at once, also what is freed within one tick of the clock.
//! Each size in a process of its own: memory that is needed again goes back later, as everywhere.

#[path = "support/options.rs"]
mod support;

use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

const OPTIONS: [(&str, &str); 3] =
    [("HAKMEM_PRESET", "memory"), ("HAKMEM_HARDENED", "off"), ("HAKMEM_BACKGROUND", "off")];
const MIB: usize = 1 << 20;

/// Frees 40 MiB of blocks of `size` bytes, and does nothing more.
fn come_and_go(name: &str, size: usize) {
    support::succeeds(name, &OPTIONS, || {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let block = |_| {
            // SAFETY: the size is not 0, and the block has it.
            unsafe {
                let block = GLOBAL.alloc(layout);
                assert!(!block.is_null());
                block.write_bytes(7, size);
                block
            }
        };
        let blocks: Vec<_> = (0..40 * MIB / size).map(block).collect();
        assert!(hakmem::stats().active_bytes as usize > 40 * MIB - size);
        for &block in &blocks {
            // SAFETY: of that layout, and each is freed once.
            unsafe { GLOBAL.dealloc(block, layout) };
        }
        // A SuperSlab's worth may stay, and an eighth of the little that is in use.
        let s = hakmem::stats();
        assert!(s.dirty_bytes as usize <= 3 * MIB, "{s:?}");
    });
}

#[test]
fn small_blocks_go_back_at_once() {
    come_and_go("small_blocks_go_back_at_once", 64);
}

#[test]
fn middle_blocks_go_back_at_once() {
    come_and_go("middle_blocks_go_back_at_once", 1000);
}

#[test]
fn large_blocks_go_back_at_once() {
    come_and_go("large_blocks_go_back_at_once", 16 << 10);
}

#[test]
fn runs_go_back_at_once() {
    come_and_go("runs_go_back_at_once", 200 << 10);
}
