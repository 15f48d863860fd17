//! Up and down.

use super::{Context, Error};
use crate::heap::Heap;
use crate::meter::Meter;
use crate::patterns::{Kind, Pattern};
use crate::report::Report;
use crate::workload::{Figure, Parameter, Preset, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "burst",
    models: "a request that builds a large result and drops it: many blocks up, then all of them down",
    parameters: &[
        Parameter { name: "blocks", default: 100_000, least: 2, most: 1 << 28, help: "blocks up, then down" },
        Parameter { name: "size", default: 64, least: 1, most: 1 << 24, help: "bytes of a block" },
        Parameter { name: "rounds", default: 200, least: 2, most: 1 << 20, help: "bursts" },
        Parameter {
            name: "order",
            default: 0,
            least: 0,
            most: 2,
            help: "of the frees: 0 last first, 1 as allocated, 2 random",
        },
    ],
    presets: &[
        Preset { name: "fifo", values: &[("order", 1)] },
        Preset { name: "random", values: &[("order", 2), ("rounds", 60)] },
        Preset { name: "large", values: &[("size", 1_024), ("rounds", 30)] },
    ],
    figures: &[Figure { key: "first", label: "first burst, per operation", unit: "nanoseconds" }],
    latency: false,
    primary: None,
    targets: &[],
};

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let settings = context.settings;
    let kind = [Kind::Lifo, Kind::Fifo, Kind::Random][settings.size("order")];
    let mut pattern = Pattern::new(kind, settings.size("size"), settings.size("blocks"));
    let meter = Meter::start();
    let mut operations = pattern.round(context.heap);
    let first = meter.seconds() * 1e9 / operations as f64;
    for _ in 1..settings["rounds"] {
        operations += pattern.round(context.heap);
    }
    let mut report = meter.finish(operations, 0);
    report.figures.push(("first".into(), first));
    Ok(report)
}
