//! How a thread gets its heap, and what happens to the heap when the thread ends.

use crate::base::options::{Hardened, Options};
use crate::base::table::Table;
use crate::base::{limits, options};
use crate::front::heap::{AFTER_EXIT, EMPTY, Heap, NO_HEAP};
use crate::front::{lease, registry, tls};
use crate::guard;
use crate::hardened;
use crate::lockfree::waker;
use crate::os;
use crate::os::{futex, process};
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use core::ffi::c_void;
use core::ptr;

/// The key whose destructor is the exit hook. See [`set_hook`].
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;
/// Threads that are using the key at the moment.
static KEY_USERS: AtomicUsize = AtomicUsize::new(0);
/// Milliseconds that a new thread waits at most, in the child of a fork, for the thread that is repairing the
/// allocator.
const WAITS: u32 = 100;
/// Rounds of destructors when a thread ends: PTHREAD_DESTRUCTOR_ITERATIONS of glibc and musl, and the least
/// that POSIX allows.
const ROUNDS: u32 = 4;
/// How many frees of a thread without a heap do not give it one: as many as most threads of glibc make at
/// most when they are past their destructors, one or more for each stack that is unmapped.
const FEW: usize = 16;

/// Runs `f` with the calling thread's heap. A thread that has none gets one first; `f` gets null when there
/// is no memory for that.
///
/// A thread whose exit hook has run borrows a heap for this call only, because nothing would give it back
/// later.
#[inline]
pub(crate) fn with_heap<T>(options: Option<&Options>, f: impl FnOnce(*mut Heap) -> T) -> T {
    let heap = tls::get();
    if !is_placeholder(heap) {
        return f(heap);
    }
    if ptr::eq(heap, &raw const AFTER_EXIT) { with_borrowed(false, f) } else { f(attach(options)) }
}

/// As [`with_heap`], for a free. A thread without a heap borrows one for its first few frees, too: it may be
/// ending, and past the C library's destructors, so that nothing would give the heap back.
pub(crate) fn with_heap_to_free<T>(f: impl FnOnce(*mut Heap) -> T) -> T {
    if is_one_of_few() { with_borrowed(false, f) } else { with_heap(None, f) }
}

/// Runs `f` with a heap that the calling thread has for this call only, or with null. It may keep what is in
/// quarantine, for whoever has it next.
fn with_borrowed<T>(keeps_quarantine: bool, f: impl FnOnce(*mut Heap) -> T) -> T {
    let heap = registry::borrow();
    let result = f(heap);
    if !heap.is_null() {
        // SAFETY: the calling thread has borrowed it above, and does not use it after this.
        unsafe { registry::return_heap(heap, keeps_quarantine) };
    }
    result
}

/// What the calling thread's samples are charged to: see [`Heap::tag`].
pub(crate) fn tag() -> u32 {
    // SAFETY: the calling thread's heap or a placeholder, which has no tag.
    unsafe { (*tls::get()).tag.get() }
}

/// Sets what [`tag`] returns, and returns what it was. A thread that cannot have a heap has no tag.
pub(crate) fn set_tag(tag: u32) -> u32 {
    with_heap(None, |heap| {
        // No reference to the whole heap: visitors change other parts of it.
        // SAFETY: `with_heap` passes null or a heap that the calling thread owns.
        if heap.is_null() { 0 } else { unsafe { (*heap).tag.replace(tag) } }
    })
}

/// The calling thread's heap, or null when it has none.
pub(crate) fn own_heap() -> *mut Heap {
    let heap = tls::get();
    if is_placeholder(heap) { NO_HEAP } else { heap }
}

/// The calling thread's heap, which it gets first if it has none. Null when there is no memory for that, or
/// the thread's exit hook has run.
pub(crate) fn lasting_heap() -> *mut Heap {
    if has_none_yet() { attach(None) } else { own_heap() }
}

/// Runs `f` with what [`lasting_heap`] returns, for a free in hardened mode. A thread without a heap borrows
/// one for its first few frees: see [`with_heap_to_free`]. What they put in quarantine stays there.
pub(crate) fn with_heap_to_hold<T>(f: impl FnOnce(*mut Heap) -> T) -> T {
    if is_one_of_few() { with_borrowed(true, f) } else { f(lasting_heap()) }
}

/// Whether the calling thread has no heap yet, and this is one of the first [`FEW`] frees for which it asks,
/// or it is known to be past its destructors.
#[inline(always)]
fn is_one_of_few() -> bool {
    has_none_yet() && counts_as_few()
}

#[inline(always)]
fn has_none_yet() -> bool {
    ptr::eq(tls::get(), &raw const EMPTY)
}

