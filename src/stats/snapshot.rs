//! The figures of one moment.

use crate::base::counters;
use crate::front::heap::{Heap, RECORD};
use crate::front::registry;
use crate::os::{held, process};
use crate::reclaim::background;
use crate::sampling;
use crate::stats::classes::figures;
use crate::stats::classes::{self, ClassStats};
use crate::superslab::{grow, pagemap};
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;
use crate::{guard, hardened, large, os};

figures! {
    /// What the allocator has done and holds, summed over all threads at the time of the call.
    ///
    /// Counters of other threads are read while those run, so sums that should match can be off by what
    /// happens meanwhile. While no thread allocates or frees, everything is exact except
    /// `resident_bytes`, `metadata_bytes` and `retained_bytes`, which are estimates, and these sums hold
    /// to the byte:
    ///
    /// * `active_bytes` is `allocated_bytes + cached_bytes + free_bytes + fresh_bytes + slack_bytes`: why
    ///   memory in use is more than the program's blocks;
    /// * `resident_bytes` is `active_bytes - untouched_bytes + dirty_bytes + metadata_bytes`: why the
    ///   process is larger than that;
    /// * `bytes_mapped` is `resident_bytes + retained_bytes`, unless the system has ever refused to unmap
    ///   memory.
    ///
    /// Memory that is not Hakmem's (the program's code, its stacks, its own mappings) is included in the
    /// kernel's two figures only.
    Stats {
        /// Blocks taken from slabs plus large blocks. Blocks from a magazine do not count: the fast path
        /// counts nothing. With `HAKMEM_MAGAZINE=off` every allocation counts.
        allocations,
        /// Blocks that a slab gave because a magazine was empty: `refill_current` plus `refill_bump`. Up to
        /// 63 may be for one allocation and those after it.
        magazine_misses,
        /// Frees that found their magazine full and at its largest size; their blocks returned to their
        /// slabs.
        magazine_overflows,
        /// Blocks from the free list of a current slab.
        refill_current,
        /// Blocks from memory that had never been handed out.
        refill_bump,
        /// Refills from a partly used slab of the thread's own.
        refill_partial,
        /// Slabs taken from ready lists.
        refill_ready,
        /// Orphans adopted.
        refill_orphan,
        /// Spans taken from the pool for a slab.
        refill_span,
        /// SuperSlabs mapped since the start.
        superslabs_mapped,
        /// Blocks returned to a slab of the freeing thread.
        home_local,
        /// Blocks returned to a slab of another thread, or to an orphan.
        home_foreign,
        /// The same as `home_foreign`: every such block goes through the outbox.
        outbox_blocks,
        /// Bundles sent.
        outbox_pushes,
        /// Bundles after which their slab was put on its owner's ready list.
        publishes,
        /// Large blocks allocated.
        large_allocs,
        /// Large blocks freed.
        large_frees,
        /// Large blocks allocated from a cached mapping.
        large_cache_hits,
        /// Times a thread got a heap.
        threads_started,
        /// Times a thread gave its heap up.
        threads_exited,
        /// Bytes of address space mapped.
        bytes_mapped,
        /// The most that `bytes_mapped` has been.
        bytes_mapped_peak,
        /// Bytes given back to the system since the start.
        bytes_purged,
        /// Bytes that count against the limits: SuperSlabs and mappings of large blocks, free or not, without
        /// the allocator's own records.
        bytes_held,
        /// How often memory was given back because the soft limit was reached.
        soft_limit_hits,
        /// Allocations that failed because of the hard limit.
        hard_limit_hits,
        /// Bytes in blocks that the program holds. A block counts with its full size, which is at least the
        /// size requested.
        allocated_bytes,
        /// The largest resident set of the process so far, as the kernel reports it.
        peak_resident_bytes,
        /// How often the background thread has looked for memory to give back.
        background_passes,
        /// How often the background thread has woken up.
        background_wakeups,
        /// Bytes of memory that slabs, runs and direct mappings in use take.
        active_bytes,
        /// Bytes in free blocks that threads cache in their magazines and outboxes.
        cached_bytes,
        /// Bytes in free blocks of slabs that have been used before.
        free_bytes,
        /// Bytes in blocks of slabs that have not been handed out since the slab was made, or since their
        /// memory was purged.
        fresh_bytes,
        /// Bytes at the ends of slabs that are too few for a block.
        slack_bytes,
        /// Bytes of `active_bytes` known not to be resident, most of them fresh. Blocks that the program
        /// holds but has not touched are not known, and not included.
        untouched_bytes,
        /// Bytes of free memory that may be resident: free slices of the pool that were touched since they
        /// came from the system, freed runs in threads' run caches, and freed large mappings that are kept.
        dirty_bytes,
        /// Bytes of Hakmem's own records that are resident, approximately: headers of SuperSlabs, threads'
        /// heaps, page map, pool.
        metadata_bytes,
        /// Bytes of Hakmem's mappings that may be resident: an upper bound, because large blocks count as a
        /// whole.
        resident_bytes,
        /// The resident set of the process now, as the kernel reports it; 0 where the system does not say.
        /// The kernel updates it in steps of some pages per processor.
        resident_kernel_bytes,
        /// Bytes of address space that are mapped and not resident: free slices that were purged or never
        /// touched, and the parts of slabs and records that have not been used yet.
        retained_bytes,
        /// Blocks that were put between guard pages since the start (`HAKMEM_GUARD`); in hardened mode, those
        /// whose stacks were kept.
        guard_samples,
        /// Blocks that are between guard pages now. They belong to no class: their bytes are included in
        /// `allocated_bytes`, and the pages that they lie in, in `active_bytes`.
        guard_blocks,
    }
}

