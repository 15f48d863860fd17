//! Purging: giving free dirty pages back to the system.
//!
//! They are given back when they have been free and dirty for the purge delay, and at once when there are
//! more of them than the allowance ([`decay`](super::decay)).

use crate::base::options;
use crate::lockfree::waker;
use crate::os;
use crate::superslab::decay::REGRET;
use crate::superslab::desc::DescRef;
use crate::superslab::layout::{HEADER, PAGE, PAGE_SHIFT, PAGES, SUPERSLAB};
use crate::superslab::span_index;
use crate::superslab::span_index::State;
use crate::sync::Ordering::Relaxed;

/// A purge because of the allowance goes below it by one part in this many: pages that are freed next are
/// needed again more often than those that have been free longest.
const KEPT_PART: usize = 8;
/// SuperSlabs of one job.
const BATCH: usize = 16;

/// Pages that have been taken out of the pool to be purged.
pub(crate) struct Job {
    items: [Option<Item>; BATCH],
    len: usize,
    /// How many pages become clean if the system takes them all.
    pages: usize,
}

/// The pages of one SuperSlab in a job.
#[derive(Clone, Copy)]
struct Item {
    desc: DescRef,
    /// The pages that are hidden from the pool: all pages of a SuperSlab that is entirely free.
    pages: u32,
    /// Which of them are dirty.
    dirty: u32,
    /// Whether advice for huge pages is withdrawn first.
    withdraw: bool,
}

impl Job {
    /// An empty job.
    pub(crate) const fn none() -> Self {
        Self { items: [None; BATCH], len: 0, pages: 0 }
    }

    fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Takes the purgeable pages of `desc`, or all pages if it is entirely free. Does nothing if the job is
    /// full.
    fn add(&mut self, pool: &mut State, desc: DescRef) {
        let Some(place) = self.items.get_mut(self.len) else { return };
        let before = pool.dirty_pages;
        let pages = pool.hide(desc);
        if pages == 0 {
            return;
        }
        self.pages += before - pool.dirty_pages;
        // From a SuperSlab of which some pages stay, the advice is withdrawn.
        let withdraw = pages != u32::MAX && desc.huge.swap(false, Relaxed);
        let dirty = desc.pages.get().dirty & pages;
        *place = Some(Item { desc, pages, dirty, withdraw });
        self.len += 1;
    }

    /// Gives the pages back, without the pool's lock. Returns the bytes that the system has taken.
    pub(crate) fn run(&self) -> usize {
        let items = self.items.iter().flatten();
        let bytes =
            items.map(|item| if item.pages == u32::MAX { item.unmap() } else { item.give_back() }).sum();
        // Pages that the system has refused are dirty again.
        waker::notify();
        bytes
    }
}

impl Item {
    /// Unmaps the SuperSlab, or at least gives its pages back. Returns the bytes that the system has taken.
    fn unmap(&self) -> usize {
        let base = self.desc.base();
        // At least the header's page was resident.
        let resident = (self.dirty.count_ones() as usize * PAGE).max(os::page_size());
        self.desc.begin_unmapping();
        // SAFETY: all its pages were free, and this job has hidden them all: so no span lies in the
        // SuperSlab, nobody can take one, and its header is not read any more.
        match unsafe { os::unmap(base, SUPERSLAB) } {
            os::Unmapped::Gone => {
                os::PURGED.fetch_add(resident, Relaxed);
                match span_index::lock() {
                    Some(mut pool) => pool.remove(self.desc),
                    None => span_index::remove_unlocked(self.desc),
                }
            }
            // The SuperSlab is still mapped, and can be used again.
            os::Unmapped::Zeroed => {
                self.desc.huge.store(false, Relaxed);
                self.put_back(u32::MAX);
            }
            os::Unmapped::Kept => {
                self.put_back(0);
                return 0;
            }
        }
        resident
    }

    /// Gives the pages back to the system, and then to the pool. Returns the bytes that the system has taken.
    fn give_back(&self) -> usize {
        if self.withdraw {
            // SAFETY: the SuperSlab stays mapped: while some of its pages are hidden it is not entirely free,
            // so nobody unmaps it.
            unsafe { os::advise_huge(self.desc.base(), SUPERSLAB, false) };
        }
        let done = self.purge();
        self.put_back(done);
        done.count_ones() as usize * PAGE
    }

    /// Gives the pages back to the pool. Those in `clean` are not dirty any more.
    fn put_back(&self, clean: u32) {
        match span_index::lock() {
            Some(mut pool) => pool.put_back(self.desc, clean, os::now_ms()),
            None => span_index::put_back_unlocked(self.desc, clean),
        }
    }

    /// Purges the pages, run by run, but not the header in page 0. Returns the pages that are clean now.
    fn purge(&self) -> u32 {
        let mut done = 0;
        let mut rest = self.pages;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let count = (rest >> first).trailing_ones() as usize;
            let mask = (((1u64 << count) - 1) << first) as u32;
            let head = if first == 0 { HEADER.max(os::page_size()) } else { 0 };
            let from = self.desc.base().wrapping_add((first << PAGE_SHIFT) + head);
            // SAFETY: these pages were free and are hidden from the pool, so they are ours alone, and the
            // header is left out.
            if unsafe { os::purge(from, (count << PAGE_SHIFT) - head) } {
                done |= mask;
            }
            rest &= !mask;
        }
        if self.pages & 1 != 0 && os::page_size() > HEADER {
            // The first blocks of page 0 share a system page with the header, which stays. So they are not
            // known to be zero.
            done &= !1;
        }
        done
    }
}