/// [`is_one_of_few`], of a thread without a heap.
///
/// A thread of glibc that ends frees what belongs to the stacks of others that have ended, after the last
/// destructors of keys. Nothing that is cheap tells that it is ending. But what it has stored with our key is
/// gone by then: so the frees are counted there, in the place of a heap. A thread with a large stack may
/// unmap hundreds of small ones at its end: so from then on the system is asked.
#[cold]
#[inline(never)]
fn counts_as_few() -> bool {
    // As `attach` does. While another thread repairs the allocator, that waits.
    !process::look_before_heap()
        && with_key(|key| {
            // SAFETY: our key, which is not deleted meanwhile.
            let frees = unsafe { libc::pthread_getspecific(key) }.addr();
            let counted = ptr::without_provenance_mut::<c_void>(frees.wrapping_add(1));
            let is_few = frees < FEW || os::thread::is_past_destructors();
            // SAFETY: the same. The exit hook does not use what is stored.
            is_few && unsafe { libc::pthread_setspecific(key, counted) } == 0
        })
        // What stores a value may have allocated.
        && has_none_yet()
}

/// Whether `heap` is what stands for one while a thread has none.
#[inline(always)]
pub(crate) fn is_placeholder(heap: *mut Heap) -> bool {
    ptr::eq(heap, &raw const EMPTY) || ptr::eq(heap, &raw const AFTER_EXIT)
}

/// Detaches the calling thread from its heap without giving that up: the thread goes on as if it had never
/// had one.
pub(crate) fn leave_heap() {
    tls::set((&raw const EMPTY).cast_mut());
    // The C library runs no destructor for a null value.
    set_hook(ptr::null_mut());
}

/// Sets the exit hook of the calling thread to run with `heap`, or not at all if that is null. False on
/// failure, which includes that there is no key.
fn set_hook(heap: *mut Heap) -> bool {
    // SAFETY: our key, which nobody deletes while it has users.
    with_key(|key| unsafe { libc::pthread_setspecific(key, heap.cast::<c_void>()) } == 0)
}

/// Runs `f` with our key, which nobody deletes meanwhile. False when there is none, or `f` says so.
fn with_key(f: impl FnOnce(u32) -> bool) -> bool {
    // SeqCst, on both words here and in `give_up_key`: either that sees this user, or this user sees that the
    // key is gone.
    KEY_USERS.fetch_add(1, Ordering::SeqCst);
    let key = KEY.load(Ordering::SeqCst);
    let done = key != NO_KEY && f(key);
    // Release: pairs with the load of `KEY_USERS` in `give_up_key`; the key has been used by then.
    // It may be 0 in the child of a fork by a signal handler that has interrupted us: see `forget_key_users`.
    let _ = KEY_USERS.fetch_update(Ordering::Release, Ordering::Relaxed, |users| users.checked_sub(1));
    done
}

/// Gives our key back to the C library. False when there is none, or when some thread does not stop using it.
/// Afterwards there are no exit hooks: the heap of a thread that has ended is given up when a new thread has
/// the same [id](os::thread::id). Until then only visitors take back what lies idle in it.
#[cold]
pub(crate) fn give_up_key() -> bool {
    let key = KEY.swap(NO_KEY, Ordering::SeqCst);
    if key == NO_KEY {
        return false;
    }
    // Not for ever: a signal handler may have interrupted a user and wait for us.
    let unused = (0..10).any(|_| {
        // SeqCst: see `set_hook`. As an acquire it pairs with the release there.
        KEY_USERS.load(Ordering::SeqCst) == 0 || {
            futex::pause();
            false
        }
    });
    if !unused {
        KEY.store(key, Ordering::SeqCst);
        return false;
    }
    // SAFETY: our key. Nobody uses it now, and whoever asks from here on finds `NO_KEY`.
    unsafe { libc::pthread_key_delete(key) == 0 }
}

/// In the child of a fork, by its only thread: the others that were using the key do not exist here.
pub(crate) fn forget_key_users() {
    KEY_USERS.store(0, Ordering::Relaxed);
}

/// Deletes the key, so that no exit hook runs any more, and gives up the calling thread's heap. From now on
/// it borrows heaps, also if it has had none: it would never give one up.
pub(crate) fn unhook() {
    give_up_key();
    let heap = own_heap();
    tls::set((&raw const AFTER_EXIT).cast_mut());
    if !heap.is_null() {
        // SAFETY: it was this thread's, which borrows heaps from now on and has no use for this one.
        unsafe { registry::release_heap(heap) };
    }
}

/// Whether this serves C, as the library's constructor says.
static IN_C: AtomicBool = AtomicBool::new(false);

