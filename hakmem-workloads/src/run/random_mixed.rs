//! Random replacement in one thread.

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
    name: "random-mixed",
    models: "a long-running program's heap: random blocks of a working set are replaced by others of random size",
    parameters: &[
        Parameter {
            name: "iterations",
            default: 30_000_000,
            least: 1,
            most: 1 << 40,
            help: "replacements: a free and an allocation each",
        },
        Parameter { name: "set", default: 8_192, least: 1, most: 1 << 28, help: "live blocks" },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
        Parameter { name: "min", default: 16, least: 1, most: 1 << 24, help: "smallest size, bytes" },
        Parameter { name: "max", default: 1_039, least: 1, most: 1 << 24, help: "largest size, bytes" },
    ],
    presets: &[
        Preset { name: "origins", values: &[("iterations", 20_000_000), ("set", 400), ("seed", 1)] },
        Preset { name: "large-set", values: &[("iterations", 6_000_000), ("set", 200_000)] },
        Preset { name: "small-blocks", values: &[("max", 128)] },
    ],
    figures: &[],
    latency: true,
    primary: None,
    targets: &[],
};

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    if !context.latency {
        return Ok(replace(context, &mut Untimed));
    }
    let mut timed = Timed::new(timer_cost());
    let mut report = replace(context, &mut timed);
    report.latency = Timed::report(vec![timed]);
    Ok(report)
}

fn replace<H: Heap>(context: &Context<H>, probe: &mut impl Probe) -> Report {
    let (heap, settings) = (context.heap, context.settings);
    let (set, min, max) = (settings.size("set"), settings.size("min"), settings.size("max"));
    let mut random = Random::new(settings["seed"], 0);
    let mut blocks = Mapped::<usize>::new(set);
    let mut sizes = Mapped::<u32>::new(set);
    let meter = Meter::start();
    for i in 0..set {
        sizes[i] = random.between(min, max) as u32;
        blocks[i] = block::make_in(probe, heap, sizes[i] as usize) as usize;
    }
    for _ in 0..settings["iterations"] {
        let (i, size) = random.pair(set, min, max);
        // SAFETY: live since it was put there, with this size, and overwritten at once.
        unsafe { block::drop_in(probe, heap, blocks[i] as *mut u8, sizes[i] as usize) };
        (blocks[i], sizes[i]) = (block::make_in(probe, heap, size) as usize, size as u32);
    }
    let live = sizes.iter().map(|size| u64::from(*size)).sum();
    let report = meter.finish(set as u64 + 2 * settings["iterations"], live);
    for i in 0..set {
        // SAFETY: as above, and not used again.
        unsafe { block::drop(heap, blocks[i] as *mut u8, sizes[i] as usize) };
    }
    report
}
