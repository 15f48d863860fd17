//! The refill experiment: the background thread makes pages resident ahead of demand.

use hakmem::{Hakmem, Options};
use std::alloc::{GlobalAlloc, Layout};
use std::time::{Duration, Instant};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(100).background_refill(true));

#[test]
fn pages_are_made_ready_and_go_back_by_age() {
    let layout = Layout::from_size_align(50_000, 16).unwrap();
    let mut blocks = Vec::with_capacity(100_000);
    let mut grow = |count: usize, enough: &dyn Fn() -> bool| {
        // So many blocks, and as many more as it takes a busy machine to run the thread at all.
        for i in 0..10_000 {
            if i >= count && enough() {
                break;
            }
            // SAFETY: the size is not zero.
            let block = unsafe { GLOBAL.alloc_zeroed(layout) };
            assert!(!block.is_null());
            // SAFETY: of this size.
            let bytes = unsafe { std::slice::from_raw_parts_mut(block, layout.size()) };
            assert!(
                bytes.iter().all(|&byte| byte == 0),
                "a block of a page made ready is as good as another"
            );
            bytes.fill(0xaa);
            blocks.push(block);
            if i % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    grow(500, &|| true);
    assert_eq!(hakmem::stats().pages_prefilled, 0, "there is no thread");
    assert!(hakmem::start_background());
    let before = hakmem::stats();
    grow(500, &|| hakmem::stats().pages_prefilled > 0);
    assert!(hakmem::stats().pages_prefilled > 0);
    // What nobody takes goes back. The program itself frees nothing. Some growths take all that was made ready.
    let start = Instant::now();
    while hakmem::stats().bytes_purged == before.bytes_purged {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", hakmem::stats());
        grow(8, &|| true);
        std::thread::sleep(Duration::from_millis(200));
    }
    for block in blocks {
        // SAFETY: made with this layout.
        unsafe { GLOBAL.dealloc(block, layout) };
    }
}
