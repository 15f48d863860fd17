//! No allocation that should be sampled and no free goes unseen, whatever the threads of a program do: the
//! allocator's own samples of programs whose every allocation is known.

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::thread;

use hakmem_profile::estimate::probability;
use hakmem_profile::file::Raw;
use support::samples::{ALLOCATOR, Profiles, RATE, allocate, chance, estimates, free};

/// Slabs that nearly empty have the magazine of their class emptied and halved, and current slabs, lists and
/// magazines change in many ways. No free goes unseen by that.
#[test]
fn no_free_goes_unseen() {
    let profiles = Profiles::new();
    hakmem::profile::start(RATE).unwrap();
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    // So that the slabs stay: what lies in no slab any more is taken out at a snapshot.
    let mut kept = Vec::new();
    for size in [64, 1024, 100_000] {
        let count = (64 << 20) / size.max(640);
        for _ in 0..3 {
            // All but one in 500, in the order of their addresses; then some come and go in any order.
            let blocks: Vec<_> = (0..count).map(|_| allocate(size)).collect();
            for (i, block) in blocks.into_iter().enumerate() {
                if i % 500 == 0 { kept.push((block, size)) } else { free(block, size) }
            }
            let mut blocks: Vec<_> = (0..count / 3).map(|_| allocate(size)).collect();
            while !blocks.is_empty() {
                free(blocks.swap_remove(random(blocks.len())), size);
            }
        }
    }
    let raw = profiles.end();
    for size in [64, 1024] {
        let rows = raw.snapshots.last().unwrap().rows.iter();
        let rows: Vec<_> = rows.filter(|(site, _)| raw.sites[*site].size == size as u64).collect();
        let (allocated, live) =
            rows.iter().fold((0, 0), |sum, (_, row)| (sum.0 + row.allocated, sum.1 + row.live));
        let most = kept.iter().filter(|(_, of)| *of == size).count() as u64;
        assert!(allocated > 5000 && live <= most, "{size}: {live} of {allocated} live, at most {most}");
    }
    kept.into_iter().for_each(|(block, size)| free(block, size));
}

/// A thread whose blocks all come out of its run cache needs nothing from a slab.
#[test]
fn a_thread_that_needs_only_runs_takes_part() {
    let profiles = Profiles::new();
    let next = Barrier::new(2);
    let pairs = |count| (0..count).for_each(|_| free(allocate(100_000), 100_000));
    let raw = thread::scope(|scope| {
        scope.spawn(|| {
            pairs(10);
            next.wait();
            next.wait();
            pairs(2000);
            next.wait();
        });
        next.wait();
        hakmem::profile::start(RATE).unwrap();
        next.wait();
        next.wait();
        profiles.end()
    });
    let rows = raw.snapshots.last().unwrap().rows.iter();
    let sum = rows.fold((0, 0), |sum, (_, row)| (sum.0 + row.allocated, sum.1 + row.live));
    // Blocks of this size are all sampled.
    assert_eq!(sum, (2000, 0));
}

/// A thread whose magazine is full and may not grow needs no slow path to free what others have allocated.
#[test]
fn a_thread_that_only_frees_takes_part() {
    const BLOCKS: usize = 40_000;
    let profiles = Profiles::new();
    let next = Barrier::new(2);
    let blocks: Vec<_> = (0..BLOCKS).map(|_| AtomicUsize::new(allocate(64))).collect();
    let free_all = || blocks.iter().for_each(|block| free(block.load(Relaxed), 64));
    let raw = thread::scope(|scope| {
        scope.spawn(|| {
            free_all();
            next.wait();
            next.wait();
            free_all();
            next.wait();
        });
        next.wait();
        hakmem::profile::start(RATE).unwrap();
        blocks.iter().for_each(|block| block.store(allocate(64), Relaxed));
        // What lies in no slab any more is taken out at a snapshot.
        let kept: Vec<_> = (0..BLOCKS / 1000).map(|_| allocate(64)).collect();
        next.wait();
        next.wait();
        let raw = profiles.end();
        kept.into_iter().for_each(|block| free(block, 64));
        raw
    });
    let (allocated, live) = estimates(&raw, 64);
    // What its magazine has room for, and what others may have had in theirs.
    assert!(allocated.samples > 500 && live.objects < 2000.0, "{} of {}", live.samples, allocated.samples);
}

/// A thread gets its heap when it first enters a scope, and then may free only what it was given.
#[test]
fn a_thread_that_only_has_a_scope_takes_part() {
    let profiles = Profiles::new();
    hakmem::profile::start(RATE).unwrap();
    for _ in 0..100 {
        let block = allocate(100_000);
        thread::spawn(move || {
            let _scope = hakmem::scope("freeing");
            free(block, 100_000);
            free(allocate(100_000), 100_000);
        })
        .join()
        .unwrap();
    }
    let raw = profiles.end();
    let rows = raw.snapshots.last().unwrap().rows.iter();
    let of_size = rows.filter(|(site, _)| (90_000..110_000).contains(&raw.sites[*site].size));
    let sum = of_size.fold((0, 0), |sum, (_, row)| (sum.0 + row.allocated, sum.1 + row.live));
    assert_eq!(sum, (200, 0));
}

