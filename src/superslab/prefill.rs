//! An experiment, off by default: pages that are made resident before they are wanted, by the background thread.
//!
//! While fresh pages are being taken, those that will be taken next are hidden from the pool, populated, and put back as
//! dirty ones, which are taken first. Twice as many as were wanted since the last time, within bounds. Those that nobody
//! takes go back to the system by age, like all dirty pages.

use super::pagemap::PAGE_SHIFT;
use super::pool::{self, PAGES};
use super::state::{Desc, State, span_mask};
use crate::{alarm, ongoing, os};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages that are made ready at least and at most: 256 KiB and 4 MiB.
const LEAST: usize = 4;
/// See [`LEAST`].
const MOST: usize = 64;
/// Spans handled in one go.
const BATCH: usize = 16;

/// Pages made resident ahead of demand since the start.
pub(crate) static PREFILLED: AtomicU64 = AtomicU64::new(0);

/// What the pool remembers of demand. Guarded by its lock.
pub(super) struct Demand {
    /// Fresh pages taken since the last look.
    pages: usize,
    /// The pages of the span that they were last taken for.
    span: usize,
}

impl Demand {
    pub(super) const fn new() -> Self {
        Self { pages: 0, span: 1 }
    }

    /// `fresh` pages of a span of `span` had to be touched afresh.
    pub(super) fn add(&mut self, fresh: usize, span: usize) {
        self.pages = (self.pages + fresh).min(MOST);
        self.span = span;
    }

    /// How many pages are to lie ready: none without demand.
    fn take(&mut self) -> usize {
        match core::mem::take(&mut self.pages) {
            0 => 0,
            wanted => (2 * wanted).clamp(LEAST, MOST),
        }
    }
}

/// A span taken out of the pool to be populated.
#[derive(Clone, Copy)]
struct Item {
    desc: *mut Desc,
    base: *mut u8,
    pages: u32,
    clean: u32,
}

/// Makes pages ready, if fresh ones were taken lately and that is wanted.
pub(crate) fn ahead() {
    if !alarm::FRESH.load(Relaxed) {
        return;
    }
    let none = Item { desc: ptr::null_mut(), base: ptr::null_mut(), pages: 0, clean: 0 };
    let mut items = [none; BATCH];
    let Some(_work) = ongoing::begin() else { return };
    let len = pool::with(|pool| choose(pool, &mut items));
    for item in &items[..len] {
        let done = item.populate();
        PREFILLED.fetch_add(u64::from(done.count_ones()), Relaxed);
        // SAFETY: a SuperSlab with hidden pages is never entirely free, so it has stayed in the pool.
        pool::with(|pool| unsafe {
            pool.change(item.desc, os::now_ms(), item.pages.count_ones() as isize, |d| {
                d.free |= item.pages;
                d.dirty |= done;
            });
        });
    }
}

/// Takes the spans out of the pool that are likely to be asked for next, in that order. How many.
fn choose(pool: &mut State, items: &mut [Item; BATCH]) -> usize {
    let (wanted, span) = (pool.demand.take(), pool.demand.span);
    let (mut ready, mut len) = (0, 0);
    while ready < wanted && len < BATCH {
        // Never page 0: a part of it is the header.
        let Some((desc, index)) = pool.find(span, false, pool::LOOKS) else { break };
        let pages = span_mask(index, span);
        // SAFETY: found in the pool, which is locked.
        unsafe {
            items[len] = Item { desc, base: (*desc).base, pages, clean: pages & !(*desc).dirty };
            pool.change(desc, 0, -(span as isize), |d| d.free &= !pages);
        }
        ready += span;
        len += 1;
    }
    len
}

impl Item {
    /// Makes the clean pages resident, one by one; those that are.
    fn populate(&self) -> u32 {
        let mut done = 0;
        for index in (0..PAGES).filter(|&index| self.clean & 1 << index != 0) {
            let page = self.base.wrapping_add(index << PAGE_SHIFT);
            // SAFETY: hidden from the pool, so ours alone; clean, so zero.
            if unsafe { os::populate(page, 1 << PAGE_SHIFT) } {
                done |= 1 << index;
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_demand_within_bounds_and_nothing_without() {
        let mut demand = Demand::new();
        assert_eq!(demand.take(), 0);
        demand.add(1, 1);
        assert_eq!((demand.take(), demand.take()), (LEAST, 0));
        demand.add(8, 8);
        demand.add(4, 4);
        assert_eq!((demand.take(), demand.span), (24, 4));
        for _ in 0..100 {
            demand.add(16, 16);
        }
        assert_eq!(demand.take(), MOST);
    }
}
