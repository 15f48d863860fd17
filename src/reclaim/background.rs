//! The background thread: gives back what the program has released, without waiting for a call.
//!
//! It is off by default. It does what the program's threads do when they allocate and free, while they do
//! neither; and it empties the caches of idle threads, which no other thread does unasked.
//! There is at most one. It is started by a call; or by the option, when a thread *allocates* and the process
//! holds a few MiB by then. Never in `free`: the C library calls `free` while it holds the lock of its
//! stacks, and starting a thread takes that lock. It never allocates under it.

use crate::base::options;
use crate::front::{registry, thread};
use crate::hardened;
use crate::large;
use crate::lockfree::waker::{self, WAKER};
use crate::os::{self, futex, held, process};
use crate::reclaim::idle_heaps;
use crate::superslab::layout::SUPERSLAB;
use crate::superslab::{pool, purge};
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::ffi::c_void;
use core::ptr;

#[cfg(all(test, loom))]
mod model;

/// How often the thread has looked for memory to give back.
pub(crate) static PASSES: AtomicU64 = AtomicU64::new(0);
/// How often the thread has woken up.
pub(crate) static WAKEUPS: AtomicU64 = AtomicU64::new(0);

/// The state of the thread, and a futex: whoever needs it settled sleeps on it.
static STATE: AtomicU32 = AtomicU32::new(OFF);
const OFF: u32 = 0;
const STARTING: u32 = 1;
const ON: u32 = 2;
const STOPPING: u32 = 3;
/// Whether the thread has made the calls that a thread makes once, and that a filter may forbid. SeqCst, as
/// the exchange of [`STATE`] by who starts it, what `is_settled` loads of that, and whether the process is
/// confined: either who starts the thread sees that it is, or who confines it sees that one starts.
static IS_SETTLED: AtomicBool = AtomicBool::new(false);
/// The thread's id, for whoever joins it. Relaxed: stored before [`STATE`] is `ON`, loaded after.
static THREAD: AtomicUsize = AtomicUsize::new(0);

// Relaxed for the following: flags that publish nothing. What a new thread must see, starting it publishes.

/// Whether there is to be such a thread, also in the child of a fork.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Whether it may be started when a thread allocates. Not before the C library is ready to start threads: an
/// allocation by the dynamic loader may come earlier.
static READY: AtomicBool = AtomicBool::new(false);
/// When starting it last failed, in milliseconds; 0 for never.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// Milliseconds until the next try after a failure.
const RETRY: u32 = 10_000;
/// The fewest bytes held for blocks with which a process may have enough to give back to be worth a thread.
const MIN_HELD: usize = 2 * SUPERSLAB;
/// The shortest time between two passes, in milliseconds.
const MIN_PAUSE: u32 = 10;
/// The time between two passes is also at least this part of the purge delay.
const PAUSE_PART: u32 = 4;
/// Milliseconds until the thread looks again whether the process has other threads, when none of them has a
/// heap.
const ALONE: u32 = 100;
/// Milliseconds after which the thread looks at other threads' heaps although it was not woken: at first, and
/// at most, when it has found nothing for long.
const SHORTEST_LULL: u32 = 1000;
const LONGEST_LULL: u32 = 60_000;
/// How often the pause doubles at most while the system takes nothing back, because memory is locked.
const MAX_DOUBLINGS: u32 = 8;

/// From now on the process can start threads. In a child of a fork, too, this must be said first.
pub(crate) fn ready() {
    READY.store(true, Relaxed);
}

/// The option is on: start the thread when it is worth it. Called when the process begins.
pub(crate) fn want() {
    if os::is_confined() {
        return;
    }
    os::thread::note_cpus();
    WANTED.store(true, Relaxed);
}

/// Starts the thread if it is wanted and there is none. Only where a thread allocates (see above), and with
/// no lock held. If there is one, it hears that a thread is at work, whose heap it may have emptied.
#[inline]
pub(crate) fn tick() {
    if WANTED.load(Relaxed) {
        if STATE.load(Relaxed) == OFF { start_wanted() } else { waker::notify() }
    }
}

#[cold]
#[inline(never)]
fn start_wanted() {
    if !READY.load(Relaxed) {
        return;
    }
    let now = os::now_ms();
    let refused = REFUSED.load(Relaxed);
    let soon = refused != 0 && os::elapsed(refused, now) < RETRY;
    if soon || held::bytes() < MIN_HELD || os::is_confined() {
        return;
    }
    // In the child of a fork, `READY` is inherited: this clears it.
    process::look();
    // In a child of `vfork` it would be that process's.
    if READY.load(Relaxed) && !process::is_guest() && run(false) != 0 {
        REFUSED.store(now.max(1), Relaxed);
    }
}

