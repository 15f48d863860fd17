//! What a thread costs.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::{io, ptr};

use super::{Context, Error, error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::{Meter, resident};
use crate::report::Report;
use crate::workload::{Figure, Parameter, Preset, Workload};

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
};

/// Bytes of a thread's stack: what is not touched costs nothing.
const STACK: usize = 256 << 10;
/// The sizes, bytes.
const SIZES: [usize; 7] = [16, 100, 400, 1_000, 3_000, 9_000, 20_000];

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, sizes) = (settings.size("threads"), &SIZES[..settings.size("sizes")]);
    // What the same threads cost that allocate nothing, in a process of its own: the allocator would remember them.
    let bare = in_child(|| Ok(grown(heap, threads, &[])?.0))?;
    let (full, mut report) = grown(heap, threads, sizes)?;
    let blocks = (threads * sizes.iter().sum::<usize>()) as u64;
    let beyond = full.saturating_sub(bare).saturating_sub(blocks) as f64;
    report.figures.push(("per_thread".into(), beyond / threads as f64));
    Ok(report)
}

/// What a thread gets.
struct Job<'a, H> {
    heap: &'a H,
    sizes: &'a [usize],
    ready: Barrier,
    done: Barrier,
}

/// A thread without anything of std's, which might allocate: a block of each size, then waiting.
extern "C" fn thread<H: Heap>(job: *mut c_void) -> *mut c_void {
    // SAFETY: `grown` passes its job and waits for every thread before it drops it.
    let job = unsafe { &*job.cast::<Job<H>>() };
    let mut blocks = [ptr::null_mut(); SIZES.len()];
    for (block, size) in blocks.iter_mut().zip(job.sizes) {
        *block = block::make(job.heap, *size);
    }
    job.ready.wait();
    job.done.wait();
    for (block, size) in blocks.iter().zip(job.sizes) {
        // SAFETY: made above with this size, and not used again.
        unsafe { block::drop(job.heap, *block, *size) };
    }
    ptr::null_mut()
}

/// How much is resident with all threads there, each with blocks of `sizes`.
fn grown<H: Heap>(heap: &H, threads: usize, sizes: &[usize]) -> Result<(u64, Report), Error> {
    let job = Job { heap, sizes, ready: Barrier::new(threads + 1), done: Barrier::new(threads + 1) };
    let mut handles = Mapped::<libc::pthread_t>::new(threads);
    let meter = Meter::start();
    let before = resident();
    for (started, handle) in handles.iter_mut().enumerate() {
        // SAFETY: a live attribute object, set up before it is used; the job outlives the threads.
        let failed = unsafe {
            let mut attributes = MaybeUninit::uninit();
            libc::pthread_attr_init(attributes.as_mut_ptr());
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
            let job = (&raw const job).cast_mut().cast();
            libc::pthread_create(handle, attributes.as_ptr(), thread::<H>, job)
        };
        if failed != 0 {
            // Those that are there wait for the others for ever: no way out but to end the process.
            panic!(
                "only {started} of {threads} threads could be started: {}",
                io::Error::from_raw_os_error(failed)
            );
        }
    }
    job.ready.wait();
    let report =
        meter.finish((threads * sizes.len()).max(1) as u64, (threads * sizes.iter().sum::<usize>()) as u64);
    let grown = report.resident_after.saturating_sub(before);
    job.done.wait();
    for handle in handles.iter() {
        // SAFETY: started above, joined once.
        unsafe { libc::pthread_join(*handle, ptr::null_mut()) };
    }
    Ok((grown, report))
}

/// Runs `work` in a forked child and returns its figure.
fn in_child(work: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Error> {
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors; there is no other thread yet that the child could miss; it ends by _exit.
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
