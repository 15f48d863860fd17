//! What threads that have nothing to do withhold.

use std::iter;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::{Meter, resident};
use crate::report::Report;
use crate::threads::{Job, with_threads};
use crate::workload::{Figure, Limit, Parameter, Target, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "idle-threads",
    models: "a pool of threads that have worked with blocks of many sizes, freed them all and wait for more work: what their \
             caches withhold, and what comes back when the program asks (malloc_trim, or the allocator's own call for it)",
    parameters: &[
        Parameter { name: "threads", default: 64, least: 1, most: 10_000, help: "threads at once" },
        Parameter {
            name: "each",
            default: 64,
            least: 1,
            most: 1 << 20,
            help: "KiB in blocks of each of 16 sizes in a thread",
        },
        Parameter {
            name: "rounds",
            default: 8,
            least: 1,
            most: 1 << 20,
            help: "times that a thread fills and frees all",
        },
        Parameter {
            name: "idle_ms",
            default: 2_000,
            least: 0,
            most: 1 << 20,
            help: "milliseconds of idling",
        },
    ],
    presets: &[],
    figures: &[
        Figure { key: "trimmed", label: "resident after asking / at the peak", unit: "ratio" },
        Figure { key: "withheld", label: "resident after idling / at the peak", unit: "ratio" },
        Figure { key: "per_thread", label: "withheld by each thread after idling", unit: "bytes" },
    ],
    latency: false,
    primary: Some("trimmed"),
    targets: &[
        Target::of("", "trimmed", Limit::AtMost(0.10)),
        Target::of("", "withheld", Limit::AtMost(0.10)).under("BACKGROUND=on"),
    ],
};

/// The sizes, bytes.
const SIZES: [usize; 16] =
    [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096];

/// Threads that fill and free, again and again, and then wait.
struct Pool<'a, H> {
    heap: &'a H,
    each: usize,
    rounds: usize,
    /// Where all threads and the one that measures meet between the steps.
    step: Barrier,
}

impl<H> Pool<'_, H> {
    /// The size of each block that a thread has.
    fn sizes(&self) -> impl Iterator<Item = usize> {
        let each = self.each;
        SIZES.iter().flat_map(move |&size| iter::repeat_n(size, each.div_ceil(size)))
    }
}

impl<H: Heap> Job for Pool<'_, H> {
    fn work(&self, _: usize) {
        let mut blocks = Mapped::<usize>::new(self.sizes().count());
        self.step.wait();
        self.step.wait();
        for round in 1..=self.rounds {
            for (slot, size) in blocks.iter_mut().zip(self.sizes()) {
                *slot = block::make(self.heap, size) as usize;
            }
            if round == self.rounds {
                self.step.wait();
                self.step.wait();
            }
            for (&block, size) in blocks.iter().zip(self.sizes()) {
                // SAFETY: made above with this size, and not used again.
                unsafe { block::drop(self.heap, block as *mut u8, size) };
            }
        }
        self.step.wait();
        self.step.wait();
    }
}

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let threads = settings.size("threads");
    let (each, rounds) = (settings.size("each") << 10, settings.size("rounds"));
    let pool = Pool { heap, each, rounds, step: Barrier::new(threads + 1) };
    let operations = 2 * (threads * rounds * pool.sizes().count()) as u64;
    with_threads(threads, &pool, || {
        // All are there and have allocated nothing: their stacks are not the allocator's.
        pool.step.wait();
        let meter = Meter::start();
        let before = resident();
        pool.step.wait();
        pool.step.wait();
        let peak = resident();
        pool.step.wait();
        pool.step.wait();
        let mut report = meter.finish(operations, 0);
        thread::sleep(Duration::from_millis(settings["idle_ms"]));
        let withheld = resident().saturating_sub(before);
        heap.trim();
        report.resident_after = resident();
        let trimmed = report.resident_after.saturating_sub(before);
        pool.step.wait();
        let peak = peak.saturating_sub(before).max(1) as f64;
        report.figures = vec![
            ("trimmed".into(), trimmed as f64 / peak),
            ("withheld".into(), withheld as f64 / peak),
            ("per_thread".into(), withheld as f64 / threads as f64),
        ];
        Ok(report)
    })
}