/// Whether a purge may be due: a quick check after every change of the pool.
pub(crate) fn is_due(pool: &State, now: u32) -> bool {
    let delay = options::get().purge_delay;
    delay >= 0
        && pool.dirty_pages > 0
        && (is_over(pool, now, delay) || os::elapsed(pool.policy.looked, now) as i64 > delay / 4)
}

/// Whether there are more dirty pages than the allowance, and no background thread will purge them after the
/// delay.
fn is_over(pool: &State, now: u32, delay: i64) -> bool {
    pool.dirty_pages > pool.policy.allowed(pool.used_pages())
        && !is_watched(pool, now, delay)
        && !pool.policy.pause.is_on(now)
}

/// Whether there is a background thread, and its last pass is recent: it may be kept from running.
fn is_watched(pool: &State, now: u32, delay: i64) -> bool {
    waker::WATCHED.load(Relaxed)
        && i64::from(now.wrapping_sub(pool.policy.seen) as i32) <= delay + i64::from(REGRET)
}

/// Purges what is due. Not inlined, so that the callers need no room for a job on their stacks.
#[cold]
#[inline(never)]
pub(crate) fn run_due(now: u32) {
    let Some(mut pool) = span_index::lock() else { return };
    let job = due(&mut pool, now);
    drop(pool);
    let (any, bytes) = (job.len > 0, job.run());
    if any {
        if let Some(pool) = span_index::lock() {
            pool.policy.pause.tried(bytes != 0, now);
        }
    }
}

/// The outcome of [`aged`].
pub(crate) struct Aged {
    /// Whether any pages were due.
    pub(crate) any: bool,
    /// Bytes that the system has taken.
    pub(crate) bytes: usize,
}

/// Purges pages that have been free and dirty for the purge delay, until `stop` returns true. Pages that the
/// system refuses count as dirty from then on, and are not tried twice.
pub(crate) fn aged(stop: impl Fn() -> bool) -> Aged {
    let start = os::now_ms();
    let mut all = Aged { any: false, bytes: 0 };
    // With a delay of 0 what is refused is due again at once: this count ends the loop then.
    let mut left = usize::MAX;
    while !stop() && left > 0 {
        let Some(mut pool) = span_index::lock() else { break };
        left = left.min(pool.superslabs);
        let mut job = Job::none();
        pool.policy.seen = os::now_ms();
        add_aged(&mut pool, start, &mut job);
        drop(pool);
        if job.len == 0 {
            break;
        }
        all.any = true;
        all.bytes += job.run();
        left = left.saturating_sub(job.len);
    }
    all
}

/// Adds to `job` the SuperSlabs that have had purgeable pages for the delay.
fn add_aged(pool: &mut State, now: u32, job: &mut Job) {
    let delay = options::get().purge_delay;
    pool.policy.looked = now;
    pool.each_dirty(|pool, desc| {
        // Signed: pages may have become dirty after `now`.
        let old = i64::from(now.wrapping_sub(desc.since.get()) as i32) >= delay;
        if old {
            job.add(pool, desc);
        }
        // The list is in order of age.
        old && !job.is_full()
    });
}

/// Takes what is due now out of the pool.
fn due(pool: &mut State, now: u32) -> Job {
    let mut job = Job::none();
    let delay = options::get().purge_delay;
    let used = pool.used_pages();
    pool.policy.fade(used, now);
    let allowed = pool.policy.allowed(used);
    let keep = allowed - allowed / KEPT_PART;
    if delay >= 0 && is_over(pool, now, delay) {
        // Entirely free SuperSlabs first: they cost least, both to give back and to get again.
        for whole in [true, false] {
            pool.each_dirty(|pool, desc| {
                if !whole || desc.pages.get().free == u32::MAX {
                    let before = job.pages;
                    job.add(pool, desc);
                    pool.policy.regret.drop(job.pages - before, now);
                }
                pool.dirty_pages > keep && !job.is_full()
            });
            if pool.dirty_pages <= keep || job.is_full() {
                break;
            }
        }
        return job;
    }
    if delay >= 0 && pool.dirty_pages > 0 && os::elapsed(pool.policy.looked, now) as i64 > delay / 4 {
        add_aged(pool, now, &mut job);
    }
    job
}

/// Gives back every free page of every SuperSlab. Returns the bytes that the system has taken. Pages that it
/// refuses, because they are locked for example, do not keep it from the rest.
pub(crate) fn everything() -> usize {
    let (mut bytes, mut visit, mut left) = (0, 0, usize::MAX);
    while left > 0 {
        let Some(mut pool) = span_index::lock() else { break };
        if left == usize::MAX {
            left = pool.superslabs;
            pool.visits = pool.visits.wrapping_add(1);
            visit = pool.visits;
        }
        let mut job = Job::none();
        let mut add = |pool: &mut State, desc: DescRef| {
            // Each SuperSlab once. If another thread does the same at the same time, their numbers undo each
            // other; then the count `left` ends the loop.
            if !job.is_full() && desc.visited.replace(visit) != visit {
                job.add(pool, desc);
            }
            !job.is_full()
        };
        pool.each_empty(&mut add);
        pool.each_dirty(&mut add);
        drop(pool);
        if job.len == 0 {
            break;
        }
        bytes += job.run();
        left = left.saturating_sub(job.len);
    }
    bytes
}

const _: () = assert!(PAGES == 32);
