//! What happens when the system or a limit has refused memory: some of our free memory goes back first, then
//! we try again.

use crate::base::pause::Pause;
use crate::base::{counters, limits, options};
use crate::front::heap::Heap;
use crate::front::{registry, thread};
use crate::os::{held, returning};
use crate::reclaim::left_heaps;
use crate::reclaim::purge::{self, Extent};
use crate::superslab::layout::{SLICE, SUPERSLAB};
use crate::superslab::pagemap::DIRECT;
use crate::superslab::pool;
use crate::superslab::slab::Allocation;
use crate::sync::Ordering::Relaxed;
use crate::tiny::classes::MAX_SMALL;
use crate::{hardened, large, os};
use core::cell::Cell;
use core::ptr;

#[cfg(all(test, not(loom)))]
mod tests;

const _: () = assert!(held::LEAST_STEP == SUPERSLAB);

/// Runs `attempt`, and again after reclaiming memory if it was refused. `need` is the least number of bytes
/// that the block takes, `align` what its address has to be a multiple of.
#[inline]
pub(crate) fn or_reclaim(need: usize, align: usize, attempt: impl Fn() -> Allocation) -> Allocation {
    let allocation = attempt();
    if allocation.ptr.is_null() { again(need, align, &attempt) } else { allocation }
}

/// Set while the last reclaim did not help: see [`reclaimed`].
static FRUITLESS: Pause = Pause::up_to(128);

/// Bytes that can be given back without emptying magazines.
fn spare() -> usize {
    let own = if hardened::is_on() { hardened::spare() } else { 0 };
    large::kept() + pool::free_bytes() + own
}

/// Bytes of the runs that threads keep, which count as in use.
fn cached_runs() -> usize {
    let mut bytes = 0;
    // SAFETY: heap records, which are never unmapped; an atomic.
    registry::each(|heap| bytes += unsafe { (*heap).run_cache.held.get() } as usize);
    bytes
}

/// Two numbers: one that changes when the calling thread frees something, and one that does when another
/// thread frees something large.
fn freed() -> (u32, u32) {
    let heap = thread::own_heap();
    // SAFETY: `own_heap` returns the calling thread's heap or null, which is checked.
    let own = if heap.is_null() { 0 } else { unsafe { Heap::activity(heap) ^ quarantine(heap).0 } };
    // An odd factor, so that no number of bytes makes up for one of blocks.
    let others = (spare() / SLICE) as u32;
    let others = others.wrapping_add((counters::LARGE_FREES.load(Relaxed) as u32).wrapping_mul(0x9e37_79b1));
    ((own ^ own >> 32) as u32, others)
}

/// What [`freed`] was at the end of the calling thread's last reclaim; `None` if it has no heap.
fn seen<'a>() -> Option<&'a Cell<(u32, u32)>> {
    let heap = thread::own_heap();
    // SAFETY: `own_heap` returns the calling thread's heap or null, which is checked. Only that thread uses
    // the cell, and heap records are never unmapped.
    (!heap.is_null()).then(|| unsafe { &(*heap).fruitless })
}

/// Whether the calling thread may have freed something since its last reclaim, which it keeps itself.
fn has_freed() -> bool {
    seen().is_some_and(|seen| seen.get().0 != freed().0)
}

/// In hardened mode how many small blocks the calling thread has freed into its quarantine, and whether some
/// are there still.
///
/// # Safety
///
/// `heap` is that thread's.
unsafe fn quarantine(heap: *mut Heap) -> (usize, bool) {
    if !hardened::is_on() {
        return (0, false);
    }
    // SAFETY: by this function's contract the thread owns the heap.
    let state = unsafe { Heap::hardened(heap) };
    (state.quarantined(), state.keeps_any())
}

/// Whether the calling thread keeps blocks in quarantine: nobody knows how much memory they hold.
fn keeps_any() -> bool {
    let heap = thread::own_heap();
    // SAFETY: `own_heap` returns the calling thread's heap or null, which is checked.
    !heap.is_null() && unsafe { quarantine(heap) }.1
}

/// Whether other threads have freed blocks of the calling thread's slabs, which it has not looked at yet:
/// more can be had then than when it was last refused.
fn has_ready() -> bool {
    let heap = thread::own_heap();
    // SAFETY: `own_heap` returns the calling thread's heap or null, which is checked.
    !heap.is_null() && !unsafe { &*Heap::owner(heap) }.ready.is_empty()
}

/// Whether no process has so many addresses: user space has 47 or 48 bits of them where nobody asks for more.
const fn is_beyond_addresses(need: usize) -> bool {
    need >> 48 != 0
}

