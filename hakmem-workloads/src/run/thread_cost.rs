//! What a thread costs.

use std::sync::Barrier;
use std::{io, ptr};

use super::{Context, Error, error};
use crate::block;
use crate::heap::Heap;
use crate::meter::{Meter, resident};
use crate::report::Report;
use crate::threads::{Job, with_threads};
use crate::workload::{Figure, Limit, Parameter, Preset, Target, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "thread-cost",
    models: "a program with many idle threads, each of which has allocated a little: memory per thread",
    parameters: &[
        Parameter { name: "threads", default: 500, least: 1, most: 10_000, help: "threads at once" },
        Parameter {
            name: "sizes",
            default: 1,
            least: 1,
            most: 7,
            help: "blocks of each, one of each size: 16 B to 20 KiB",
        },
    ],
    presets: &[Preset { name: "seven", values: &[("sizes", 7)] }],
    figures: &[Figure {
        key: "per_thread",
        label: "resident for each thread, beyond its stack and its blocks",
        unit: "bytes",
    }],
    latency: false,
    primary: Some("per_thread"),
    targets: &[
        Target::of("", "per_thread", Limit::AtMost(12.0 * 1024.0)),
        Target::of("seven", "per_thread", Limit::AtMost(34.0 * 1024.0)),
    ],
};

/// The sizes, bytes.
const SIZES: [usize; 7] = [16, 100, 400, 1_000, 3_000, 9_000, 20_000];

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, sizes) = (settings.size("threads"), &SIZES[..settings.size("sizes")]);
    // What the same threads cost that allocate nothing, in a process of its own: the allocator would remember
    // them.
    let bare = in_child(|| Ok(grown(heap, threads, &[])?.0))?;
    let (full, mut report) = grown(heap, threads, sizes)?;
    let blocks = (threads * sizes.iter().sum::<usize>()) as u64;
    let beyond = full.saturating_sub(bare).saturating_sub(blocks) as f64;
    report.figures.push(("per_thread".into(), beyond / threads as f64));
    Ok(report)
}

/// A block of each size, then waiting.
struct Little<'a, H> {
    heap: &'a H,
    sizes: &'a [usize],
    ready: Barrier,
    done: Barrier,
}

impl<H: Heap> Job for Little<'_, H> {
    fn work(&self, _: usize) {
        let mut blocks = [ptr::null_mut(); SIZES.len()];
        for (block, size) in blocks.iter_mut().zip(self.sizes) {
            *block = block::make(self.heap, *size);
        }
        self.ready.wait();
        self.done.wait();
        for (block, size) in blocks.iter().zip(self.sizes) {
            // SAFETY: made above with this size, and not used again.
            unsafe { block::drop(self.heap, *block, *size) };
        }
    }
}

/// How much is resident with all threads there, each with blocks of `sizes`.
fn grown<H: Heap>(heap: &H, threads: usize, sizes: &[usize]) -> Result<(u64, Report), Error> {
    let job = Little { heap, sizes, ready: Barrier::new(threads + 1), done: Barrier::new(threads + 1) };
    let meter = Meter::start();
    let before = resident();
    let (operations, live) =
        ((threads * sizes.len()).max(1) as u64, (threads * sizes.iter().sum::<usize>()) as u64);
    let report = with_threads(threads, &job, || {
        job.ready.wait();
        let report = meter.finish(operations, live);
        job.done.wait();
        report
    });
    Ok((report.resident_after.saturating_sub(before), report))
}

/// Runs `work` in a forked child and returns its figure.
fn in_child(work: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Error> {
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors; there is no other thread yet that the child could miss; it ends by
    // _exit.
    unsafe {
        if libc::pipe(pipe.as_mut_ptr()) != 0 {
            return Err(error(format!("pipe: {}", io::Error::last_os_error())));
        }
        match libc::fork() {
            -1 => Err(error(format!("fork: {}", io::Error::last_os_error()))),
            0 => {
                let figure = work().unwrap_or(u64::MAX).to_ne_bytes();
                libc::write(pipe[1], figure.as_ptr().cast(), figure.len());
                libc::_exit(0)
            }
            child => {
                let mut figure = [0; 8];
                libc::close(pipe[1]);
                let read = libc::read(pipe[0], figure.as_mut_ptr().cast(), figure.len());
                libc::close(pipe[0]);
                libc::waitpid(child, ptr::null_mut(), 0);
                match u64::from_ne_bytes(figure) {
                    figure if read == 8 && figure != u64::MAX => Ok(figure),
                    _ => Err(error("the process with threads that allocate nothing failed")),
                }
            }
        }
    }
}
