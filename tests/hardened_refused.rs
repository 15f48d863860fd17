//! Hardened mode where the system does not take memory back for a while: it is used again, or goes back
//! later.

#[path = "support/options.rs"]
mod support;

use hakmem::{Hakmem, Hardened, Options, stats};
use hakmem_shadow::faults::{self, ADVISE, MAP, UNMAP};
use std::alloc::{GlobalAlloc, Layout};
use support::succeeds;

hakmem_shadow::interpose!();

/// Not the process's: the test's own blocks are not to come between.
static HEAP: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON).purge_delay_ms(0));

const MIB: usize = 1 << 20;

/// 64 MiB of blocks of this size come, and go while these calls fail. They are zero when they come, and then
/// filled.
fn come_and_go(size: usize, refused: u8) {
    let layout = Layout::from_size_align(size, 8).unwrap();
    let one = |_| {
        // SAFETY: the size is not 0, and the block has it.
        unsafe {
            let block = HEAP.alloc_zeroed(layout);
            assert!(!block.is_null());
            let mut some = (0..size).step_by(61);
            assert!(some.all(|at| *block.add(at) == 0), "{size} bytes");
            block.write_bytes(7, size);
            block
        }
    };
    let blocks: Vec<_> = (0..64 * MIB / size).map(one).collect();
    faults::plan(refused, 0, u16::MAX);
    for &block in &blocks {
        // SAFETY: of this layout, and freed once.
        unsafe { HEAP.dealloc(block, layout) };
    }
    hakmem::purge();
    faults::plan(0, 0, 0);
}

/// Comes and goes, again and again, while these calls fail, and then goes back.
fn nothing_is_lost(name: &str, refused: u8) {
    succeeds(name, &[("HAKMEM_HARDENED", "on")], || {
        for size in [100, 4000, 50_000, 2 * MIB] {
            for _ in 0..4 {
                come_and_go(size, refused);
            }
            let first = stats().bytes_held;
            for _ in 0..4 {
                come_and_go(size, refused);
            }
            // Some more, since slabs lie elsewhere each time; and of large blocks not all that was set aside
            // is looked through.
            let (held, most) = (stats().bytes_held, first + if size < MIB { 16 << 20 } else { 64 << 20 });
            assert!(held <= most, "blocks of {size} bytes: {first}, then {held} bytes held");
            hakmem::purge();
            assert_eq!(stats().bytes_held, 0, "blocks of {size} bytes");
        }
    });
}

#[test]
fn nothing_is_lost_that_cannot_be_unmapped() {
    nothing_is_lost("nothing_is_lost_that_cannot_be_unmapped", UNMAP);
}

#[test]
fn nothing_is_lost_that_cannot_be_purged_either() {
    nothing_is_lost("nothing_is_lost_that_cannot_be_purged_either", UNMAP | ADVISE);
}

#[test]
fn nothing_is_lost_that_cannot_be_made_inaccessible_either() {
    nothing_is_lost("nothing_is_lost_that_cannot_be_made_inaccessible_either", UNMAP | ADVISE | MAP);
}