/// Starts the thread if there is none. Returns 0 or an `errno` value. The process's fork handlers must be
/// installed.
pub(crate) fn start() -> i32 {
    if cfg!(miri) {
        return libc::ENOSYS;
    }
    if os::is_confined() {
        return libc::EPERM;
    }
    process::look();
    os::thread::note_cpus();
    ready();
    let wanted = WANTED.swap(true, Relaxed);
    let error = run(true);
    if error != 0 {
        WANTED.store(wanted, Relaxed);
    }
    error
}

/// Starts the thread if there is none, and it is still wanted. If another thread is starting or ending it,
/// waits for that with `wait`, and else leaves it to them.
fn run(wait: bool) -> i32 {
    loop {
        // SeqCst: see `IS_SETTLED`, and pairs with the release in `set`. Relaxed where it fails: then nothing
        // is done.
        match STATE.compare_exchange(OFF, STARTING, SeqCst, Relaxed) {
            Ok(_) => break,
            Err(ON) => return 0,
            Err(now) if wait => _ = futex::wait(STATE.as_ptr(), now, None),
            Err(_) => return 0,
        }
    }
    if os::is_confined_by_now() {
        set(OFF);
        return libc::EPERM;
    }
    if !WANTED.load(Relaxed) {
        set(OFF);
        return 0;
    }
    WAKER.reset();
    IS_SETTLED.store(false, SeqCst);
    match os::thread::spawn(main) {
        Ok(thread) => {
            THREAD.store(thread as usize, Relaxed);
            waker::WATCHED.store(options::get().purge_delay >= 0, Relaxed);
            set(ON);
            0
        }
        Err(error) => {
            set(OFF);
            error
        }
    }
}

/// Whether no thread is just starting, which makes more calls than later on.
pub(crate) fn is_settled() -> bool {
    match STATE.load(SeqCst) {
        OFF => true,
        STARTING => false,
        _ => IS_SETTLED.load(SeqCst),
    }
}

/// Ends the thread, if there is one, and waits until it has ended.
pub(crate) fn stop() {
    process::look();
    WANTED.store(false, Relaxed);
    loop {
        // Acquire, also on failure: pairs with the release in `set`. Whoever returns comes after the thread's
        // end, whichever caller has joined it.
        match STATE.compare_exchange(ON, STOPPING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(OFF) => return,
            Err(now) => _ = futex::wait(STATE.as_ptr(), now, None),
        }
    }
    waker::WATCHED.store(false, Relaxed);
    waker::stop();
    // SAFETY: `run` has stored what `spawn` returned. Only the caller that moved `STATE` from `ON` gets here,
    // so the thread is joined only once.
    unsafe { os::thread::join(THREAD.load(Relaxed) as libc::pthread_t) };
    set(OFF);
}

fn set(state: u32) {
    // Release: pairs with the acquires in `run` and `stop`.
    STATE.store(state, Ordering::Release);
    futex::wake(STATE.as_ptr());
}

/// Resets all this in the child of a fork, which has no such thread.
pub(crate) fn after_fork() {
    waker::WATCHED.store(false, Relaxed);
    WAKER.reset();
    STATE.store(OFF, Relaxed);
    READY.store(false, Relaxed);
}

/// The thread's main loop.
#[unsafe(link_section = "hakmem_rare")]
extern "C" fn main(_: *mut c_void) -> *mut c_void {
    os::thread::name(c"hakmem");
    os::thread::be_ordinary();
    IS_SETTLED.store(true, SeqCst);
    let delay = u32::try_from(options::get().purge_delay).ok();
    let pause = (delay.unwrap_or(0) / PAUSE_PART).max(MIN_PAUSE);
    let (mut fruitless, mut woken, mut lull) = (0, true, 0);
    loop {
        let left = pass();
        PASSES.fetch_add(1, Relaxed);
        fruitless = if left.refused { (fruitless + 1).min(MAX_DOUBLINGS) } else { 0 };
        if !WAKER.arm() {
            return ptr::null_mut();
        }
        // First arm, then look: see `waker`.
        let wait = match (delay, due(&left)) {
            // Nothing goes back unless asked for, so no dirty slice needs to wake us.
            (None, _) => Some(u32::MAX),
            (_, Some(due)) => Some(due.max(pause.saturating_mul(1 << fruitless))),
            // Slices that become dirty and are used again at once should not wake us each time.
            (_, None) if woken => Some(pause),
            (_, None) => None,
        };
        let wait = if is_alone() { Some(wait.unwrap_or(ALONE).min(ALONE)) } else { wait };
        if let Some(wait) = wait {
            waker::doze(wait, pause.min(ALONE));
            (woken, lull) = (false, 0);
        } else {
            lull = longer(lull, delay.unwrap_or(0));
            woken = waker::sleep(lull);
        }
        WAKEUPS.fetch_add(1, Relaxed);
    }
}