/// Whether blocks in magazines carry half of their marks, as `free` leaves them in C. In Rust some do, too,
/// where a library calls C's functions: then it takes longer to free one of them.
pub(super) fn is_in_c() -> bool {
    // Relaxed: set once, mostly before any thread had its heap.
    IN_C.load(Ordering::Relaxed)
}

/// Says that this serves C, or, for tests in a process of their own, not.
pub(crate) fn set_in_c(c: bool) {
    IN_C.store(c, Ordering::Relaxed);
}

/// Gives the calling thread a heap, and initialises the allocator if this is its first. Null when there is no
/// memory.
#[cold]
#[inline(never)]
fn attach(base: Option<&Options>) -> *mut Heap {
    // In the child of a fork, while the thread that survived repairs the allocator.
    for _ in 0..WAITS {
        if !process::look_before_heap() {
            break;
        }
        futex::pause();
    }
    options::init(base.unwrap_or(&const { Options::new() }), |options| {
        registry::init();
        limits::init(options);
        if options.hardened != Hardened::OFF {
            hardened::init(options, os::random());
        }
        guard::init(options);
        if guard::is_on() {
            lease::arm_from_the_start();
        }
        if options.few_syscalls {
            os::confine();
        }
        // Neither this nor anything before it allocates. Relaxed: `options::init` publishes it, by its own
        // release and acquire.
        KEY.store(late_key(), Ordering::Relaxed);
    });
    if KEY.load(Ordering::Relaxed) == NO_KEY {
        // SAFETY: this thread's id, and it has no heap.
        unsafe { registry::release_of(os::thread::id()) };
    }
    let heap = registry::acquire();
    if heap.is_null() {
        return heap;
    }
    // From here on this thread can allocate, as `set_hook` below may.
    tls::set(heap);
    // Not before: a signal handler that got here would find a heap with this thread's id, and give it up.
    // SAFETY: this thread's heap; the field is atomic.
    unsafe { (*heap).thread.store(os::thread::id(), Ordering::Relaxed) };
    // Once more after `reset`: a signal handler may have forked before `tls::set`, and this may be the child,
    // which then did not know that the heap is ours.
    // SAFETY: this thread's heap.
    unsafe { Heap::claim(heap) };
    set_hook(heap);
    heap
}

/// Creates the key of the exit hook; [`NO_KEY`] if there is none left.
///
/// With glibc it is the last of those for which `pthread_setspecific` needs no memory, if that is free. A
/// library in another namespace (`dlmopen`) has a C library of its own, which gives out the same keys from
/// the first one on, and both store in the same place of the same thread.
fn late_key() -> u32 {
    const LAST: u32 = 31;
    // glibc gives out the lowest free key.
    let mut created = Table([NO_KEY; LAST as usize + 1]);
    let mut count = 0;
    while count == 0 || (cfg!(target_env = "gnu") && created[count - 1] < LAST) {
        // SAFETY: the key is written to a place of ours, and the hook uses nothing that it is given.
        if unsafe { libc::pthread_key_create(&mut created[count], Some(on_thread_exit)) } != 0 {
            created[count] = NO_KEY;
            break;
        }
        count += 1;
    }
    if count > 1 && created[count - 1] > LAST {
        count -= 1;
    }
    let kept = if count == 0 { NO_KEY } else { created[count - 1] };
    for other in created.0.into_iter().filter(|&other| other != NO_KEY && other != kept) {
        // SAFETY: created here, and nobody else knows it.
        unsafe { libc::pthread_key_delete(other) };
    }
    kept
}

/// The exit hook. It asks to run again as long as other destructors still use the heap and the C library has
/// rounds left. Destructors that run after the last round can still allocate and free.
///
/// What [`set_hook`] has stored may have been replaced meanwhile, by a library in another namespace that has
/// the same key: so the heap is the one that TLS knows.
extern "C" fn on_thread_exit(_: *mut c_void) {
    let heap = own_heap();
    if heap.is_null() {
        return;
    }
    // SAFETY: the calling thread, which is ending, owns the heap. Once TLS has the placeholder, nothing in
    // this thread uses it any more.
    unsafe {
        let (exit, activity) = (&(*heap).exit, Heap::own_activity(heap));
        let rounds = exit.rounds.get() + 1;
        exit.rounds.set(rounds);
        let used = exit.activity.replace(activity) != activity || rounds == 1;
        if used && rounds < ROUNDS && set_hook(heap) {
            return;
        }
        tls::set((&raw const AFTER_EXIT).cast_mut());
        registry::release_heap(heap);
    }
    // A background thread of ours would keep the process from ending with its last thread.
    if registry::live() <= 1 {
        waker::rouse();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