/// Whether `need` bytes at a multiple of `align` can never be had, whatever is given back. Then nobody's
/// caches are emptied.
fn is_hopeless(need: usize, align: usize) -> bool {
    // As a rule it has so much address space to be looked for in. SuperSlabs have that alignment anyway.
    let place = if align > SUPERSLAB { need.saturating_add(align) } else { need };
    // A smaller block may find room in memory that other threads cache.
    if place <= large::MAX_RUN {
        return held::is_beyond_hard(need, usize::MAX);
    }
    // What could go back: everything but large blocks in use. Just after a reclaim, which has emptied the
    // caches, only what has been freed since; unless some of that is on its way back, where it is not seen.
    let returned = returning::returned();
    let none_unseen = !returning::is_returning() && !has_ready() && !keeps_any() && !has_freed();
    let mut back = if FRUITLESS.is_on(os::now_ms()) && none_unseen {
        spare()
    } else {
        let large = (counters::LARGE_IN_USE.load(Relaxed)).saturating_sub(cached_runs());
        held::bytes().saturating_sub(large)
    };
    if returning::is_returning() || returning::returned() != returned {
        // Of what is on its way nobody knows whether it counted as in use.
        back = held::bytes();
    }
    if held::is_beyond_hard(need, back) {
        return true;
    }
    // It may be not the size that the system refuses, but one more mapping.
    is_beyond_addresses(place)
        || place > back && !os::could_map(place - back) && os::could_map(os::page_size())
}

/// Gives back what can be given back at once, and tries again. If the same has just been done and did not
/// help, leaves other threads' caches alone, and does nothing at all unless something has been freed since.
fn reclaimed(attempt: &dyn Fn() -> Allocation) -> Allocation {
    let again = FRUITLESS.is_on(os::now_ms());
    let seen = seen();
    if again && !has_ready() && seen.is_some_and(|seen| seen.get() == freed()) {
        return Allocation::NONE;
    }
    let mapped = os::MAPPED.load(Relaxed);
    let purged = purge::purge_from(if again { Extent::Mine } else { Extent::All });
    // Of what is unmapped later than it was purged only that is seen. The caches of others may have had what
    // is needed, though the system has taken nothing back.
    let tries = purged > 0 || os::MAPPED.load(Relaxed) < mapped || !again;
    let allocation = if tries { attempt() } else { Allocation::NONE };
    let helped = !allocation.ptr.is_null();
    if helped || !again {
        FRUITLESS.tried(helped, os::now_ms());
    }
    if let Some(seen) = seen {
        seen.set(freed());
    }
    allocation
}

/// How often at most to wait for a millisecond for other threads that are giving memory back.
const WAITS: u32 = 100;

/// Tries again when other threads have given memory back, if any have since they had done so `seen` times, or
/// are about to: that may have been just what is needed.
fn when_returned(mut seen: u32, attempt: &dyn Fn() -> Allocation) -> Allocation {
    for _ in 0..WAITS {
        // In this order: what ends in between is seen.
        let waits = returning::is_returning();
        let now = returning::returned();
        if now != seen {
            seen = now;
            let allocation = beyond_soft(attempt);
            if !allocation.ptr.is_null() {
                FRUITLESS.tried(true, os::now_ms());
                return allocation;
            }
        } else if waits {
            returning::wait(seen);
        } else {
            break;
        }
    }
    Allocation::NONE
}

/// Tries again, beyond the soft limit if there are limits.
fn beyond_soft(attempt: &dyn Fn() -> Allocation) -> Allocation {
    if !held::limited() {
        return attempt();
    }
    let allocation = held::beyond_soft(attempt);
    limits::report_crossing();
    allocation
}

#[cold]
#[inline(never)]
fn again(need: usize, align: usize, attempt: &dyn Fn() -> Allocation) -> Allocation {
    if left_heaps::exist() {
        // Before there is more memory, what a fork has left behind is used.
        thread::with_heap(None, |heap| {
            if !heap.is_null() {
                // SAFETY: `with_heap` gives us the calling thread's heap.
                unsafe { left_heaps::take_over(heap) };
            }
        });
        let allocation = attempt();
        if !allocation.ptr.is_null() {
            return allocation;
        }
    }
    let refusals = held::refusals();
    let returned = returning::returned();
    let hopeless = is_hopeless(need, align);
    let mut allocation = if hopeless {
        Allocation::NONE
    } else if held::limited() {
        within_limits(need, attempt)
    } else {
        // Address space that one kind of block keeps may be what the other kind needs.
        reclaimed(attempt)
    };
    if allocation.ptr.is_null() && !hopeless {
        allocation = when_returned(returned, attempt);
    }
    // A shorter span than the class wants is better than no memory.
    if allocation.ptr.is_null() && !hopeless && need <= MAX_SMALL {
        allocation = pool::with_shorter(attempt);
    }
    if allocation.ptr.is_null() && (held::refusals() != refusals || held::is_beyond_hard(need, 0)) {
        held::HARD_HITS.fetch_add(1, Relaxed);
    }
    allocation
}

