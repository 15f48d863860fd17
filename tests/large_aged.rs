//! What has been free for the purge delay goes back also while the program only allocates and frees large
//! blocks that come from what was kept of others. Nothing depends on how long something takes.

#[path = "support/waiting.rs"]
mod waiting;

use hakmem::{Hakmem, Options, Thp};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(20).thp(Thp::Never));

const MIB: u64 = 1 << 20;

/// By way of a thread's run cache, and of the large cache.
#[test]
fn free_memory_goes_while_large_blocks_come_from_caches() {
    for size in [100_000, 3 << 20] {
        let pass = || drop(std::hint::black_box(vec![1u8; size]));
        pass();
        drop(vec![vec![1u8; 300_000]; 100]);
        waiting::until("the free memory goes", || {
            (0..64).for_each(|_| pass());
            // One block of either size may be kept, and some runs.
            hakmem::stats().dirty_bytes < 6 * MIB
        });
    }
}
