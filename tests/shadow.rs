//! The shadow model: random operations over many threads, each block checked against a plain map of what is
//! live.
//!
//! Every block carries its number in every word, so a block that overlaps another, loses its contents on the
//! way through `realloc`, or comes back dirty from `alloc_zeroed` is found the next time it is touched.
//! `HAKMEM_SHADOW_ROUNDS` makes the run longer, `HAKMEM_SHADOW_SEED` moves it.

use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

static HAKMEM: Hakmem = Hakmem::new();

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// Sizes as programs have them: mostly small, all borders, now and then large.
    fn size(&mut self) -> usize {
        if cfg!(miri) {
            // Miri takes its time over every byte.
            return 1 + (self.below(300) * self.below(10)) as usize;
        }
        let size = match self.below(100) {
            0..60 => 1 + self.below(256),
            60..85 => 1 + self.below(4096),
            85..95 => 1 + self.below(80 << 10),
            95..97 => (1 << self.below(18)) + self.below(3),
            97..99 => 1 + self.below(600 << 10),
            _ => 1 + self.below(3 << 20),
        };
        size as usize
    }
    fn align(&mut self) -> usize {
        match self.below(20) {
            0 => 1 << self.below(13),
            1 => 1 << self.below(18),
            2..6 => 16,
            _ => 8,
        }
    }
}

/// A live block.
struct Live {
    address: usize,
    layout: Layout,
    tag: u8,
}

/// All live blocks of all threads, by address: overlap shows at once.
static MAP: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn enter(address: usize, size: usize) {
    let mut map = MAP.lock().unwrap();
    if let Some((&below, &len)) = map.range(..=address).next_back() {
        assert!(below + len <= address, "{address:#x} lies in the block at {below:#x}");
    }
    if let Some((&above, _)) = map.range(address + 1..).next() {
        assert!(address + size <= above, "{address:#x}+{size} runs into the block at {above:#x}");
    }
    assert!(map.insert(address, size).is_none());
}

fn leave(address: usize) {
    assert!(MAP.lock().unwrap().remove(&address).is_some());
}

/// Large blocks are checked at their ends and in steps, or the test would measure memset.
fn positions(size: usize) -> impl Iterator<Item = usize> {
    let step = if size <= 4096 { 1 } else { 509 };
    (0..size).step_by(step).chain(size.saturating_sub(16)..size)
}

impl Live {
    fn fill(&self) {
        for i in positions(self.layout.size()) {
            // SAFETY: our block.
            unsafe { (self.address as *mut u8).add(i).write(self.tag) };
        }
    }
    fn check(&self, len: usize) {
        for i in positions(self.layout.size()).filter(|&i| i < len) {
            // SAFETY: our block, filled.
            let found = unsafe { (self.address as *const u8).add(i).read() };
            assert_eq!(found, self.tag, "byte {i} of {:#x} {:?}", self.address, self.layout);
        }
    }
}

fn allocate(random: &mut Random) -> Live {
    let layout = Layout::from_size_align(random.size(), random.align()).unwrap();
    let zeroed = random.below(4) == 0;
    // SAFETY: the size is not zero.
    let block = unsafe { if zeroed { HAKMEM.alloc_zeroed(layout) } else { HAKMEM.alloc(layout) } };
    assert!(!block.is_null(), "{layout:?}");
    assert_eq!(block as usize % layout.align(), 0, "{layout:?} at {block:p}");
    if zeroed {
        for i in positions(layout.size()) {
            // SAFETY: our block.
            assert_eq!(unsafe { block.add(i).read() }, 0, "byte {i} of {layout:?}");
        }
    }
    enter(block as usize, layout.size());
    let live = Live { address: block as usize, layout, tag: random.next() as u8 };
    live.fill();
    live
}

fn free(live: Live) {
    live.check(usize::MAX);
    leave(live.address);
    // SAFETY: allocated with this layout.
    unsafe { HAKMEM.dealloc(live.address as *mut u8, live.layout) };
}

fn resize(live: Live, random: &mut Random) -> Live {
    let size = random.size();
    let before = live.layout.size();
    leave(live.address);
    // SAFETY: allocated with this layout; the new size is not zero.
    let moved = unsafe { HAKMEM.realloc(live.address as *mut u8, live.layout, size) };
    assert!(!moved.is_null());
    let layout = Layout::from_size_align(size, live.layout.align()).unwrap();
    assert_eq!(moved as usize % layout.align(), 0);
    enter(moved as usize, size);
    let live = Live { address: moved as usize, layout, tag: live.tag };
    // What was filled before is there; in steps, the positions of the old size.
    for i in positions(before).filter(|&i| i < size) {
        // SAFETY: our block, filled up to the smaller size.
        assert_eq!(unsafe { moved.add(i).read() }, live.tag, "byte {i} after realloc {before} to {size}");
    }
    live.fill();
    live
}

/// One thread: allocates, resizes, frees, and hands blocks to the next thread.
fn work(seed: u64, rounds: usize, to: Sender<Live>, from: &Receiver<Live>) {
    let mut random = Random(seed | 1);
    let mut blocks: Vec<Live> = Vec::new();
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
            4 => {
                let live = blocks.swap_remove(i);
                blocks.push(resize(live, &mut random));
            }
            5 => {
                // The receiver may have ended: then the block comes back and is ours to free.
                if let Err(back) = to.send(blocks.swap_remove(i)) {
                    free(back.0);
                }
            }
            6 => {
                while let Ok(live) = from.try_recv() {
                    free(live);
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

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

#[test]
fn random_operations_agree_with_the_model() {
    let rounds = number("HAKMEM_SHADOW_ROUNDS", if cfg!(miri) { 100 } else { 40_000 }) as usize;
    let seed = number("HAKMEM_SHADOW_SEED", 0);
    const THREADS: usize = if cfg!(miri) { 2 } else { 4 };
    // Three generations: blocks outlive their threads, and later threads free them and adopt the slabs.
    let mut inherited: Vec<Receiver<Live>> = Vec::new();
    for generation in 0..if cfg!(miri) { 2 } else { 3 } {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<Live>()).unzip();
        let handles: Vec<_> = receivers
            .into_iter()
            .enumerate()
            .map(|(i, from)| {
                let to = senders[(i + 1) % THREADS].clone();
                let seed = seed * 1000 + generation * 10 + i as u64 + 1;
                std::thread::spawn(move || {
                    work(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), rounds, to, &from);
                    from
                })
            })
            .collect();
        drop(senders);
        let left: Vec<Receiver<Live>> = handles.into_iter().map(|h| h.join().unwrap()).collect();
        // This thread never allocated what it frees now: its owners have exited.
        inherited.iter().for_each(|from| from.try_iter().for_each(free));
        inherited = left;
    }
    inherited.iter().for_each(|from| from.try_iter().for_each(free));
    assert!(MAP.lock().unwrap().is_empty());
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
