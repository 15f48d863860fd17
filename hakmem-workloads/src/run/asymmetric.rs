//! One thread owns all memory, others free it.

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
    name: "asymmetric",
    models: "a loader fills a large structure, worker threads tear it down in random order, again and again",
    parameters: &[
        Parameter { name: "threads", default: 2, least: 1, most: 256, help: "threads that free" },
        Parameter {
            name: "blocks",
            default: 400_000,
            least: 1,
            most: 1 << 32,
            help: "blocks of one structure",
        },
        Parameter { name: "rounds", default: 8, least: 1, most: 1 << 20, help: "structures" },
        Parameter { name: "min", default: 16, least: 1, most: 1 << 20, help: "smallest size, bytes" },
        Parameter { name: "max", default: 256, least: 1, most: 1 << 20, help: "largest size, bytes" },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
    ],
    presets: &[Preset { name: "one-thread", values: &[("threads", 1)] }],
    figures: &[],
    latency: false,
    primary: None,
    targets: &[],
};

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, blocks, rounds) = (settings.size("threads"), settings.size("blocks"), settings["rounds"]);
    let (min, max) = (settings.size("min"), settings.size("max"));
    let mut random = Random::new(settings["seed"], 0);
    // Where the i-th block goes: spread over all batches, so that each thread meets blocks of every slab.
    let order = random.permutation(blocks);
    let share = blocks.div_ceil(threads);
    let full = Channel::new(threads, []);
    let empty = Channel::new(threads, (0..threads).map(|_| Batch::new(share)));
    let mut batches: Vec<Batch> = Vec::with_capacity(threads);
    let meter = Meter::start();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mut batch) = full.receive() {
                    for k in 0..share {
                        let size = std::mem::take(&mut batch.sizes[k]) as usize;
                        if size > 0 {
                            // SAFETY: made with this size, and nobody else has this batch.
                            unsafe { block::drop(heap, batch.blocks[k] as *mut u8, size) };
                        }
                    }
                    empty.send(batch);
                }
            });
        }
        for _ in 0..rounds {
            while batches.len() < threads {
                batches.push(empty.receive().expect("never closed"));
            }
            for place in order.iter().map(|place| *place as usize) {
                let size = random.between(min, max);
                let batch = &mut batches[place / share];
                batch.sizes[place % share] = size as u32;
                batch.blocks[place % share] = block::make(heap, size) as usize;
            }
            for batch in batches.drain(..) {
                full.send(batch);
            }
        }
        full.close();
    });
    Ok(meter.finish(2 * blocks as u64 * rounds, 0))
}
