//! Memory use that swings.

use std::thread;
use std::time::Duration;

use super::{Context, Error};
use crate::heap::Heap;
use crate::meter::{Meter, resident};
use crate::patterns::{Kind, Pattern};
use crate::report::Report;
use crate::workload::{Figure, Limit, Parameter, Preset, Target, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "oscillation",
    models: "a service under waves of load: memory goes up and down again and again, with short pauses, then idles",
    parameters: &[
        Parameter { name: "peak", default: 200, least: 1, most: 1 << 20, help: "MiB in blocks at each peak" },
        Parameter { name: "size", default: 200, least: 1, most: 1 << 24, help: "bytes of a block" },
        Parameter { name: "cycles", default: 12, least: 3, most: 1 << 20, help: "times up and down" },
        Parameter {
            name: "pause_ms",
            default: 50,
            least: 0,
            most: 1 << 20,
            help: "milliseconds between them",
        },
        Parameter {
            name: "idle_ms",
            default: 500,
            least: 0,
            most: 1 << 20,
            help: "milliseconds of idling at the end",
        },
    ],
    presets: &[Preset {
        name: "slow",
        values: &[("peak", 400), ("cycles", 20), ("pause_ms", 100), ("idle_ms", 2_000)],
    }],
    figures: &[
        Figure { key: "later", label: "cycles from the third on, without pauses", unit: "seconds" },
        Figure { key: "left", label: "resident after idling / at the peak", unit: "ratio" },
    ],
    latency: false,
    primary: Some("later"),
    targets: &[
        Target::of("slow", "later", Limit::OfBestPeer(1.10)),
        Target::of("slow", "left", Limit::AtMost(0.10)).under("BACKGROUND=on"),
    ],
};

/// Cycles after which an allocator should know what to expect.
const LEARNING: u64 = 2;

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let settings = context.settings;
    let size = settings.size("size");
    let mut pattern = Pattern::new(Kind::Fifo, size, (settings.size("peak") << 20).div_ceil(size));
    let pause = Duration::from_millis(settings["pause_ms"]);
    let before = resident();
    let (mut operations, mut elapsed_ns, mut later, mut peak) = (0, 0, 0, 0);
    for cycle in 0..settings["cycles"] {
        let meter = Meter::start();
        let made = pattern.up(context.heap);
        peak = peak.max(resident());
        let part = meter.finish(made + pattern.down(context.heap), 0);
        operations += part.operations;
        elapsed_ns += part.elapsed_ns;
        if cycle >= LEARNING {
            later += part.elapsed_ns;
        }
        thread::sleep(pause);
    }
    thread::sleep(Duration::from_millis(settings["idle_ms"]));
    let after = resident();
    let left = after.saturating_sub(before) as f64 / peak.saturating_sub(before).max(1) as f64;
    Ok(Report {
        operations,
        elapsed_ns,
        resident_before: before,
        resident_after: after,
        figures: vec![("later".into(), later as f64 * 1e-9), ("left".into(), left)],
        ..Report::default()
    })
}