/// The part of [`or_reclaim`] for processes with limits. No lock is held, and the caller's heap is in a
/// consistent state.
fn within_limits(need: usize, attempt: &dyn Fn() -> Allocation) -> Allocation {
    let due = held::purge_is_due(need.max(SUPERSLAB), options::get().purge_delay, os::now_ms());
    // Just after a refusal nothing is purged for what is refused again, however often it is asked for.
    let is_refused = || held::is_beyond_hard(need, 0) || !os::could_map(need);
    let waits = due && FRUITLESS.is_on(os::now_ms()) && is_refused();
    let purge = || {
        purge::purge_from(Extent::All);
        held::purged(os::now_ms());
    };
    if due && !waits {
        purge();
        let allocation = attempt();
        if !allocation.ptr.is_null() {
            return allocation;
        }
    }
    // Go beyond the soft limit. Whatever refuses now is the hard limit or the system.
    let mut allocation = held::beyond_soft(attempt);
    let got = !allocation.ptr.is_null();
    if got && waits {
        purge();
    }
    if !got && due && !waits {
        FRUITLESS.tried(false, os::now_ms());
    } else if !got {
        allocation = held::beyond_soft(|| reclaimed(attempt));
    }
    limits::report_crossing();
    allocation
}

/// Resizes a large block in place or by moving its pages. A mapping that a limit keeps from growing tries
/// again as [`or_reclaim`] does; one that cannot grow otherwise does not, since a purge would cost more than
/// copying. Null when the block has to be copied.
///
/// # Safety
///
/// As [`large::resize`].
pub(crate) unsafe fn resize(block: *mut u8, kind: u8, size: usize, align: usize) -> *mut u8 {
    // SAFETY: this function's contract is that of `large::resize`.
    let moved = unsafe { large::resize(block, kind, size, align) };
    if !moved.is_null() || !held::limited() {
        return moved;
    }
    // SAFETY: it has failed, so the block is as it was.
    unsafe {
        grow_by(block, kind, size, align, |growth, attempt| {
            if held::refuses(growth.next_multiple_of(os::page_size())) {
                within_limits(growth, attempt)
            } else {
                Allocation::NONE
            }
        })
    }
}

/// Tries to resize a large block once more, when there is no memory for a copy either: it may be too long for
/// one, and what we keep enough for what it lacks. Null if not.
///
/// # Safety
///
/// As [`large::resize`].
#[cold]
pub(crate) unsafe fn resize_at_last(block: *mut u8, kind: u8, size: usize, align: usize) -> *mut u8 {
    // For the copy all may have gone back already, which was not enough for that.
    let again = |attempt: &dyn Fn() -> Allocation| {
        let allocation = attempt();
        if allocation.ptr.is_null() { reclaimed(attempt) } else { allocation }
    };
    // SAFETY: this function's contract is that of `grow_by`.
    unsafe { grow_by(block, kind, size, align, |_, attempt| beyond_soft(&|| again(attempt))) }
}

/// Resizes a mapping that is to grow after `reclaim` has made room, unless there cannot be any. Null then, or
/// if it fails.
///
/// # Safety
///
/// As [`large::resize`].
unsafe fn grow_by(
    block: *mut u8,
    kind: u8,
    size: usize,
    align: usize,
    reclaim: impl FnOnce(usize, &dyn Fn() -> Allocation) -> Allocation,
) -> *mut u8 {
    if kind != DIRECT {
        return ptr::null_mut();
    }
    let attempt = || {
        // SAFETY: this function's contract is that of `large::resize`. While it fails, the block is
        // unchanged, so trying again is allowed.
        let moved = unsafe { large::resize(block, kind, size, align) };
        Allocation { ptr: moved, zeroed: false }
    };
    let growth = size.saturating_sub(large::usable_checked(block, kind, "realloc"));
    if growth == 0 || is_hopeless(growth, 1) { ptr::null_mut() } else { reclaim(growth, &attempt).ptr }
}
