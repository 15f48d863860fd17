//! Limits on the bytes held from the system, which a program can change while it runs, and the hook that
//! reports that the soft limit was crossed.

use crate::base::options::Options;
use crate::base::table::Table;
use crate::os::futex::{Inherit, Lock};
use crate::os::{self, held, returning, thread};
use crate::sync::{AtomicUsize, Ordering};
use core::ffi::c_void;
use core::fmt;

/// Limits on the bytes that the allocator holds from the system; 0 means no limit. See [`set_limits`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// In bytes. Before the allocator grows beyond this, it gives back what it can. If it has to grow anyway,
    /// it does, and calls the hook of [`on_soft_limit`].
    pub soft: usize,
    /// In bytes. The allocator never grows beyond this: an allocation that would need to fails as if the
    /// system had no memory.
    pub hard: usize,
}

/// The soft limit is above the hard one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidLimits;

impl fmt::Display for InvalidLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the soft limit is above the hard limit")
    }
}

impl core::error::Error for InvalidLimits {}

/// Sets the limits of the process. They replace those set before, and those of the options. `usize::MAX` is
/// no limit, like 0.
///
/// What counts is [`Stats::bytes_held`](crate::Stats::bytes_held): SuperSlabs of 2 MiB each and mappings of
/// blocks above 960 KiB, including those that are free or kept for reuse; in hardened mode more
/// (`docs/limits.md` in the repository). The allocator's own records (some KiB per thread, at most 9 bytes
/// per 64 KiB) do not count, so a thread can start at the limit; nor do sampled guard pages, or a profile.
/// The bytes held never exceed the hard limit, however many threads allocate. Before an allocation is
/// refused, what is held and not used is given back, as by [`purge`](crate::api::global::purge), other
/// threads' caches included; for up to 128 ms after that was in vain, these are left alone. A limit below
/// what is held takes nothing away; it only stops growth. Small blocks need at least one SuperSlab.
///
/// While more than the soft limit is held, memory is given back again each time that it has grown by another
/// 16th of the limit (at least 2 MiB).
///
/// # Errors
///
/// [`InvalidLimits`], with nothing changed, if both limits are set and the soft one is above the hard one.
///
/// ```
/// use hakmem::Limits;
///
/// hakmem::set_limits(Limits { soft: 768 << 20, hard: 1 << 30 }).unwrap();
/// assert!(hakmem::set_limits(Limits { soft: 2, hard: 1 }).is_err());
/// hakmem::set_limits(Limits::default()).unwrap(); // none
/// ```
pub fn set_limits(limits: Limits) -> Result<(), InvalidLimits> {
    let Limits { soft, hard } = limits;
    if soft != 0 && hard != 0 && soft > hard {
        return Err(InvalidLimits);
    }
    let mut config = CONFIG.lock();
    config.chosen = true;
    held::set(soft, hard);
    Ok(())
}

/// The limits of the process as they are, from the options, which are read before the first allocation, or as
/// set since.
///
/// ```
/// use hakmem::Limits;
///
/// hakmem::set_limits(Limits { hard: 1 << 30, ..hakmem::limits() }).unwrap();
/// assert_eq!(hakmem::limits(), Limits { soft: 0, hard: 1 << 30 });
/// # hakmem::set_limits(Limits::default()).unwrap();
/// ```
pub fn limits() -> Limits {
    let (soft, hard) = held::limits();
    Limits { soft, hard }
}

/// The bytes that count against the limits, as they are now: [`Stats::bytes_held`](crate::Stats::bytes_held)
/// by itself. What [`set_limits`] says of it holds whether there are limits or not.
///
/// One atomic load: a service may ask at every request, and shed load before an allocation is refused. Other
/// threads may grow or give back meanwhile. It falls when memory goes back to the system, not when a block is
/// freed.
///
/// ```
/// let limit = hakmem::limits().soft;
/// if limit != 0 && hakmem::bytes_held() > limit / 10 * 9 {
///     // Refuse new work, or drop what is cached.
/// }
/// ```
pub fn bytes_held() -> usize {
    held::bytes()
}

