//! Statistics, for C.
//! `include/hakmem.h` is made from this file and `prefix.rs` by cbindgen.

use core::ffi::{c_char, c_int, c_void};
use hakmem_core::__c as core_c;

/// What the allocator has done and holds, summed over all threads. Counts and bytes.
///
/// While no thread allocates or frees, all of it is exact but for `resident_bytes`, `metadata_bytes` and
/// `retained_bytes`, which are estimates, and these sums hold to the byte:
///
/// `active_bytes = allocated_bytes + cached_bytes + free_bytes + fresh_bytes + slack_bytes`
///
/// `resident_bytes = active_bytes - untouched_bytes + dirty_bytes + metadata_bytes`
///
/// `bytes_mapped = resident_bytes + retained_bytes`, unless the system has ever refused to unmap memory
///
/// Later versions may add members at the end.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct hak_stats_t {
    /// Blocks taken from slabs plus large blocks. Blocks from a magazine do not count: the fast path counts
    /// nothing. With `HAKMEM_MAGAZINE=off` every allocation counts.
    pub allocations: u64,
    /// Blocks that a slab gave because a magazine was empty: `refill_current` plus `refill_bump`. Up to 63
    /// may be for one allocation and those after it.
    pub magazine_misses: u64,
    /// Frees that found their magazine full and at its largest size; their blocks returned to their slabs.
    pub magazine_overflows: u64,
    /// Blocks from the free list of a current slab.
    pub refill_current: u64,
    /// Blocks from memory that had never been handed out.
    pub refill_bump: u64,
    /// Refills from a partly used slab of the thread's own.
    pub refill_partial: u64,
    /// Slabs taken from ready lists.
    pub refill_ready: u64,
    /// Orphans adopted.
    pub refill_orphan: u64,
    /// Spans taken from the pool for a slab.
    pub refill_span: u64,
    /// SuperSlabs mapped since the start.
    pub superslabs_mapped: u64,
    /// Blocks returned to a slab of the freeing thread.
    pub home_local: u64,
    /// Blocks returned to a slab of another thread, or to an orphan.
    pub home_foreign: u64,
    /// The same as `home_foreign`: every such block goes through the outbox.
    pub outbox_blocks: u64,
    /// Bundles sent.
    pub outbox_pushes: u64,
    /// Bundles after which their slab was put on its owner's ready list.
    pub publishes: u64,
    /// Large blocks allocated.
    pub large_allocs: u64,
    /// Large blocks freed.
    pub large_frees: u64,
    /// Large blocks allocated from a cached mapping.
    pub large_cache_hits: u64,
    /// Times a thread got a heap.
    pub threads_started: u64,
    /// Times a thread gave its heap up.
    pub threads_exited: u64,
    /// Bytes of address space mapped.
    pub bytes_mapped: u64,
    /// The most that `bytes_mapped` has been.
    pub bytes_mapped_peak: u64,
    /// Bytes given back to the system since the start.
    pub bytes_purged: u64,
    /// Bytes that count against the limits: SuperSlabs and mappings of large blocks, free or not, without the
    /// allocator's own records.
    pub bytes_held: u64,
    /// How often memory was given back because the soft limit was reached.
    pub soft_limit_hits: u64,
    /// Allocations that failed because of the hard limit.
    pub hard_limit_hits: u64,
    /// Bytes in blocks that the program holds. A block counts with its full size, which is at least the size
    /// requested.
    pub allocated_bytes: u64,
    /// The largest resident set of the process so far, as the kernel reports it.
    pub peak_resident_bytes: u64,
    /// How often the background thread has looked for memory to give back.
    pub background_passes: u64,
    /// How often the background thread has woken up.
    pub background_wakeups: u64,
    /// Bytes of memory that slabs, runs and direct mappings in use take.
    pub active_bytes: u64,
    /// Bytes in free blocks that threads cache in their magazines and outboxes.
    pub cached_bytes: u64,
    /// Bytes in free blocks of slabs that have been used before.
    pub free_bytes: u64,
    /// Bytes in blocks of slabs that have not been handed out since the slab was made, or since their memory
    /// was purged.
    pub fresh_bytes: u64,
    /// Bytes at the ends of slabs that are too few for a block.
    pub slack_bytes: u64,
    /// Bytes of `active_bytes` known not to be resident, most of them fresh. Blocks that the program holds
    /// but has not touched are not known, and not included.
    pub untouched_bytes: u64,
    /// Bytes of free memory that may be resident: free slices of the pool that were touched since they came
    /// from the system, freed runs in threads' run caches, and freed large mappings that are kept.
    pub dirty_bytes: u64,
    /// Bytes of Hakmem's own records that are resident, approximately: headers of SuperSlabs, threads' heaps,
    /// page map, pool.
    pub metadata_bytes: u64,
    /// Bytes of Hakmem's mappings that may be resident: an upper bound, because large blocks count as a
    /// whole.
    pub resident_bytes: u64,
    /// The resident set of the process now, as the kernel reports it; 0 where the system does not say. The
    /// kernel updates it in steps of some pages per processor.
    pub resident_kernel_bytes: u64,
    /// Bytes of address space that are mapped and not resident: free slices that were purged or never
    /// touched, and the parts of slabs and records that have not been used yet.
    pub retained_bytes: u64,
    /// Blocks that were put between guard pages since the start (`HAKMEM_GUARD`); in hardened mode, those
    /// whose stacks were kept.
    pub guard_samples: u64,
    /// Blocks that are between guard pages now. They belong to no class: their bytes are included in
    /// `allocated_bytes`, and the pages that they lie in, in `active_bytes`.
    pub guard_blocks: u64,
}

