//! Counters and live figures.

use crate::background;
use crate::front::heap::Heap;
use crate::front::registry;
use crate::large;
use crate::os::{self, held, message::Text};
use crate::superslab::{Slab, pagemap, pool, prefill};
use core::fmt::Write;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// A counter that its owner bumps and others read: no read-modify-write.
#[repr(transparent)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    /// Adds `n`. Owner only.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    /// Sets it. Owner only.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
    /// Reads it.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A heap's counters, all on slow paths. They survive the thread: records are recycled, counters go on.
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) refill_current: Counter,
    pub(crate) refill_bump: Counter,
    pub(crate) refill_partial: Counter,
    pub(crate) refill_ready: Counter,
    pub(crate) refill_orphan: Counter,
    pub(crate) refill_span: Counter,
    pub(crate) home_local: Counter,
    pub(crate) home_foreign: Counter,
    /// Blocks that went home because their magazine was flushed.
    pub(crate) flushed: Counter,
}

impl Counters {
    /// All zero.
    pub(crate) const fn new() -> Self {
        Self {
            refill_current: Counter::new(),
            refill_bump: Counter::new(),
            refill_partial: Counter::new(),
            refill_ready: Counter::new(),
            refill_orphan: Counter::new(),
            refill_span: Counter::new(),
            home_local: Counter::new(),
            home_foreign: Counter::new(),
            flushed: Counter::new(),
        }
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the allocator has done and holds, summed over all threads at the moment of asking.
        ///
        /// Counters of other threads are read while they run, so sums that should match can be off by what happened meanwhile.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(C)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Names and values, in order of declaration.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($name), self.$name);)*
            }
        }
    };
}

stats! {
    /// Blocks taken from slabs plus large blocks. Blocks that came from a magazine are not counted: no hit counts
    /// anything. With `HAKMEM_MAGAZINE=off` every allocation is counted.
    allocations,
    /// Allocations that found their magazine empty: `refill_current` plus `refill_bump`.
    magazine_misses,
    /// Frees that found their magazine full and as large as it may be; their blocks went home.
    magazine_overflows,
    /// Blocks from the free list of a current slab.
    refill_current,
    /// Blocks from memory never handed out before.
    refill_bump,
    /// Refills by a partly used slab of the thread's own.
    refill_partial,
    /// Slabs taken from ready lists.
    refill_ready,
    /// Orphans adopted.
    refill_orphan,
    /// Spans taken from the pool for a slab.
    refill_span,
    /// SuperSlabs mapped since the start.
    superslabs_mapped,
    /// Blocks that went home to a slab of the freeing thread.
    home_local,
    /// Blocks that went home to a slab of another thread, or nobody's.
    home_foreign,
    /// The same as `home_foreign`: every such block passes the outbox.
    outbox_blocks,
    /// Bundles sent.
    outbox_pushes,
    /// Bundles that put their slab on its owner's ready list.
    publishes,
    /// Large blocks allocated.
    large_allocs,
    /// Large blocks freed.
    large_frees,
    /// Large blocks that a cached mapping served.
    large_cache_hits,
    /// Times a thread got a heap.
    threads_started,
    /// Times a thread gave its heap up.
    threads_exited,
    /// Bytes of address space held.
    bytes_mapped,
    /// The most that `bytes_mapped` has been.
    bytes_mapped_peak,
    /// Bytes given back to the system since the start.
    bytes_purged,
    /// Bytes that count against the limits: SuperSlabs and mappings of large blocks, free or not, without the allocator's own
    /// books.
    bytes_held,
    /// Times memory was given back because the soft limit was reached.
    soft_limit_hits,
    /// Allocations that failed because of the hard limit.
    hard_limit_hits,
    /// Bytes in blocks that the program holds.
    allocated_bytes,
    /// The kernel's figure for the largest resident set of the process.
    peak_resident_bytes,
    /// Times that the background thread looked for something to give back.
    background_passes,
    /// Times that the background thread woke up.
    background_wakeups,
    /// Pages of 64 KiB that the background thread made resident before they were wanted.
    pages_prefilled,
}

