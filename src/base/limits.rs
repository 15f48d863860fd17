//! Limits on the bytes held from the system, set while the program runs, and the hook that hears of the soft one.

use crate::base::options::Options;
use crate::base::table::Table;
use crate::os;
use crate::os::futex::{Inherit, Lock};
use crate::os::{held, thread};
use core::ffi::c_void;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Limits on the bytes that the allocator holds from the system; 0 is none. See [`set_limits`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes. Before the allocator grows beyond, it gives back what it can; if it has to grow all the same, it does, and
    /// calls the hook of [`on_soft_limit`].
    pub soft: usize,
    /// Bytes. The allocator does not grow beyond: what cannot be had without is refused, as if the system had no memory.
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

/// Sets the limits of the process, in place of those that were set before or came from the options.
///
/// What counts is what [`Stats::bytes_held`](crate::Stats::bytes_held) says: SuperSlabs, 2 MiB each, and mappings of blocks
/// above 960 KiB, those that are free or kept for reuse included. The allocator's own books (some KiB for each thread, a byte
/// for each 64 KiB) are not counted, and a thread can start at the limit. There is never more held than the hard limit
/// allows, however many threads allocate; before an allocation is refused, everything is given back that
/// [`purge`](crate::api::global::purge) can give back. A limit below what is held takes nothing away: only growth is refused. Small blocks need a SuperSlab.
///
/// While more than the soft limit is held, memory is given back again each time that another 16th of the limit (at least 2
/// MiB) has been grown by.
///
/// # Errors
///
/// [`InvalidLimits`], and nothing changed, if there are both and the soft one is above the hard one.
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

/// Sets what is called when the soft limit has been crossed, in place of what was set before; `None` for nothing.
///
/// The hook gets the bytes held and the limit. It is called once for each crossing: again only after what is held has
/// fallen below the limit by an eighth. It runs on the thread that allocates, in the middle of the allocation and outside of
/// the allocator's locks, so it may allocate and free; it must not wait for a lock that a thread may hold while it
/// allocates. It is called by one thread at a time, and not again while it runs: a crossing meanwhile is not told. A hook
/// that panics ends the process.
///
/// ```
/// hakmem::on_soft_limit(Some(|held, limit| eprintln!("{held} bytes held, of {limit} that are wanted")));
/// # hakmem::on_soft_limit(None);
/// ```
pub fn on_soft_limit(hook: Option<fn(held: usize, limit: usize)>) {
    CONFIG.lock().set_hook(hook.map_or(Hook::None, Hook::Rust));
}

/// C's form of the hook: bytes held, limit, and the argument that was set with it.
pub type CHook = unsafe extern "C" fn(usize, usize, *mut c_void);

/// Like [`on_soft_limit`], for C.
pub(crate) fn on_soft_limit_c(hook: Option<CHook>, argument: *mut c_void) {
    CONFIG.lock().set_hook(hook.map_or(Hook::None, |hook| Hook::C(hook, argument)));
}

#[derive(Clone, Copy)]
enum Hook {
    None,
    Rust(fn(usize, usize)),
    C(CHook, *mut c_void),
}

struct Config {
    /// Whether the program has set limits, over which the options do not go.
    chosen: bool,
    /// The hook in force and the one before: the child of a fork finds the one in force whole.
    hooks: Table<Hook, 2>,
    current: AtomicUsize,
}

impl Config {
    fn set_hook(&mut self, hook: Hook) {
        let next = 1 - self.current.load(Ordering::Relaxed);
        self.hooks[next] = hook;
        // Release: in this order, see above.
        self.current.store(next, Ordering::Release);
    }

    fn hook(&self) -> Hook {
        self.hooks[self.current.load(Ordering::Relaxed)]
    }
}

// SAFETY: only used under the lock. What C's hook gets is the program's to share.
unsafe impl Send for Config {}

impl Inherit for Config {
    fn inherit(&mut self, _torn: bool) {}
}

static CONFIG: Lock<Config> =
    Lock::new(Config { chosen: false, hooks: Table([Hook::None; 2]), current: AtomicUsize::new(0) });
/// The thread that runs the hook, or 0.
static TELLING: AtomicUsize = AtomicUsize::new(0);

/// Takes the limits from the options.
pub(crate) fn init(options: &Options) {
    if CONFIG.lock_soon().is_some_and(|config| !config.chosen) {
        held::set(options.soft_limit, options.hard_limit);
    }
}

/// Calls the hook if the soft limit has just been crossed. Of the allocator's the caller holds no lock, and its heap is not
/// in the middle of anything.
pub(crate) fn tell() {
    let Some((held, limit)) = held::crossed() else { return };
    // Acquire: pairs with the release below, so that one run of the hook sees what the last has done.
    if TELLING.compare_exchange(0, thread::id(), Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    if let Some(hook) = CONFIG.lock_soon().map(|config| config.hook()) {
        // An allocation that succeeds leaves `errno` alone.
        os::keep_errno(|| call(&hook, held, limit));
    }
    TELLING.store(0, Ordering::Release);
}

/// `extern "C"`: what unwinds into it ends the process, for no allocation may.
extern "C" fn call(hook: &Hook, held: usize, limit: usize) {
    match *hook {
        Hook::None => (),
        Hook::Rust(hook) => hook(held, limit),
        // SAFETY: the program's function, of that type, with the argument that it belongs to.
        Hook::C(hook, argument) => unsafe { hook(held, limit, argument) },
    }
}

/// In the child of a fork.
pub(crate) fn inherit() {
    CONFIG.inherit();
    held::reset_in_child();
    // Another thread's hook does not run here; the caller's may have forked.
    if TELLING.load(Ordering::Relaxed) != thread::id() {
        TELLING.store(0, Ordering::Relaxed);
    }
}
