//! Giving pages back to the system.
//!
//! Free dirty pages are given back when they have been so for the purge delay, and at once when there are more of them
//! than the allowance: after the last free of a program there is no further event, so a large drop must be purged
//! while it happens. Memory that is wanted again soon after such a purge is a *regret* and widens the allowance for as long
//! as that is of use, and a while longer, so that a program that swings steadily does not pay for faults at every swing.

use super::pagemap::{PAGE, PAGE_SHIFT};
use super::pool::{self, PAGES};
use super::slab::{HEADER, SUPERSLAB};
use super::state::{Desc, State};
use crate::{alarm, ongoing, options, os};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

/// Dirty pages that are always allowed: 16 MiB.
const ALLOWED: usize = (16 << 20) / PAGE;
/// Of the pages in use, this part may lie dirty besides.
const ALLOWED_PART: usize = 8;
/// A purge for being over the allowance goes below it by this part: the next pages freed are wanted again more often than
/// those that have lain longest.
const KEPT_PART: usize = 8;
/// How long a purge can be regretted, and how long half of the regret lasts, in milliseconds.
const REGRET: u32 = 1000;
/// SuperSlabs handled in one go.
const BATCH: usize = 16;

/// What the policy remembers. Guarded by the pool's lock.
pub(crate) struct Policy {
    /// Pages that the allowance is widened by, and the most pages in use of late: by no more than that.
    slack: usize,
    peak: usize,
    /// Pages purged for being over the allowance, and when that was last done.
    purged: usize,
    when: u32,
    /// When pages were last looked through by age, and when the slack was last of use or halved.
    looked: u32,
    halved: u32,
    /// When the background thread last looked.
    seen: u32,
}

impl Policy {
    pub(crate) const fn new() -> Self {
        Self { slack: 0, peak: 0, purged: 0, when: 0, looked: 0, halved: 0, seen: 0 }
    }

    /// `pages` pages are in use.
    pub(crate) fn used(&mut self, pages: usize) {
        self.peak = self.peak.max(pages);
    }

    /// `pages` pages had to be touched afresh.
    pub(crate) fn fresh(&mut self, pages: usize) {
        let regretted = pages.min(self.purged);
        self.purged -= regretted;
        self.slack = (self.slack + regretted).min(self.peak);
    }

    /// Pages were taken again that would have been given back without the slack: it is worth having, and stays.
    pub(crate) fn worth_it(&mut self, now: u32) {
        self.halved = now;
    }
}

/// Pages that have been taken out of the pool to be purged.
pub(crate) struct Job {
    items: [Item; BATCH],
    len: usize,
}

#[derive(Clone, Copy)]
struct Item {
    desc: *mut Desc,
    base: *mut u8,
    pages: u32,
    withdraw: bool,
}

impl Job {
    /// Nothing to do.
    pub(crate) const fn none() -> Self {
        let item = Item { desc: ptr::null_mut(), base: ptr::null_mut(), pages: 0, withdraw: false };
        Self { items: [item; BATCH], len: 0 }
    }

    /// Takes the purgeable pages of `desc`, or all of it when it is entirely free. How many pages became clean.
    fn add(&mut self, pool: &mut State, desc: *mut Desc) -> usize {
        // SAFETY: a descriptor of the pool, which we hold locked.
        let (base, dirty, pages, empty) = unsafe {
            ((*desc).base, (*desc).purgeable(), (*desc).purgeable_pages as usize, (*desc).free == u32::MAX)
        };
        self.items[self.len] = if empty {
            Item { desc: ptr::null_mut(), base: pool.remove(desc), pages: dirty, withdraw: false }
        } else {
            // Hidden from the pool until it is done.
            // SAFETY: as above.
            unsafe { pool.change(desc, 0, -(pages as isize), |d| d.free &= !dirty) };
            Item { desc, base, pages: dirty, withdraw: pool.withdraw_huge(desc) }
        };
        self.len += 1;
        pages
    }

