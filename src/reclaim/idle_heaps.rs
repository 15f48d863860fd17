//! Visits: giving back what an idle thread's heap holds, by another thread.
//!
//! A thread that sleeps or computes does not allocate. So it does not take in what others have freed for it,
//! and its magazines and its run cache stay full. A visitor enters the heap's
//! [lock](crate::lockfree::biased_lock), and then may do to every slab that the owner does not name what the
//! owner does when it allocates; to the current ones after it has taken them out of their places. Two kinds
//! of threads visit: one that has freed many blocks of the owner's slabs ([`take_in`]), and one that wants
//! everything back that is possible ([`everyone`], and [`idle`] in the background).
//!
//! There is one visitor at a time in the process. An owner that finds one in its heap waits for the visitors'
//! lock.

use crate::base::options;
use crate::front::heap::Heap;
use crate::front::visitor::Look;
use crate::front::{registry, thread, visitor};
use crate::os::{self, futex};
use crate::reclaim::{left_heaps, sparse_orphans};
use crate::superslab::slab::Owner;
use crate::tiny::partial_purge::{self, Among};
use crate::tiny::release;
use core::ptr;
use visit::Visit;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;
mod visit;

/// How often [`everyone`] tries to enter a heap whose owner is inside.
const TRIES: usize = 64;
/// After this many tries in a row it sleeps for a moment.
const TRIES_AT_ONCE: usize = 8;

/// Takes in what was freed to the heap of `owner`, unless the owner is inside, or somebody else visits.
/// `owner` is part of a heap's record.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn take_in(owner: *mut Owner) {
    let Some(_visits) = visitor::try_lock() else {
        // SAFETY: a heap record, which is never unmapped; the fields are atomic.
        return unsafe { (*owner).put_off_visit() };
    };
    // Only slabs of which everything has come back: for the others more blocks may be on their way, and a
    // later visit takes them in. An owner that is inside is at work, and takes them in itself.
    // SAFETY: `owner` lies in a heap's record, which is never unmapped; the lock makes us the only visitor.
    if let Some(visit) = unsafe { Visit::enter(Heap::of(owner)) } {
        let left = visit.take_in(true);
        // SAFETY: a heap record, which is never unmapped; the fields are atomic.
        unsafe { (*owner).note_visit(os::now_ms(), left) };
    }
}

/// Takes in what was freed to any other heap, empties all magazines and run caches, gives up what threads
/// that have ended did not, and purges idle memory in sparse slabs, or with `all` in the others, too, orphans
/// included. A heap whose owner is inside at every try stays as it is.
pub(crate) fn everyone(all: bool) {
    thread::with_heap(None, |mine| {
        if mine.is_null() {
            return;
        }
        if left_heaps::exist() {
            // SAFETY: `with_heap` gives us the calling thread's heap.
            unsafe { left_heaps::take_over(mine) };
        }
        // All magazines first: a block in one heap's magazine may be all that keeps a slab of another.
        each_other(mine, TRIES, |heap| {
            // SAFETY: `each_other` holds the visitors' lock meanwhile.
            let Some(visit) = (unsafe { Visit::enter(heap) }) else { return Outcome::NotEntered };
            // SAFETY: `mine` is the calling thread's heap, and `each_other` leaves it out.
            unsafe { visit.empty_caches(mine) };
            Outcome::Done
        });
        // SAFETY: the calling thread's heap.
        unsafe { Heap::flush_outbox(mine) };
        registry::give_up_rest(true);
        // An owner at work may have more to purge all the time: so many visits have to do.
        let (mut visited, mut visits, mut partial) = (ptr::null_mut(), 0, Among::PARTIAL);
        each_other(mine, TRIES, |heap| {
            // SAFETY: `each_other` holds the visitors' lock meanwhile.
            let Some(visit) = (unsafe { Visit::enter(heap) }) else { return Outcome::NotEntered };
            visit.withdraw(false);
            visit.take_in(false);
            if visited != heap {
                (visited, visits, partial) = (heap, visit.enough(), Among::PARTIAL);
            }
            visits = visits.saturating_sub(1);
            // As in `Heap::trim`: partial ones first.
            let more = all && visits != 0 && visit.purge_batches(&mut partial)
                || visit.purge_batches(&mut Among::Sparse(0));
            if more && visits != 0 { Outcome::More } else { Outcome::Done }
        });
        // SAFETY: the calling thread's heap, entered as long as the orphans are in its bins.
        unsafe {
            let _entered = Heap::enter(mine);
            partial_purge::purge_orphans(&raw mut (*mine).bins, all);
        }
    });
}

