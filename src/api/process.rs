//! What the process needs once, besides heaps: to hear of forks and of its end, and the background thread if there is to be one.

use crate::api::{fork, report, unload};
use crate::base::options::{self, Options};
use crate::front::heap::Heap;
use crate::front::thread;
use crate::os::process;
use crate::reclaim::background;
use core::sync::atomic::{AtomicBool, Ordering};

static HOOKED: AtomicBool = AtomicBool::new(false);

/// Runs `f` with the calling thread's heap, as [`thread::with_heap`] does. For Rust code, which says its `options`, this also sets
/// up the process.
#[inline]
pub(super) fn with_heap<T>(options: Option<&Options>, f: impl FnOnce(*mut Heap) -> T) -> T {
    if options.is_some() && thread::is_new() {
        set_up(options);
    }
    thread::with_heap(options, f)
}

/// Rust code runs in a process that has been set up by then; the C library has a constructor to say so.
#[cold]
#[inline(never)]
fn set_up(options: Option<&Options>) {
    if !thread::with_heap(options, |heap| heap.is_null()) {
        background::ready();
        hook();
    }
}

/// Has us hear of forks and of the end. This calls functions of the C library that have locks of their own and allocate while they hold them.
/// Where the C library allocates here, one of them may be the caller, so this is for its constructor; Rust code calls none.
#[cold]
pub(super) fn hook() {
    // Miri has neither fork nor exit handlers.
    if cfg!(miri) || HOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    process::on_fork(fork::on_fork);
    // SAFETY: a handler that the C library forgets when it unloads the library that this is part of.
    unsafe { libc::pthread_atfork(None, None, Some(fork::child)) };
    report::begin();
    unload::init();
    if options::get().background {
        background::want();
    }
}

/// Starts the background thread, if there is none. 0, or the system's error number.
pub(super) fn start_background() -> i32 {
    // The process may not have allocated anything yet; without this, nothing would be done about a fork.
    if thread::with_heap(None, |heap| heap.is_null()) {
        return libc::ENOMEM;
    }
    hook();
    background::start()
}
