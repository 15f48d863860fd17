//! A cache that shrinks when the program holds too much memory, and an allocation that fails instead of
//! growing beyond the hard limit: `cargo run --example limits`.

use hakmem::Limits;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

#[global_allocator]
static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();

const MIB: usize = 1 << 20;

static TOO_MUCH: AtomicBool = AtomicBool::new(false);
static CROSSINGS: AtomicUsize = AtomicUsize::new(0);

/// Called inside an allocation, on the thread that allocates: it only leaves a note. It must not take a lock
/// that a thread may hold while it allocates.
fn on_soft_limit(_held: usize, _limit: usize) {
    CROSSINGS.fetch_add(1, Relaxed);
    TOO_MUCH.store(true, Relaxed);
}

fn main() {
    hakmem::on_soft_limit(Some(on_soft_limit));
    hakmem::set_limits(Limits { soft: 64 * MIB, hard: 128 * MIB })
        .expect("the soft limit is below the hard one");

    // The soft limit: the cache is emptied whenever the hook has been called.
    let mut cache: Vec<Vec<u8>> = Vec::new();
    for i in 0..400 {
        if TOO_MUCH.swap(false, Relaxed) {
            cache.clear();
            println!("cache emptied at entry {i}, {} bytes given back", hakmem::purge());
        }
        cache.push(vec![1; MIB]);
    }
    drop(cache);
    let stats = hakmem::stats();
    println!(
        "soft limit crossed {} times, purged for it {} times",
        CROSSINGS.load(Relaxed),
        stats.soft_limit_hits
    );

    // The hard limit: a request that does not fit is refused, and the program goes on.
    let mut buffer: Vec<u8> = Vec::new();
    match buffer.try_reserve_exact(200 * MIB) {
        Ok(()) => println!("200 MiB allocated"),
        Err(error) => println!("200 MiB refused: {error}"),
    }
    buffer.try_reserve_exact(MIB).expect("1 MiB is below the limit");
    println!("hard limit: {} refusals", hakmem::stats().hard_limit_hits);
}
