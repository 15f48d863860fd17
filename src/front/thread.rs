//! Threads come and go: how one gets its heap, and what happens when it ends.

use super::heap::{EMPTY, EXITED, Heap, NO_HEAP};
use super::{fork, registry, tls, unload};
use crate::background;
use crate::limits;
use crate::options::{self, Options, StatsFormat};
use crate::os::file::{File, Identity};
use crate::os::{self, futex, message::Text, process};
use crate::stats;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::fmt::Write;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The key whose destructor is the exit hook. See [`with_key`].
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;
/// Threads that are using it.
static KEY_USERS: AtomicUsize = AtomicUsize::new(0);
/// Rounds of destructors when a thread ends: PTHREAD_DESTRUCTOR_ITERATIONS of glibc and musl, and the least that there may be.
const ROUNDS: u32 = 4;
static HOOKED: AtomicBool = AtomicBool::new(false);

/// Runs `f` with the calling thread's heap, getting it one first if it has none; `f` gets null when there is no memory.
///
/// A thread whose exit hook has run borrows a heap for this call only: nothing would give it back later.
#[inline]
pub(crate) fn with_heap<T>(options: Option<&Options>, f: impl FnOnce(*mut Heap) -> T) -> T {
    let heap = tls::get();
    if !is_placeholder(heap) {
        return f(heap);
    }
    if ptr::eq(heap, &raw const EXITED) {
        let heap = registry::acquire();
        let result = f(heap);
        if !heap.is_null() {
            // SAFETY: nobody else has it.
            unsafe { registry::release(heap) };
        }
        return result;
    }
    f(enter(options))
}

/// The calling thread's heap, or null when it has none.
pub(crate) fn own_heap() -> *mut Heap {
    let heap = tls::get();
    if is_placeholder(heap) { NO_HEAP } else { heap }
}

#[inline(always)]
fn is_placeholder(heap: *mut Heap) -> bool {
    ptr::eq(heap, &raw const EMPTY) || ptr::eq(heap, &raw const EXITED)
}

/// The calling thread goes on without the heap that it has, and without giving it up.
pub(super) fn leave_heap() {
    tls::set((&raw const EMPTY).cast_mut());
    // Without a value it has no hook.
    set_hook(ptr::null_mut());
}

/// Runs `f` with the key, while nobody gives it up. `None` when there is none.
fn with_key<T>(f: impl FnOnce(libc::pthread_key_t) -> T) -> Option<T> {
    // SeqCst, here and in `give_up_key`: either that sees the user, or the user sees that the key has gone.
    KEY_USERS.fetch_add(1, Ordering::SeqCst);
    let key = KEY.load(Ordering::SeqCst);
    let result = (key != NO_KEY).then(|| f(key));
    // Release: pairs with the acquire in `give_up_key`.
    KEY_USERS.fetch_sub(1, Ordering::Release);
    result
}

/// Has the exit hook run for the calling thread with `heap`, or not at all for null. False when that cannot be.
fn set_hook(heap: *mut Heap) -> bool {
    // SAFETY: our key.
    with_key(|key| unsafe { libc::pthread_setspecific(key, heap.cast::<c_void>()) }) == Some(0)
}

/// Gives our key back to the C library. False when there is none, or when a thread does not stop using it. From then on a thread's
/// end is noticed when another thread begins in its place, or by whoever gives memory back.
#[cold]
pub(super) fn give_up_key() -> bool {
    let key = KEY.swap(NO_KEY, Ordering::SeqCst);
    if key == NO_KEY {
        return false;
    }
    // A child of a fork may wait for a thread that it does not have.
    let unused = (0..10).any(|_| {
        // Acquire: pairs with the release in `with_key`.
        KEY_USERS.load(Ordering::SeqCst) == 0 || {
            futex::pause();
            false
        }
    });
    if !unused {
        KEY.store(key, Ordering::SeqCst);
        return false;
    }
    // SAFETY: our key, which nobody uses.
    unsafe { libc::pthread_key_delete(key) == 0 }
}

/// No thread's end is to be heard of any more, and the calling thread has no heap of its own any more.
pub(super) fn unhook() {
    give_up_key();
    let heap = own_heap();
    if !heap.is_null() {
        tls::set((&raw const EXITED).cast_mut());
        // SAFETY: it was this thread's.
        unsafe { registry::release(heap) };
    }
}

/// Gives the calling thread a heap.
#[cold]
#[inline(never)]
fn enter(base: Option<&Options>) -> *mut Heap {
    process::look_before_heap();
    options::init(base.unwrap_or(&const { Options::new() }), || {
        registry::init();
        limits::init(options::get());
        if options::get().few_syscalls {
            os::confine();
        }
        let mut key = 0;
        // SAFETY: `key` is writable. Neither this nor anything before it allocates.
        if unsafe { libc::pthread_key_create(&mut key, Some(on_thread_exit)) } == 0 {
            KEY.store(key, Ordering::Relaxed);
        }
    });
    if base.is_some() {
        // Rust code, which runs in a process that has been set up; the C library has a constructor to say so.
        background::ready();
    }
    if KEY.load(Ordering::Relaxed) == NO_KEY {
        // SAFETY: this thread has no heap, so those that say so are those of threads that have ended.
        unsafe { registry::release_of(os::thread::id()) };
    }
    let heap = registry::acquire();
    if heap.is_null() {
        return heap;
    }
    // From here on this thread can allocate, which what follows may do.
    tls::set(heap);
    // Only now: a signal handler in between would take it for one of a thread that has ended.
    // SAFETY: a record, which is never unmapped.
    unsafe { (*heap).thread.store(os::thread::id(), Ordering::Relaxed) };
    // Again: a signal handler may have forked meanwhile, and the child not have known the heap for ours.
    // SAFETY: it is.
    unsafe { registry::claim(heap) };
    set_hook(heap);
    if base.is_some() {
        hook_process();
    }
    heap
}

