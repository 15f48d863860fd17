//! Does memory come back once it has been freed?

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::{Meter, resident};
use crate::report::Report;
use crate::threads::{Job, with_threads};
use crate::workload::{Figure, Limit, Parameter, Preset, Target, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "idle-return",
    models: "a program whose memory use drops and which then idles: how much stays resident",
    parameters: &[
        Parameter { name: "peak", default: 400, least: 1, most: 1 << 20, help: "MiB in blocks at the peak" },
        Parameter { name: "size", default: 200, least: 8, most: 1 << 24, help: "bytes of a block" },
        Parameter {
            name: "keep",
            default: 0,
            least: 0,
            most: 1 << 20,
            help: "one block in this many is kept; 0: none",
        },
        Parameter {
            name: "by",
            default: 0,
            least: 0,
            most: 5,
            help: "who frees: 0 the allocating thread; 1 another while it is parked, 2 while it computes, 3 after it ended; 4 one \
                   that only frees and is then parked, 5 ends",
        },
        Parameter {
            name: "idle_ms",
            default: 1_000,
            least: 0,
            most: 1 << 32,
            help: "milliseconds of idling",
        },
    ],
    presets: &[
        Preset { name: "other-parked", values: &[("by", 1)] },
        Preset { name: "other-busy", values: &[("by", 2)] },
        Preset { name: "other-exited", values: &[("by", 3)] },
        Preset { name: "freer-parked", values: &[("by", 4)] },
        Preset { name: "freer-exited", values: &[("by", 5)] },
        Preset { name: "keep-100", values: &[("keep", 100)] },
        Preset { name: "keep-50", values: &[("keep", 50), ("size", 2_000)] },
    ],
    figures: &[
        Figure { key: "left", label: "resident after idling / at the peak", unit: "ratio" },
        Figure { key: "left_bytes", label: "resident after idling", unit: "bytes" },
        Figure { key: "reached", label: "resident at the peak", unit: "bytes" },
    ],
    latency: false,
    primary: Some("left"),
    targets: &[
        Target::of("", "left", Limit::AtMost(0.10)),
        Target::of("other-parked", "left", Limit::AtMost(0.10)),
        Target::of("other-busy", "left", Limit::AtMost(0.10)),
        Target::of("other-exited", "left", Limit::AtMost(0.10)),
        Target::of("keep-100", "left", Limit::AtMost(0.35)),
        Target::of("keep-50", "left", Limit::AtMost(0.25)),
        Target::of("freer-parked", "left", Limit::AtMost(0.10)),
        Target::of("freer-exited", "left", Limit::AtMost(0.10)),
    ],
};

/// Between samples of the resident size.
const SAMPLE: Duration = Duration::from_millis(25);

/// The blocks, 0 where there is none.
struct Blocks {
    blocks: Mapped<usize>,
    size: usize,
}

impl Blocks {
    fn fill<H: Heap>(&mut self, heap: &H) {
        for slot in self.blocks.iter_mut() {
            *slot = block::make(heap, self.size) as usize;
        }
    }

    /// Frees all, or all but one in `keep`.
    fn empty<H: Heap>(&mut self, heap: &H, keep: usize) {
        let size = self.size;
        for (i, slot) in self.blocks.iter_mut().enumerate() {
            if *slot != 0 && (keep == 0 || i % keep != 0) {
                // SAFETY: made by `fill` with this size, and forgotten here.
                unsafe { block::drop(heap, std::mem::take(slot) as *mut u8, size) };
            }
        }
    }
}

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (size, keep) = (settings.size("size"), settings.size("keep"));
    let count = (settings.size("peak") << 20).div_ceil(size);
    let mut blocks = Blocks { blocks: Mapped::new(count), size };
    let mut samples = Mapped::<u64>::new(2 * (settings.size("idle_ms") / SAMPLE.as_millis() as usize + 4));
    let meter = Meter::start();
    let before = resident();
    let (mut blocks, reached) = match settings["by"] {
        0 => {
            blocks.fill(heap);
            let reached = resident();
            blocks.empty(heap, keep);
            (blocks, reached)
        }
        by @ 4.. => {
            blocks.fill(heap);
            let reached = resident();
            let length = idle_of(settings.size("idle_ms"));
            (freer(heap, blocks, keep, by == 4, || idle(&meter, length, &mut samples)), reached)
        }
        by => others(heap, blocks, keep, by, idle_of(settings.size("idle_ms")), &meter, &mut samples),
    };
    if settings["by"] == 0 || settings["by"] == 3 {
        idle(&meter, idle_of(settings.size("idle_ms")), &mut samples);
    }
    let kept = if keep == 0 { 0 } else { count.div_ceil(keep) };
    let mut report = meter.finish((2 * count - kept) as u64, (kept * size) as u64);
    let used = samples[0] as usize;
    report.timeline =
        samples[2..2 + 2 * used].chunks(2).map(|pair| (pair[0] as f64 * 1e-9, pair[1])).collect();
    // Idling is not work.
    if let Some(first) = report.timeline.first() {
        report.elapsed_ns = (first.0 * 1e9) as u64;
    }
    report.timeline.insert(0, (0.0, before));
    // As the last sample saw it: by now the owner may have ended, and has taken its memory along.
    report.resident_after = samples[2 * used + 1];
    let left = report.resident_after.saturating_sub(before) as f64;
    let peak = reached.saturating_sub(before).max(1) as f64;
    report.figures =
        vec![("left".into(), left / peak), ("left_bytes".into(), left), ("reached".into(), peak)];
    blocks.empty(heap, 0);
    Ok(report)
}

