//! Visits while owners are at work, small enough for Miri.

use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

static HAKMEM: Hakmem = Hakmem::new();

/// Figures of the whole process are looked at, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// A block and its size.
struct Block(*mut u8, usize);

// SAFETY: a block belongs to nobody but whoever has this, in whatever thread.
unsafe impl Send for Block {}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

#[test]
fn owners_and_visitors_race_for_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (rounds, purges) = if cfg!(miri) { (20, 3) } else { (20_000, 200) };
    let shared: Mutex<Vec<Block>> = Mutex::default();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads = [0, 1].map(|seed: usize| {
            let (shared, stop) = (&shared, &stop);
            scope.spawn(move || {
                let mut own = Vec::new();
                let mut x = seed * 77 + 1;
                for round in 0..rounds {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let size = [16, 24, 5000, 40_000, 70_000][(x >> 16) % 5];
                    let count = if size < 100 { 12 } else { 4 };
                    for _ in 0..count {
                        // SAFETY: ours, of that size.
                        unsafe {
                            let block = HAKMEM.alloc(layout(size));
                            block.write(seed as u8);
                            block.add(size - 1).write(seed as u8);
                            own.push(Block(block, size));
                        }
                    }
                    let goal = if round % 8 < 5 { 60 } else { 4 };
                    while own.len() > goal {
                        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                        let block = own.swap_remove((x >> 33) % own.len());
                        if x >> 60 < 5 {
                            shared.lock().unwrap().push(block);
                        } else {
                            // SAFETY: of `alloc`, with this size.
                            unsafe { HAKMEM.dealloc(block.0, layout(block.1)) }
                        }
                    }
                    let theirs = std::mem::take(&mut *shared.lock().unwrap());
                    // SAFETY: as above.
                    theirs.into_iter().for_each(|b| unsafe { HAKMEM.dealloc(b.0, layout(b.1)) });
                }
                // SAFETY: as above.
                own.into_iter().for_each(|b| unsafe { HAKMEM.dealloc(b.0, layout(b.1)) });
            })
        });
        (0..purges).for_each(|_| {
            hakmem::purge();
            thread::yield_now();
        });
        // The scope waits for what they do, but not for their ends, in which they give their heaps up.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    // SAFETY: as above.
    shared.into_inner().unwrap().into_iter().for_each(|b| unsafe { HAKMEM.dealloc(b.0, layout(b.1)) });
    hakmem::purge();
    assert_eq!(hakmem::stats().allocated_bytes, 0);
}

/// What a thread keeps in its heap for itself lies beside what visitors change.
#[test]
fn a_scope_begins_beside_a_visit() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    (0..6).for_each(|_| visited());
}

fn visited() {
    let (begun, seen) = (AtomicBool::new(false), AtomicBool::new(false));
    let wait = |flag: &AtomicBool| {
        while !flag.load(Ordering::Relaxed) {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let owner = scope.spawn(|| {
            // One is left in the current slab, which a visitor puts elsewhere then.
            // SAFETY: the size is not zero.
            let blocks: Vec<_> = (0..40).map(|_| unsafe { HAKMEM.alloc(layout(5000)) }).collect();
            // SAFETY: of `alloc`, with this size, and freed once.
            blocks.iter().skip(1).for_each(|&block| unsafe { HAKMEM.dealloc(block, layout(5000)) });
            drop(hakmem::scope("beside"));
            // Relaxed: that would order what is to be seen as unordered.
            begun.store(true, Ordering::Relaxed);
            wait(&seen);
            // SAFETY: as above.
            unsafe { HAKMEM.dealloc(blocks[0], layout(5000)) };
        });
        wait(&begun);
        hakmem::purge();
        seen.store(true, Ordering::Relaxed);
        owner.join().unwrap();
    });
}
