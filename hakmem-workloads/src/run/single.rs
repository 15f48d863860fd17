//! The comprehensive set: one thread, one order, every size.

use super::{Context, Error};
use crate::heap::Heap;
use crate::meter::{Meter, resident};
use crate::patterns::{Kind, Pattern};
use crate::report::Report;
use crate::workload::{Figure, Parameter, Workload};

/// The sizes, and the figures' keys and labels.
const SIZES: [(usize, &str, &str); 10] = [
    (16, "ns_16", "16 B"),
    (32, "ns_32", "32 B"),
    (64, "ns_64", "64 B"),
    (128, "ns_128", "128 B"),
    (256, "ns_256", "256 B"),
    (512, "ns_512", "512 B"),
    (1024, "ns_1024", "1 KiB"),
    (4096, "ns_4096", "4 KiB"),
    (16_384, "ns_16384", "16 KiB"),
    (65_536, "ns_65536", "64 KiB"),
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

const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "operations",
        default: 6_000_000,
        least: 1,
        most: 1 << 40,
        help: "allocations and frees of each size up to 1 KiB; of larger ones a quarter of that, and fewer in proportion to their size",
    },
    Parameter {
        name: "blocks",
        default: 1_000,
        least: 2,
        most: 1 << 24,
        help: "blocks live at once; fewer where they would be more than 16 MiB",
    },
    Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
];

macro_rules! declare {
    ($static:ident, $run:ident, $name:literal, $kind:expr, $models:literal) => {
        #[doc = $models]
        pub static $static: Workload = Workload {
            name: $name,
            models: $models,
            parameters: PARAMETERS,
            presets: &[],
            figures: &FIGURES,
            latency: false,
            primary: None,
            targets: &[],
        };

        #[doc = $models]
        pub fn $run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
            every_size(context, $kind)
        }
    };
}

declare!(
    LIFO,
    lifo,
    "lifo",
    Kind::Lifo,
    "short-lived objects of a call stack: freed last first, 16 B to 64 KiB"
);
declare!(FIFO, fifo, "fifo", Kind::Fifo, "a queue: freed in the order of allocation, 16 B to 64 KiB");
declare!(
    RANDOM_ORDER,
    random_order,
    "random-order",
    Kind::Random,
    "a container torn down in hash order: freed in random order, 16 B to 64 KiB"
);
declare!(
    INTERLEAVED,
    interleaved,
    "interleaved",
    Kind::Interleaved,
    "holes filled again: every second block freed and made anew, 16 B to 64 KiB"
);
declare!(
    MIXED,
    mixed,
    "mixed",
    Kind::Mixed,
    "all sizes up to a bound (16 B to 64 KiB), freed in random order"
);

fn every_size<H: Heap>(context: &Context<H>, kind: Kind) -> Result<Report, Error> {
    let (operations, seed) = (context.settings["operations"], context.settings["seed"]);
    let mut sum = Report { resident_before: resident(), ..Report::default() };
    for (size, key, _) in SIZES {
        let blocks = context.settings.size("blocks").min((16 << 20) / size).max(2);
        // A block of several pages costs page faults under some allocators: fewer are enough.
        let share = if size > 1024 { 4 * size as u64 / 1024 } else { 1 };
        let goal = (operations / share).max(1);
        let mut pattern = Pattern::seeded(kind, size, blocks, seed);
        // What a fresh process pays once is `burst`'s business.
        pattern.round(context.heap);
        let meter = Meter::start();
        let mut made = 0;
        while made < goal {
            made += pattern.round(context.heap);
        }
        let part = meter.finish(made, 0);
        sum.operations += made;
        sum.elapsed_ns += part.elapsed_ns;
        sum.figures.push((key.to_string(), part.elapsed_ns as f64 / made as f64));
    }
    sum.resident_after = resident();
    Ok(sum)
}
