//! What happens when memory has been refused, by the system or by a limit: some of ours goes back first.

use crate::base::pause::Pause;
use crate::base::{limits, options};
use crate::front::heap::Heap;
use crate::front::thread;
use crate::os::held;
use crate::reclaim::{left_heaps, purge};
use crate::superslab::layout::SUPERSLAB;
use crate::superslab::pagemap::DIRECT;
use crate::superslab::pool;
use crate::superslab::slab::Allocation;
use crate::tiny::classes::MAX_SMALL;
use crate::{large, os};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

const _: () = assert!(held::LEAST_STEP == SUPERSLAB);

/// Tries again when memory was refused. `need` is how many bytes the block has at least.
#[inline]
pub(crate) fn or_reclaim(need: usize, attempt: impl Fn() -> Allocation) -> Allocation {
    let allocation = attempt();
    if allocation.ptr.is_null() { again(need, &attempt) } else { allocation }
}

/// A reclaim has not helped: see [`reclaimed`].
static FRUITLESS: Pause = Pause::up_to(128);

/// What could be given back without emptying anybody's magazines.
fn spare() -> usize {
    large::kept() + pool::free_bytes()
}

/// A figure that changes when the calling thread frees something, or another frees something large.
fn freed() -> usize {
    let heap = thread::own_heap();
    // SAFETY: the calling thread's, if there is one.
    let own = if heap.is_null() { 0 } else { unsafe { Heap::activity(heap) } };
    own ^ spare().rotate_left(20) ^ (large::FREES.load(Relaxed) as usize).rotate_left(40)
}

/// Whether `need` bytes can never be had, whatever is given back: nobody's caches are to be emptied for that.
fn is_hopeless(need: usize) -> bool {
    // What is smaller than that may find room in memory that others use.
    if need <= large::MAX_RUN {
        return held::is_beyond_hard(need, usize::MAX);
    }
    // All that is no large block in use; just after a reclaim has given back what magazines had, only what has been freed since.
    let back = if FRUITLESS.is_on(os::now_ms()) {
        spare()
    } else {
        held::bytes().saturating_sub(large::IN_USE.load(Relaxed))
    };
    if held::is_beyond_hard(need, back) {
        return true;
    }
    // Unless it is not the size that is in the way, but the number of mappings.
    need > back && !os::could_map(need - back) && os::could_map(os::page_size())
}

/// Gives back to the system what can be had back at once, and tries again if that was anything. Not from other threads, and not
/// at all if nothing has been freed since, when that was done a moment ago and did not help.
fn reclaimed(attempt: &dyn Fn() -> Allocation) -> Allocation {
    let again = FRUITLESS.is_on(os::now_ms());
    let heap = thread::own_heap();
    // SAFETY: the calling thread's, if there is one.
    let seen = (!heap.is_null()).then(|| unsafe { &(*heap).fruitless });
    if again && seen.is_some_and(|seen| seen.get() == freed()) {
        return Allocation::NONE;
    }
    let allocation = if purge::purge_from(!again) > 0 { attempt() } else { Allocation::NONE };
    let helped = !allocation.ptr.is_null();
    if helped || !again {
        FRUITLESS.tried(helped, os::now_ms());
    }
    if let Some(seen) = seen {
        seen.set(freed());
    }
    allocation
}

#[cold]
#[inline(never)]
fn again(need: usize, attempt: &dyn Fn() -> Allocation) -> Allocation {
    if left_heaps::exist() {
        // Before there is more memory, that of threads which a fork has left behind.
        thread::with_heap(None, |heap| {
            if !heap.is_null() {
                // SAFETY: the calling thread's.
                unsafe { left_heaps::take_over(heap) };
            }
        });
        let allocation = attempt();
        if !allocation.ptr.is_null() {
            return allocation;
        }
    }
    let refusals = held::refusals();
    let hopeless = is_hopeless(need);
    let mut allocation = if hopeless {
        Allocation::NONE
    } else if held::limited() {
        within_limits(need, attempt)
    } else {
        // Address space that one kind of block has no use for may be what the other needs.
        reclaimed(attempt)
    };
    // Free pages that do not lie side by side are better than none.
    if allocation.ptr.is_null() && !hopeless && need <= MAX_SMALL {
        allocation = pool::with_shorter(attempt);
    }
    if allocation.ptr.is_null() && (held::refusals() != refusals || held::is_beyond_hard(need, 0)) {
        held::HARD_HITS.fetch_add(1, Relaxed);
    }
    allocation
}

/// See [`or_reclaim`]: where there are limits. The caller's heap is not in the middle of anything, and no lock is held.
fn within_limits(need: usize, attempt: &dyn Fn() -> Allocation) -> Allocation {
    let due = held::purge_is_due(need.max(SUPERSLAB), options::get().purge_delay, os::now_ms());
    if due {
        purge::purge_from(true);
        held::purged(os::now_ms());
        let allocation = attempt();
        if !allocation.ptr.is_null() {
            return allocation;
        }
    }
    // Beyond the soft limit. What refuses now is the hard limit or the system.
    let mut allocation = held::beyond_soft(attempt);
    if allocation.ptr.is_null() && !due {
        allocation = held::beyond_soft(|| reclaimed(attempt));
    }
    limits::tell();
    allocation
}

/// A mapping could not grow where there are limits: tries again, as [`or_reclaim`] does. What cannot grow even so may
/// still be copied.
///
/// # Safety
///
/// As [`large::resize`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn resize(block: *mut u8, kind: u8, size: usize, align: usize) -> *mut u8 {
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
        Allocation { ptr: moved, zeroed: false }
    };
    if is_hopeless(size - before) { ptr::null_mut() } else { within_limits(size - before, &attempt).ptr }
}
