//! The allocator's own samples of a program whose every allocation is known: the estimates are unbiased, and
//! their intervals hold what they say.

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::thread;

use hakmem_profile::estimate::{Estimate, probability, step};
use hakmem_profile::file::{Raw, StackEnd};
use support::samples::{ALLOCATOR, Profiles, RATE, allocate, estimates, free};

/// Samples that each kind of block is to have in a round, about.
const SAMPLES: f64 = 800.0;
/// Fewer where it takes long.
const ROUNDS: usize = if cfg!(debug_assertions) { 50 } else { 200 };
/// How far the mean may be from the truth: 6 standard deviations.
const MARGIN: f64 = if cfg!(debug_assertions) { 0.03 } else { 0.015 };
/// The least share of intervals that hold the truth, of which each does with 95%: of few rounds one in a
/// thousand has less than 93%, and one in a hundred million less than this.
const WITHIN: f64 = if cfg!(debug_assertions) { 0.9 } else { 0.93 };

/// What becomes of the blocks of one size.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// They live when the profile is written.
    Kept,
    /// Each is freed before the next is allocated: all but the first come out of the magazine.
    Recycled,
    /// They are freed by another thread.
    FreedElsewhere,
    /// Each is resized once, in place or not, and then freed.
    Resized,
}

/// Sizes of blocks, which are those of their size classes, and what becomes of them.
const KINDS: [(usize, Fate); 10] = [
    (8, Fate::Recycled),
    (48, Fate::Recycled),
    (64, Fate::Kept),
    (128, Fate::FreedElsewhere),
    (512, Fate::Kept),
    (1024, Fate::Recycled),
    (4096, Fate::FreedElsewhere),
    (16 << 10, Fate::Kept),
    (128 << 10, Fate::Recycled),
    (8 << 20, Fate::Resized),
];

/// How many blocks of a size a round allocates.
fn count(size: usize) -> usize {
    (SAMPLES / probability(size as u64, RATE as u64)) as usize / if size >= 128 << 10 { 20 } else { 1 }
}

/// Runs everything once under a profile. What that says.
fn round(profiles: &Profiles) -> Raw {
    hakmem::profile::start(RATE).unwrap();
    let mut kept = Vec::new();
    for (size, fate) in KINDS {
        let count = count(size);
        match fate {
            Fate::Kept => kept.extend((0..count).map(|_| (allocate(size), size))),
            Fate::Recycled => (0..count).for_each(|_| free(allocate(size), size)),
            Fate::FreedElsewhere => {
                let blocks: Vec<_> = (0..count).map(|_| allocate(size)).collect();
                thread::spawn(move || blocks.into_iter().for_each(|block| free(block, size))).join().unwrap();
            }
            Fate::Resized => (0..count).for_each(|_| {
                let (layout, to) = (Layout::from_size_align(size, 8).unwrap(), size * 2);
                let block = std::ptr::with_exposed_provenance_mut(allocate(size));
                // SAFETY: a block of this layout.
                let block = unsafe { ALLOCATOR.realloc(block, layout, to) };
                free(block.expose_provenance(), to);
            }),
        }
    }
    let raw = profiles.end();
    kept.into_iter().for_each(|(block, size)| free(block, size));
    raw
}

/// The sizes of large blocks are rounded at random, which the intervals know of.
#[test]
fn a_large_block_lies_within_its_interval() {
    let profiles = Profiles::new();
    for size in [17 << 20, (17 << 20) + 100_000, 100_000, 70 << 20] {
        let mut sum = 0.0;
        for _ in 0..40 {
            hakmem::profile::start(RATE).unwrap();
            let block = allocate(size);
            let raw = profiles.end();
            free(block, size);
            let rows = raw.snapshots.last().unwrap().rows.iter();
            let live: Estimate = rows
                .map(|(site, row)| {
                    let size = raw.sites[*site].size;
                    Estimate::new(row.live, size, RATE as u64).rounded(step(size, raw.process.coarse))
                })
                .sum();
            let ((low, high), truth) = (live.interval(), size as f64);
            assert!((low..=high).contains(&truth), "{size} is not in {low} to {high}");
            assert!(low > 0.96 * truth && high < 1.04 * truth, "{size}: {low} to {high}");
            sum += live.bytes / truth / 40.0;
        }
        assert!((sum - 1.0).abs() < 0.01, "{size}: {sum}");
    }
}

#[test]
fn estimates_are_unbiased_and_their_intervals_true() {
    let profiles = Profiles::new();
    let mut sums = [(0.0, 0.0); KINDS.len()];
    let (mut within, mut intervals, mut complete, mut stacks) = (0, 0, 0, 0);
    for _ in 0..ROUNDS {
        let raw = round(&profiles);
        assert!(raw.process.armed_late && raw.process.rate == RATE as u64 && raw.cut.is_none());
        complete += raw.stacks.iter().filter(|stack| stack.end == StackEnd::Complete).count();
        stacks += raw.stacks.len();
        for (sum, (size, fate)) in sums.iter_mut().zip(KINDS) {
            let (allocated, live) = estimates(&raw, size);
            *sum = (sum.0 + allocated.objects, sum.1 + live.objects);
            let truth = count(size) as f64;
            let mut check = |estimate: &Estimate, truth: f64| {
                let (low, high) = estimate.interval();
                let size = size as f64;
                intervals += 1;
                // Half a byte: at sizes whose every block is sampled there is no interval.
                within += usize::from((low - 0.5..=high + 0.5).contains(&(truth * size)));
            };
            check(&allocated, truth);
            if fate == Fate::Kept {
                check(&live, truth);
            } else {
                assert_eq!(live.samples, 0, "{size}");
            }
        }
    }
    println!("{within} of {intervals} intervals; {complete} of {stacks} stacks are complete");
    for ((allocated, live), (size, fate)) in sums.into_iter().zip(KINDS) {
        let truth = (count(size) * ROUNDS) as f64;
        let kept = if fate == Fate::Kept { truth } else { 0.0 };
        println!("{size:9} B: allocated {:.4}, live {:.4}", allocated / truth, live / truth);
        assert!((allocated - truth).abs() <= MARGIN * truth, "{size}: {allocated} of {truth}");
        assert!((live - kept).abs() <= MARGIN * truth, "{size}: {live} of {kept}");
    }
    assert!(within as f64 >= WITHIN * f64::from(intervals), "{within} of {intervals}");
    assert!(complete as f64 >= 0.95 * stacks as f64);
}
