//! Large blocks.

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::{Meter, resident};
use crate::report::Report;
use crate::workload::{Figure, Parameter, Workload};

/// Sizes with the keys and labels of their figures.
const SIZES: [(usize, &str, &str); 7] = [
    (32 << 10, "ns_32k", "32 KiB"),
    (128 << 10, "ns_128k", "128 KiB"),
    (512 << 10, "ns_512k", "512 KiB"),
    (2 << 20, "ns_2m", "2 MiB"),
    (8 << 20, "ns_8m", "8 MiB"),
    (32 << 20, "ns_32m", "32 MiB"),
    (128 << 20, "ns_128m", "128 MiB"),
];

const FIGURES: [Figure; SIZES.len()] = {
    let mut figures = [Figure { key: "", label: "", unit: "nanoseconds" }; SIZES.len()];
    let mut i = 0;
    while i < SIZES.len() {
        (figures[i].key, figures[i].label) = (SIZES[i].1, SIZES[i].2);
        i += 1;
    }
    figures
};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "large",
    models: "images, matrices, I/O buffers: a few large blocks, each written and freed again, 32 KiB to 128 MiB",
    parameters: &[
        Parameter {
            name: "volume",
            default: 256,
            least: 1,
            most: 1 << 20,
            help: "MiB allocated, written (a word of every 4 KiB) and freed in each size",
        },
        Parameter {
            name: "live",
            default: 4,
            least: 1,
            most: 1 << 10,
            help: "blocks live at once, if the volume has them",
        },
    ],
    presets: &[],
    figures: &FIGURES,
    latency: false,
    primary: None,
    targets: &[],
};

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let volume = settings.size("volume") << 20;
    let mut sum = Report { resident_before: resident(), ..Report::default() };
    for (size, key, _) in SIZES {
        let count = (volume / size).max(1);
        let mut ring = Mapped::<usize>::new(settings.size("live").min(count));
        let live = ring.len();
        let meter = Meter::start();
        for i in 0..count {
            if i >= live {
                // SAFETY: made `live` rounds ago with this size, and overwritten at once.
                unsafe { block::drop(heap, ring[i % live] as *mut u8, size) };
            }
            ring[i % live] = block::make(heap, size) as usize;
        }
        for block in ring.iter() {
            // SAFETY: the last `live` ones, not used again.
            unsafe { block::drop(heap, *block as *mut u8, size) };
        }
        let part = meter.finish(2 * count as u64, 0);
        sum.operations += part.operations;
        sum.elapsed_ns += part.elapsed_ns;
        sum.figures.push((key.into(), part.elapsed_ns as f64 / part.operations as f64));
    }
    sum.resident_after = resident();
    Ok(sum)
}
