//! Profiles of a process in hardened mode, which has blocks of its own ways.

use std::alloc::{GlobalAlloc, Layout};

use hakmem::{Hakmem, Hardened, Options};
use hakmem_profile::file;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

/// How many bytes of blocks of this size or more live, and how many were allocated, where every one is
/// sampled.
fn figures() -> (u64, u64) {
    const LEAST: u64 = 500_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.hakprof");
    hakmem::profile::write(path.to_str().unwrap()).unwrap();
    let raw = file::read(&std::fs::read(path).unwrap()).unwrap();
    let rows = &raw.snapshots.last().unwrap().rows;
    let rows = rows.iter().map(|(site, row)| (raw.sites[*site].size, row)).filter(|(size, _)| *size > LEAST);
    rows.fold((0, 0), |sum, (size, row)| (sum.0 + row.live * size, sum.1 + row.allocated * size))
}

/// Sizes are rounded to a 64th of a power of two.
#[track_caller]
fn assert_about(found: u64, expected: usize) {
    assert!(found.abs_diff(expected as u64) <= expected as u64 / 32, "{found}, not {expected}");
}

#[test]
fn a_block_that_is_resized_where_it_is_has_the_size_that_it_has() {
    hakmem::profile::start(1).unwrap();
    let (before, _) = figures();
    let mut size = 1_000_000;
    // SAFETY: the size is not 0, and the block is used as what it is.
    unsafe {
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        let mut block = GLOBAL.alloc(layout(size));
        assert_about(figures().0 - before, size);
        let mut in_place = 0;
        let up = (0..12).map(|step| 1_000_000 * 3usize.pow(step) / 2usize.pow(step));
        let down = [50_000_000, 20_000_000, 3_000_000, 1_000_000, 700_000];
        for to in up.chain(down) {
            let (_, allocated) = figures();
            let was = block;
            block = GLOBAL.realloc(block, layout(size), to);
            assert!(!block.is_null());
            size = to;
            let (live, all) = figures();
            assert_about(live - before, size);
            in_place += usize::from(block == was && to != 1_000_000);
            assert_about(all - allocated, size);
        }
        assert!(in_place > 3, "{in_place}");
        GLOBAL.dealloc(block, layout(size));
        assert_eq!(figures().0, before);
    }
    hakmem::profile::stop();
}
