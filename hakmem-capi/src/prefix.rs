//! The same under names of their own, for programs that want Hakmem beside another allocator.
//! `include/hakmem.h` is made from this file by cbindgen.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use hakmem_core::__c as core_c;

/// Allocates `size` bytes. NULL and ENOMEM when there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn hak_malloc(size: usize) -> *mut c_void {
    crate::malloc(size)
}

/// Frees a block. NULL is fine; `errno` is left alone.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_free(ptr: *mut c_void) {
    // SAFETY: passed on.
    unsafe { crate::free(ptr) }
}

/// Allocates `count` times `size` bytes, all zero.
#[unsafe(no_mangle)]
pub extern "C" fn hak_calloc(count: usize, size: usize) -> *mut c_void {
    crate::calloc(count, size)
}

/// Resizes a block; it may move. With size 0 it is freed and NULL returned.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { crate::realloc(ptr, size) }
}

/// Resizes a block to `count` times `size` bytes. NULL and ENOMEM when that overflows.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { crate::reallocarray(ptr, count, size) }
}

/// Allocates `size` bytes at a multiple of `align`. 0, EINVAL or ENOMEM, which is in `errno`, too.
///
/// # Safety
///
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: passed on.
    unsafe { crate::posix_memalign(out, align, size) }
}

/// Allocates `size` bytes at a multiple of `align`, a power of two. NULL and EINVAL or ENOMEM otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn hak_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    crate::aligned_alloc(align, size)
}

/// The bytes that a block has: at least what was asked for. 0 for NULL.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_usable_size(ptr: *mut c_void) -> usize {
    // SAFETY: passed on.
    unsafe { core_c::usable_size(ptr.cast(), "hak_usable_size") }
}

/// Frees a block of `size` bytes, as asked for. A size that the block does not have ends the process.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_free_sized(ptr: *mut c_void, size: usize) {
    // SAFETY: passed on.
    unsafe { core_c::free_sized(ptr.cast(), size, "hak_free_sized") }
}

/// Frees a block of `size` bytes that was allocated at a multiple of `align`.
///
/// # Safety
///
/// `ptr` is NULL or a block of this allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_free_aligned_sized(ptr: *mut c_void, align: usize, size: usize) {
    let _ = align;
    // SAFETY: passed on.
    unsafe { core_c::free_aligned_sized(ptr.cast(), size, "hak_free_aligned_sized") }
}

/// Gives back to the system what can be given back, the calling thread's cached blocks included. The bytes
/// that came back.
#[unsafe(no_mangle)]
pub extern "C" fn hak_purge() -> usize {
    core_c::purge()
}

/// Says that the process is about to confine itself to some system calls, with a seccomp filter that ends it
/// when it makes others: from now on the allocator makes none but mmap, munmap, mremap, madvise and futex,
/// and leaves undone what needs others. prctl(PR_SET_NO_NEW_PRIVS) and prctl(PR_SET_SECCOMP) say so, too,
/// where this library is preloaded or linked, and so does HAKMEM_FEW_SYSCALLS=on, from the start.
#[unsafe(no_mangle)]
pub extern "C" fn hak_few_syscalls() {
    core_c::few_syscalls();
}

/// Sets limits on the bytes held from the system, in place of HAKMEM_SOFT_LIMIT and HAKMEM_HARD_LIMIT or of
/// what was set before; 0 is none. `bytes_held` of `hak_stats` is what counts. Beyond the soft limit memory
/// is given back before there may be more of it; beyond the hard limit allocations fail with ENOMEM. A limit
/// below what is held only stops growth. Returns 0, or EINVAL, and changes nothing, if there are both and the
/// soft limit is above the hard one. `errno` is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn hak_set_limits(soft: usize, hard: usize) -> c_int {
    if core_c::set_limits(soft, hard) { 0 } else { libc::EINVAL }
}

/// Sets what is called when more than the soft limit is held in spite of giving memory back, in place of what
/// was set before; NULL for nothing. It gets the bytes held, the limit, and `arg`, and is called once for
/// each crossing: again only after the bytes held have fallen below the limit by an eighth. It runs on the
/// thread that allocates, within the allocation, by one thread at a time. It may allocate and free; it must
/// return, and must not wait for a lock that a thread may hold while it allocates.
#[unsafe(no_mangle)]
pub extern "C" fn hak_on_soft_limit(
    hook: Option<unsafe extern "C" fn(held: usize, limit: usize, arg: *mut c_void)>,
    arg: *mut c_void,
) {
    core_c::on_soft_limit(hook, arg);
}