/// Adds everything up, in one walk over all slabs under the pool's lock, with breaks for those who wait for
/// it, and asks the kernel. Stops no thread, and costs nothing unless it is called.
///
/// Waits for that lock for about a second, and not at all in a signal handler that has interrupted the
/// thread while it held it. Without the lock it knows nothing of slabs: their blocks and their memory are
/// left out.
pub fn stats() -> Stats {
    Snapshot::with(|now| now.stats).with_kernel()
}

impl Stats {
    /// These figures and the kernel's.
    pub(super) fn with_kernel(self) -> Self {
        Self { peak_resident_bytes: os::peak_resident(), resident_kernel_bytes: os::resident(), ..self }
    }
}

/// Figures by size class, in ascending order, then of runs ([`ClassStats::RUNS`]) and direct mappings
/// ([`ClassStats::DIRECT`]). Costs as much as [`stats`](super::stats) and does not allocate.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
///
/// fn main() {
///     let words = vec![[0u64; 6]; 1];
///     let classes = hakmem::class_stats();
///     let class = classes.iter().find(|c| c.block_bytes == 48).unwrap();
///     assert!(class.blocks >= 1 && class.allocated_bytes == class.blocks * 48);
///     println!("{}", hakmem::ClassStats::HEADING);
///     for class in classes.iter().filter(|c| c.is_used()) {
///         println!("{class}");
///     }
///     drop(words);
/// }
/// ```
pub fn class_stats() -> [ClassStats; ClassStats::COUNT] {
    // Filled in where the caller wants it: the stack may be small.
    let mut classes = [ClassStats::default(); ClassStats::COUNT];
    Snapshot::with(|now| classes.copy_from_slice(&now.classes));
    classes
}

/// Bytes mapped for [text that is kept](super::kept). Relaxed: a figure.
pub(super) static TEXT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// All figures of about one moment, except for the kernel's.
pub(crate) struct Snapshot {
    pub(crate) stats: Stats,
    pub(crate) classes: [ClassStats; ClassStats::COUNT],
    /// Bytes of address space of SuperSlabs, and of the hardened heap's slabs.
    pub(crate) superslabs: u64,
    /// Nothing is known of slabs: the pool's lock was not to be had.
    pub(super) missed: bool,
}

impl Snapshot {
    /// Calls `f` with the figures of this moment. They are kept in a mapping of their own: the stack may be
    /// small, and the heap is what they describe.
    pub(crate) fn with<T>(f: impl FnOnce(&Self) -> T) -> T {
        Self::with_patience(true, f)
    }

