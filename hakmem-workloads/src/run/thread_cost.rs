//! What a thread costs.

use std::sync::Barrier;
use std::thread;

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::meter::{Meter, resident};
use crate::report::Report;
use crate::workload::{Figure, Parameter, Preset, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "thread-cost",
    models: "a program with many idle threads, each of which has allocated a little: memory per thread",
    parameters: &[
        Parameter { name: "threads", default: 500, least: 1, most: 10_000, help: "threads at once" },
        Parameter {
            name: "sizes",
            default: 1,
            least: 1,
            most: 7,
            help: "blocks of each, one of each size: 16 B to 20 KiB",
        },
    ],
    presets: &[Preset { name: "seven", values: &[("sizes", 7)] }],
    figures: &[Figure {
        key: "per_thread",
        label: "resident for each thread, beyond its stack and its blocks",
        unit: "bytes",
    }],
    latency: false,
    primary: Some("per_thread"),
};

/// The sizes, bytes.
const SIZES: [usize; 7] = [16, 100, 400, 1_000, 3_000, 9_000, 20_000];

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, sizes) = (settings.size("threads"), &SIZES[..settings.size("sizes")]);
    // The same threads without a block of ours: what they cost anyway, their stacks and the library's own.
    let (bare, _) = grown(heap, threads, &[])?;
    let (full, mut report) = grown(heap, threads, sizes)?;
    let blocks = (threads * sizes.iter().sum::<usize>()) as u64;
    let beyond = full.saturating_sub(bare).saturating_sub(blocks) as f64;
    report.figures.push(("per_thread".into(), beyond / threads as f64));
    Ok(report)
}

/// How much is resident with all threads there, each with blocks of `sizes`.
fn grown<H: Heap>(heap: &H, threads: usize, sizes: &[usize]) -> Result<(u64, Report), Error> {
    let (ready, done) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let before = resident();
    let meter = Meter::start();
    thread::scope(|scope| {
        for started in 0..threads {
            let (ready, done) = (&ready, &done);
            let own = move || {
                let mut blocks = [std::ptr::null_mut(); SIZES.len()];
                for (block, size) in blocks.iter_mut().zip(sizes) {
                    *block = block::make(heap, *size);
                }
                ready.wait();
                done.wait();
                for (block, size) in blocks.iter().zip(sizes) {
                    // SAFETY: made above with this size, and not used again.
                    unsafe { block::drop(heap, *block, *size) };
                }
            };
            // The others would wait for ever.
            if let Err(error) = thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, own) {
                panic!("only {started} of {threads} threads could be started: {error}");
            }
        }
        ready.wait();
        let report = meter.finish((threads * sizes.len()).max(1) as u64, 0);
        let grown = report.resident_after.saturating_sub(before);
        done.wait();
        Ok((grown, report))
    })
}
