//! Threads come and go: how one gets its heap, and what happens when it ends.

use crate::base::options::Options;
use crate::base::{limits, options};
use crate::front::heap::{EMPTY, EXITED, Heap, NO_HEAP};
use crate::front::{registry, tls};
use crate::os;
use crate::os::{futex, process};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The key whose destructor is the exit hook. See [`with_key`].
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;
/// Threads that are using it.
static KEY_USERS: AtomicUsize = AtomicUsize::new(0);
/// How often a new thread waits a millisecond for the one that is looking after the child of a fork.
const WAITS: u32 = 100;
/// Rounds of destructors when a thread ends: PTHREAD_DESTRUCTOR_ITERATIONS of glibc and musl, and the least that there may be.
const ROUNDS: u32 = 4;

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
            unsafe { registry::release_heap(heap) };
        }
        return result;
    }
    f(enter(options))
}

/// Whether the calling thread has had no heap yet.
#[inline(always)]
pub(crate) fn is_new() -> bool {
    ptr::eq(tls::get(), &raw const EMPTY)
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
pub(crate) fn leave_heap() {
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
pub(crate) fn give_up_key() -> bool {
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
pub(crate) fn unhook() {
    give_up_key();
    let heap = own_heap();
    if !heap.is_null() {
        tls::set((&raw const EXITED).cast_mut());
        // SAFETY: it was this thread's.
        unsafe { registry::release_heap(heap) };
    }
}

/// Gives the calling thread a heap.
#[cold]
#[inline(never)]
fn enter(base: Option<&Options>) -> *mut Heap {
    // In the child of a fork, while the thread that survived looks after it.
    for _ in 0..WAITS {
        if !process::look_before_heap() {
            break;
        }
        futex::pause();
    }
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
    unsafe { Heap::claim(heap) };
    set_hook(heap);
    heap
}

/// The exit hook: runs again, as long as other destructors still use the heap and the C library has rounds left. What runs after
/// the last one can still allocate and free.
unsafe extern "C" fn on_thread_exit(heap: *mut c_void) {
    let heap = heap.cast::<Heap>();
    // SAFETY: the value that `enter` set for this thread, whose heap it is.
    unsafe {
        let (exit, tops) = (&(*heap).exit, Heap::magazine_figure(heap));
        let rounds = exit.rounds.get() + 1;
        exit.rounds.set(rounds);
        let used = exit.tops.replace(tops) != tops || rounds == 1;
        if used && rounds < ROUNDS && set_hook(heap) {
            return;
        }
        tls::set((&raw const EXITED).cast_mut());
        registry::release_heap(heap);
    }
}
