//! The shadow model: random operations over many threads, each block checked against a plain map of what is
//! live.
//!
//! The blocks and the map are those of `hakmem_shadow`: a block that overlaps another, loses its contents on
//! the way through `realloc`, or comes back dirty from `alloc_zeroed` is found the next time it is touched.
//! `HAKMEM_SHADOW_ROUNDS` makes the run longer, `HAKMEM_SHADOW_SEED` moves it.

use hakmem::Hakmem;
use hakmem_shadow::block::{self, Block, Family};
use hakmem_shadow::random::{Random, number};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::mpsc::{Receiver, Sender, channel};

static HAKMEM: Hakmem = Hakmem::new();

/// Sizes as programs have them: mostly small, all borders, now and then large.
fn size(random: &mut Random) -> usize {
    if cfg!(miri) {
        // Miri takes its time over every byte.
        return 1 + (random.below(300) * random.below(10)) as usize;
    }
    let size = match random.below(100) {
        0..60 => 1 + random.below(256),
        60..85 => 1 + random.below(4096),
        85..95 => 1 + random.below(80 << 10),
        95..97 => (1 << random.below(18)) + random.below(3),
        97..99 => 1 + random.below(600 << 10),
        _ => 1 + random.below(3 << 20),
    };
    size as usize
}

fn align(random: &mut Random) -> usize {
    match random.below(20) {
        0 => 1 << random.below(13),
        1 => 1 << random.below(18),
        2..6 => 16,
        _ => 8,
    }
}

fn allocate(random: &mut Random) -> Block {
    let layout = Layout::from_size_align(size(random), align(random)).unwrap();
    let zeroed = random.below(4) == 0;
    // SAFETY: the size is not zero.
    let block = unsafe { if zeroed { HAKMEM.alloc_zeroed(layout) } else { HAKMEM.alloc(layout) } };
    if zeroed {
        assert!(!block.is_null(), "{layout:?}");
        // SAFETY: just allocated with this layout.
        unsafe { Block::expect_zero(block, layout.size()) };
    }
    Block::new(block, layout, Family::Rust)
}

fn free(block: Block) {
    let layout = block.layout;
    // SAFETY: allocated with this layout, and nobody else has it.
    unsafe { HAKMEM.dealloc(block.release(), layout) };
}

fn resize(block: &mut Block, random: &mut Random) {
    let (layout, size) = (block.layout, size(random));
    // SAFETY: allocated with this layout; the new size is not zero.
    let resized = block.resize(size, layout.align(), |at| unsafe { HAKMEM.realloc(at, layout, size) });
    assert!(resized, "{layout:?} to {size}");
}

/// One thread: allocates, resizes, frees, and hands blocks to the next thread.
fn work(seed: u64, rounds: usize, to: Sender<Block>, from: &Receiver<Block>) {
    let mut random = Random(seed | 1);
    let mut blocks: Vec<Block> = Vec::new();
    // The size of the working set wanders, so slabs fill up and drain.
    let mut goal = 100;
    for round in 0..rounds {
        if round % 1000 == 0 {
            goal = random.below(if cfg!(miri) { 40 } else { 1500 }) as usize;
        }
        if blocks.len() < goal || blocks.is_empty() {
            blocks.push(allocate(&mut random));
        }
        let i = random.below(blocks.len() as u64) as usize;
        match random.below(10) {
            0..4 if blocks.len() > goal / 2 => free(blocks.swap_remove(i)),
            4 => resize(&mut blocks[i], &mut random),
            5 => {
                // The receiver may have ended: then the block comes back and is ours to free.
                if let Err(back) = to.send(blocks.swap_remove(i)) {
                    free(back.0);
                }
            }
            6 => {
                while let Ok(block) = from.try_recv() {
                    free(block);
                }
            }
            7 if random.below(2000) == 0 => {
                hakmem::purge();
            }
            _ => blocks.push(allocate(&mut random)),
        }
        while blocks.len() > 2 * goal + 50 {
            free(blocks.pop().unwrap());
        }
    }
    drop(to);
    blocks.into_iter().for_each(free);
}

#[test]
fn random_operations_agree_with_the_model() {
    let rounds = number("HAKMEM_SHADOW_ROUNDS", if cfg!(miri) { 100 } else { 40_000 }) as usize;
    let seed = number("HAKMEM_SHADOW_SEED", 0);
    // Three generations: blocks outlive their threads, and later threads free them and adopt the slabs.
    let mut inherited: Vec<Receiver<Block>> = Vec::new();
    // In the second one there are many, which share their slabs.
    for (generation, threads) in if cfg!(miri) { [2, 2, 0] } else { [4, 12, 4] }.into_iter().enumerate() {
        let rounds = rounds * 4 / threads.max(4);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel::<Block>()).unzip();
        let handles: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(i, from)| {
                let to = senders[(i + 1) % threads].clone();
                let seed = seed * 1000 + generation as u64 * 100 + i as u64 + 1;
                std::thread::spawn(move || {
                    work(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), rounds, to, &from);
                    from
                })
            })
            .collect();
        drop(senders);
        let left: Vec<Receiver<Block>> = handles.into_iter().map(|h| h.join().unwrap()).collect();
        // This thread never allocated what it frees now: its owners have exited.
        inherited.iter().for_each(|from| from.try_iter().for_each(free));
        inherited = left;
    }
    inherited.iter().for_each(|from| from.try_iter().for_each(free));
    assert_eq!(block::live(), 0);
    let before = hakmem::stats();
    hakmem::purge();
    let stats = hakmem::stats();
    assert_eq!(stats.allocated_bytes, 0, "everything was freed, {before:?} then {stats:?}");
    assert_eq!(stats.large_allocs, stats.large_frees);
    // Hardened mode has a heap of its own, without owners.
    if std::env::var("HAKMEM_HARDENED").is_err() {
        assert!(stats.refill_orphan > 0 || cfg!(miri), "no slab was adopted: the test has lost its point");
        assert!(stats.home_foreign > 0 || cfg!(miri));
    }
}
