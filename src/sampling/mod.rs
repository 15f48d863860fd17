//! The heap profile: samples of what is allocated and freed, by call stack. It gathers and writes numbers;
//! what they mean is found out by the `hakmem` command, which reads the file (`docs/profile-format.md`).
//!
//! Small blocks come here through the [gate](crate::front::gate), large ones from the slow paths.

mod fold;
mod frames;
mod grown;
mod lifetimes;
#[cfg_attr(not(feature = "profile"), allow(dead_code))]
mod lists;
mod live;
#[cfg(all(test, loom))]
mod model;
mod own_file;
mod pages;
mod pins;
mod probes;
mod random;
mod sites;
mod stacks;
mod state;
mod store;
mod tags;
mod threads;
mod write;

pub(crate) use live::may_hold;
pub(crate) use own_file::append_to;
pub(crate) use pages::may_matter;
pub(crate) use probes::has_changed as tracers_have_changed;
pub(crate) use state::{is_gathering, is_on};
pub(crate) use tags::number as tag;
pub(crate) use write::{Totals, Why, write_to};

use crate::os::{self, thread};
use crate::sampling::live::{Entry, NO_SITE};
use crate::sampling::state::{FOR_TRACERS, MISSED, RATE, STORE, lock_or_miss, lock_patiently, with_store};
use crate::sampling::store::{FRAMES, Sample};
use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;
use crate::tiny::classes::{class_of, stride};
use core::cell::Cell;

/// For numbers that differ.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// Begins a new profile with `rate`, which is not 0, and calls `then`; `late` says that the process may have
/// allocated before. False when there is one, or the store cannot be had.
pub(crate) fn begin(rate: u64, late: bool, then: impl FnOnce()) -> bool {
    let Some(mut locked) = lock_patiently() else { return false };
    if is_gathering() {
        return false;
    }
    let traced = is_on();
    locked.store.start(rate, late, traced);
    MISSED.store(0, Relaxed);
    if !traced {
        pages::clear();
    }
    FOR_TRACERS.store(false, Relaxed);
    RATE.store(rate, Relaxed);
    // Under the lock, so that whoever ends it does both after this, or both before.
    then();
    true
}

/// Ends the profile, if there is one: nothing is added any more. What has been gathered stays until the next
/// one begins. Goes on with `tracers_rate` for tracers, if there are any and it is not 0. Calls `then` with
/// whether it does, which says whether heaps stay armed.
pub(crate) fn end(tracers_rate: u64, then: impl FnOnce(bool) -> bool) {
    let mut locked = lock_patiently();
    if let Some(locked) = locked.as_mut().filter(|_| is_gathering()) {
        // While the blocks are what they were sampled as.
        pins::measure(&mut locked.store);
        locked.store.live.disown();
    }
    let traced = locked.is_some() && tracers_rate != 0 && probes::look();
    FOR_TRACERS.store(traced, Relaxed);
    RATE.store(if traced { tracers_rate } else { 0 }, Relaxed);
    let armed = then(traced);
    // If the store is held for ever, in a child that was made without the C library's handlers, threads learn
    // of the end at their next slow path.
    if locked.is_some() && !traced {
        pages::end(armed);
    }
}

/// Begins to take samples for tracers, or ends it, if they have come or gone, and calls `then` with which.
/// A profile shows its samples to them, too: nothing is changed meanwhile.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn follow_tracers(rate: u64, then: impl FnOnce(bool) -> bool) {
    let Some(mut locked) = lock_patiently() else { return };
    let traced = probes::look();
    if is_gathering() || is_on() == traced {
        return;
    }
    // Blocks of long ago, or of those who have gone.
    locked.store.live.clear();
    if traced {
        pages::clear();
    }
    FOR_TRACERS.store(traced, Relaxed);
    RATE.store(if traced { rate } else { 0 }, Relaxed);
    let armed = then(traced);
    if !traced {
        pages::end(armed);
    }
}

/// Does not look for tracers until others come or go.
pub(crate) fn refuse_tracers() {
    probes::look();
}

/// A state for [`draw`].
pub(crate) fn seed() -> u64 {
    if COUNTER.load(Relaxed) == 0 {
        COUNTER.fetch_add(os::random() as u64 | 1, Relaxed);
    }
    random::state(COUNTER.fetch_add(1, Relaxed))
}

/// In the child of a fork: its seeds are not those of its parent, or of other children.
pub(crate) fn reseed() {
    if COUNTER.load(Relaxed) != 0 {
        COUNTER.fetch_add(os::random() as u64, Relaxed);
    }
}

/// Sets the rate, as the start of a profile does.
#[cfg(all(test, loom))]
pub(crate) fn model_rate(rate: u64) {
    RATE.store(rate, Relaxed);
}

/// How many allocations of `size` bytes to pass over until the next sample.
pub(crate) fn draw(state: &Cell<u64>, size: usize) -> u64 {
    random::draw(state, size, RATE.load(Relaxed))
}

/// [`draw`] for a `rate` of somebody else's.
pub(crate) fn draw_at(state: &Cell<u64>, size: usize, rate: u64) -> u64 {
    random::draw(state, size, rate)
}

/// Adds a sample: a block of `size` bytes that has just been allocated by a thread that carries the tag of
/// this number, or none.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn allocated(block: *mut u8, size: usize, tag: u32) {
    sampled(block, size, size, tag);
}

