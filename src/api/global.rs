//! The public face: the allocator as a `GlobalAlloc`.

use crate::api::{process, rust};
use crate::base::options::Options;
use crate::os;
use crate::reclaim::{background, purge};
use core::alloc::{GlobalAlloc, Layout};

/// The allocator. Zero-sized in spirit: all instances share the process's one set of heaps.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Hakmem {
    options: Options,
}

impl Hakmem {
    /// The allocator with default options.
    pub const fn new() -> Self {
        Self { options: Options::new() }
    }

    /// The allocator with `options`, over which the environment's `HAKMEM_*` still go.
    ///
    /// Options are read once, when the process's first block is allocated, from the instance that allocates it.
    ///
    /// ```
    /// use hakmem::{Hakmem, Options};
    ///
    /// #[global_allocator]
    /// static GLOBAL: Hakmem = Hakmem::with_options(Options::new().purge_delay_ms(1000));
    /// # fn main() {}
    /// ```
    pub const fn with_options(options: Options) -> Self {
        Self { options }
    }
}

// SAFETY: blocks are disjoint, of the size and alignment of their layout, and stay until they are freed; the shadow-model
// tests check it. No call unwinds, and none allocates through the global allocator.
unsafe impl GlobalAlloc for Hakmem {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { rust::alloc(layout, &self.options) }
    }

    #[inline(always)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { rust::dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        rust::alloc_zeroed(layout.size(), layout.align(), &self.options)
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { rust::realloc(block, layout.size(), layout.align(), new_size, &self.options) }
    }
}

/// Gives back to the system what can be given back, whichever thread has it: cached blocks go home, empty slabs to the pool,
/// and the pool's free pages, whole free pages of slabs that are hardly used, and the large cache to the system. Returns how
/// many bytes that were.
///
/// Other threads are not stopped. One that is inside an allocation at each of several looks keeps what it has, and every
/// thread keeps the topmost block of each magazine, the slabs that it allocates from, and what it has freed of others'
/// blocks and not sent yet (256 KiB at most).
pub fn purge() -> usize {
    purge::purge_from(true)
}

/// Starts the background thread, if there is none: it gives back what the program has let go of for as long as the purge
/// delay says, without anybody calling. It gets no signals and sleeps while there is nothing to give back. False when the
/// system has no thread for us.
///
/// The child of `fork` starts one of its own, the next time that it allocates; one made without the C library's handlers (`_Fork`)
/// when this is called there. Either has none before, so ending it there waits for nobody.
///
/// ```
/// # #[cfg(not(miri))]
/// assert!(hakmem::start_background());
/// hakmem::stop_background();
/// ```
pub fn start_background() -> bool {
    process::start_background() == 0
}

/// Ends the background thread, if there is one, and waits until it is gone. That is no cancellation point.
///
/// Also what `HAKMEM_BACKGROUND=on` has started or would start ends with it.
pub fn stop_background() {
    background::stop();
}

/// Says that the process is about to give up system calls, with a seccomp filter that ends it when it makes others: from now on
/// the allocator makes none but those of any allocator, `mmap`, `munmap`, `mremap`, `madvise` and `futex` (the clock is read without
/// one, and `write` says why the process is about to be aborted). What needs others is left undone: memory that is freed to a thread
/// which sleeps, or lies in its magazines, waits for it; huge pages are asked for as `HAKMEM_THP=always` says or not at all; the
/// background thread is not started any more. Statistics are still printed when they are asked for, and read files then.
///
/// The first call of an allocator in a process makes others, so allocate something before the filter is there. Preloaded, or linked
/// as a C library, it notices `prctl(PR_SET_NO_NEW_PRIVS)` and `prctl(PR_SET_SECCOMP)` by itself. A process that is under such a
/// filter from the start has the option `HAKMEM_FEW_SYSCALLS=on`.
pub fn few_syscalls() {
    os::confine();
}