/// Takes away what lets the owners of other heaps allocate without a slow path: the blocks in their
/// magazines, their run caches, and their current slabs. One whose owner is inside at every try is left
/// alone.
pub(crate) fn unsettle() {
    thread::with_heap(None, |mine| {
        if mine.is_null() {
            return;
        }
        each_other(mine, TRIES, |heap| {
            // SAFETY: `each_other` holds the visitors' lock meanwhile.
            let Some(visit) = (unsafe { Visit::enter(heap) }) else { return Outcome::NotEntered };
            // SAFETY: `mine` is the calling thread's heap, and `each_other` leaves it out.
            unsafe { visit.empty_caches(mine) };
            // SAFETY: we are inside, and the owner changes its run cache only when it is. It opens that again
            // when it needs a run.
            unsafe { (*heap).run_cache.close() };
            visit.withdraw(true);
            Outcome::Done
        });
        // SAFETY: the calling thread's heap.
        unsafe { Heap::flush_outbox(mine) };
    });
}

/// Takes in what was freed to any other heap, and empties the magazines and run caches of those whose owners
/// have done nothing since before the purge delay. Returns whether some owner may be found idle later. For a
/// thread that calls this again and again; `now` is in milliseconds.
pub(crate) fn idle(now: u32) -> bool {
    let delay = options::get().purge_delay;
    thread::with_heap(None, |mine| {
        // Where the system has no barrier, nobody can visit.
        if mine.is_null() || delay < 0 || os::barrier::is_missing() {
            return false;
        }
        let left = each_other(mine, 1, |heap| {
            // SAFETY: a heap record, which is never unmapped; these fields and counters are atomic.
            let (seen, activity) = unsafe { (&(*heap).seen, Heap::activity(heap)) };
            match seen.look(activity, now, delay) {
                Look::Active => return Outcome::NotEntered,
                Look::Emptied => return Outcome::Done,
                Look::Idle => {}
            }
            // SAFETY: `each_other` holds the visitors' lock meanwhile.
            let Some(visit) = (unsafe { Visit::enter(heap) }) else { return Outcome::NotEntered };
            // SAFETY: `mine` is the calling thread's heap, and `each_other` leaves it out.
            unsafe { visit.empty_caches(mine) };
            drop(visit);
            seen.emptied();
            Outcome::Done
        });
        // SAFETY: the calling thread's heap.
        unsafe { Heap::flush_outbox(mine) };
        registry::give_up_rest(false);
        release::release_emptied();
        // SAFETY: the calling thread's heap.
        let mut more = unsafe { sparse_orphans::purge_quiet(mine) };
        let missed = each_other(mine, 1, |heap| {
            // SAFETY: a heap record, which is never unmapped; both are atomic.
            let (ready, seen) = unsafe { (&(*Heap::owner(heap)).ready, &(*heap).seen) };
            // An owner that is working takes in its own blocks. If it does not come to it, this saves it the
            // work.
            if ready.is_empty() && !seen.is_emptied() {
                return Outcome::Done;
            }
            // SAFETY: `each_other` holds the visitors' lock meanwhile.
            let Some(visit) = (unsafe { Visit::enter(heap) }) else { return Outcome::NotEntered };
            if seen.is_emptied() {
                visit.withdraw(false);
            }
            visit.take_in(false);
            // What is left after this is for the next call.
            more |= seen.is_emptied() && visit.purge_batches(&mut Among::Sparse(0));
            Outcome::Done
        });
        left || missed || more
    })
}

/// Calls `f` with every heap but `mine` that a thread has, while we are the only visitor, and again for a
/// heap while `f` asks for it. Tries to enter a heap so many times, and waits for other visitors only if that
/// is more than once. Returns whether it could not enter some heap.
fn each_other(mine: *mut Heap, tries: usize, mut f: impl FnMut(*mut Heap) -> Outcome) -> bool {
    let mut missed = false;
    registry::each(|heap| {
        let mut tried = 0;
        // SAFETY: a heap record, which is never unmapped; the fields are atomic.
        while heap != mine && unsafe { Heap::is_somebodys(heap) } {
            let visits = if tries > 1 { visitor::lock() } else { visitor::try_lock() };
            let outcome = if visits.is_some() { f(heap) } else { Outcome::Locked };
            let waited_for = visits.is_some_and(|visits| visits.are_waited_for());
            match outcome {
                Outcome::Done => return,
                Outcome::More => {
                    tried = 0;
                    if waited_for {
                        // Else the heap's owner would get in after the last of the visits.
                        futex::pause();
                    }
                }
                Outcome::NotEntered if tried + 1 < tries && !os::barrier::is_missing() => tried += 1,
                Outcome::NotEntered | Outcome::Locked => {
                    missed = true;
                    return;
                }
            }
            if tried % TRIES_AT_ONCE == TRIES_AT_ONCE - 1 {
                futex::pause();
            }
        }
    });
    missed
}

/// How far a visit got.
enum Outcome {
    /// To its end.
    Done,
    /// There is more to do: visit again.
    More,
    /// The owner was inside, or has been active, or no thread has the heap any more.
    NotEntered,
    /// There was another visitor.
    Locked,
}