/// Threads come and go, free each other's blocks, resize them, and are visited by whoever purges: no block is
/// missed, and no free, whatever the rate.
#[test]
fn nothing_goes_unseen_between_threads() {
    const SIZES: [usize; 9] = [8, 16, 48, 256, 1024, 3072, 20_480, 100_000, 1_500_000];
    let profiles = Profiles::new();
    for rate in [1, 100, 10_000, 300_000] {
        // Before the profile, so that the slabs stay: what lies in no slab any more is taken out at a
        // snapshot.
        let mut kept = Vec::new();
        for &size in SIZES.iter().filter(|&&size| size <= 20_480) {
            for i in 0..(2 << 20) / size.max(64) {
                let block = allocate(size);
                if i % 8 == 0 { kept.push((block, size)) } else { free(block, size) }
            }
        }
        hakmem::profile::start(rate).unwrap();
        let passed = Mutex::new(Vec::<(usize, usize)>::new());
        let counts = [const { AtomicUsize::new(0) }; SIZES.len()];
        let work = |seed: u64, rounds: usize| {
            let mut state = seed;
            let mut random = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let mut held = Vec::new();
            for round in 0..rounds {
                let mut kind = random(SIZES.len());
                if kind >= 7 && random(20) != 0 {
                    kind %= 7;
                }
                match random(40) {
                    0 => passed.lock().unwrap().append(&mut held),
                    1 => {
                        let mut passed = passed.lock().unwrap();
                        let from = passed.len() - passed.len().min(30);
                        held.extend(passed.drain(from..));
                    }
                    2 if round % 50 == 0 => {
                        hakmem::purge();
                    }
                    3 if round % 10 == 0 => assert!(hakmem::stats().bytes_mapped > 0),
                    4..24 => {
                        held.push((allocate(SIZES[kind]), SIZES[kind]));
                        counts[kind].fetch_add(1, Relaxed);
                    }
                    _ if !held.is_empty() => {
                        let (block, size) = held.swap_remove(random(held.len()));
                        free(block, size);
                    }
                    _ => (),
                }
            }
            passed.lock().unwrap().append(&mut held);
        };
        let rounds = if rate == 1 { 4000 } else { 20_000 };
        for generation in 0..4 {
            thread::scope(|scope| {
                for thread in 1..4 {
                    let work = &work;
                    scope.spawn(move || work(generation * 10 + thread, rounds));
                }
                work(generation * 10, rounds / 4);
            });
        }
        for (block, size) in passed.into_inner().unwrap() {
            free(block, size);
        }
        let raw = profiles.end();
        kept.into_iter().for_each(|(block, size)| free(block, size));
        let rows = || raw.snapshots.last().unwrap().rows.iter();
        assert_eq!(rows().map(|(_, row)| row.live).sum::<u64>(), 0, "at {rate}");
        for (size, count) in SIZES.into_iter().zip(counts).take(7) {
            let (allocated, _) = estimates(&raw, size);
            // At 1 every block is.
            let p = if rate == 1 { 1.0 } else { probability(size as u64, rate as u64) };
            let (truth, samples) = (count.into_inner(), allocated.samples);
            let chance = chance(truth, p, samples);
            println!("{rate} {size}: {samples} of {truth}, not {:.1}: {chance:.1e}", truth as f64 * p);
            assert!(chance > 1e-9, "{size} at {rate}: {samples} of {truth} by chance {chance:e}");
        }
    }
}

/// What the last snapshot says of blocks of at least `size` bytes: samples, and those that live.
fn of_size(raw: &Raw, size: usize) -> (u64, u64) {
    let rows = raw.snapshots.last().unwrap().rows.iter();
    let rows = rows.filter(|(site, _)| raw.sites[*site].size >= size as u64);
    rows.fold((0, 0), |sum, (_, row)| (sum.0 + row.allocated, sum.1 + row.live))
}

#[test]
fn a_block_that_cannot_be_resized_is_still_sampled() {
    let profiles = Profiles::new();
    const SIZES: [usize; 2] = [200_000, 4 << 20];
    hakmem::profile::start(1).unwrap();
    let figures = || of_size(&profiles.write(), SIZES[0] / 2);
    let blocks = SIZES.map(allocate);
    let resize = |i: usize, from: usize, to: usize| {
        let layout = Layout::from_size_align(from, 8).unwrap();
        // SAFETY: a block of this layout.
        unsafe { ALLOCATOR.realloc(std::ptr::with_exposed_provenance_mut(blocks[i]), layout, to) }
    };
    for (i, size) in SIZES.into_iter().enumerate() {
        assert!(resize(i, size, 1 << 47).is_null());
    }
    assert_eq!(figures(), (2, 2));
    // What becomes of it counts once.
    let small = resize(1, SIZES[1], 1000).expose_provenance();
    free(blocks[0], SIZES[0]);
    assert_eq!(figures(), (2, 0));
    free(small, 1000);
    hakmem::profile::stop();
}
