//! The soak test: twelve threads do random operations for long, in processes with random options, each block
//! checked against the shadow model; the memory at the end is that at the start.
//!
//! Half an hour: `HAKMEM_LONG=1 cargo test --release --test soak -- --nocapture`. A larger number is how many
//! seconds, `HAKMEM_SHADOW_SEED` which random numbers. Without it the test runs for a moment, to show that it
//! can.

mod support;

use hakmem_shadow::functions::Functions;
use hakmem_shadow::operations::{self, Operation};
use hakmem_shadow::random::{Random, number};
use hakmem_shadow::session::{self, Allowed, Report};
use std::time::{Duration, Instant};
use support::{in_own_processes, resident};

const THREADS: u64 = 12;
const MIB: usize = 1 << 20;

/// Forks and failing calls have tests of their own: with them, memory is lost that should not be looked for
/// here.
const ALLOWED: Allowed = Allowed { forks: 0, faults: false, most_bytes: 256 << 20, ..Allowed::ALL };

/// Options by chance, of those that can be combined.
fn set_options(random: &mut Random) -> Vec<(&'static str, &'static str)> {
    const CHOICES: [(&str, &[&str]); 7] = [
        ("HAKMEM_PRESET", &["balanced", "throughput", "memory", "latency"]),
        ("HAKMEM_MAGAZINE", &["on", "on", "on", "off"]),
        ("HAKMEM_OUTBOX", &["on", "on", "off"]),
        ("HAKMEM_ORPHANS", &["on", "on", "off"]),
        ("HAKMEM_PURGE_DELAY", &["250", "0", "10", "-1"]),
        ("HAKMEM_LARGE_CACHE", &["0", "1048576", "33554432"]),
        ("HAKMEM_THP", &["auto", "always", "never"]),
    ];
    let chosen: Vec<_> = CHOICES
        .iter()
        .map(|(name, values)| (*name, values[random.below(values.len() as u64) as usize]))
        .collect();
    // SAFETY: nothing has been allocated from the allocator under test, and no other thread reads them.
    chosen.iter().for_each(|(name, value)| unsafe { std::env::set_var(name, value) });
    chosen
}

/// Twelve threads do random operations for some time.
fn work(seed: u64, time: Duration) -> Report {
    let end = Instant::now() + time;
    let sources = (0..THREADS)
        .map(|thread| {
            let mut random = Random((seed << 8 | thread).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            move || {
                let mut bytes = [0; 256];
                random.fill(&mut bytes);
                let mut part = operations::operations(&bytes, 40);
                // Each comes up once in 32 operations: too often for what takes long.
                part.retain(|operation| match operation {
                    Operation::Purge | Operation::Figures | Operation::Wait => random.below(8) == 0,
                    Operation::Limits(..) | Operation::Profile(_) => random.below(16) == 0,
                    _ => true,
                });
                (Instant::now() < end).then_some(part)
            }
        })
        .collect();
    session::run_all(sources, &Functions::CORE, ALLOWED)
}

/// One process of it.
fn leg(seed: u64, time: Duration) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let options = set_options(&mut random);
    // What is there once is there: records of threads, of the pool, tables of profiles.
    let first = work(seed + 1000, time / 8);
    let before = (resident(), first.held);
    let report = work(seed, time - time / 8);
    let after = (resident(), report.held);
    println!(
        "seed {seed}, {options:?}: {} operations, {} allocations refused, {} MiB resident before and {} after, \
         {} and {} MiB held",
        report.operations,
        report.refused,
        before.0 / MIB,
        after.0 / MIB,
        before.1 >> 20,
        after.1 >> 20
    );
    assert!(report.operations > 100);
    // Nothing is in use at either moment. Threads that happened to have more at once leave more records; the
    // test's own allocator is glibc's, which keeps arenas.
    assert!(after.1 <= before.1 + (16 << 20), "{} bytes held, then {}", before.1, after.1);
    assert!(after.0 <= before.0 + 48 * MIB, "{} bytes resident, then {}", before.0, after.0);
}

#[test]
fn many_threads_for_long() {
    const LEGS: u64 = 6;
    let seconds = match number("HAKMEM_LONG", 0) {
        0 => 6,
        1 => 1800,
        seconds => seconds,
    };
    let seed = number("HAKMEM_SHADOW_SEED", 1);
    let seeds: [u64; LEGS as usize] = std::array::from_fn(|i| seed * 100 + i as u64);
    in_own_processes("many_threads_for_long", &seeds, |seed| {
        leg(seed, Duration::from_millis(seconds * 1000 / LEGS));
    });
}