    /// [`with`](Self::with), which waits for the pool's lock only if `patient`: not within an allocation.
    pub(crate) fn with_patience<T>(patient: bool, f: impl FnOnce(&Self) -> T) -> T {
        let len = size_of::<Self>().next_multiple_of(os::page_size());
        let memory = os::map_uncounted(len).cast::<Self>();
        if memory.is_null() {
            return Self::with_on_stack(patient, f);
        }
        // SAFETY: mapped just above, so large enough, aligned, and ours alone. All fields are integers, for
        // which zeros are valid.
        let snapshot = unsafe { &mut *memory };
        snapshot.look(patient);
        snapshot.stats.bytes_mapped -= len as u64;
        let result = f(snapshot);
        // SAFETY: the mapping from above, whole; `snapshot` is not used any more.
        unsafe { os::discard_uncounted(memory.cast(), len) };
        result
    }

    #[cold]
    #[inline(never)]
    fn with_on_stack<T>(patient: bool, f: impl FnOnce(&Self) -> T) -> T {
        f(&Self::now(patient))
    }

    /// The figures of this moment.
    fn now(patient: bool) -> Self {
        let mut snapshot = Self {
            stats: Stats::default(),
            classes: [ClassStats::default(); ClassStats::COUNT],
            superslabs: 0,
            missed: false,
        };
        snapshot.look(patient);
        snapshot
    }

    /// Fills in the figures of this moment. With the rare code: it is long, and what every process runs lies
    /// closer together without it.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    fn look(&mut self, patient: bool) {
        let Self { stats: s, classes, superslabs, missed } = self;
        *s = counted();
        let mut heaps = Heaps::default();
        ClassStats::clear(classes);
        let survey = classes::look(patient, classes);
        *missed = survey.missed;
        registry::each(|heap| heaps.add(heap, s, classes));
        let hardened = hardened::is_on().then(|| classes::look_hardened(classes));
        s.outbox_blocks = s.home_foreign;
        s.magazine_misses = s.refill_current + s.refill_bump;
        s.magazine_overflows = (s.home_local + s.home_foreign).saturating_sub(heaps.flushed);
        s.allocations = s.refill_current + s.refill_bump + s.large_allocs;
        let large_bytes = (counters::LARGE_IN_USE.load(Relaxed) as u64).saturating_sub(heaps.cached);
        classes::finish(classes, s.large_allocs.saturating_sub(s.large_frees), large_bytes);
        for class in &*classes {
            s.active_bytes += class.active_bytes;
            s.allocated_bytes += class.allocated_bytes;
            s.cached_bytes += class.cached_blocks * class.block_bytes;
            s.free_bytes += class.free_blocks * class.block_bytes;
            s.fresh_bytes += class.fresh_blocks * class.block_bytes;
            s.slack_bytes += class.slack_bytes;
            s.untouched_bytes += class.active_bytes - class.resident_bytes;
        }
        let kept = large::kept() as u64;
        let direct = classes[ClassStats::DIRECT].active_bytes + kept;
        let (map, map_resident) = pagemap::figures(survey.mapped, direct as usize);
        let clean = large::clean() as u64;
        s.dirty_bytes = survey.dirty as u64 + kept.saturating_sub(clean);
        let (code, code_resident) = code_bytes();
        let (samples, samples_used) = sampling::bytes();
        let own = process::bytes() + samples_used + code_resident + TEXT_BYTES.load(Relaxed);
        let records = survey.headers + survey.descriptors + map_resident + own;
        s.metadata_bytes = records as u64 + heaps.resident;
        s.resident_bytes = s.active_bytes - s.untouched_bytes + s.dirty_bytes + s.metadata_bytes;
        let unused = map - map_resident + code - code_resident + samples - samples_used;
        let unused = unused as u64 + (heaps.mapped - heaps.resident);
        s.retained_bytes = survey.clean as u64 + clean + s.untouched_bytes + unused;
        *superslabs = survey.mapped as u64;
        if let Some(own) = hardened {
            own.add(s, classes);
            *superslabs += own.slabs as u64;
        }
        if guard::is_on() {
            guard::figures().add(s);
        }
    }
}