fn idle_of(milliseconds: usize) -> Duration {
    Duration::from_millis(milliseconds as u64)
}

/// Sleeps and samples: `samples[0]` is how many, from the second pair on time in nanoseconds and bytes.
fn idle(meter: &Meter, length: Duration, samples: &mut Mapped<u64>) {
    let end = meter.seconds() + length.as_secs_f64();
    let room = samples.len() / 2 - 1;
    let mut used = 0;
    loop {
        // The last one is always there.
        if used < room || end <= meter.seconds() {
            used = used.min(room - 1);
            samples[2 + 2 * used] = (meter.seconds() * 1e9) as u64;
            samples[3 + 2 * used] = resident();
            used += 1;
        }
        let left = end - meter.seconds();
        if left <= 0.0 {
            break;
        }
        thread::sleep(SAMPLE.min(Duration::from_secs_f64(left)));
    }
    samples[0] = used as u64;
}

/// One thread allocates, another (this one) frees, while the first is parked (1), computes (2) or has ended
/// (3).
fn others<H: Heap>(
    heap: &H,
    mut blocks: Blocks,
    keep: usize,
    by: u64,
    length: Duration,
    meter: &Meter,
    samples: &mut Mapped<u64>,
) -> (Blocks, u64) {
    let busy = AtomicU64::new(1);
    thread::scope(|scope| {
        let (give, take): (Sender<Blocks>, Receiver<Blocks>) = channel();
        let (stop, stopped): (Sender<()>, Receiver<()>) = channel();
        let busy = &busy;
        let owner = scope.spawn(move || {
            blocks.fill(heap);
            give.send(blocks).expect("the other side waits");
            match by {
                1 => drop(stopped.recv()),
                // It computes and never allocates: the worst for allocators that clean up only when they are
                // called.
                2 => {
                    // Relaxed: says only that it is time to end.
                    while busy.load(Ordering::Relaxed) != 0 {
                        std::hint::spin_loop();
                    }
                }
                _ => {}
            }
        });
        let mut blocks = take.recv().expect("the owner sends them");
        let reached = resident();
        if by == 3 {
            owner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        blocks.empty(heap, keep);
        if by != 3 {
            idle(meter, length, samples);
        }
        busy.store(0, Ordering::Relaxed);
        drop(stop);
        (blocks, reached)
    })
}

/// A thread that frees all that another one has allocated, and never allocates itself.
struct Freer<'a, H> {
    heap: &'a H,
    blocks: Mutex<Blocks>,
    keep: usize,
    parked: bool,
    done: Barrier,
    stop: Barrier,
}

impl<H: Heap> Job for Freer<'_, H> {
    fn work(&self, _: usize) {
        self.blocks.lock().expect("nobody panics").empty(self.heap, self.keep);
        if self.parked {
            self.done.wait();
            self.stop.wait();
        }
    }
}

/// This thread has allocated; one that only frees does so, and is parked or has ended while this one idles.
fn freer<H: Heap>(heap: &H, blocks: Blocks, keep: usize, parked: bool, idle: impl FnOnce()) -> Blocks {
    let (done, stop) = (Barrier::new(2), Barrier::new(2));
    let job = Freer { heap, blocks: Mutex::new(blocks), keep, parked, done, stop };
    if parked {
        with_threads(1, &job, || {
            job.done.wait();
            idle();
            job.stop.wait();
        });
    } else {
        with_threads(1, &job, || ());
        idle();
    }
    job.blocks.into_inner().expect("nobody panics")
}