/// Sums everything up. Takes the pool's lock for as long as it takes to visit every slab.
pub fn stats() -> Stats {
    let mut s = Stats {
        superslabs_mapped: pool::SUPERSLABS_MAPPED.load(Relaxed),
        large_allocs: large::ALLOCS.load(Relaxed),
        large_frees: large::FREES.load(Relaxed),
        large_cache_hits: large::CACHE_HITS.load(Relaxed),
        threads_started: registry::STARTED.load(Relaxed),
        threads_exited: registry::EXITED.load(Relaxed),
        bytes_mapped: os::MAPPED.load(Relaxed) as u64,
        bytes_mapped_peak: os::MAPPED_PEAK.load(Relaxed) as u64,
        bytes_purged: os::PURGED.load(Relaxed) as u64,
        bytes_held: held::bytes() as u64,
        soft_limit_hits: held::SOFT_HITS.load(Relaxed),
        hard_limit_hits: held::HARD_HITS.load(Relaxed),
        peak_resident_bytes: os::peak_resident(),
        background_passes: background::PASSES.load(Relaxed),
        background_wakeups: background::WAKEUPS.load(Relaxed),
        pages_prefilled: prefill::PREFILLED.load(Relaxed),
        ..Stats::default()
    };
    let (mut cached, mut flushed) = (0, 0);
    registry::each(|heap| {
        // SAFETY: heap records are never unmapped; counters are atomic, and no reference is made to anything else.
        let (c, pushes, publishes, shelf, held) = unsafe {
            let (outbox, shelf) = (&raw const (*heap).outbox, &raw const (*heap).shelf);
            let shelf = (&(*shelf).allocs, &(*shelf).frees);
            (&(*heap).counters, &(*outbox).pushes, &(*outbox).publishes, shelf, Heap::cached_bytes(heap))
        };
        flushed += c.flushed.get();
        s.refill_current += c.refill_current.get();
        s.refill_bump += c.refill_bump.get();
        s.refill_partial += c.refill_partial.get();
        s.refill_ready += c.refill_ready.get();
        s.refill_orphan += c.refill_orphan.get();
        s.refill_span += c.refill_span.get();
        s.home_local += c.home_local.get();
        s.home_foreign += c.home_foreign.get();
        s.outbox_pushes += pushes.get();
        s.publishes += publishes.get();
        cached += held;
        s.large_allocs += shelf.0.get();
        s.large_frees += shelf.1.get();
    });
    s.outbox_blocks = s.home_foreign;
    s.magazine_misses = s.refill_current + s.refill_bump;
    s.magazine_overflows = (s.home_local + s.home_foreign).saturating_sub(flushed);
    s.allocations = s.refill_current + s.refill_bump + s.large_allocs;
    let large = large::IN_USE.load(Relaxed).saturating_sub(shelved_bytes());
    s.allocated_bytes = (slab_bytes().saturating_sub(cached) + large) as u64;
    s
}

/// Bytes of freed runs on the shelves of all threads.
pub(crate) fn shelved_bytes() -> usize {
    let mut bytes = 0;
    registry::each(|heap| {
        // SAFETY: as in `stats`.
        bytes += unsafe { (*heap).shelf.held.get() } as usize;
    });
    bytes
}

/// Bytes in blocks of slabs that are neither on their slab's list nor on its remote stack.
fn slab_bytes() -> usize {
    let mut bytes = 0;
    pool::each_span(|slab| {
        // SAFETY: spans stay while the pool is locked; the figures read are atomic, or constant while in use.
        unsafe {
            // Acquire: pairs with the release in `Slab::make`. Before that it is nobody's, and has no blocks.
            if (*slab).class == pagemap::RUN || (*slab).owner.load(Acquire).is_null() {
                return;
            }
            let used = match (*slab).remote.orphan_in_use() {
                Some(in_use) => in_use,
                None => {
                    // Of the blocks waiting on the stack, those that the owner has seen are not counted as used.
                    let unseen = (*slab).remote.waiting().saturating_sub((*slab).counted.load(Relaxed));
                    Slab::in_use(slab).saturating_sub(unseen)
                }
            };
            bytes += used as usize * (*slab).stride as usize;
        }
    });
    bytes
}

/// Writes the statistics to a file descriptor, as a table or as one line of JSON.
pub(crate) fn write(fd: i32, json: bool) {
    let s = stats();
    let mut text = Text::<4096>::new();
    let version = env!("CARGO_PKG_VERSION");
    if json {
        let pid = os::process_id();
        let _ = write!(text, "{{\"hakmem\":\"{version}\",\"event\":\"exit\",\"pid\":{pid}");
        s.each(|name, value| {
            let _ = write!(text, ",\"{name}\":{value}");
        });
        let _ = text.write_str("}\n");
    } else {
        let _ = writeln!(text, "hakmem {version} statistics");
        s.each(|name, value| {
            let _ = writeln!(text, "  {name:<22}{value:>20}");
        });
    }
    text.send(fd);
}
