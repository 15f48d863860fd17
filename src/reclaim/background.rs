//! The background thread: gives back what the program has let go of, without events.
//!
//! Off by default, and never needed: whatever it does, the threads of the program do too when they come by. It exists once
//! at most. It is started by a call, or by the option once the process holds a few MiB, when a thread is in the middle of
//! *allocating* something: the C library calls `free` while it holds the lock of its stacks, and starting a thread takes
//! that lock; it never allocates under it.

use crate::base::options;
use crate::lockfree::waker;
use crate::lockfree::waker::WAKER;
use crate::os;
use crate::os::futex::{Inherit, Lock};
use crate::os::{futex, held, process};
use crate::reclaim::pass;
use crate::superslab::layout::SUPERSLAB;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Times that it looked after everything, and times that it woke up.
pub(crate) static PASSES: AtomicU64 = AtomicU64::new(0);
/// See [`PASSES`].
pub(crate) static WAKEUPS: AtomicU64 = AtomicU64::new(0);

/// What there is of the thread; a futex. Those who find it changing wait.
static STATE: AtomicU32 = AtomicU32::new(OFF);
const OFF: u32 = 0;
const STARTING: u32 = 1;
const ON: u32 = 2;
const STOPPING: u32 = 3;
/// The thread, for whoever ends it.
static THREAD: Lock<Thread> = Lock::new(Thread(None));

struct Thread(Option<libc::pthread_t>);

// SAFETY: a name of a thread, which any thread may use.
unsafe impl Send for Thread {}

impl Inherit for Thread {
    fn inherit(&mut self, _torn: bool) {
        // It is not there.
        self.0 = None;
    }
}

/// Whether there is to be such a thread: in the child of a fork, too.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Whether it is to be started when a thread next allocates.
static PENDING: AtomicBool = AtomicBool::new(false);
/// Whether the C library is ready for that: an allocation can come from the dynamic loader before it is.
static READY: AtomicBool = AtomicBool::new(false);
/// When it last could not be started, in milliseconds, or 0.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// Milliseconds until it is tried again.
const RETRY: u32 = 10_000;
/// Bytes held for blocks from which a process has something to give back that is worth a thread.
const WORTH: usize = 2 * SUPERSLAB;
/// Passes are so many milliseconds apart at least, and so much of the purge delay.
const LEAST: u32 = 10;
/// See [`LEAST`].
const PART: u32 = 4;
/// How often the pause is doubled at most when the system takes nothing back: locked memory.
const DOUBLINGS: u32 = 8;

/// The process can start threads.
pub(crate) fn ready() {
    READY.store(true, Relaxed);
}

/// The option is on: the thread is to be started when it is worth while. The process has just begun.
pub(crate) fn want() {
    os::thread::note_cpus();
    WANTED.store(true, Relaxed);
    PENDING.store(true, Relaxed);
}

/// Starts the thread if it is to be started. Only where a thread allocates (see above), and under no lock.
#[inline]
pub(crate) fn tick() {
    if PENDING.load(Relaxed) {
        start_pending();
    }
}

#[cold]
#[inline(never)]
fn start_pending() {
    let now = os::now_ms();
    let refused = REFUSED.load(Relaxed);
    let soon = refused != 0 && os::elapsed(refused, now) < RETRY;
    if soon || !READY.load(Relaxed) || held::bytes() < WORTH || os::is_confined() {
        return;
    }
    // What a child has inherited is not for it.
    process::look();
    // Before the thread is started, which allocates.
    if PENDING.swap(false, Relaxed) && run(false) != 0 {
        REFUSED.store(now.max(1), Relaxed);
        PENDING.store(WANTED.load(Relaxed), Relaxed);
    }
}

/// Starts the thread, if there is none. 0, or the system's error number. The process hears of forks.
pub(crate) fn start() -> i32 {
    if cfg!(miri) {
        return libc::ENOSYS;
    }
    process::look();
    os::thread::note_cpus();
    ready();
    let error = run(true);
    if error == 0 {
        WANTED.store(true, Relaxed);
        PENDING.store(false, Relaxed);
    }
    error
}

/// Starts the thread, if there is none. When somebody else is at it: waits for that, or leaves it to them.
fn run(wait: bool) -> i32 {
    loop {
        // Acquire, here and on failure: pairs with the release in `set`.
        match STATE.compare_exchange(OFF, STARTING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(ON) => return 0,
            Err(now) if wait => futex::wait(STATE.as_ptr(), now, None),
            Err(_) => return 0,
        }
    }
    WAKER.reset();
    match os::thread::spawn(main) {
        Ok(thread) => {
            THREAD.lock().0 = Some(thread);
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

/// Ends the thread, if there is one, and waits until it is gone.
pub(crate) fn stop() {
    process::look();
    WANTED.store(false, Relaxed);
    PENDING.store(false, Relaxed);
    loop {
        // Acquire, here and on failure: pairs with the release in `set`.
        match STATE.compare_exchange(ON, STOPPING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(OFF) => return,
            Err(now) => futex::wait(STATE.as_ptr(), now, None),
        }
    }
    waker::WATCHED.store(false, Relaxed);
    waker::stop();
    let thread = THREAD.lock().0.take();
    if let Some(thread) = thread {
        // SAFETY: taken out, so nobody else waits for it.
        unsafe { os::thread::join(thread) };
    }
    set(OFF);
}

fn set(state: u32) {
    // Release: pairs with the acquire in `run` and `stop`.
    STATE.store(state, Ordering::Release);
    futex::wake(STATE.as_ptr());
}

/// In the child of a fork, which has no such thread.
pub(crate) fn after_fork() {
    THREAD.inherit();
    waker::WATCHED.store(false, Relaxed);
    WAKER.reset();
    STATE.store(OFF, Relaxed);
    PENDING.store(false, Relaxed);
}

/// In a child that can start threads: it is started again when it would be in a new process.
pub(crate) fn resume() {
    PENDING.store(WANTED.load(Relaxed), Relaxed);
}

/// What the thread does.
extern "C" fn main(_: *mut c_void) -> *mut c_void {
    os::thread::name(c"hakmem");
    os::thread::be_ordinary();
    let delay = u32::try_from(options::get().purge_delay).ok();
    let pause = (delay.unwrap_or(0) / PART).max(LEAST);
    let (mut fruitless, mut rung) = (0, true);
    loop {
        let result = pass::pass();
        PASSES.fetch_add(1, Relaxed);
        fruitless = if result == pass::Pass::Refused { (fruitless + 1).min(DOUBLINGS) } else { 0 };
        if !WAKER.arm() {
            return ptr::null_mut();
        }
        // Armed first, then looked: see `alarm`.
        let wait = match (delay, pass::due()) {
            // Nothing is given back unasked: no dirty page rings.
            (None, _) => Some(u32::MAX),
            (_, Some(due)) => Some(due.max(pause.saturating_mul(1 << fruitless))),
            // Whoever makes a page dirty and takes it again does not wake us each time.
            (_, None) if rung => Some(pause),
            (_, None) => None,
        };
        waker::sleep(wait);
        WAKEUPS.fetch_add(1, Relaxed);
        rung = wait.is_none();
    }
}