/// How long to sleep in milliseconds, unless woken, when nothing is to be given back, and nothing was after
/// `lull` either.
fn longer(lull: u32, delay: u32) -> u32 {
    lull.saturating_mul(2).clamp(SHORTEST_LULL.max(delay), LONGEST_LULL.max(delay))
}

/// Whether no other thread has a heap. If there is no other thread any more, sees to it that the process
/// ends, as it does with its last thread. (The first one may have left by `pthread_exit`.)
fn is_alone() -> bool {
    // After `arm`, and so before the last thread with a heap looks whether we sleep.
    if registry::live() > usize::from(!thread::own_heap().is_null()) {
        return false;
    }
    if os::thread::is_last() {
        // The C library runs what the program has to do at its end in the last thread: not on our stack,
        // which is small. Should there be no memory for another, we try again.
        let _ = os::thread::spawn_ample(end);
    }
    true
}

/// The last thread of a process that only has a background thread.
#[unsafe(link_section = "hakmem_rare")]
extern "C" fn end(_: *mut c_void) -> *mut c_void {
    stop();
    ptr::null_mut()
}

/// What is left after a pass.
struct Left {
    /// Something was due, but the system has taken nothing.
    refused: bool,
    /// Idle heaps still hold something.
    heaps: bool,
}

/// Gives back, piece by piece, what has been free longer than the purge delay. Holds no lock across a system
/// call.
fn pass() -> Left {
    if options::get().purge_delay < 0 {
        return Left { refused: false, heaps: false };
    }
    let aged = purge::aged(|| WAKER.is_stopped());
    large::tick();
    if hardened::is_on() {
        hardened::tick();
    }
    // What the pool was refused says nothing of the hardened heap, which tries nothing twice.
    let refused = aged == Some(0) && !hardened::is_on();
    Left { refused, heaps: idle_heaps::idle(os::now_ms()) }
}

/// Milliseconds until something may be due after a pass; `None` when nothing is dirty. Looks under the locks
/// that guard it, as the [waker](waker) needs; at the hardened heap's figures without, so those who change
/// them pay for a fence.
fn due(left: &Left) -> Option<u32> {
    let delay = u32::try_from(options::get().purge_delay).ok()?;
    let now = os::now_ms();
    let heaps = left.heaps.then_some(delay);
    let hardened = if hardened::is_on() { hardened::due_in(now, delay) } else { None };
    [pool::due_in(now), large::due_in(now), hardened, heaps].into_iter().flatten().min()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_longer_nothing_happens_the_less_often_the_thread_looks() {
        let looks = |delay| core::iter::successors(Some(0), move |&lull| Some(longer(lull, delay))).skip(1);
        assert!(looks(250).take(8).eq([1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]));
        assert!(looks(40_000).take(3).eq([40_000, 60_000, 60_000]));
        assert!(looks(u32::MAX).take(2).eq([u32::MAX; 2]));
    }

    /// In the child of a fork, which has no other thread.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn the_thread_starts_when_it_is_wanted_and_may_be_worth_it() {
        assert!(large::child::is_so(|| {
            let tick = || {
                tick();
                STATE.load(Relaxed)
            };
            while held::bytes() < MIN_HELD {
                assert!(!large::alloc(MIN_HELD, 1).ptr.is_null());
            }
            assert_eq!(tick(), OFF, "not wanted");
            want();
            assert_eq!(tick(), OFF, "the process cannot start threads yet");
            ready();
            let now = os::now_ms();
            // As if the clock stood still.
            REFUSED.store(now.wrapping_add(200_000), Relaxed);
            assert_eq!(tick(), OFF, "the system has just refused it");
            STATE.store(STARTING, Relaxed);
            assert_eq!((tick(), run(false)), (STARTING, 0), "another thread is at it");
            STATE.store(OFF, Relaxed);
            REFUSED.store(now.wrapping_sub(2 * RETRY), Relaxed);
            assert_eq!(tick(), ON);
            assert_eq!((run(true), run(false), tick()), (0, 0, ON), "there is one");
            assert!(waker::WATCHED.load(Relaxed));
            stop();
            assert_eq!((tick(), waker::WATCHED.load(Relaxed)), (OFF, false), "not wanted any more");
            assert_eq!((start(), tick()), (0, ON));
            // What a child has of this.
            after_fork();
            (tick(), READY.load(Relaxed), WANTED.load(Relaxed)) == (OFF, false, true)
        }));
    }
}