/// Writes as many bytes of `figures` as the program's structure has; what it has behind them is 0.
///
/// # Safety
///
/// `size` bytes at `out` are writable.
unsafe fn put<T>(out: *mut T, size: usize, figures: T) {
    let known = size.min(size_of::<T>());
    let out = out.cast::<u8>();
    // SAFETY: the caller's clause; `figures` has at least `known` bytes.
    unsafe {
        (&raw const figures).cast::<u8>().copy_to_nonoverlapping(out, known);
        out.add(known).write_bytes(0, size - known);
    }
}

/// Fills `out` with the statistics of the process. `size` is `sizeof *out`: a program whose header is older
/// than the library gets the members that it knows, and one whose header is newer gets 0 for the others. 0,
/// or EINVAL when `out` is NULL; `errno` is left alone.
///
/// # Safety
///
/// `out` is NULL, or `size` bytes there are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_stats(out: *mut hak_stats_t, size: usize) -> c_int {
    if out.is_null() {
        return libc::EINVAL;
    }
    let s = hakmem_core::stats();
    let figures = hak_stats_t {
        allocations: s.allocations,
        magazine_misses: s.magazine_misses,
        magazine_overflows: s.magazine_overflows,
        refill_current: s.refill_current,
        refill_bump: s.refill_bump,
        refill_partial: s.refill_partial,
        refill_ready: s.refill_ready,
        refill_orphan: s.refill_orphan,
        refill_span: s.refill_span,
        superslabs_mapped: s.superslabs_mapped,
        home_local: s.home_local,
        home_foreign: s.home_foreign,
        outbox_blocks: s.outbox_blocks,
        outbox_pushes: s.outbox_pushes,
        publishes: s.publishes,
        large_allocs: s.large_allocs,
        large_frees: s.large_frees,
        large_cache_hits: s.large_cache_hits,
        threads_started: s.threads_started,
        threads_exited: s.threads_exited,
        bytes_mapped: s.bytes_mapped,
        bytes_mapped_peak: s.bytes_mapped_peak,
        bytes_purged: s.bytes_purged,
        bytes_held: s.bytes_held,
        soft_limit_hits: s.soft_limit_hits,
        hard_limit_hits: s.hard_limit_hits,
        allocated_bytes: s.allocated_bytes,
        peak_resident_bytes: s.peak_resident_bytes,
        background_passes: s.background_passes,
        background_wakeups: s.background_wakeups,
        active_bytes: s.active_bytes,
        cached_bytes: s.cached_bytes,
        free_bytes: s.free_bytes,
        fresh_bytes: s.fresh_bytes,
        slack_bytes: s.slack_bytes,
        untouched_bytes: s.untouched_bytes,
        dirty_bytes: s.dirty_bytes,
        metadata_bytes: s.metadata_bytes,
        resident_bytes: s.resident_bytes,
        resident_kernel_bytes: s.resident_kernel_bytes,
        retained_bytes: s.retained_bytes,
        guard_samples: s.guard_samples,
        guard_blocks: s.guard_blocks,
    };
    // SAFETY: the caller's clause.
    unsafe { put(out, size, figures) };
    0
}