/// Sets the hook that is called when the soft limit has been crossed. It replaces the one set before; `None`
/// removes it.
///
/// The hook gets the bytes held and the limit. It is called once per crossing: again only after the bytes
/// held have fallen below the limit by an eighth. It runs on the allocating thread, in the middle of the
/// allocation, with none of the allocator's locks held. So it may allocate and free, but it must not wait for
/// a lock that a thread may hold while it allocates. One thread at a time calls it, and never recursively: a
/// crossing while it runs is not reported. A hook that panics ends the process.
///
/// ```
/// hakmem::on_soft_limit(Some(|held, limit| eprintln!("{held} bytes held, of {limit} that are wanted")));
/// # hakmem::on_soft_limit(None);
/// ```
pub fn on_soft_limit(hook: Option<fn(held: usize, limit: usize)>) {
    CONFIG.lock().set_hook(hook.map_or(Hook::None, Hook::Rust));
}

/// The hook as C has it. Arguments: bytes held, the limit, and the pointer that was set with the hook.
pub type CHook = unsafe extern "C" fn(usize, usize, *mut c_void);

/// Like [`on_soft_limit`], for C: `argument` is passed to the hook.
pub fn on_soft_limit_c(hook: Option<CHook>, argument: *mut c_void) {
    CONFIG.lock().set_hook(hook.map_or(Hook::None, |hook| Hook::C(hook, argument)));
}

#[derive(Clone, Copy)]
enum Hook {
    None,
    Rust(fn(usize, usize)),
    C(CHook, *mut c_void),
}

struct Config {
    /// Whether the program has set limits, which then take precedence over the options.
    chosen: bool,
    /// The current hook and the one before. A hook is written to the place that is not current, so the child
    /// of a fork always finds a whole one.
    hooks: Table<Hook, 2>,
    current: AtomicUsize,
}

impl Config {
    fn set_hook(&mut self, hook: Hook) {
        let next = 1 - self.current.load(Ordering::Relaxed);
        self.hooks[next] = hook;
        // Release: the hook must be stored before the index. Its partner is no load but a fork at any
        // instruction: the child reads both in `hook`. Other threads read them under the lock.
        self.current.store(next, Ordering::Release);
    }

    fn hook(&self) -> Hook {
        self.hooks[self.current.load(Ordering::Relaxed)]
    }
}

// SAFETY: everything but the argument of a C hook is plain data. That argument is only passed on to the hook,
// and by setting it the program has agreed that any thread may do so.
unsafe impl Send for Config {}

impl Inherit for Config {
    fn inherit(&mut self, _torn: bool) {}
}

static CONFIG: Lock<Config> =
    Lock::new(Config { chosen: false, hooks: Table([Hook::None; 2]), current: AtomicUsize::new(0) });
/// The thread that is running the hook, or 0.
static HOOK_RUNNER: AtomicUsize = AtomicUsize::new(0);

/// Takes the limits from the options, unless the program has set its own.
pub(crate) fn init(options: &Options) {
    // Under the lock, like `set_limits`: what the program sets meanwhile stays.
    if let Some(config) = CONFIG.lock_soon() {
        if !config.chosen {
            held::set(options.soft_limit, options.hard_limit);
        }
    }
}

/// Calls the hook if the soft limit has just been crossed. The caller holds none of the allocator's locks,
/// and its heap is in a consistent state.
pub(crate) fn report_crossing() {
    let Some((held, limit)) = held::crossed() else { return };
    // Acquire: pairs with the release below, so that a run of the hook sees what the run before has done.
    if HOOK_RUNNER.compare_exchange(0, thread::id(), Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    if let Some(hook) = CONFIG.lock_soon().map(|config| config.hook()) {
        // A successful allocation must leave `errno` alone.
        os::keep_errno(|| call(&hook, held, limit));
    }
    // Release: pairs with the acquire above.
    HOOK_RUNNER.store(0, Ordering::Release);
}

/// Runs the hook. `extern "C"`, so that a panic in the hook ends the process: no allocation may unwind.
extern "C" fn call(hook: &Hook, held: usize, limit: usize) {
    match *hook {
        Hook::None => (),
        Hook::Rust(hook) => hook(held, limit),
        // SAFETY: the program set this function together with this argument, and `on_soft_limit_c` demands
        // this type.
        Hook::C(hook, argument) => unsafe { hook(held, limit, argument) },
    }
}

/// Repairs the limits and the hook in the child of a fork.
pub(crate) fn inherit() {
    CONFIG.inherit();
    held::reset_in_child();
    returning::reset_in_child();
    // A hook that another thread was running does not run here. But the caller's own hook may have forked.
    if HOOK_RUNNER.load(Ordering::Relaxed) != thread::id() {
        HOOK_RUNNER.store(0, Ordering::Relaxed);
    }
}
