//! Threads in a ring send each other messages.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::meter::Meter;
use crate::random::Random;
use crate::report::Report;
use crate::workload::{Parameter, Preset, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "messages",
    models: "actors: threads in a ring, each of which sends the next one messages of many sizes and frees those \
             that it gets",
    parameters: &[
        Parameter { name: "threads", default: 16, least: 1, most: 256, help: "threads in the ring" },
        Parameter {
            name: "messages",
            default: 200_000,
            least: 1,
            most: 1 << 40,
            help: "messages that each of them sends",
        },
        Parameter {
            name: "depth",
            default: 16,
            least: 1,
            most: 1 << 16,
            help: "messages that wait for a thread at most",
        },
        Parameter { name: "min", default: 200, least: 1, most: 1 << 20, help: "smallest size, bytes" },
        Parameter { name: "max", default: 4_200, least: 1, most: 1 << 20, help: "largest size, bytes" },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
    ],
    presets: &[
        Preset { name: "two", values: &[("threads", 2), ("messages", 2_000_000)] },
        Preset { name: "many", values: &[("threads", 64), ("messages", 50_000)] },
        Preset { name: "small", values: &[("min", 16), ("max", 400)] },
        Preset { name: "large", values: &[("max", 60_200), ("messages", 20_000)] },
    ],
    figures: &[],
    latency: false,
    primary: None,
    targets: &[],
};

/// A count with a cache line of its own, and the next one, which the processor fetches with it.
#[repr(align(128))]
struct Count(AtomicUsize);

/// What one thread sends to another. Messages are numbered; each lies in the place of its number.
struct Queue {
    places: Box<[(AtomicUsize, AtomicUsize)]>,
    sent: Count,
    got: Count,
}

impl Queue {
    fn new(depth: usize) -> Self {
        let places = (0..depth).map(|_| (AtomicUsize::new(0), AtomicUsize::new(0))).collect();
        Self { places, sent: Count(AtomicUsize::new(0)), got: Count(AtomicUsize::new(0)) }
    }

    /// Sends a block, if there is room. For one thread.
    fn send(&self, block: *mut u8, size: usize) -> bool {
        let sent = self.sent.0.load(Ordering::Relaxed);
        // Acquire: pairs with the release in `receive`, after which the place is free.
        if sent - self.got.0.load(Ordering::Acquire) == self.places.len() {
            return false;
        }
        let (address, bytes) = &self.places[sent % self.places.len()];
        address.store(block as usize, Ordering::Relaxed);
        bytes.store(size, Ordering::Relaxed);
        // Release: pairs with the acquire in `receive`, for the place and the block.
        self.sent.0.store(sent + 1, Ordering::Release);
        true
    }

    /// The next block and its size, if there is one. For one thread.
    fn receive(&self) -> Option<(*mut u8, usize)> {
        let got = self.got.0.load(Ordering::Relaxed);
        if got == self.sent.0.load(Ordering::Acquire) {
            return None;
        }
        let (address, bytes) = &self.places[got % self.places.len()];
        let message = (address.load(Ordering::Relaxed) as *mut u8, bytes.load(Ordering::Relaxed));
        self.got.0.store(got + 1, Ordering::Release);
        Some(message)
    }
}

/// Tells the other threads when the one that has it panics: they would wait for it for ever.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, messages) = (settings.size("threads"), settings["messages"]);
    let (min, max) = (settings.size("min"), settings.size("max"));
    let queues: Vec<_> = (0..threads).map(|_| Queue::new(settings.size("depth"))).collect();
    let failed = AtomicBool::new(false);
    let meter = Meter::start();
    thread::scope(|scope| {
        for number in 0..threads {
            let (from, to, failed) = (&queues[number], &queues[(number + 1) % threads], &failed);
            let mut random = Random::new(settings["seed"], number as u64);
            scope.spawn(move || {
                let _alarm = Alarm(failed);
                let received = Cell::new(0);
                // Frees a message, or lets the others run.
                let turn = || match from.receive() {
                    Some((block, size)) => {
                        // SAFETY: made by the thread before this one with this size, and sent to us.
                        unsafe { block::drop(heap, block, size) };
                        received.set(received.get() + 1);
                    }
                    None => thread::yield_now(),
                };
                for _ in 0..messages {
                    let size = random.between(min, max);
                    let block = block::make(heap, size);
                    while !to.send(block, size) && !failed.load(Ordering::Relaxed) {
                        turn();
                    }
                }
                while received.get() < messages && !failed.load(Ordering::Relaxed) {
                    turn();
                }
            });
        }
    });
    Ok(meter.finish(2 * threads as u64 * messages, 0))
}