/// The live figures of one size class, or of one kind of large block. Free pages belong to no class.
///
/// While no thread allocates or frees they are exact, `resident_bytes` apart, and `active_bytes =
/// allocated_bytes + (cached_blocks + free_blocks + fresh_blocks) * block_bytes + slack_bytes`.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct hak_class_stats_t {
    /// Bytes from block to block; 0 for the two kinds of large blocks, which have no common size.
    pub block_bytes: u64,
    /// Blocks that the program holds.
    pub blocks: u64,
    /// Bytes in them.
    pub allocated_bytes: u64,
    /// Free blocks in magazines and outboxes.
    pub cached_blocks: u64,
    /// Free blocks of slabs that have been used before.
    pub free_blocks: u64,
    /// Blocks of slabs that have not been handed out since the slab was made, or since their memory was
    /// purged.
    pub fresh_blocks: u64,
    /// Slabs; 0 for large blocks.
    pub slabs: u64,
    /// Bytes at the ends of the slabs that are too few for a block.
    pub slack_bytes: u64,
    /// Bytes of memory that the slabs or the large blocks take.
    pub active_bytes: u64,
    /// How many of the active bytes may be resident, as far as is known.
    pub resident_bytes: u64,
}

/// Fills `out` with the figures of size class `index`: from 0 in ascending order of `block_bytes`, then the
/// runs (large blocks of up to 960 KiB), then the direct mappings (all larger blocks). 0, or EINVAL when
/// there is no such class (so a loop ends at the first that is not 0) or `out` is NULL; `errno` is left
/// alone. `size` is `sizeof *out`, as for `hak_stats`. Each call looks at all slabs: figures of two calls are
/// of two moments.
///
/// # Safety
///
/// `out` is NULL, or `size` bytes there are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_class_stats(index: usize, out: *mut hak_class_stats_t, size: usize) -> c_int {
    let (Some(c), false) = (core_c::class_stats(index), out.is_null()) else { return libc::EINVAL };
    let figures = hak_class_stats_t {
        block_bytes: c.block_bytes,
        blocks: c.blocks,
        allocated_bytes: c.allocated_bytes,
        cached_blocks: c.cached_blocks,
        free_blocks: c.free_blocks,
        fresh_blocks: c.fresh_blocks,
        slabs: c.slabs,
        slack_bytes: c.slack_bytes,
        active_bytes: c.active_bytes,
        resident_bytes: c.resident_bytes,
    };
    // SAFETY: the caller's clause.
    unsafe { put(out, size, figures) };
    0
}

/// Writes the statistics to standard error: as one line of JSON, or as a table.
#[unsafe(no_mangle)]
pub extern "C" fn hak_stats_print(json: bool) {
    core_c::print_stats(json);
}

/// Hands the statistics to `write`, as one line of JSON or as a table: the text of `hak_stats_print`.
/// `to` is passed on. The `length` bytes at `text`, which no 0 follows and which are there until `write`
/// returns, are the whole text; where there is no memory for that, `write` is called several times, each time
/// with the next part. It may allocate and free, and call all that is here: no lock is held. It must return:
/// to leave it by longjmp or by an exception of C++ is undefined. If `write` is NULL the text goes to
/// standard error. `errno` is left alone, but for what `write` does.
///
/// # Safety
///
/// `write` may be called with `to`, and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_stats_write(
    write: Option<unsafe extern "C" fn(to: *mut c_void, text: *const c_char, length: usize)>,
    to: *mut c_void,
    json: bool,
) {
    let Some(write) = write else { return core_c::print_stats(json) };
    // SAFETY: the caller's clause; the text stays as it is until `write` returns.
    core_c::write_stats(json, &mut |text| unsafe { write(to, text.as_ptr().cast(), text.len()) });
}

/// The bytes that count against the limits of `hak_set_limits`, as they are now: `bytes_held` of `hak_stats`,
/// without a look at all slabs. It costs next to nothing: a service may ask at every request.
#[unsafe(no_mangle)]
pub extern "C" fn hak_bytes_held() -> usize {
    core_c::bytes_held()
}
