//! Some threads allocate, others free.

use std::thread;

use super::channel::{Batch, Channel};
use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::meter::Meter;
use crate::random::Random;
use crate::report::Report;
use crate::workload::{Parameter, Preset, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "producer-consumer",
    models: "a pipeline: producers allocate messages, consumers free them, batch by batch",
    parameters: &[
        Parameter { name: "producers", default: 1, least: 1, most: 256, help: "threads that allocate" },
        Parameter { name: "consumers", default: 1, least: 1, most: 256, help: "threads that free" },
        Parameter {
            name: "blocks",
            default: 3_000_000,
            least: 1,
            most: 1 << 40,
            help: "blocks that pass, in all",
        },
        Parameter {
            name: "batch",
            default: 256,
            least: 1,
            most: 1 << 20,
            help: "blocks handed over at once",
        },
        Parameter { name: "min", default: 16, least: 1, most: 1 << 20, help: "smallest size, bytes" },
        Parameter { name: "max", default: 256, least: 1, most: 1 << 20, help: "largest size, bytes" },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
    ],
    presets: &[
        Preset { name: "one-to-many", values: &[("consumers", 3)] },
        Preset { name: "many-to-one", values: &[("producers", 3)] },
    ],
    figures: &[],
    latency: false,
    primary: None,
    targets: &[],
};

/// Batches under way for each thread: enough that none waits for long.
const DEPTH: usize = 8;

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (producers, consumers) = (settings.size("producers"), settings.size("consumers"));
    let (blocks, length) = (settings["blocks"], settings.size("batch"));
    let (min, max) = (settings.size("min"), settings.size("max"));
    let batches = DEPTH * (producers + consumers);
    let empty = Channel::new(batches, (0..batches).map(|_| Batch::new(length)));
    let full = Channel::new(batches, []);
    let meter = Meter::start();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..producers as u64)
            .map(|i| {
                let (empty, full) = (&empty, &full);
                let mut random = Random::new(settings["seed"], i);
                let mut left = blocks * (i + 1) / producers as u64 - blocks * i / producers as u64;
                scope.spawn(move || {
                    while left > 0 {
                        let mut batch = empty.receive().expect("never closed");
                        // A size of 0 ends a batch that is not full.
                        for k in 0..length {
                            let size = if left > 0 { random.between(min, max) } else { 0 };
                            batch.sizes[k] = size as u32;
                            if size == 0 {
                                break;
                            }
                            batch.blocks[k] = block::make(heap, size) as usize;
                            left -= 1;
                        }
                        full.send(batch);
                    }
                })
            })
            .collect();
        for _ in 0..consumers {
            scope.spawn(|| {
                while let Some(batch) = full.receive() {
                    let own = batch.sizes.iter().zip(batch.blocks.iter());
                    for (size, block) in own.take_while(|(size, _)| **size > 0) {
                        // SAFETY: made by a producer with this size, and nobody else has this batch.
                        unsafe { block::drop(heap, *block as *mut u8, *size as usize) };
                    }
                    empty.send(batch);
                }
            });
        }
        let ends: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        full.close();
        for end in ends {
            end.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    Ok(meter.finish(2 * blocks, 0))
}