impl hardened::Figures {
    /// Adds what the classes do not have.
    fn add(&self, s: &mut Stats, classes: &[ClassStats; ClassStats::COUNT]) {
        let (records, used) = self.records;
        let (large, kept) = self.large;
        let slabs: u64 = classes[..ClassStats::RUNS].iter().map(|class| class.active_bytes).sum();
        let in_use = classes[ClassStats::DIRECT].active_bytes;
        s.metadata_bytes += used as u64;
        s.dirty_bytes += kept as u64;
        s.resident_bytes += (used + kept) as u64;
        // Other threads may have given some of it back meanwhile.
        let mapped = (records - used + self.slabs + large) as u64;
        s.retained_bytes += mapped.saturating_sub(slabs + in_use + kept as u64);
    }
}

impl guard::Figures {
    /// Adds all of it.
    fn add(&self, s: &mut Stats) {
        s.guard_samples += self.samples;
        s.guard_blocks += self.blocks;
        s.allocated_bytes += self.allocated;
        s.active_bytes += self.active;
        s.slack_bytes += self.active - self.allocated;
        s.metadata_bytes += self.records;
        s.resident_bytes += self.active + self.records;
        s.retained_bytes += self.mapped - self.active - self.records;
    }
}

/// Bytes mapped to remember where code is, and how many of them are in use.
fn code_bytes() -> (usize, usize) {
    #[cfg(feature = "profile")]
    return crate::stacks::modules::bytes();
    #[cfg(not(feature = "profile"))]
    (0, 0)
}

/// The counters of the whole process.
fn counted() -> Stats {
    Stats {
        superslabs_mapped: grow::SUPERSLABS_MAPPED.load(Relaxed),
        large_allocs: counters::LARGE_ALLOCS.load(Relaxed),
        large_frees: counters::LARGE_FREES.load(Relaxed),
        large_cache_hits: counters::LARGE_CACHE_HITS.load(Relaxed),
        threads_started: registry::STARTED.load(Relaxed),
        threads_exited: registry::EXITED.load(Relaxed),
        bytes_mapped: os::MAPPED.load(Relaxed) as u64,
        bytes_mapped_peak: os::MAPPED_PEAK.load(Relaxed) as u64,
        bytes_purged: os::PURGED.load(Relaxed) as u64,
        bytes_held: held::bytes() as u64,
        soft_limit_hits: held::SOFT_HITS.load(Relaxed),
        hard_limit_hits: held::HARD_HITS.load(Relaxed),
        background_passes: background::PASSES.load(Relaxed),
        background_wakeups: background::WAKEUPS.load(Relaxed),
        ..Stats::default()
    }
}

/// Sums over the heaps, in bytes except for `flushed`.
#[derive(Default)]
struct Heaps {
    /// Blocks returned to their slabs because their magazine was flushed.
    flushed: u64,
    /// Freed runs in run caches.
    cached: u64,
    mapped: u64,
    resident: u64,
}

impl Heaps {
    fn add(&mut self, heap: *mut Heap, s: &mut Stats, classes: &mut [ClassStats; ClassStats::COUNT]) {
        // SAFETY: heap records are never unmapped, which is all that the two functions ask for. Only the
        // counters, which are atomic, are referred to: of the rest the owner may be writing what is not.
        unsafe {
            let c = &(*heap).counters;
            self.flushed += c.flushed.get();
            self.cached += (*heap).run_cache.held.get();
            self.mapped += RECORD as u64;
            self.resident += Heap::resident_bytes(heap) as u64;
            s.refill_current += c.refill_current.get();
            s.refill_bump += c.refill_bump.get();
            s.refill_partial += c.refill_partial.get();
            s.refill_ready += c.refill_ready.get();
            s.refill_orphan += c.refill_orphan.get();
            s.refill_span += c.refill_span.get();
            s.home_local += c.home_local.get();
            s.home_foreign += c.home_foreign.get();
            s.outbox_pushes += (*heap).outbox.pushes.get();
            s.publishes += (*heap).outbox.publishes.get();
            s.large_allocs += (*heap).run_cache.allocs.get();
            s.large_frees += (*heap).run_cache.frees.get();
            if hardened::is_on() {
                s.refill_current += Heap::hardened(heap).allocations() as u64;
            }
            Heap::each_cached(heap, |class, blocks| {
                if let Some(class) = classes.get_mut(class.wrapping_sub(1)) {
                    class.cached_blocks += blocks as u64;
                }
            });
        }
    }
}
