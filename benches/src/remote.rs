//! One thread allocates, another frees.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use criterion::Bencher;
use hakmem_workloads::{Heap, Mapped};

use crate::heaps::Visit;

/// Bytes in a block.
const SIZE: usize = 64;
const ALIGN: usize = 8;
/// Blocks that change hands at once: enough for the channel's own cost to disappear.
const BATCH: usize = 512;
/// Batches under way at most.
const DEPTH: usize = 4;

/// Every block is freed by a thread that did not allocate it.
pub struct Remote;

/// Addresses of blocks, in memory that no allocator under test knows.
type Batch = Mapped<usize>;

impl Visit for Remote {
    fn operations(&self) -> u64 {
        2 * BATCH as u64
    }

    /// The thread that frees lives as long as the benchmark does. The clock stops when the last batch is
    /// back, so that neither side's work is left out.
    fn visit<H: Heap>(&self, heap: &H, bencher: &mut Bencher<'_>) {
        let (full, to_free) = sync_channel(DEPTH);
        let (freed, empty) = sync_channel(DEPTH);
        std::thread::scope(|scope| {
            scope.spawn(move || free_all(heap, &to_free, &freed));
            let mut spare: Vec<Batch> = (0..DEPTH).map(|_| Mapped::new(BATCH)).collect();
            bencher.iter_custom(|rounds| {
                let start = Instant::now();
                for _ in 0..rounds {
                    let mut batch =
                        spare.pop().unwrap_or_else(|| empty.recv().expect("the other thread lives"));
                    fill(heap, &mut batch);
                    full.send(batch).expect("the other thread lives");
                }
                while spare.len() < DEPTH {
                    spare.push(empty.recv().expect("the other thread lives"));
                }
                start.elapsed()
            });
            drop(full);
        });
    }
}

fn fill<H: Heap>(heap: &H, batch: &mut Batch) {
    for slot in batch.iter_mut() {
        let block = heap.allocate(SIZE, ALIGN);
        assert!(!block.is_null(), "no memory");
        // SAFETY: just allocated, long enough for a word, and aligned for it.
        unsafe { block.cast::<usize>().write_volatile(SIZE) };
        *slot = block as usize;
    }
}

/// Frees batches until there are no more.
fn free_all<H: Heap>(heap: &H, to_free: &Receiver<Batch>, freed: &SyncSender<Batch>) {
    for batch in to_free {
        for &block in batch.iter() {
            // SAFETY: allocated by `fill` with this size and alignment, and handed over to be freed here.
            unsafe { heap.free(block as *mut u8, SIZE, ALIGN) };
        }
        // Fails only when the benchmark is over and nobody wants the batch.
        let _ = freed.send(batch);
    }
}
