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
use crate::lockfree::ready_list::nodes;
use crate::os::{self, futex};
use crate::reclaim::{drain_magazines, left_heaps, sparse_orphans};
use crate::superslab::layout::SLICE;
use crate::superslab::slab::{Listed, Owner, Slab, VISITED};
use crate::sync::Node;
use crate::sync::Ordering::Release;
use crate::tiny::bins::Bins;
use crate::tiny::partial_purge::{self, Among, BATCH, Chosen};
use crate::tiny::release;
use core::ptr;

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

/// How often [`everyone`] tries to enter a heap whose owner is inside.
const TRIES: usize = 64;
/// After this many tries in a row it sleeps for a moment.
const TRIES_AT_ONCE: usize = 8;
/// Batches of slabs that are purged in one visit. An owner that wakes up waits as long as that takes.
const BATCHES: usize = 8;

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
            let (seen, activity) = unsafe { (&(*heap).seen, || Heap::activity(heap)) };
            match seen.look(activity(), now, delay) {
                Look::Active => return Outcome::NotEntered,
                Look::Emptied => return Outcome::Done,
                Look::Idle => {}
            }
            // SAFETY: `each_other` holds the visitors' lock meanwhile.
            let Some(visit) = (unsafe { Visit::enter(heap) }) else { return Outcome::NotEntered };
            // SAFETY: `mine` is the calling thread's heap, and `each_other` leaves it out.
            unsafe { visit.empty_caches(mine) };
            drop(visit);
            seen.emptied(activity());
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
            drop(visits);
            match outcome {
                Outcome::Done => return,
                Outcome::More => {
                    tried = 0;
                    // Else its owner, which the visits keep waiting, would get in after the last of them.
                    futex::pause();
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

/// Being inside another thread's heap, as its only visitor.
struct Visit {
    heap: *mut Heap,
}

impl Drop for Visit {
    fn drop(&mut self) {
        // SAFETY: a heap record, which is never unmapped.
        unsafe { Heap::lock(self.heap) }.end_visit();
    }
}

impl Visit {
    /// Enters a heap. `None` when its owner is inside, or no thread has it any more.
    ///
    /// # Safety
    ///
    /// `heap` is a record of the registry. The caller is the only visitor, and stays so until the visit is
    /// dropped.
    unsafe fn enter(heap: *mut Heap) -> Option<Visit> {
        // SAFETY: heap records are never unmapped.
        if !unsafe { Heap::lock(heap) }.visit() {
            return None;
        }
        let visit = Visit { heap };
        // Only now: a thread gives its heap up, and gets one, inside the lock.
        // SAFETY: a heap record, which is never unmapped; the fields are atomic.
        unsafe { Heap::is_somebodys(heap) }.then_some(visit)
    }

    /// Empties the heap's magazines and its run cache.
    ///
    /// # Safety
    ///
    /// `mine` is the calling thread's heap, and not the one visited.
    unsafe fn empty_caches(&self, mine: *mut Heap) {
        let heap = self.heap;
        // SAFETY: we visit the heap that both are parts of; `mine` is as this function's contract says.
        unsafe { drain_magazines::drain(&(*heap).tops, &(*heap).magazines, mine) };
        // SAFETY: we are inside, and the owner changes its run cache only when it is.
        unsafe { (*heap).run_cache.flush() };
    }

    /// Takes in what was published to the heap. With `whole`, only slabs of which every block has come back:
    /// for the others more blocks are about to arrive, which would publish them again. Returns how many
    /// slices these have.
    fn take_in(&self, whole: bool) -> usize {
        let owner = Heap::owner(self.heap);
        // SAFETY: parts of a heap record, which is never unmapped; of the owner only atomics are used.
        let (lock, bins, ready) =
            unsafe { (Heap::lock(self.heap), &raw mut (*self.heap).bins, &(*owner).ready) };
        let (mut published, mut left) = (ptr::null_mut(), 0);
        // SAFETY: what is taken off the list is ours alone to take in or to publish again. Until then each of
        // these slabs is disarmed, so its owner does not release it, nobody else writes its link, and
        // `is_whole` reads constants and an atomic.
        unsafe {
            (*owner).note_taken_in();
            nodes(ready.take_all()).for_each(|slab| {
                if whole && !Slab::is_whole(slab) {
                    left += (*slab).slices as usize;
                    ready.push(slab);
                } else {
                    <Slab as Node>::set_next(slab, published);
                    published = slab;
                }
            });
            nodes(published).for_each(|slab| mark(slab, owner));
        }
        let name = lock.hazard_after_barrier();
        // SAFETY: the slabs are still ours to take in or to publish. The first branch publishes them again,
        // all if there was no barrier, else those that the owner may be using: its current slabs and the one
        // it has named. The others it does not use: since the barrier it finds the mark when it checks a
        // slab, and we are inside its lock.
        unsafe {
            nodes(published).for_each(|slab| {
                let current = (*slab).list == Listed::Current;
                if current || name.is_none_or(|name| Bins::is_named(slab, name)) {
                    unmark(slab, owner);
                    ready.push(slab);
                } else if !Bins::accept_published(bins, slab) {
                    unmark(slab, owner);
                }
            });
        }
        left
    }

    /// Takes the current slabs of which hardly a block is in use out of their places, or `all` of them, and
    /// releases or lists them. The owner finds others when it needs them.
    fn withdraw(&self, all: bool) {
        let owner = Heap::owner(self.heap);
        // SAFETY: parts of a heap record, which is never unmapped.
        let (lock, bins) = unsafe { (Heap::lock(self.heap), &raw mut (*self.heap).bins) };
        // SAFETY: we visit the heap of these bins.
        let withdrawn = unsafe { Bins::withdraw(bins, all) }.0;
        let slabs = || withdrawn.iter().copied().filter(|slab| !slab.is_null());
        if slabs().next().is_none() {
            return;
        }
        // SAFETY: the slabs belong to `owner`, and nobody but us can release them.
        slabs().for_each(|slab| unsafe { mark(slab, owner) });
        let name = lock.hazard_after_barrier();
        // SAFETY: each of these slabs is ours until it is put back, or was released. Those that the owner may
        // be using, all if there was no barrier, are put back as they were. The others it does not use: since
        // the barrier it finds the mark when it checks a slab, and no slab where these were.
        slabs().for_each(|slab| unsafe {
            if name.is_none_or(|name| Bins::is_named(slab, name)) {
                Bins::put_back(bins, slab);
                unmark(slab, owner);
            } else if !Bins::keep_any(bins, slab) {
                unmark(slab, owner);
            }
        });
    }

    /// In how many visits every slab of the heap can be purged, or more.
    fn enough(&self) -> usize {
        // SAFETY: we visit the heap of these bins, so nobody else changes the number.
        3 + unsafe { (*self.heap).bins.bytes() } / (SLICE * BATCHES * BATCH)
    }

    /// Purges idle memory in some of these slabs. False when there are none left.
    fn purge(&self, among: &mut Among) -> bool {
        let owner = Heap::owner(self.heap);
        // SAFETY: heap records are never unmapped.
        let lock = unsafe { Heap::lock(self.heap) };
        // SAFETY: only the address of a part of that record.
        let bins = unsafe { &raw mut (*self.heap).bins };
        // SAFETY: we visit the heap of these bins, so nobody else changes their lists.
        let chosen = unsafe { Chosen::from(bins, lock.hazard(), among) };
        if chosen.slabs().is_empty() {
            return false;
        }
        // SAFETY: the slabs are in the lists of the heap that we visit, so `owner` owns them.
        chosen.slabs().iter().for_each(|&slab| unsafe { mark(slab, owner) });
        let hazard = lock.hazard_after_barrier();
        if let Some(hazard) = hazard {
            // SAFETY: we are inside the heap's lock, and these slabs are marked: since the barrier the owner
            // puts no block into any of them but the one that it has named, which is left out.
            unsafe { chosen.purge(bins, hazard, false) };
        }
        // SAFETY: as for `mark`: a purge releases no slab.
        chosen.slabs().iter().for_each(|&slab| unsafe { unmark(slab, owner) });
        hazard.is_some()
    }

    /// [Purges](Visit::purge) as many batches as an owner that wakes up may have to wait for. False when
    /// there are no such slabs left.
    fn purge_batches(&self, among: &mut Among) -> bool {
        (0..BATCHES).all(|_| self.purge(among))
    }
}

/// Marks a slab of `owner`, so that its owner does not find it to be its own. A barrier must follow.
///
/// # Safety
///
/// `owner` owns the slab, and it stays so until [`unmark`]: the caller visits the owner's heap, or has taken
/// the slab off the owner's ready list, so that it is disarmed and can be neither released nor given up.
unsafe fn mark(slab: *mut Slab, owner: *mut Owner) {
    // Release: pairs with the acquire of statistics, which read the slab's fields: see `Slab::make`. For the
    // owner it is the barrier that counts.
    // SAFETY: by this function's contract the record stays a slab's; the field is atomic.
    unsafe { (*slab).owner.store(owner.map_addr(|a| a | VISITED), Release) }
}

/// Undoes [`mark`].
///
/// # Safety
///
/// The slab was marked, and has not been released since.
unsafe fn unmark(slab: *mut Slab, owner: *mut Owner) {
    // Release: pairs with the acquire in `free::is_owned_by`, by which the owner sees what was done to the
    // slab.
    // SAFETY: by this function's contract the record is still that slab's; the field is atomic.
    unsafe { (*slab).owner.store(owner, Release) }
}
