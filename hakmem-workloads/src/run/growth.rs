//! Buffers that grow.

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::Meter;
use crate::report::Report;
use crate::workload::{Figure, Parameter, Preset, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "realloc-growth",
    models: "vectors and string buffers that double as they fill: many small ones in turn, then a few large ones",
    parameters: &[
        Parameter {
            name: "small",
            default: 20_000,
            least: 1,
            most: 1 << 24,
            help: "small buffers, grown in turn",
        },
        Parameter {
            name: "small_to",
            default: 4_096,
            least: 32,
            most: 1 << 24,
            help: "what each grows to, bytes",
        },
        Parameter { name: "rounds", default: 2, least: 1, most: 1 << 20, help: "times the small ones grow" },
        Parameter {
            name: "large",
            default: 2,
            least: 1,
            most: 1 << 10,
            help: "large buffers, grown in turn",
        },
        Parameter {
            name: "large_to",
            default: 128 << 20,
            least: 32,
            most: 1 << 40,
            help: "what each grows to, bytes; every page is written once",
        },
    ],
    presets: &[Preset { name: "one-large", values: &[("small", 1), ("large", 1), ("large_to", 512 << 20)] }],
    figures: &[
        Figure { key: "small_ns", label: "small buffers, per operation", unit: "nanoseconds" },
        Figure { key: "large_s", label: "large buffers, all of them", unit: "seconds" },
    ],
    latency: false,
    primary: None,
    targets: &[],
};

/// Where every buffer begins, bytes.
const START: usize = 16;

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let mut small = Mapped::<usize>::new(settings.size("small"));
    let mut large = Mapped::<usize>::new(settings.size("large"));
    let meter = Meter::start();
    let mut operations = 0;
    for _ in 0..settings["rounds"] {
        operations += grow(heap, &mut small, settings.size("small_to"));
    }
    let between = meter.seconds();
    let per_small = between * 1e9 / operations as f64;
    operations += grow(heap, &mut large, settings.size("large_to"));
    let large_s = meter.seconds() - between;
    let mut report = meter.finish(operations, 0);
    report.figures = vec![("small_ns".into(), per_small), ("large_s".into(), large_s)];
    Ok(report)
}

/// All buffers to `to` bytes by doubling, one step of each in turn, then freed.
fn grow<H: Heap>(heap: &H, buffers: &mut Mapped<usize>, to: usize) -> u64 {
    let count = buffers.len();
    let mut operations = 2 * count as u64;
    for i in 0..count {
        buffers[i] = block::make(heap, START) as usize;
    }
    let mut size = START;
    while size < to {
        let next = (size * 2).min(to);
        for i in 0..count {
            // SAFETY: live, of this size, and its old address is overwritten.
            buffers[i] = unsafe { block::resize(heap, buffers[i] as *mut u8, size, next) } as usize;
        }
        operations += count as u64;
        size = next;
    }
    for i in 0..count {
        // SAFETY: live, of this size, and not used again.
        unsafe { block::drop(heap, buffers[i] as *mut u8, size) };
    }
    operations
}
