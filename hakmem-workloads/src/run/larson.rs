//! Larson and Krishnan's server simulation: threads replace random blocks, and hand them over to new threads.

use std::thread;

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::latency::{Probe, Timed, Untimed, timer_cost};
use crate::mapped::Mapped;
use crate::meter::Meter;
use crate::random::Random;
use crate::report::Report;
use crate::workload::{Parameter, Preset, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "larson",
    models: "a server whose threads come and go: each replaces random blocks and leaves its heap to a successor",
    parameters: &[
        Parameter { name: "threads", default: 2, least: 1, most: 1024, help: "threads at once" },
        Parameter { name: "min", default: 10, least: 1, most: 1 << 20, help: "smallest size, bytes" },
        Parameter { name: "max", default: 500, least: 1, most: 1 << 20, help: "largest size, bytes" },
        Parameter {
            name: "blocks",
            default: 1_000,
            least: 1,
            most: 1 << 24,
            help: "live blocks of a thread",
        },
        Parameter {
            name: "rounds",
            default: 20_000,
            least: 1,
            most: 1 << 30,
            help: "times that a thread and its successors replace as many blocks as are live",
        },
        Parameter {
            name: "handovers",
            default: 10,
            least: 0,
            most: 1 << 20,
            help: "times that a thread ends and another goes on with its blocks",
        },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
    ],
    presets: &[
        Preset { name: "churn", values: &[("handovers", 2_000)] },
        Preset { name: "oversubscribed", values: &[("threads", 8), ("rounds", 5_000)] },
        Preset { name: "large", values: &[("max", 8_000), ("rounds", 4_000)] },
    ],
    figures: &[],
    latency: true,
    primary: None,
    targets: &[],
};

/// The blocks of a thread, which its successor gets.
struct Shift<P> {
    blocks: Mapped<usize>,
    sizes: Mapped<u32>,
    random: Random,
    probe: P,
}

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    if !context.latency {
        return Ok(serve(context, || Untimed).0);
    }
    let timer = timer_cost();
    let (mut report, probes) = serve(context, || Timed::new(timer));
    report.latency = Timed::report(probes);
    Ok(report)
}

fn serve<H: Heap, P: Probe + Send>(context: &Context<H>, probe: impl Fn() -> P) -> (Report, Vec<P>) {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, count) = (settings.size("threads"), settings.size("blocks"));
    let (min, max) = (settings.size("min"), settings.size("max"));
    let (rounds, handovers) = (settings["rounds"], settings["handovers"]);
    let mut shifts: Vec<Shift<P>> = (0..threads)
        .map(|i| Shift {
            blocks: Mapped::new(count),
            sizes: Mapped::new(count),
            random: Random::new(settings["seed"], i as u64),
            probe: probe(),
        })
        .collect();
    let meter = Meter::start();
    for shift in &mut shifts {
        for i in 0..count {
            let size = shift.random.between(min, max);
            (shift.blocks[i], shift.sizes[i]) =
                (block::make_in(&mut shift.probe, heap, size) as usize, size as u32);
        }
    }
    let stages = handovers + 1;
    let shifts: Vec<Shift<P>> = thread::scope(|scope| {
        let chains: Vec<_> = shifts
            .into_iter()
            .map(|mut shift| {
                scope.spawn(move || {
                    // This thread only waits: each stage is a thread of its own, begun when the one before
                    // has ended.
                    for stage in 0..stages {
                        let part = rounds * (stage + 1) / stages - rounds * stage / stages;
                        shift = thread::scope(|inner| {
                            let worker = inner.spawn(move || replace(heap, shift, part, min, max));
                            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                        });
                    }
                    shift
                })
            })
            .collect();
        chains
            .into_iter()
            .map(|chain| chain.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let live = shifts.iter().flat_map(|shift| shift.sizes.iter()).map(|size| u64::from(*size)).sum();
    let mut report = meter.finish((threads * count) as u64 * (1 + 2 * rounds), live);
    report.live_after = live;
    for shift in &shifts {
        for i in 0..count {
            // SAFETY: live since it was put there, with this size, and not used again.
            unsafe { block::drop(heap, shift.blocks[i] as *mut u8, shift.sizes[i] as usize) };
        }
    }
    (report, shifts.into_iter().map(|shift| shift.probe).collect())
}

fn replace<H: Heap, P: Probe>(
    heap: &H,
    mut shift: Shift<P>,
    rounds: u64,
    min: usize,
    max: usize,
) -> Shift<P> {
    let count = shift.blocks.len();
    for _ in 0..rounds * count as u64 {
        let (i, size) = shift.random.pair(count, min, max);
        let (old, old_size) = (shift.blocks[i] as *mut u8, shift.sizes[i] as usize);
        // SAFETY: live since it was put there, with this size, and overwritten at once.
        unsafe { block::drop_in(&mut shift.probe, heap, old, old_size) };
        (shift.blocks[i], shift.sizes[i]) =
            (block::make_in(&mut shift.probe, heap, size) as usize, size as u32);
    }
    shift
}
