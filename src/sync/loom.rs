//! Atomics for the models: of the same size as core's, made in constants and of raw memory like them, and
//! loom's while a model runs.
//!
//! Loom's own atomics are objects with a constructor that is neither constant nor free, so statics, and
//! records that lie in mapped memory, cannot hold them. Here the memory holds core's atomic, and its address
//! stands for one of loom's. That one is bound to the address when it is first used in an execution, with the
//! value that lies there. It was made before the model's first step, so all threads see that value. What the
//! model stores goes to the memory, too, for those who read it plainly. Where the memory holds something else
//! than was stored last, it has been written plainly, or is another object now: that counts as a relaxed
//! store by whoever finds it.
//!
//! Statics are put back to their values after each execution. What they guard is up to the model.

use self::atomics::{w8, w32, w64};
use core::sync::atomic as real;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::vec::Vec;

pub(crate) use self::atomics::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
};
pub(crate) use core::sync::atomic::Ordering;

mod atomics;

/// How many of loom's atomics of each width a model may use; one of statics four times as many. Making them
/// is most of what a short execution costs.
const SPARE: usize = 16;
const SHORT: &str = "a model uses more atomics than `SPARE` allows for";

std::thread_local! {
    /// [`SPARE`], for the model that runs here.
    static SPARES: Cell<usize> = const { Cell::new(SPARE) };
    /// Whether a model runs here. Loom runs all of its threads on one of the system's.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    /// Loom's threads, in the order in which they have asked for their number.
    static THREADS: RefCell<Vec<loom::thread::ThreadId>> = const { RefCell::new(Vec::new()) };
}

/// Lets the next model of this thread use so many atomics of each width.
pub(crate) fn spare(count: usize) {
    SPARES.set(count);
}

/// Runs a model, with all that loom lets a thread do, or as many changes of thread at most as `bound` says
/// beside those where a thread waits or ends.
pub(crate) fn model(bound: Option<usize>, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(bound);
    builder.max_branches = 20_000;
    builder.check(move || {
        begin();
        f();
        end();
    });
}

/// [`model`], for those that use statics: one at a time.
pub(crate) fn model_of_statics(bound: Option<usize>, f: impl Fn() + Sync + Send + 'static) {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let _put_back = PutBack;
    SPARES.set(SPARES.get().max(4 * SPARE));
    model(bound, f);
}

/// Puts statics back also after a model that has failed.
struct PutBack;

impl Drop for PutBack {
    fn drop(&mut self) {
        end();
    }
}

/// Runs `f` beside the model: its atomics are core's. For what begins or ends a model, in its only thread.
pub(crate) fn aside<T>(f: impl FnOnce() -> T) -> T {
    let running = RUNNING.replace(false);
    let result = f();
    RUNNING.set(running);
    result
}

/// What a pointer in a static is put back to when this execution ends: so that has to stay mapped. Another
/// model may have left it there, which had its memory made [`aside`].
pub(crate) fn before<T>(pointer: &AtomicPtr<T>) -> *mut T {
    let now = aside(|| pointer.load(Ordering::Relaxed));
    let before = w64::before(pointer.as_ptr().expose_provenance());
    before.map_or(now, |before| core::ptr::with_exposed_provenance_mut(before as usize))
}

/// Starts one of the model's threads.
pub(crate) fn beside<T: 'static>(f: impl FnOnce() -> T + 'static) -> loom::thread::JoinHandle<T> {
    loom::thread::spawn(f)
}

/// Runs `f` in a thread that begins after those that were started before: loom notices of two accesses that
/// they depend on each other only if the second thread has made no other access there in between. So whoever
/// reads what another thread reads and then writes should come second. It may read old values all the same.
pub(crate) fn second<T: 'static>(f: impl FnOnce() -> T + 'static) -> T {
    loom::thread::spawn(f).join().unwrap()
}

/// The number of the calling thread in the model, from 1; 0 where none runs.
pub(crate) fn thread_number() -> usize {
    if !RUNNING.get() {
        return 0;
    }
    let me = loom::thread::current().id();
    THREADS.with_borrow_mut(|threads| {
        let at = threads.iter().position(|&thread| thread == me).unwrap_or(threads.len());
        if at == threads.len() {
            threads.push(me);
        }
        at + 1
    })
}

std::thread_local! {
    /// The threads that [`spawn`] has started.
    static SPAWNED: RefCell<Vec<Option<loom::thread::JoinHandle<()>>>> = const { RefCell::new(Vec::new()) };
}

/// Starts one of the model's threads; the number that it has for [`join`], from 1.
pub(crate) fn spawn(f: impl FnOnce() + 'static) -> usize {
    let thread = loom::thread::spawn(f);
    SPAWNED.with_borrow_mut(|spawned| {
        spawned.push(Some(thread));
        spawned.len()
    })
}

/// Waits for the end of a thread, once.
pub(crate) fn join(number: usize) {
    let thread = SPAWNED.with_borrow_mut(|spawned| spawned[number - 1].take());
    thread.expect("joined once").join().unwrap();
}

/// How many threads that [`spawn`] has started nobody has joined.
pub(crate) fn not_joined() -> usize {
    SPAWNED.with_borrow(|spawned| spawned.iter().flatten().count())
}

