//! The C interface beside the `malloc` family: limits, the heap profile, the library's life, figures.

pub use crate::api::control::{CONTROL, Control};
pub use crate::api::global::{few_syscalls, purge, stop_background};
pub use crate::api::process::start_background;
pub use crate::api::sizes::good_size_in_c as good_size;
use crate::api::{process, profile};
use crate::base::limits::{self, Limits};
pub use crate::base::limits::{CHook, bytes_held, on_soft_limit_c as on_soft_limit};
use crate::base::options;
use crate::front::thread;
use crate::os::{self, file, message};
use crate::stats::{self, ClassStats, Event, Snapshot};
use core::ffi::CStr;

/// As [`few_syscalls`], for a process that confines itself. A child of `vfork` does so before it calls
/// `exec`: that is no concern of its parent, whose memory it is in.
pub fn confines_itself() {
    // Not asked again: the second time there may be a filter already.
    if os::is_confined() || !os::process::is_guest() {
        few_syscalls();
    }
}

/// `prctl`, as the C library has it, but for what [`confines_itself`] does.
///
/// # Safety
///
/// What the option asks for.
pub unsafe fn prctl(option: i32, rest: [usize; 4]) -> i32 {
    // SAFETY: this function's contract is the same.
    match unsafe { os::prctl(option, rest) } {
        Ok(result) => result as i32,
        Err(error) => {
            os::set_errno(error);
            -1
        }
    }
}

/// Sets the limits, in bytes; 0 is none. False, and nothing changed, if the soft one is above the hard one.
pub fn set_limits(soft: usize, hard: usize) -> bool {
    limits::set_limits(Limits { soft, hard }).is_ok()
}

/// The soft and the hard limit.
pub fn limits() -> (usize, usize) {
    let Limits { soft, hard } = limits::limits();
    (soft, hard)
}

/// Starts a profile. 0, or an error number.
pub fn profile_start(rate: usize) -> i32 {
    profile::start(rate).map_or_else(number, |()| 0)
}

/// Stops the profile.
pub fn profile_stop() {
    profile::stop();
}

/// Writes the profile to a new file. 0, or an error number.
pub fn profile_write(path: &CStr) -> i32 {
    profile::write_to(path).map_or_else(number, |()| 0)
}

fn number(error: profile::Error) -> i32 {
    match error {
        profile::Error::Rate => libc::EINVAL,
        profile::Error::Running => libc::EALREADY,
        profile::Error::NotRunning => libc::ESRCH,
        profile::Error::Unavailable => libc::ENOMEM,
        profile::Error::Path => libc::ENAMETOOLONG,
        profile::Error::File => libc::EIO,
    }
}

/// Charges what the calling thread allocates to a tag, or to none. Returns what was before, for
/// [`scope_end`].
pub fn scope_begin(tag: Option<&CStr>) -> u32 {
    profile::enter(tag.map(CStr::to_bytes))
}

/// Ends a scope.
pub fn scope_end(before: u32) {
    profile::leave(before);
}

/// Whether libraries that the program loads with `RTLD_DEEPBIND` keep that flag, which would give them
/// another allocator.
pub fn keeps_deepbind() -> bool {
    // The options are read before the first heap.
    thread::with_heap(None, |_| ());
    options::get().keep_deepbind
}

/// Gives up our key for thread-local data, for a program that has used up all that the C library has. False
/// when there is none to give up. Without it, the heaps of threads that have ended are found later.
pub fn give_up_key() -> bool {
    thread::give_up_key()
}

/// For the library's constructor: registers the handlers for forks and for exit. With options in the
/// environment this also initialises the allocator, so that bad ones are reported, and the start record and
/// the statistics are written, even if the process never allocates. From here on the background thread can be
/// started.
pub fn on_load() {
    thread::set_in_c(true);
    let mut given = false;
    os::env::each(b"HAKMEM_", |_, _| given = true);
    if given {
        thread::with_heap(None, |_| ());
    }
    process::hook();
}

/// Prints one line to standard error and aborts.
pub fn fatal(what: &str) -> ! {
    message::line(format_args!("{what}"));
    message::abort()
}

/// For the library's panic handler: prints one line to standard error and aborts.
pub fn internal_error(what: &core::panic::PanicInfo<'_>) -> ! {
    message::line(format_args!("internal error: {what}"));
    message::abort()
}

/// The figures for `mallinfo2`.
pub struct Info {
    /// Bytes of address space in SuperSlabs.
    pub arena: usize,
    /// Blocks with a mapping of their own.
    pub mapped_blocks: usize,
    /// Bytes in them.
    pub mapped_bytes: usize,
    /// Bytes in all other blocks that the program holds.
    pub in_use: usize,
    /// Bytes in SuperSlabs that are not in blocks.
    pub free: usize,
    /// Bytes that a purge could give back now.
    pub releasable: usize,
    /// Bytes of address space of everything.
    pub mapped: usize,
}

/// Collects the figures for `mallinfo2`.
pub fn info() -> Info {
    Snapshot::with(|now| {
        let direct = &now.classes[ClassStats::DIRECT];
        let in_use = now.stats.allocated_bytes.saturating_sub(direct.allocated_bytes) as usize;
        Info {
            arena: now.superslabs as usize,
            mapped_blocks: direct.blocks as usize,
            mapped_bytes: direct.allocated_bytes as usize,
            in_use,
            free: (now.superslabs as usize).saturating_sub(in_use),
            releasable: now.stats.dirty_bytes as usize,
            mapped: now.stats.bytes_mapped as usize,
        }
    })
}

/// The statistics of size class `index`, as `hakmem::class_stats` numbers them; `None` when there is no such
/// class.
pub fn class_stats(index: usize) -> Option<ClassStats> {
    Snapshot::with(|now| now.classes.get(index).copied())
}

/// Writes the statistics to standard error.
pub fn print_stats(json: bool) {
    stats::write(json, Event::Running, &mut |text| _ = file::write(2, text));
}

/// Hands the statistics to `put`, in one piece or several.
pub fn write_stats(json: bool, put: &mut dyn FnMut(&[u8])) {
    stats::write(json, Event::Running, put);
}
