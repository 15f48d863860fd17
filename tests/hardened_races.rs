//! Hardened mode while others free, purge and ask for figures, small enough for Miri.

use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Not the program's own allocator, so that Miri sees its blocks as what they are.
static HAKMEM: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

struct Block(*mut u8, usize);

// SAFETY: a block belongs to nobody but whoever has this, in whatever thread.
unsafe impl Send for Block {}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

impl Block {
    fn new(size: usize) -> Block {
        // SAFETY: the size is not zero, and both bytes are the block's.
        unsafe {
            let block = HAKMEM.alloc_zeroed(layout(size));
            assert_eq!((block.read(), block.add(size - 1).read()), (0, 0));
            block.write(size as u8);
            Block(block, size)
        }
    }

    fn resized(self, size: usize) -> Block {
        let Block(block, old) = self;
        // SAFETY: of `alloc_zeroed` or `realloc`, with this size.
        let block = Block(unsafe { HAKMEM.realloc(block, layout(old), size) }, size);
        // SAFETY: the block's first byte.
        unsafe {
            assert_eq!(block.0.read(), old as u8);
            block.0.write(size as u8);
        }
        block
    }

    fn free(self) {
        // SAFETY: of `alloc_zeroed` or `realloc`, with this size, which is given up; its first byte.
        unsafe {
            assert_eq!(self.0.read(), self.1 as u8);
            HAKMEM.dealloc(self.0, layout(self.1));
        }
    }
}

#[test]
fn threads_and_figures_race_for_nothing() {
    let rounds = if cfg!(miri) { 24 } else { 20_000 };
    let shared: Mutex<Vec<Block>> = Mutex::default();
    let working = AtomicUsize::new(2);
    let work = |seed: usize| {
        let mut own = Vec::new();
        let mut x = seed * 77 + 1;
        for round in 0..rounds {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let size = [16, 24, 200, 700, 5000, 70_000][(x >> 33) % 6];
            own.push(Block::new(size));
            let block = own.swap_remove((x >> 40) % own.len());
            match round % 4 {
                0 => own.push(block),
                1 => own.push(block.resized([24, 300, 6000, 90_000][(x >> 50) % 4])),
                2 => shared.lock().unwrap().push(block),
                _ => block.free(),
            }
            let theirs = std::mem::take(&mut *shared.lock().unwrap());
            theirs.into_iter().for_each(Block::free);
        }
        own.into_iter().for_each(Block::free);
        working.fetch_sub(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        let threads = [0, 1].map(|seed| {
            scope.spawn({
                let work = &work;
                move || work(seed)
            })
        });
        while working.load(Ordering::Relaxed) > 0 {
            hakmem::stats();
            hakmem::purge();
            thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    shared.into_inner().unwrap().into_iter().for_each(Block::free);
    hakmem::purge();
    assert_eq!(hakmem::stats().allocated_bytes, 0);
}
