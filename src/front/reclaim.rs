//! What happens when memory has been refused, by the system or by a limit: some of ours goes back first.

use super::{fork, thread};
use crate::os::{self, held};
use crate::superslab::pagemap::DIRECT;
use crate::superslab::{Fresh, SUPERSLAB};
use crate::{large, limits, options};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

const _: () = assert!(held::LEAST_STEP == SUPERSLAB);

/// Tries again when memory was refused. `need` is about how many bytes the attempt may want from the system.
#[inline]
pub(super) fn or_reclaim(need: usize, attempt: impl Fn() -> Fresh) -> Fresh {
    let fresh = attempt();
    if fresh.block.is_null() { again(need, &attempt) } else { fresh }
}

/// Gives back to the system what can be had back at once. How many bytes.
fn reclaim() -> usize {
    crate::purge()
}

#[cold]
#[inline(never)]
fn again(need: usize, attempt: &dyn Fn() -> Fresh) -> Fresh {
    if fork::has_left_heaps() {
        // Before there is more memory, that of threads which a fork has left behind.
        thread::with_heap(None, |heap| {
            if !heap.is_null() {
                // SAFETY: the calling thread's.
                unsafe { fork::take_over(heap) };
            }
        });
        let fresh = attempt();
        if !fresh.block.is_null() {
            return fresh;
        }
    }
    if !held::limited() {
        // Address space that one kind of block has no use for may be what the other needs.
        return if reclaim() > 0 { attempt() } else { Fresh::NONE };
    }
    let refusals = held::refusals();
    let fresh = within_limits(need, attempt);
    if fresh.block.is_null() && held::refusals() != refusals {
        held::HARD_HITS.fetch_add(1, Relaxed);
    }
    fresh
}

/// See [`or_reclaim`]: where there are limits. The caller's heap is not in the middle of anything, and no lock is held.
fn within_limits(need: usize, attempt: &dyn Fn() -> Fresh) -> Fresh {
    let due = held::purge_is_due(need.max(SUPERSLAB), options::get().purge_delay, os::now_ms());
    if due {
        reclaim();
        held::purged(os::now_ms());
        let fresh = attempt();
        if !fresh.block.is_null() {
            return fresh;
        }
    }
    // Beyond the soft limit. What refuses now is the hard limit or the system.
    let mut fresh = held::beyond_soft(attempt);
    if fresh.block.is_null() && !due {
        reclaim();
        fresh = held::beyond_soft(attempt);
    }
    limits::tell();
    fresh
}

/// A mapping could not grow where there are limits: tries again, as [`or_reclaim`] does. What cannot grow even so may
/// still be copied.
///
/// # Safety
///
/// As [`large::resize`].
#[cold]
#[inline(never)]
pub(super) unsafe fn resize(block: *mut u8, kind: u8, size: usize, align: usize) -> *mut u8 {
    if kind != DIRECT {
        return ptr::null_mut();
    }
    let before = large::usable_checked(block, kind, "realloc");
    if size <= before {
        return ptr::null_mut();
    }
    let attempt = || {
        // SAFETY: passed on; while it fails, the block stays what it is.
        let moved = unsafe { large::resize(block, kind, size, align) };
        Fresh { block: moved, zero: false }
    };
    within_limits(size - before, &attempt).block
}