/// Starts the background thread, if there is none: it gives back what the program has let go of for as long
/// as the purge delay says, without anybody calling. 0, or the number of an error, as of pthread_create. The
/// child of fork starts one of its own, the next time that it allocates; one made without the handlers of the
/// C library (_Fork) when this is called there.
#[unsafe(no_mangle)]
pub extern "C" fn hak_background_start() -> c_int {
    core_c::start_background()
}

/// Ends the background thread, if there is one, and waits until it is gone. No cancellation point.
#[unsafe(no_mangle)]
pub extern "C" fn hak_background_stop() {
    core_c::stop_background();
}

/// Where `hakmem profile --pid` finds what it writes to. Not for programs.
///
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub static __hak_control: &core_c::Control = &core_c::CONTROL;

/// Starts a heap profile: who holds the memory, by call stack, with one sample in `rate` bytes on average
/// (524288 is a good rate). Blocks that were allocated before are unknown to it. 0, or EINVAL (the rate is
/// 0), EALREADY (there is one), ENOMEM. `errno` is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn hak_profile_start(rate: usize) -> c_int {
    core_c::profile_start(rate)
}

/// Stops the profile. What it has gathered stays, as of now, for `hak_profile_write`.
#[unsafe(no_mangle)]
pub extern "C" fn hak_profile_stop() {
    core_c::profile_stop();
}

/// Writes what has been gathered to a new file, which takes the place of one that is there when it is whole.
/// `hakmem profile` shows it. 0, or ESRCH (there has been no profile), ENAMETOOLONG (the path has not 1 to
/// 255 bytes), EIO. `errno` is left alone.
///
/// # Safety
///
/// `path` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_profile_write(path: *const c_char) -> c_int {
    // SAFETY: a string, by this function's contract.
    core_c::profile_write(unsafe { CStr::from_ptr(path) })
}

/// Charges what the calling thread allocates to `tag`, up to 255 bytes, until `hak_scope_end` is called with
/// what this returns. Scopes may be nested; in one whose tag is null nothing is charged. Tags are remembered
/// as long as the process lives: use few different ones.
///
/// # Safety
///
/// `tag` is a string, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_scope_begin(tag: *const c_char) -> c_uint {
    // SAFETY: a string, by this function's contract.
    core_c::scope_begin((!tag.is_null()).then(|| unsafe { CStr::from_ptr(tag) }))
}

/// Ends a scope: `before` is what `hak_scope_begin` has returned.
#[unsafe(no_mangle)]
pub extern "C" fn hak_scope_end(before: c_uint) {
    core_c::scope_end(before);
}

