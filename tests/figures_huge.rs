//! The live figures where huge pages are asked for: a byte that is touched makes 2 MiB resident, and so the
//! estimate says.

use hakmem::{Hakmem, Options, Thp, purge, stats};
use std::alloc::{GlobalAlloc, Layout};

/// Not the program's own allocator, so that nothing but the test moves its figures.
static HAKMEM: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(-1).thp(Thp::Always));

const SUPERSLAB: u64 = 2 << 20;
const HEADER: u64 = 4 << 10;

#[test]
fn all_of_a_huge_page_counts_as_resident() {
    let layout = Layout::from_size_align(64, 8).unwrap();
    // SAFETY: the size is not zero.
    let block = unsafe { HAKMEM.alloc(layout) };
    let s = stats();
    assert_eq!((s.allocated_bytes, s.untouched_bytes), (64, 0), "{s:?}");
    assert_eq!(s.active_bytes + s.dirty_bytes, SUPERSLAB - HEADER, "{s:?}");
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
    // SAFETY: the block, with its layout.
    unsafe { HAKMEM.dealloc(block, layout) };
    purge();
    let s = stats();
    assert_eq!((s.active_bytes, s.dirty_bytes), (0, 0), "{s:?}");
    assert_eq!(s.bytes_mapped, s.resident_bytes + s.retained_bytes, "{s:?}");
}
