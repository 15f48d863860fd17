//! Purging: giving free dirty slices back to the system.
//!
//! They are given back when they have been free and dirty for the purge delay, and at once when there are
//! more of them than the allowance ([`decay`](super::decay)).

use crate::base::options;
use crate::lockfree::waker;
use crate::os;
use crate::os::futex::Guard;
use crate::os::returning::Returning;
use crate::superslab::decay::REGRET;
use crate::superslab::desc::DescRef;
use crate::superslab::granules::Run;
use crate::superslab::layout::{HEADER, SLICE, SLICE_SHIFT, SLICES, SUPERSLAB};
use crate::superslab::span_index::{self, State, lock};
use crate::sync::AtomicU32;
use crate::sync::Ordering::{Relaxed, Release};

/// A purge because of the allowance goes below it by one part in this many: slices that are freed next are
/// needed again more often than those that have been free longest.
const KEPT_PART: usize = 8;
/// SuperSlabs of one job.
const BATCH: usize = 16;

/// SuperSlabs whose slices have been taken out of the pool to be purged ([`State::hide`]).
struct Job {
    descs: [Option<DescRef>; BATCH],
    len: usize,
}

impl Job {
    /// An empty job.
    const fn none() -> Self {
        Self { descs: [None; BATCH], len: 0 }
    }

    fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Takes the purgeable slices of `desc`, or all slices if it is entirely free. Does nothing if the job is
    /// full. Returns how many slices become clean if the system takes them all.
    fn add(&mut self, pool: &mut State, desc: DescRef) -> usize {
        let before = pool.dirty_slices;
        if let Some(place) = self.descs.get_mut(self.len) {
            if pool.hide(desc) {
                *place = Some(desc);
                self.len += 1;
            }
        }
        // A huge page's slices became dirty on the way, and others may have been taken meanwhile.
        before.saturating_sub(pool.dirty_slices)
    }

    /// Gives the slices back, without the pool's lock. Returns the bytes that the system has taken.
    fn run(&self) -> usize {
        let descs = self.descs.iter().flatten();
        let bytes = descs.map(|desc| if desc.is_hidden() { unmap(desc) } else { give_back(desc) }).sum();
        // Slices that the system has refused are dirty again. Perhaps without the lock: see `put_back`.
        waker::notify_unlocked();
        bytes
    }
}

/// Unmaps a SuperSlab that is hidden as a whole, or at least gives its slices back. Returns the bytes that
/// the system has taken.
fn unmap(desc: DescRef) -> usize {
    let base = desc.base();
    // At least the header's page was resident; all of a huge page, unless nothing in it was ever used.
    let dirty = desc.slices.get().dirty.count_ones() as usize;
    let whole = dirty != 0 && desc.huge.load(Relaxed);
    let resident = if whole { SUPERSLAB } else { (dirty * SLICE).max(os::page_size()) };
    // In the child of a fork nobody knows from now on whether it is still mapped. Release: for that child.
    desc.unmapping.store(true, Release);
    // SAFETY: all its slices were free, and this job has hidden them all: so no span lies in the SuperSlab,
    // nobody can take one, and its header is not read any more.
    match unsafe { os::unmap(base, SUPERSLAB) } {
        os::Unmapped::Gone => {
            os::PURGED.fetch_add(resident, Relaxed);
            span_index::remove(desc);
        }
        // The SuperSlab is still mapped, with the same advice, and can be used again.
        os::Unmapped::Zeroed => span_index::put_back(desc, u32::MAX),
        os::Unmapped::Kept => {
            span_index::put_back(desc, 0);
            return 0;
        }
    }
    resident
}

/// Withdraws the advice for huge pages, of which a part is about to be given back.
///
/// # Safety
///
/// `base` is the start of a SuperSlab that stays mapped.
pub(super) unsafe fn no_more_huge(base: *mut u8) {
    // SAFETY: all of the SuperSlab, and its first page; neither changes what these hold.
    unsafe {
        os::split_huge_page(base);
        os::advise_huge(base, SUPERSLAB, false);
    }
}

/// Gives the hidden slices of a SuperSlab, of which some slices stay, back to the system, and then to the
/// pool. Returns the bytes that the system has taken.
fn give_back(desc: DescRef) -> usize {
    if desc.huge.swap(false, Relaxed) {
        // SAFETY: the SuperSlab stays mapped: while some of its slices are hidden it is not entirely free, so
        // nobody unmaps it.
        unsafe { no_more_huge(desc.base()) };
    }
    let clean = purge(desc.base(), desc.job.load(Relaxed));
    span_index::put_back(desc, clean);
    clean.count_ones() as usize * SLICE
}