/// The library's version, as `1.2.3`.
#[unsafe(no_mangle)]
pub extern "C" fn hak_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

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
/// Later versions may add members at the end: the header has to be the library's.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct hak_stats_t {
    /// Blocks taken from slabs plus large blocks. Blocks that came from a magazine are not counted: no hit
    /// counts anything. With `HAKMEM_MAGAZINE=off` every allocation is counted.
    pub allocations: u64,
    /// Blocks that a slab gave because a magazine was empty: `refill_current` plus `refill_bump`. Up to
    /// 63 may be for one allocation and those after it.
    pub magazine_misses: u64,
    /// Frees that found their magazine full and as large as it may be; their blocks went home.
    pub magazine_overflows: u64,
    /// Blocks from the free list of a current slab.
    pub refill_current: u64,
    /// Blocks from memory never handed out before.
    pub refill_bump: u64,
    /// Refills by a partly used slab of the thread's own.
    pub refill_partial: u64,
    /// Slabs taken from ready lists.
    pub refill_ready: u64,
    /// Orphans adopted.
    pub refill_orphan: u64,
    /// Spans taken from the pool for a slab.
    pub refill_span: u64,
    /// SuperSlabs mapped since the start.
    pub superslabs_mapped: u64,
    /// Blocks that went home to a slab of the freeing thread.
    pub home_local: u64,
    /// Blocks that went home to a slab of another thread, or nobody's.
    pub home_foreign: u64,
    /// The same as `home_foreign`: every such block passes the outbox.
    pub outbox_blocks: u64,
    /// Bundles sent.
    pub outbox_pushes: u64,
    /// Bundles that put their slab on its owner's ready list.
    pub publishes: u64,
    /// Large blocks allocated.
    pub large_allocs: u64,
    /// Large blocks freed.
    pub large_frees: u64,
    /// Large blocks that a cached mapping served.
    pub large_cache_hits: u64,
    /// Times a thread got a heap.
    pub threads_started: u64,
    /// Times a thread gave its heap up.
    pub threads_exited: u64,
    /// Bytes of address space held.
    pub bytes_mapped: u64,
    /// The most that `bytes_mapped` has been.
    pub bytes_mapped_peak: u64,
    /// Bytes given back to the system since the start.
    pub bytes_purged: u64,
    /// Bytes that count against the limits: SuperSlabs and mappings of large blocks, free or not, without the
    /// allocator's own books.
    pub bytes_held: u64,
    /// Times memory was given back because the soft limit was reached.
    pub soft_limit_hits: u64,
    /// Allocations that failed because of the hard limit.
    pub hard_limit_hits: u64,
    /// Bytes in blocks that the program holds, at the size that they have, which is at least what was asked
    /// for.
    pub allocated_bytes: u64,
    /// The kernel's figure for the largest resident set of the process.
    pub peak_resident_bytes: u64,
    /// Times that the background thread looked for something to give back.
    pub background_passes: u64,
    /// Times that the background thread woke up.
    pub background_wakeups: u64,
    /// Bytes of the memory that slabs, runs and direct mappings in use are made of.
    pub active_bytes: u64,
    /// Bytes in free blocks that threads keep at hand, in their magazines and outboxes.
    pub cached_bytes: u64,
    /// Bytes in free blocks of slabs: used once, and back home.
    pub free_bytes: u64,
    /// Bytes in blocks of slabs that have not been handed out since the slab was made, or since their memory
    /// was given back.
    pub fresh_bytes: u64,
    /// Bytes at the ends of slabs that are too few for a block.
    pub slack_bytes: u64,
    /// Bytes of `active_bytes` known not to be resident, most of them fresh. What the program has not touched
    /// of its blocks is not known, and does not count.
    pub untouched_bytes: u64,
    /// Bytes of free memory that may be resident: free pages of the pool that were touched since they came
    /// from the system, freed runs on threads' shelves, freed large mappings that are kept.
    pub dirty_bytes: u64,
    /// Bytes of Hakmem's own records that are resident, about: headers of SuperSlabs, threads' heaps, page
    /// map, pool.
    pub metadata_bytes: u64,
    /// Bytes that Hakmem takes to be resident of what it has mapped; an upper bound, as large blocks count as
    /// a whole.
    pub resident_bytes: u64,
    /// The kernel's figure for the resident set of the process now; 0 where the system does not tell. The
    /// kernel brings it up to date in steps of some pages per processor.
    pub resident_kernel_bytes: u64,
    /// Bytes of address space that are mapped and not resident: free pages that were given back or never
    /// touched, what slabs and records have not come to use yet.
    pub retained_bytes: u64,
    /// Blocks that were put between guard pages since the start (`HAKMEM_GUARD`); in hardened mode, those
    /// whose stacks were kept.
    pub guard_samples: u64,
    /// Blocks that are between guard pages now. They belong to no class: their bytes are part of
    /// `allocated_bytes`, and the pages that they lie in, of `active_bytes`.
    pub guard_blocks: u64,
}

/// Fills `out` with the statistics of the process.
///
/// # Safety
///
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_stats(out: *mut hak_stats_t) {
    let s = hakmem_core::stats();
    // SAFETY: passed on.
    unsafe {
        out.write(hak_stats_t {
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
        })
    };
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
    /// Free blocks of slabs: used once, and back home.
    pub free_blocks: u64,
    /// Blocks of slabs that have not been handed out since the slab was made, or since their memory was given
    /// back.
    pub fresh_blocks: u64,
    /// Slabs; 0 for large blocks.
    pub slabs: u64,
    /// Bytes at the ends of the slabs that are too few for a block.
    pub slack_bytes: u64,
    /// Bytes of the memory that the slabs, or the large blocks, are made of.
    pub active_bytes: u64,
    /// How many of them may be resident, as far as is known.
    pub resident_bytes: u64,
}

/// Fills `out` with the figures of size class `index`: from 0 in ascending order of `block_bytes`, then the
/// runs (large blocks of up to 960 KiB), then the direct mappings (all larger blocks). 0, or EINVAL when
/// there is no such class (so a loop ends at the first that is not 0) or `out` is NULL; `errno` is left
/// alone. Each call looks at all slabs: figures of two calls are of two moments.
///
/// # Safety
///
/// `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hak_class_stats(index: usize, out: *mut hak_class_stats_t) -> c_int {
    let (Some(c), false) = (core_c::class_stats(index), out.is_null()) else { return libc::EINVAL };
    // SAFETY: passed on.
    unsafe {
        out.write(hak_class_stats_t {
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
        })
    };
    0
}

/// Writes the statistics to standard error: as one line of JSON, or as a table.
#[unsafe(no_mangle)]
pub extern "C" fn hak_stats_print(json: bool) {
    core_c::print_stats(json);
}