    /// Gives the pages back, without the pool's lock. How many bytes came back.
    pub(crate) fn run(&self) -> usize {
        let mut bytes = 0;
        for item in &self.items[..self.len] {
            if item.desc.is_null() {
                // The header's page at least was resident.
                let resident = (item.pages.count_ones() as usize * PAGE).max(os::page_size());
                bytes += resident;
                // SAFETY: the SuperSlab is out of the pool and nobody else's.
                match unsafe { os::unmap(item.base, SUPERSLAB) } {
                    os::Unmapped::Gone => {
                        os::PURGED.fetch_add(resident, Relaxed);
                    }
                    // The place can be used again.
                    os::Unmapped::Zeroed => {
                        pool::with(|pool| pool.add(item.base, false, 0));
                    }
                    os::Unmapped::Kept => {
                        bytes -= resident;
                        pool::with(|pool| pool.add(item.base, false, u32::MAX));
                    }
                }
                continue;
            }
            if item.withdraw {
                // SAFETY: a SuperSlab of ours.
                unsafe { os::advise_huge(item.base, SUPERSLAB, false) };
            }
            let done = item.purge();
            bytes += done.count_ones() as usize * PAGE;
            // SAFETY: a SuperSlab with hidden pages is never entirely free, so it has stayed in the pool.
            pool::with(|pool| unsafe {
                let pages = item.pages.count_ones() as isize;
                pool.change(item.desc, os::now_ms(), pages, |d| {
                    d.free |= item.pages;
                    d.dirty &= !done;
                });
            });
        }
        // What the system has not taken is dirty again.
        alarm::ring();
        bytes
    }
}

impl Item {
    /// Purges run by run; the pages that are clean now. The header in page 0 stays.
    fn purge(&self) -> u32 {
        let mut done = 0;
        let mut rest = self.pages;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let count = (rest >> first).trailing_ones() as usize;
            let mask = (((1u64 << count) - 1) << first) as u32;
            let head = if first == 0 { HEADER.max(os::page_size()) } else { 0 };
            let from = self.base.wrapping_add((first << PAGE_SHIFT) + head);
            // SAFETY: pages hidden from the pool: ours alone.
            if unsafe { os::purge(from, (count << PAGE_SHIFT) - head) } {
                done |= mask;
            }
            rest &= !mask;
        }
        if self.pages & 1 != 0 && os::page_size() > HEADER {
            // Blocks of page 0 share a system page with the header, which stays: so they are not known to be zero.
            done &= !1;
        }
        done
    }
}

/// Whether something may be due: the quick look, for every change of the pool.
pub(crate) fn is_due(pool: &State, now: u32) -> bool {
    let delay = options::get().purge_delay;
    delay >= 0
        && pool.dirty_pages > 0
        && (is_over(pool, now, delay) || now.wrapping_sub(pool.policy.looked) as i64 > delay / 4)
}

/// Whether there are more dirty pages than the allowance, and nobody else will see to them when they have lain for the delay.
fn is_over(pool: &State, now: u32, delay: i64) -> bool {
    pool.dirty_pages > allowed(pool) && !is_watched(pool, now, delay)
}

/// Whether there is a background thread, and it has looked lately: it may be kept from running.
fn is_watched(pool: &State, now: u32, delay: i64) -> bool {
    alarm::WATCHED.load(Relaxed)
        && i64::from(now.wrapping_sub(pool.policy.seen) as i32) <= delay + i64::from(REGRET)
}

/// Dirty pages that may lie about, without what regret adds.
pub(super) fn allowed_always(pool: &State) -> usize {
    ALLOWED + pool.used_pages / ALLOWED_PART
}

/// Dirty pages that may lie about.
fn allowed(pool: &State) -> usize {
    allowed_always(pool) + pool.policy.slack
}

/// Gives back what is due. Apart from its callers, so that they need no room for a job on their stacks.
#[cold]
#[inline(never)]
pub(crate) fn run_due(now: u32) {
    if let Some(_work) = ongoing::begin() {
        let job = pool::with(|pool| due(pool, now));
        job.run();
    }
}