/// What the process needs once. It calls functions of the C library that have locks of their own and allocate while they hold them.
/// Where the C library allocates here, one of them may be the caller, so this is for its constructor; Rust code calls none.
#[cold]
pub(crate) fn hook_process() {
    // Miri has neither fork nor exit handlers.
    if cfg!(miri) || HOOKED.swap(true, Ordering::Relaxed) {
        return;
    }
    process::on_fork(fork::on_fork);
    // SAFETY: a handler that the C library forgets when it unloads the library that this is part of.
    unsafe { libc::pthread_atfork(None, None, Some(fork::child)) };
    if options::get().stats != StatsFormat::None && options::get().stats_file.as_c_str().is_none() {
        // Many programs close standard error before they exit, and our handler runs after theirs.
        STDERR.init();
    }
    unload::init();
    if options::get().stats == StatsFormat::Json && options::get().stats_file.as_c_str().is_some() {
        announce();
    }
    if options::get().background {
        background::want();
    }
}

/// Writes the start record: the process is on Hakmem, whatever becomes of it.
pub(crate) fn announce() {
    let mut text = Text::<128>::new();
    let pid = os::process_id();
    let _ =
        writeln!(text, "{{\"hakmem\":\"{}\",\"event\":\"start\",\"pid\":{pid}}}", env!("CARGO_PKG_VERSION"));
    with_stats_file(|fd| text.send(fd));
}

/// Prints the statistics that were asked for at exit.
pub(super) fn print_stats() {
    let format = options::get().stats;
    if format != StatsFormat::None {
        with_stats_file(|fd| stats::write(fd, format == StatsFormat::Json));
    }
}

/// Runs `f` with the file for statistics, or standard error. Not at all where that is not to be had any more: a daemon has closed
/// what it did not open itself, and the number may stand for a file of its own by now.
fn with_stats_file(f: impl FnOnce(i32)) {
    if let Some(path) = options::get().stats_file.as_c_str() {
        match File::append(path) {
            Some(file) => f(file.fd()),
            None => {
                let path = os::message::Shown(path.to_bytes());
                os::message::line(format_args!("HAKMEM_STATS_FILE: cannot open {path}"));
                f(2);
            }
        }
        return;
    }
    let Some(stderr) = STDERR.get() else { return };
    let is_it = |fd: &i32| Identity::of(*fd) == Some(stderr.identity);
    if let Some(fd) = [stderr.copy, 2].into_iter().find(is_it) {
        f(fd);
    }
}

/// Where statistics go when they do not go to a file.
#[derive(Clone, Copy)]
struct Stderr {
    /// A duplicate of standard error, which many programs close before they exit.
    copy: i32,
    identity: Identity,
}

/// [`Stderr`], written once by the thread that hooks the process.
struct StderrCell(UnsafeCell<Option<Stderr>>, AtomicBool);

// SAFETY: written once, before the flag is set, and read after that only.
unsafe impl Sync for StderrCell {}

static STDERR: StderrCell = StderrCell(UnsafeCell::new(None), AtomicBool::new(false));

impl StderrCell {
    /// Looks at what standard error is now.
    fn init(&self) {
        let stderr = Identity::of(2).map(|identity| Stderr { copy: os::duplicate(2), identity });
        // SAFETY: only `hook_process` calls this, which runs once.
        unsafe { *self.0.get() = stderr };
        // Release: pairs with the acquire in `get`.
        self.1.store(true, Ordering::Release);
    }

    fn get(&self) -> Option<Stderr> {
        // Acquire: pairs with the release in `init`.
        // SAFETY: written before, and not again.
        self.1.load(Ordering::Acquire).then(|| unsafe { *self.0.get() }).flatten()
    }
}

/// The exit hook: runs again, as long as other destructors still use the heap and the C library has rounds left. What runs after
/// the last one can still allocate and free.
unsafe extern "C" fn on_thread_exit(heap: *mut c_void) {
    let heap = heap.cast::<Heap>();
    // SAFETY: the value that `enter` set for this thread, whose heap it is.
    unsafe {
        let (exit, tops) = (&(*heap).exit, Heap::tops(heap));
        let rounds = exit.rounds.get() + 1;
        exit.rounds.set(rounds);
        let used = exit.tops.replace(tops) != tops || rounds == 1;
        if used && rounds < ROUNDS && set_hook(heap) {
            return;
        }
        tls::set((&raw const EXITED).cast_mut());
        registry::release(heap);
    }
}
