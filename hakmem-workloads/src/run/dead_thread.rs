//! The memory of a thread that has ended.

use std::thread;

use super::{Context, Error};
use crate::heap::Heap;
use crate::meter::{Meter, resident};
use crate::patterns::{Kind, Pattern};
use crate::report::Report;
use crate::workload::{Figure, Limit, Parameter, Target, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "dead-thread",
    models: "a worker dies, another thread frees what it left and allocates as much in another size: does the process grow",
    parameters: &[
        Parameter { name: "peak", default: 128, least: 1, most: 1 << 20, help: "MiB in blocks" },
        Parameter {
            name: "size",
            default: 200,
            least: 1,
            most: 1 << 24,
            help: "bytes of a block of the dead thread",
        },
        Parameter {
            name: "then",
            default: 500,
            least: 1,
            most: 1 << 24,
            help: "bytes of a block afterwards",
        },
    ],
    presets: &[],
    figures: &[Figure { key: "growth", label: "resident afterwards / before", unit: "ratio" }],
    latency: false,
    primary: Some("growth"),
    targets: &[Target::of("", "growth", Limit::AtMost(1.05))],
};

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let bytes = settings.size("peak") << 20;
    let pattern = |size: usize| Pattern::new(Kind::Fifo, size, bytes.div_ceil(size));
    let (mut first, mut second) = (pattern(settings.size("size")), pattern(settings.size("then")));
    let before = resident();
    let meter = Meter::start();
    let (mut first, mut operations) = thread::scope(|scope| {
        let owner = scope.spawn(move || {
            let made = first.up(heap);
            (first, made)
        });
        owner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let reached = resident();
    operations += first.down(heap);
    operations += second.up(heap);
    let mut report = meter.finish(operations, bytes as u64);
    let grown =
        report.resident_after.saturating_sub(before) as f64 / reached.saturating_sub(before).max(1) as f64;
    report.figures.push(("growth".into(), grown));
    second.down(heap);
    Ok(report)
}
