//! Fragmentation by survivors.

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::{Meter, resident};
use crate::random::Random;
use crate::report::Report;
use crate::workload::{Figure, Limit, Parameter, Target, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "drift",
    models: "a long-lived process whose sizes change phase by phase while some blocks survive: what fragmentation costs",
    parameters: &[
        Parameter { name: "phases", default: 40, least: 1, most: 1 << 20, help: "phases" },
        Parameter { name: "live", default: 24, least: 1, most: 1 << 20, help: "MiB allocated in a phase" },
        Parameter {
            name: "survivors",
            default: 100,
            least: 1,
            most: 1 << 20,
            help: "one block in this many survives its phase",
        },
        Parameter { name: "age", default: 6, least: 1, most: 1 << 10, help: "phases that they then live" },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
    ],
    presets: &[],
    figures: &[
        Figure { key: "overhead", label: "resident / live, last phase", unit: "ratio" },
        Figure { key: "worst", label: "resident / live, worst phase", unit: "ratio" },
    ],
    latency: false,
    primary: Some("overhead"),
    targets: &[Target::of("", "overhead", Limit::AtMost(1.10))],
};

/// Typical sizes, bytes; a phase takes one after the other and spreads around it.
const TYPICAL: [usize; 8] = [48, 320, 96, 1_500, 24, 640, 200, 4_000];

/// What survived a phase: addresses and sizes.
struct Survivors {
    blocks: Mapped<usize>,
    sizes: Mapped<u32>,
    count: usize,
    bytes: u64,
}

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (bytes, age) = (settings.size("live") << 20, settings.size("age"));
    let share = settings.size("survivors");
    let mut random = Random::new(settings["seed"], 0);
    let room = bytes / (TYPICAL.iter().min().expect("not empty") / 2) + 1;
    let mut blocks = Mapped::<usize>::new(room);
    let mut sizes = Mapped::<u32>::new(room);
    let mut old: Vec<Survivors> = (0..age)
        .map(|_| Survivors { blocks: Mapped::new(room), sizes: Mapped::new(room), count: 0, bytes: 0 })
        .collect();
    let before = resident();
    let meter = Meter::start();
    let (mut operations, mut worst, mut overhead, mut live);
    (operations, worst, overhead) = (0, 0.0, 0.0);
    for phase in 0..settings.size("phases") {
        let typical = TYPICAL[phase % TYPICAL.len()];
        let (mut count, mut total) = (0, 0);
        while total < bytes && count < room {
            let size = random.between(typical / 2, typical * 3 / 2);
            (blocks[count], sizes[count]) = (block::make(heap, size) as usize, size as u32);
            total += size;
            count += 1;
        }
        operations += count as u64;
        live = total as u64 + old.iter().map(|survivors| survivors.bytes).sum::<u64>();
        overhead = resident().saturating_sub(before) as f64 / live as f64;
        worst = f64::max(worst, overhead);
        let survivors = &mut old[phase % age];
        operations += survivors.clear(heap);
        for i in 0..count {
            let size = sizes[i] as usize;
            if random.below(share) == 0 {
                let at = survivors.count;
                (survivors.blocks[at], survivors.sizes[at]) = (blocks[i], sizes[i]);
                survivors.count += 1;
                survivors.bytes += size as u64;
            } else {
                // SAFETY: made above with this size, and not used again.
                unsafe { block::drop(heap, blocks[i] as *mut u8, size) };
                operations += 1;
            }
        }
    }
    // The last phase's blocks are gone by now, its survivors are not.
    live = old.iter().map(|survivors| survivors.bytes).sum();
    let mut report = meter.finish(operations, live);
    report.figures = vec![("overhead".into(), overhead), ("worst".into(), worst)];
    for survivors in &mut old {
        survivors.clear(heap);
    }
    Ok(report)
}

impl Survivors {
    fn clear<H: Heap>(&mut self, heap: &H) -> u64 {
        for i in 0..self.count {
            // SAFETY: live since it survived, with this size, and forgotten below.
            unsafe { block::drop(heap, self.blocks[i] as *mut u8, self.sizes[i] as usize) };
        }
        self.bytes = 0;
        std::mem::take(&mut self.count) as u64
    }
}