/// Purges the hidden slices in the mask `slices` of the SuperSlab at `base`, run by run, but not the header
/// in slice 0. Returns the slices that are clean now.
fn purge(base: *mut u8, slices: u32) -> u32 {
    let mut clean = 0;
    for run in Run::each(slices.into()) {
        let (first, count) = (run.first as usize, run.count as usize);
        let head = if first == 0 { HEADER.max(os::page_size()) } else { 0 };
        let from = base.wrapping_add((first << SLICE_SHIFT) + head);
        // SAFETY: these slices were free and are hidden from the pool, so they are ours alone, and the header
        // is left out.
        if unsafe { os::purge(from, (count << SLICE_SHIFT) - head) } {
            // Where system pages are larger than the header, the first blocks share one with it, which stays.
            // SAFETY: behind the header, so ours as above.
            unsafe { base.wrapping_add(HEADER).write_bytes(0, head.saturating_sub(HEADER)) };
            clean |= run.mask() as u32;
        }
    }
    clean
}

/// Unlocks the pool after a change, and purges what is due. `given` says whether slices may have become
/// dirty.
#[inline]
pub(super) fn unlock(pool: Guard<'_, State>, now: u32, given: bool) {
    let due = is_due(&pool, now);
    drop(pool);
    if given {
        waker::notify();
    }
    if due {
        run_due(now);
    }
}

/// How long [`tick`] waits until it looks again, in milliseconds.
const TICK: u32 = 64;
/// When it last looked, in milliseconds. Relaxed: a hint.
static TICKED: AtomicU32 = AtomicU32::new(0);

/// Purges what is due. For threads whose large blocks come from caches: they do not change the pool.
#[inline(always)]
pub(crate) fn tick(now: u32) {
    if os::elapsed(TICKED.load(Relaxed), now) >= TICK {
        tick_now(now);
    }
}

/// [`tick`], if it is time.
#[cold]
#[inline(never)]
fn tick_now(now: u32) {
    // Each execution of a model has to go as the one before.
    if cfg!(all(test, loom)) {
        return;
    }
    TICKED.store(now, Relaxed);
    if let Some(pool) = lock() {
        unlock(pool, now, false);
    }
}

/// Whether a purge may be due: a quick check after every change of the pool.
fn is_due(pool: &State, now: u32) -> bool {
    let delay = options::get().purge_delay;
    delay >= 0 && pool.dirty_slices > 0 && (is_over(pool, now, delay) || is_time(pool, now))
}

/// Whether there are more dirty slices than the allowance, and no background thread will purge them after the
/// delay.
fn is_over(pool: &State, now: u32, delay: i64) -> bool {
    pool.dirty_slices > pool.policy.allowed(pool.used_slices)
        && !is_watched(now, delay)
        && !pool.policy.pause.is_on(now)
}

/// Whether it is time to look for slices that are due by age.
fn is_time(pool: &State, now: u32) -> bool {
    os::elapsed(pool.policy.looked, now) > pool.policy.pause_of_looks
}

/// How long free dirty slices are kept, in milliseconds: the purge delay, if there is one, or longer. See
/// [`Delay`](super::delay::Delay).
pub(super) fn term(pool: &State) -> Option<u32> {
    let delay = u32::try_from(options::get().purge_delay).ok()?;
    Some(pool.policy.delay.stretch(delay))
}

/// When the background thread last looked for slices that are due by age, in milliseconds. Relaxed: a hint.
/// Not under the lock, which it does not always get: it is there all the same.
pub(super) static SEEN: AtomicU32 = AtomicU32::new(0);

/// Whether there is a background thread, and its last pass is recent: it may be kept from running.
fn is_watched(now: u32, delay: i64) -> bool {
    waker::WATCHED.load(Relaxed)
        && i64::from(os::elapsed(SEEN.load(Relaxed), now)) <= delay + i64::from(REGRET)
}

/// Purges what is due. Not inlined, so that the callers need no room for a job on their stacks.
#[cold]
#[inline(never)]
fn run_due(now: u32) {
    let Some(mut pool) = lock() else { return };
    let _returning = Returning::begin();
    let job = due(&mut pool, now);
    drop(pool);
    let (any, bytes) = (job.len > 0, job.run());
    if any {
        if let Some(pool) = lock() {
            pool.policy.pause.tried(bytes != 0, now);
        }
    }
}

