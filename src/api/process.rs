//! What a process needs once, besides heaps: handlers for forks and for its end, and the background thread if
//! there is to be one.

use crate::api::{fork, report, request, unload};
use crate::base::options::{self, Options};
use crate::front::heap::Heap;
use crate::front::thread;
use crate::os::process;
use crate::reclaim::background;
use crate::sync::{AtomicBool, Ordering};

/// Whether [`hook`] has been called.
static HOOKED: AtomicBool = AtomicBool::new(false);
/// Whether the C library tells the child of a fork that it is one.
static FORKS_ARE_TOLD: AtomicBool = AtomicBool::new(false);

/// Runs `f` with the calling thread's heap, as [`thread::with_heap`] does, and sets up the process before.
/// Rust's entries pass `options`, C's do not.
#[inline]
pub(super) fn with_heap<T>(options: Option<&Options>, f: impl FnOnce(*mut Heap) -> T) -> T {
    // Relaxed: see `hook`. Not only when the thread gets its heap: it may have needed one for something else.
    if !HOOKED.load(Ordering::Relaxed) {
        set_up(options);
    }
    thread::with_heap(options, f)
}

/// Initialises the allocator and registers its handlers, for Rust code: when that allocates, the C library is
/// ready for this. C code has the library's constructor instead: see [`hook`]. But the constructors of other
/// libraries, and the loader, may allocate before: only the profile, which needs nothing of the C library,
/// sees that.
#[cold]
#[inline(never)]
fn set_up(options: Option<&Options>) {
    match (thread::with_heap(options, |heap| heap.is_null()), options) {
        (true, _) => (),
        (_, Some(_)) => hook(),
        (_, None) => request::begin_profile(),
    }
}

/// Registers the handlers for forks and for the end of the process, once.
///
/// The functions of the C library for this have locks of their own, and allocate while they hold them. Where
/// the C library allocates from us, one of them may be what has called us, so there only the library's
/// constructor may call this. They never call Rust's entries.
#[cold]
pub(super) fn hook() {
    // Miri has neither fork nor exit handlers. Relaxed: only one caller goes on, and none waits for what it
    // does.
    if HOOKED.swap(true, Ordering::Relaxed) || cfg!(miri) {
        return;
    }
    // Once, and not for every thread: a child of a fork must not be ready before its handler says so.
    background::ready();
    process::on_fork(fork::on_fork);
    let told = forks_are_told();
    report::begin();
    request::begin();
    unload::init();
    if options::get().background && told {
        background::want();
    }
}

/// Registers the handler for forks, unless that has been done. Whether it is there.
fn forks_are_told() -> bool {
    // Relaxed: the C library has a lock for its handlers. One that is there twice does no harm.
    if !FORKS_ARE_TOLD.load(Ordering::Relaxed) {
        FORKS_ARE_TOLD.store(unload::at_fork(fork::child), Ordering::Relaxed);
    }
    FORKS_ARE_TOLD.load(Ordering::Relaxed)
}

/// Starts the background thread, if there is none. Returns 0 or the system's error number.
pub fn start_background() -> i32 {
    // The process may not have allocated anything yet, and without the handlers its children would not be
    // repaired.
    if thread::with_heap(None, |heap| heap.is_null()) {
        return libc::ENOMEM;
    }
    hook();
    // In a child that is not told, a thread that it starts may be the first to notice; and then nobody takes
    // the background thread, which it does not have, out of the heap that it was visiting.
    if cfg!(not(miri)) && !forks_are_told() {
        return libc::ENOMEM;
    }
    background::start()
}