/// Lets other threads run, in a model.
pub(crate) fn pass() {
    if RUNNING.get() {
        loom::thread::yield_now();
    }
}

#[track_caller]
pub(crate) fn fence(order: Ordering) {
    if !RUNNING.get() {
        real::fence(order);
    } else if site(FENCE, order) != Ordering::Relaxed {
        loom::sync::atomic::fence(order);
    }
}

/// The slot of a fence. That of an operation's ordering is 0; 1 is what it has when it fails.
const FENCE: u8 = 2;

/// The ordering that one call is to have, instead of the one that it asks for: what `HAKMEM_WEAKEN` says, as
/// `file:line:column:slot:ordering`. For `.ci/weaken`.
struct Weaker {
    place: std::string::String,
    slot: u8,
    order: Ordering,
}

std::thread_local! {
    static WEAKER: Option<Weaker> = std::env::var("HAKMEM_WEAKEN").ok().map(|what| {
        let mut parts = what.rsplitn(3, ':');
        let order = match parts.next() {
            Some("Acquire") => Ordering::Acquire,
            Some("Release") => Ordering::Release,
            Some("Relaxed") => Ordering::Relaxed,
            other => panic!("{other:?} in HAKMEM_WEAKEN"),
        };
        let slot = parts.next().unwrap().parse().unwrap();
        Weaker { place: parts.next().unwrap().into(), slot, order }
    });
    /// The orderings that have been seen, if `HAKMEM_SITES` names a file where to write them down.
    static SITES: Option<RefCell<HashMap<(&'static str, u32, u32, u8), Ordering>>> =
        std::env::var_os("HAKMEM_SITES").map(|_| RefCell::default());
}

/// The ordering of an operation, as [`Weaker`] has it. Orderings that are not relaxed are written down.
#[track_caller]
fn site(slot: u8, order: Ordering) -> Ordering {
    if order == Ordering::Relaxed {
        return order;
    }
    let at = core::panic::Location::caller();
    SITES.with(|sites| {
        let Some(sites) = sites else { return };
        let key = (at.file(), at.line(), at.column(), slot);
        if sites.borrow_mut().insert(key, order).is_none() {
            use std::io::Write;
            let path = std::env::var_os("HAKMEM_SITES").unwrap();
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let line = std::format!("{at}:{slot} {order:?}\n");
            file.and_then(|mut file| file.write_all(line.as_bytes())).expect("HAKMEM_SITES");
        }
    });
    WEAKER.with(|weaker| match weaker {
        Some(weaker) if weaker.slot == slot && std::format!("{at}") == weaker.place => weaker.order,
        _ => order,
    })
}

/// Orders nothing between threads, and loom has no signals and no forks.
pub(crate) fn compiler_fence(order: Ordering) {
    real::compiler_fence(order);
}

std::thread_local! {
    /// Plain memory that is looked after: see [`wrote`].
    static PLAIN: RefCell<HashMap<usize, Rc<loom::cell::UnsafeCell<()>>>> = RefCell::default();
    /// Cells for it, made before the model's first step: making one counts as a write.
    static CELLS: RefCell<Vec<loom::cell::UnsafeCell<()>>> = const { RefCell::new(Vec::new()) };
}

fn plain(address: usize) -> Option<Rc<loom::cell::UnsafeCell<()>>> {
    RUNNING.get().then(|| {
        let made = || Rc::new(CELLS.with_borrow_mut(|cells| cells.pop().expect(SHORT)));
        PLAIN.with_borrow_mut(|cells| cells.entry(address).or_insert_with(made).clone())
    })
}

/// The caller writes plain memory at this address, as the only thread that uses it now. In a model, loom
/// makes sure that this is so.
#[track_caller]
pub(crate) fn wrote<T>(at: *const T) {
    if let Some(cell) = plain(at.addr()) {
        cell.with_mut(|_| ());
    }
}

/// The caller reads plain memory at this address, which nobody writes now: see [`wrote`].
#[track_caller]
pub(crate) fn reads<T>(at: *const T) {
    if let Some(cell) = plain(at.addr()) {
        cell.with(|_| ());
    }
}

/// Forgets this memory, which is unmapped: it will be something else.
pub(crate) fn forget(at: *const u8, len: usize) {
    if RUNNING.get() {
        let stays = |address: &usize| !(at.addr()..at.addr() + len).contains(address);
        PLAIN.with_borrow_mut(|cells| cells.retain(|address, _| stays(address)));
        w8::forget(&stays);
        w32::forget(&stays);
        w64::forget(&stays);
    }
}

fn begin() {
    PLAIN.with_borrow_mut(HashMap::clear);
    CELLS.set((0..SPARES.get()).map(|_| loom::cell::UnsafeCell::new(())).collect());
    w8::begin();
    w32::begin();
    w64::begin();
    THREADS.with_borrow_mut(Vec::clear);
    SPAWNED.with_borrow_mut(Vec::clear);
    RUNNING.set(true);
    // The first thread of the model is the first one of its process.
    thread_number();
}

fn end() {
    RUNNING.set(false);
    let ended = (PLAIN.take(), CELLS.take());
    if std::thread::panicking() {
        core::mem::forget(ended);
    }
    w8::end();
    w32::end();
    w64::end();
}
