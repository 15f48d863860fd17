//! Short-lived threads.

use std::thread;

use super::channel::{Batch, Channel};
use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::meter::Meter;
use crate::random::Random;
use crate::report::Report;
use crate::workload::{Figure, Parameter, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "thread-churn",
    models: "a thread for every small job: it allocates a little, frees most, hands the rest over and ends",
    parameters: &[
        Parameter { name: "threads", default: 10_000, least: 1, most: 1 << 32, help: "threads, in all" },
        Parameter { name: "at_once", default: 2, least: 1, most: 1_000, help: "threads at once" },
        Parameter { name: "blocks", default: 40, least: 1, most: 1 << 20, help: "blocks of each thread" },
        Parameter {
            name: "handed",
            default: 4,
            least: 0,
            most: 1 << 20,
            help: "blocks of these that another thread frees",
        },
        Parameter { name: "min", default: 16, least: 1, most: 1 << 20, help: "smallest size, bytes" },
        Parameter { name: "max", default: 2_000, least: 1, most: 1 << 20, help: "largest size, bytes" },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
    ],
    presets: &[],
    figures: &[Figure { key: "per_job", label: "time per thread", unit: "nanoseconds" }],
    latency: false,
    primary: Some("per_job"),
    targets: &[],
};

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, at_once) = (settings["threads"], settings.size("at_once"));
    let (blocks, handed) = (settings.size("blocks"), settings.size("handed").min(settings.size("blocks")));
    let (min, max) = (settings.size("min"), settings.size("max"));
    let empty = Channel::new(at_once, (0..at_once).map(|_| Batch::new(blocks)));
    let full = Channel::new(at_once, []);
    let meter = Meter::start();
    thread::scope(|scope| {
        for number in 0..threads {
            // Where all are under way, one has to bring its batch back first.
            if number >= at_once as u64 {
                collect(heap, &full, &empty, handed);
            }
            let (empty, full) = (&empty, &full);
            let mut random = Random::new(settings["seed"], number);
            scope.spawn(move || {
                let mut batch = empty.receive().expect("never closed");
                for i in 0..blocks {
                    batch.sizes[i] = random.between(min, max) as u32;
                    batch.blocks[i] = block::make(heap, batch.sizes[i] as usize) as usize;
                }
                for i in handed..blocks {
                    // SAFETY: made above with this size, and not used again.
                    unsafe { block::drop(heap, batch.blocks[i] as *mut u8, batch.sizes[i] as usize) };
                }
                full.send(batch);
            });
        }
        for _ in 0..threads.min(at_once as u64) {
            collect(heap, &full, &empty, handed);
        }
    });
    let mut report = meter.finish(2 * blocks as u64 * threads, 0);
    report.figures.push(("per_job".into(), report.elapsed_ns as f64 / threads as f64));
    Ok(report)
}

/// Frees what a thread handed over.
fn collect<H: Heap>(heap: &H, full: &Channel, empty: &Channel, handed: usize) {
    let batch = full.receive().expect("never closed");
    for i in 0..handed {
        // SAFETY: made by the thread with this size; it has given the batch up.
        unsafe { block::drop(heap, batch.blocks[i] as *mut u8, batch.sizes[i] as usize) };
    }
    empty.send(batch);
}
