//! Threads that allocate and free each other's blocks, and where the memory is afterwards:
//! `cargo run --example threads_and_statistics`.

use hakmem::ClassStats;
use std::sync::mpsc::sync_channel;
use std::thread;

// Options can be set here; the environment (HAKMEM_PURGE_DELAY=...) takes precedence.
#[global_allocator]
static GLOBAL: hakmem::Hakmem =
    hakmem::Hakmem::with_options(hakmem::Options::new().purge_delay_ms(100).large_cache(16 << 20));

const MESSAGES: usize = 200_000;
/// Every so many messages are kept.
const KEPT: usize = 1_000;

/// Allocates the messages that the other thread frees.
fn produce(to: std::sync::mpsc::SyncSender<Vec<u8>>) {
    for i in 0..MESSAGES {
        to.send(vec![i as u8; 16 + i % 500]).expect("the consumer takes all");
    }
}

fn main() {
    let (to, from) = sync_channel(1_000);
    let producer = thread::spawn(move || produce(to));
    // Every block that is dropped here was allocated by the other thread: a remote free.
    let kept: Vec<Vec<u8>> = from.into_iter().step_by(KEPT).collect();
    producer.join().expect("the producer does not panic");

    // No thread allocates now, so the sums are exact.
    let stats = hakmem::stats();
    println!("{stats}");
    println!("{}", ClassStats::HEADING);
    for class in hakmem::class_stats().iter().filter(|class| class.is_used()) {
        println!("{class}");
    }
    let sum =
        stats.allocated_bytes + stats.cached_bytes + stats.free_bytes + stats.fresh_bytes + stats.slack_bytes;
    assert_eq!(stats.active_bytes, sum);
    assert!(stats.home_foreign > 0, "blocks of the other thread were freed");
    println!("{} messages kept, {} threads ended", kept.len(), stats.threads_exited);

    drop(kept);
    println!("purge gave back {} bytes", hakmem::purge());
}
