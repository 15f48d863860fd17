//! A server-like mix of lifetimes.
//!
//! With several threads the shared cache is raced for: equal seeds then give nearly, not exactly, the same
//! calls.

use std::sync::Mutex;
use std::thread;

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::latency::{Probe, Timed, Untimed, timer_cost};
use crate::mapped::Mapped;
use crate::meter::Meter;
use crate::random::Random;
use crate::report::Report;
use crate::workload::{Figure, Parameter, Preset, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "server",
    models: "a server: blocks of a request, of a session and of a cache that all threads share, most of them short-lived",
    parameters: &[
        Parameter { name: "threads", default: 2, least: 1, most: 1024, help: "threads that serve" },
        Parameter { name: "requests", default: 400_000, least: 1, most: 1 << 40, help: "requests, in all" },
        Parameter {
            name: "sessions",
            default: 500,
            least: 1,
            most: 1 << 24,
            help: "sessions of each thread",
        },
        Parameter {
            name: "cache",
            default: 20_000,
            least: 1,
            most: 1 << 28,
            help: "entries of the shared cache",
        },
        Parameter { name: "seed", default: 1, least: 0, most: u64::MAX, help: "of what is random" },
    ],
    presets: &[Preset { name: "oversubscribed", values: &[("threads", 8)] }],
    figures: &[Figure { key: "overhead", label: "resident / live at the end", unit: "ratio" }],
    latency: true,
    primary: None,
    targets: &[],
};

/// Blocks of a request, all freed at its end.
const REQUEST: usize = 60;
/// One request in this many begins a session anew.
const SESSION_EVERY: usize = 8;
/// Blocks of a session.
const SESSION: usize = 12;
/// One request in this many replaces an entry of the cache.
const CACHE_EVERY: usize = 2;
/// Locks over the cache.
const SHARDS: usize = 16;

/// Blocks, 0 where there is none, and their sizes.
struct Blocks {
    blocks: Mapped<usize>,
    sizes: Mapped<u32>,
}

impl Blocks {
    fn new(length: usize) -> Self {
        Self { blocks: Mapped::new(length), sizes: Mapped::new(length) }
    }

    /// Puts a new block at `i`, in place of what was there. How many operations that took.
    fn replace<H: Heap>(&mut self, heap: &H, probe: &mut impl Probe, i: usize, size: usize) -> u64 {
        let freed = self.give_up(heap, probe, i);
        (self.blocks[i], self.sizes[i]) = (block::make_in(probe, heap, size) as usize, size as u32);
        freed + 1
    }

    fn give_up<H: Heap>(&mut self, heap: &H, probe: &mut impl Probe, i: usize) -> u64 {
        let (block, size) = (std::mem::take(&mut self.blocks[i]) as *mut u8, self.sizes[i] as usize);
        if block.is_null() {
            return 0;
        }
        // SAFETY: made with this size when it was put here, and taken out just now.
        unsafe { block::drop_in(probe, heap, block, size) };
        1
    }

    fn live(&self) -> u64 {
        let own = self.blocks.iter().zip(self.sizes.iter());
        own.filter(|(block, _)| **block != 0).map(|(_, size)| u64::from(*size)).sum()
    }

    fn clear<H: Heap>(&mut self, heap: &H) {
        for i in 0..self.blocks.len() {
            self.give_up(heap, &mut Untimed, i);
        }
    }
}

/// What a serving thread comes to: the operations it made, its sessions, its measurements.
struct Served<P> {
    operations: u64,
    sessions: Blocks,
    probe: P,
}

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    if !context.latency {
        return Ok(serve(context, || Untimed).0);
    }
    let timer = timer_cost();
    let (mut report, probes) = serve(context, || Timed::new(timer));
    report.latency = Timed::report(probes);
    Ok(report)
}

fn serve<H: Heap, P: Probe + Send>(context: &Context<H>, probe: impl Fn() -> P) -> (Report, Vec<P>) {
    let (heap, settings) = (context.heap, context.settings);
    let (threads, requests) = (settings.size("threads"), settings["requests"]);
    let shard = settings.size("cache").div_ceil(SHARDS);
    let cache: Vec<Mutex<Blocks>> = (0..SHARDS).map(|_| Mutex::new(Blocks::new(shard))).collect();
    let ready: Vec<_> = (0..threads as u64)
        .map(|i| {
            let part = requests * (i + 1) / threads as u64 - requests * i / threads as u64;
            let sessions = Blocks::new(settings.size("sessions") * SESSION);
            (Served { operations: 0, sessions, probe: probe() }, part, Random::new(settings["seed"], i))
        })
        .collect();
    let meter = Meter::start();
    let mut served: Vec<Served<P>> = thread::scope(|scope| {
        let workers: Vec<_> = ready
            .into_iter()
            .map(|(served, part, random)| {
                let cache = &cache;
                scope.spawn(move || work(heap, cache, served, part, random))
            })
            .collect();
        let ends = workers.into_iter().map(|worker| worker.join());
        ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let operations = served.iter().map(|served| served.operations).sum();
    let lock = |shard: &Mutex<Blocks>| shard.lock().expect("no panics inside").live();
    let live: u64 = served.iter().map(|served| served.sessions.live()).chain(cache.iter().map(lock)).sum();
    let mut report = meter.finish(operations, live);
    let grown = report.resident_after.saturating_sub(report.resident_before);
    report.figures.push(("overhead".into(), grown as f64 / live.max(1) as f64));
    served.iter_mut().for_each(|served| served.sessions.clear(heap));
    cache.iter().for_each(|shard| shard.lock().expect("no panics inside").clear(heap));
    (report, served.into_iter().map(|served| served.probe).collect())
}

/// Serves `requests` requests.
fn work<H: Heap, P: Probe>(
    heap: &H,
    cache: &[Mutex<Blocks>],
    mut own: Served<P>,
    requests: u64,
    mut random: Random,
) -> Served<P> {
    let mut request = Blocks::new(REQUEST);
    let sessions = own.sessions.blocks.len() / SESSION;
    for _ in 0..requests {
        for i in 0..REQUEST {
            let size = request_size(&mut random);
            own.operations += request.replace(heap, &mut own.probe, i, size);
        }
        if random.below(SESSION_EVERY) == 0 {
            let first = random.below(sessions) * SESSION;
            for i in first..first + SESSION {
                let size = random.between(24, 800);
                own.operations += own.sessions.replace(heap, &mut own.probe, i, size);
            }
        }
        if random.below(CACHE_EVERY) == 0 {
            let size = random.between(64, 4_000);
            let mut shard = cache[random.below(cache.len())].lock().expect("no panics inside");
            let i = random.below(shard.blocks.len());
            own.operations += shard.replace(heap, &mut own.probe, i, size);
        }
        for i in (0..REQUEST).rev() {
            own.operations += request.give_up(heap, &mut own.probe, i);
        }
    }
    own
}

/// Mostly small, now and then a buffer: the mix that servers show.
fn request_size(random: &mut Random) -> usize {
    match random.below(100) {
        0..70 => random.between(16, 128),
        70..95 => random.between(128, 1_024),
        95..99 => random.between(1_024, 8_192),
        _ => random.between(8_192, 65_536),
    }
}