/// [`allocated`] for a block of `exact` bytes that was sampled as one of `size`.
#[unsafe(link_section = "hakmem_rare")]
fn sampled(block: *mut u8, size: usize, exact: usize, tag: u32) {
    let rate = RATE.load(Relaxed);
    if rate == 0 {
        return;
    }
    if FOR_TRACERS.load(Relaxed) {
        return traced(block, size, exact, rate);
    }
    let mut addresses = [0usize; FRAMES];
    let (depth, end) = capture(&mut addresses);
    let sample = Sample {
        address: block.expose_provenance(),
        size: size as u64,
        rate,
        // Who may not ask for it has no profile any more.
        thread: thread::system_id().unwrap_or_default(),
        tag,
        now: os::now_ns(),
        mapped: os::MAPPED_PEAK.load(Relaxed),
        addresses: addresses.get(..depth).unwrap_or_default(),
        end,
    };
    let Some(mut locked) = lock_or_miss() else { return };
    // Another profile may have begun meanwhile.
    if is_gathering() && locked.store.rate() == rate && locked.store.allocated(&sample, thread::own_name) {
        probes::alloc(sample.address, exact as u64, weight(size, rate));
    }
}

/// Shows a sample to tracers, who walk the stack themselves.
#[unsafe(link_section = "hakmem_rare")]
fn traced(block: *mut u8, size: usize, exact: usize, rate: u64) {
    let Some(mut locked) = lock_patiently() else { return };
    if !FOR_TRACERS.load(Relaxed) || RATE.load(Relaxed) != rate {
        return;
    }
    let address = block.expose_provenance();
    // It may be one whose free nobody has seen.
    let _ = locked.store.live.remove(address);
    if locked.store.live.insert(address, NO_SITE, 0) {
        probes::alloc(address, exact as u64, weight(size, rate));
    }
}

/// The bytes that a sample of `size` bytes stands for: on average as many as were allocated.
fn weight(size: usize, rate: u64) -> u64 {
    (size as f64 / random::probability(size as u64, rate) + 0.5) as u64
}

/// Adds a sample, or does not, for a large block of `size` bytes that has just been allocated.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn allocated_large(block: *mut u8, size: usize, tag: u32) {
    let rate = RATE.load(Relaxed);
    if rate == 0 || block.is_null() {
        return;
    }
    // Few different sizes, so that there are few sites: a 64th of a power of two apart. Hardened mode has
    // its small blocks come here too, which count with their size class.
    let rounded = match class_of(size.max(1), 1) {
        0 => random::round(&COUNTER, size, 1 << size.max(1).ilog2().saturating_sub(6)),
        class => stride(class as usize) as usize,
    };
    if random::is_taken(&COUNTER, rounded, rate) {
        sampled(block, rounded, size, tag);
    }
}

/// Notes that a block is freed, if it is sampled, as [`may_hold`] says that it may be.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn freed(block: *mut u8) {
    let now = os::now_ns();
    let Some(mut locked) = lock_or_miss() else { return };
    let rate = locked.store.rate();
    locked.store.freed(block.addr(), rate, now);
}

/// Notes that a large block is freed, if it is sampled.
#[cold]
#[inline(never)]
pub(crate) fn freed_large(block: *mut u8) {
    if may_hold(block) {
        freed(block);
    }
}

/// A sampled block that has been taken out: see [`lift`].
pub(crate) struct Lifted {
    entry: Entry,
    /// When its profile began.
    began: u64,
}

/// Takes out a large block that is about to be resized, if it is sampled: when the system moves it, another
/// thread may be given its address before this one can say so. [`put_down`] must follow.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn lift(block: *mut u8) -> Option<Lifted> {
    if !may_hold(block) {
        return None;
    }
    let mut locked = lock_or_miss()?;
    let entry = locked.store.live.lift(block.addr())?;
    Some(Lifted { entry, began: locked.store.began.monotonic })
}

/// Puts a block back that was taken out, if it `stays` as it was; else it has been freed.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn put_down(lifted: Lifted, stays: bool) {
    let now = os::now_ns();
    let Some(mut locked) = lock_or_miss() else { return };
    let store = &mut locked.store;
    // Another profile may have begun meanwhile.
    let is_same = store.began.monotonic == lifted.began;
    if is_same && stays && store.live.put_back(&lifted.entry) {
        return;
    }
    store.live.tell_freed(&lifted.entry);
    if is_same {
        let rate = store.rate();
        store.count_freed(&lifted.entry, rate, now);
    }
}

/// The calling thread's stack: how many addresses, innermost first, and how it ends, as a number of the
/// format.
fn capture(addresses: &mut [usize]) -> (usize, u8) {
    #[cfg(feature = "profile")]
    {
        use crate::stacks::{self, End};
        let found = stacks::capture(addresses);
        let end = match found.end {
            End::Complete => 0,
            End::Full => 1,
            End::Stopped => 2,
            End::None => 3,
        };
        (found.depth, end)
    }
    #[cfg(not(feature = "profile"))]
    {
        let _ = addresses;
        (0, 3)
    }
}

/// Bytes mapped for the profile and for tags, and how many of them are in use.
pub(crate) fn bytes() -> (usize, usize) {
    let (tags, tags_used) = tags::bytes();
    let profile = grown::BYTES.load(Relaxed) + live::bytes();
    (profile + tags, profile + tags_used)
}

/// In the child of a fork: the locks may be other threads'. The child's file is another one.
pub(crate) fn inherit() {
    STORE.inherit();
    own_file::inherit();
    if is_on() {
        with_store(false, |store| store.written = store::Written::default());
    }
}

/// Gives all memory back, when no other thread can be here.
pub(crate) fn unmap() {
    RATE.store(0, Relaxed);
    STORE.lock().clear();
    live::unmap();
    tags::unmap();
}