/// Runs jobs that `fill` makes, until it finds nothing more, or has found as many SuperSlabs as there are, or
/// `stop` returns true. Returns the bytes that the system has taken; `None` if there was nothing to do.
fn run_jobs(stop: impl Fn() -> bool, mut fill: impl FnMut(&mut State, &mut Job)) -> Option<usize> {
    let mut bytes = None;
    let mut left = usize::MAX;
    while !stop() && left > 0 {
        let Some(mut pool) = lock() else { break };
        left = left.min(pool.superslabs);
        let _returning = Returning::begin();
        let mut job = Job::none();
        fill(&mut pool, &mut job);
        drop(pool);
        if job.len == 0 {
            break;
        }
        bytes = Some(bytes.unwrap_or(0) + job.run());
        left = left.saturating_sub(job.len);
    }
    bytes
}

/// Purges slices that have been free and dirty for the purge delay, whatever the allowance, until `stop`
/// returns true. Slices that the system refuses count as dirty from then on, and are not tried twice; with a
/// delay of 0, where they are due again at once, by the limit of [`run_jobs`]. Returns the bytes that the
/// system has taken; `None` if no slices were due.
pub(crate) fn aged(stop: impl Fn() -> bool) -> Option<usize> {
    let start = os::now_ms();
    SEEN.store(start, Relaxed);
    run_jobs(stop, |pool, job| {
        SEEN.store(os::now_ms(), Relaxed);
        add_aged(pool, start, job);
    })
}

/// Adds to `job` the SuperSlabs that have had purgeable slices for the delay.
fn add_aged(pool: &mut State, now: u32, job: &mut Job) {
    let Some(term) = term(pool) else { return };
    let mut slices = 0;
    for desc in pool.dirty() {
        // The list is in order of age.
        if job.is_full() || os::elapsed(desc.since.get(), now) < term {
            break;
        }
        slices += job.add(pool, desc);
    }
    // Where a job is not enough, the next one does not wait longer than it would otherwise.
    let until = if job.is_full() { term.min(options::get().purge_delay as u32) } else { term };
    (pool.policy.looked, pool.policy.pause_of_looks) = (now, until / 4);
    if slices != 0 {
        pool.policy.delay.went(slices, now);
    }
}

/// Takes what is due now out of the pool.
fn due(pool: &mut State, now: u32) -> Job {
    let mut job = Job::none();
    let delay = options::get().purge_delay;
    let used = pool.used_slices;
    pool.policy.fade(used, now);
    pool.policy.set_delay(delay);
    if delay < 0 || pool.dirty_slices == 0 {
        return job;
    }
    if !is_over(pool, now, delay) {
        if is_time(pool, now) {
            add_aged(pool, now, &mut job);
        }
        return job;
    }
    let allowed = pool.policy.allowed(used);
    let keep = allowed - allowed / KEPT_PART;
    let mut add = |pool: &mut State, desc: DescRef| {
        let dropped = job.add(pool, desc);
        pool.policy.regret.drop(dropped, now);
        pool.dirty_slices > keep && !job.is_full()
    };
    // Entirely free SuperSlabs first: they cost least, both to give back and to get again. Nothing that is
    // not taken is looked at, however large the process is: others wait for the lock.
    let mut whole = pool.bucket_from_last(SLICES).filter(|desc| desc.purgeable_slices.get() != 0);
    let _ = whole.all(|desc| add(pool, desc)) && pool.dirty().all(|desc| add(pool, desc));
    job
}

/// Gives back every free slice of every SuperSlab. Slices that the system refuses, because they are locked
/// for example, do not keep it from the rest.
pub(crate) fn everything() {
    let mut visit = None;
    run_jobs(
        || false,
        |pool, job| {
            let visit = *visit.get_or_insert_with(|| {
                pool.policy.delay.forget();
                pool.visits = pool.visits.wrapping_add(1);
                pool.visits
            });
            let mut add = |pool: &mut State, desc: DescRef| {
                // Each SuperSlab once. If another thread does the same at the same time, their numbers undo
                // each other; then the limit of `run_jobs` ends it.
                if desc.visited.replace(visit) != visit {
                    job.add(pool, desc);
                }
                !job.is_full()
            };
            let _ =
                pool.bucket(SLICES).all(|desc| add(pool, desc)) && pool.dirty().all(|desc| add(pool, desc));
        },
    );
}

const _: () = assert!(SLICES == 32);

#[cfg(test)]
mod tests;
