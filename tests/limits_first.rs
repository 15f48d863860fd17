//! A program that sets limits before it allocates anything: the options, which are read then, do not go over
//! them.

use hakmem::{Hakmem, Limits, Options};
use std::alloc::{GlobalAlloc, Layout};

const MIB: usize = 1 << 20;

/// Not the program's allocator, which would have allocated before any test begins.
static OURS: Hakmem = Hakmem::with_options(Options::new().hard_limit(4 * MIB));

#[test]
fn what_the_program_sets_stands() {
    assert_eq!(hakmem::stats().threads_started, 0);
    hakmem::set_limits(Limits { soft: 0, hard: 16 * MIB }).unwrap();
    let [fits, does_not] = [10 * MIB, 7 * MIB].map(|size| Layout::from_size_align(size, 16).unwrap());
    // SAFETY: the sizes are not zero; freed with its layout.
    unsafe {
        let block = OURS.alloc(fits);
        assert!(!block.is_null());
        assert!(OURS.alloc(does_not).is_null());
        OURS.dealloc(block, fits);
    }
}
