//! The public interface: the allocator as a `GlobalAlloc`, and what programs ask of it.

#[cfg(not(any(feature = "asan", feature = "valgrind")))]
use crate::api::rust;
#[cfg(any(feature = "asan", feature = "valgrind"))]
use crate::api::watched as rust;
use crate::api::{process, profile};
use crate::base::options::Options;
use crate::front::visitor;
use crate::os;
use crate::reclaim::background;
use crate::reclaim::purge::{self, Extent};
use core::alloc::{GlobalAlloc, Layout};

/// The allocator. All instances share the heaps of the process; an instance holds nothing but its options.
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

    /// The allocator with `options`. The environment's `HAKMEM_*` override them.
    ///
    /// Options are read once: when the process allocates its first block, from the instance that allocates
    /// it. Where this crate's functions are called before that ([`purge`](crate::purge),
    /// [`scope`](crate::scope), [`start_background`](crate::start_background),
    /// [`profile::start`](crate::profile::start)), the environment's are taken over the defaults, and those
    /// of this instance are not: in a program whose `main` is Rust's a block has been allocated by then, but
    /// a library whose caller is no Rust program should allocate something first.
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

// SAFETY: blocks in use are disjoint, have the size and alignment of their layout, and stay until they are
// freed; the shadow-model tests check this. No call unwinds, and none allocates through the global allocator.
unsafe impl GlobalAlloc for Hakmem {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the clauses are those of the trait.
        unsafe { rust::alloc(layout, &self.options) }
    }

    #[inline(always)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the trait's contract the block is from this allocator, has this layout, and is given up.
        unsafe { rust::dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        rust::alloc_zeroed(layout.size(), layout.align(), &self.options)
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: by the trait's contract the block is from this allocator and has this layout, and only the
        // caller uses it.
        unsafe { rust::realloc(block, layout.size(), layout.align(), new_size, &self.options) }
    }
}

/// Gives memory back to the system: all that can be given back, whichever thread has it. Returns how many
/// bytes that were.
///
/// Cached blocks return to their slabs, and empty slabs to the pool. The pool's free slices, whole free pages
/// of other slabs (an eighth of a slab at least, unless hardly a block of it is in use), and what is kept of
/// freed large mappings go back to the system.
///
/// Other threads are not stopped. A thread that is inside an allocation at each of several looks keeps what
/// it has. Every thread keeps the topmost block of each magazine, the slabs that it allocates from unless
/// hardly a block of them is in use, and remote frees that it has not sent yet (256 KiB at most).
pub fn purge() -> usize {
    purge::purge_from(Extent::Pages)
}

/// Starts the background thread, if there is none. It gives back memory that has been free for the purge
/// delay, without any call from the program. It receives no signals, and sleeps while there is nothing to
/// give back. Returns false if the system cannot start a thread, or after [`few_syscalls`].
///
/// A child of `fork` does not inherit the thread. It starts one of its own the next time that it allocates; a
/// child made without the C library's handlers (`_Fork`) does so when it calls this function. Until then,
/// stopping the thread there returns at once.
///
/// ```
/// # #[cfg(not(miri))]
/// assert!(hakmem::start_background());
/// hakmem::stop_background();
/// ```
pub fn start_background() -> bool {
    process::start_background() == 0
}

/// Ends the background thread, if there is one, and waits until it is gone. The wait is no cancellation
/// point.
///
/// This also ends the thread that `HAKMEM_BACKGROUND=on` has started, or keeps it from being started.
pub fn stop_background() {
    background::stop();
}

/// Tells the allocator that the process is about to restrict its system calls, with a seccomp filter that
/// kills it when it makes others.
///
/// From now on the allocator makes only the calls that any allocator makes: `mmap`, `munmap`, `mremap`,
/// `madvise` and `futex`. It reads the clock without a system call, and uses `write` to say why the process
/// is about to be aborted. The child of a fork asks for its number once (`getpid`). What needs other calls is
/// not done any more:
///
/// * Memory that was freed to a thread which sleeps, or that lies in such a thread's magazines, stays there
///   until the thread is back.
/// * Huge pages are requested as `HAKMEM_THP=always` says, or not at all.
/// * The background thread is not started any more, a heap profile that runs ends, and no more blocks are put
///   between guard pages.
///
/// Statistics are still printed by a call, and that reads files; at the end of the process they are not.
///
/// The allocator's first call in a process does make others, so allocate something before the filter is
/// installed. If it is preloaded, or linked as a C library, it notices `prctl(PR_SET_NO_NEW_PRIVS)` and
/// `prctl(PR_SET_SECCOMP)` by itself. A process that runs under such a filter from the start has the option
/// `HAKMEM_FEW_SYSCALLS=on`.
pub fn few_syscalls() {
    // It needs others, and ends here.
    profile::give_up();
    os::confine();
    // A visit that began before this would still set a signal mask at its end. Each try waits for some
    // milliseconds.
    let _ = (0..100).find(|_| visitor::lock().is_some());
    // So would who takes a sample; and a thread of ours that is just starting has not made all of its calls.
    let _ = (0..100).find(|_| {
        let is_settled = background::is_settled() && os::are_settled();
        if !is_settled {
            os::futex::pause();
        }
        is_settled
    });
}