/// What became of some of the pages that were due by age.
pub(crate) struct Aged {
    /// Whether there were any.
    pub(crate) any: bool,
    /// Bytes that came back.
    pub(crate) bytes: usize,
    /// Whether there may be more.
    pub(crate) more: bool,
}

/// Gives back what has been free and dirty for the purge delay, as much as is handled in one go.
pub(crate) fn aged() -> Aged {
    let mut job = Job::none();
    let Some(_work) = ongoing::begin() else { return Aged { any: false, bytes: 0, more: false } };
    pool::with(|pool| {
        let now = os::now_ms();
        pool.policy.seen = now;
        add_aged(pool, now, &mut job);
    });
    Aged { any: job.len > 0, bytes: job.run(), more: job.len == BATCH }
}

/// Adds to `job` what has been purgeable for the delay.
fn add_aged(pool: &mut State, now: u32, job: &mut Job) {
    let delay = options::get().purge_delay;
    pool.policy.looked = now;
    pool.each_dirty(|pool, desc| {
        // SAFETY: listed, so valid.
        let old = now.wrapping_sub(unsafe { (*desc).since }) as i64 >= delay;
        if old {
            job.add(pool, desc);
        }
        // The list is in order of age.
        old && job.len < BATCH
    });
}

/// What is due now, taken out of the pool.
fn due(pool: &mut State, now: u32) -> Job {
    let mut job = Job::none();
    let delay = options::get().purge_delay;
    if now.wrapping_sub(pool.policy.halved) >= REGRET {
        pool.policy.halved = now;
        pool.policy.slack /= 2;
        pool.policy.peak = pool.used_pages.max(pool.policy.peak / 2);
    }
    if now.wrapping_sub(pool.policy.when) >= REGRET {
        pool.policy.purged = 0;
    }
    let allowed = allowed(pool);
    let keep = allowed - allowed / KEPT_PART;
    if delay >= 0 && is_over(pool, now, delay) {
        // Whole SuperSlabs first: they cost least, both ways.
        for whole in [true, false] {
            pool.each_dirty(|pool, desc| {
                // SAFETY: listed, so valid.
                if !whole || unsafe { (*desc).free } == u32::MAX {
                    pool.policy.purged += job.add(pool, desc);
                    pool.policy.when = now;
                }
                pool.dirty_pages > keep && job.len < BATCH
            });
            if pool.dirty_pages <= keep || job.len == BATCH {
                break;
            }
        }
        return job;
    }
    if delay >= 0 && pool.dirty_pages > 0 && now.wrapping_sub(pool.policy.looked) as i64 > delay / 4 {
        add_aged(pool, now, &mut job);
    }
    job
}

/// Gives back every free page of every SuperSlab. How many bytes came back.
pub(crate) fn everything() -> usize {
    let mut bytes = 0;
    // Pages that the system refuses to take stay dirty: so only as many rounds as there can be SuperSlabs to visit.
    loop {
        let mut job = Job::none();
        let _work = ongoing::begin_or_wait();
        pool::with(|pool| {
            let mut desc = pool.all;
            while !desc.is_null() && job.len < BATCH {
                // SAFETY: listed, so valid; read before `add` may remove it.
                let (next, any) =
                    unsafe { ((*desc).all_next, (*desc).purgeable() != 0 || (*desc).free == u32::MAX) };
                if any {
                    job.add(pool, desc);
                }
                desc = next;
            }
        });
        let came_back = job.run();
        bytes += came_back;
        if job.len < BATCH || came_back == 0 {
            return bytes;
        }
    }
}

const _: () = assert!(PAGES == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_bounded_by_what_was_purged_and_by_the_peak() {
        let mut policy = Policy::new();
        policy.used(1000);
        policy.used(400);
        policy.fresh(50);
        assert_eq!(policy.slack, 0, "nothing was purged");
        policy.purged = 300;
        policy.fresh(200);
        policy.fresh(200);
        assert_eq!((policy.slack, policy.purged), (300, 0));
        policy.purged = 900;
        policy.fresh(900);
        assert_eq!((policy.slack, policy.peak), (1000, 1000));
    }
}
