//! Visits: what a thread's heap holds, and its owner does not come for, is given back by another thread.
//!
//! A thread that sleeps, or computes, allocates nothing: so it takes in nothing of what others freed for it, and its
//! magazines and its run cache stay full. A visitor enters the heap's [lock](crate::lockfree::biased_lock) and then may do, to every slab but
//! the current ones, what the owner does when it allocates. Who visits: a thread that has freed much of what the owner has
//! ([`take_in`]), and whoever asks for all that can be had ([`everyone`]).
//!
//! One visitor at a time in the process: the owner who finds one in its heap waits for that lock.

use crate::base::options;
use crate::front::heap::Heap;
use crate::front::visitor::Look;
use crate::front::{registry, thread, visitor};
use crate::os;
use crate::os::futex;
use crate::reclaim::{drain_magazines, left_heaps};
use crate::superslab::slab::{Listed, Owner, Slab, VISITED};
use crate::sync::Node;
use crate::tiny::bins::Bins;
use crate::tiny::partial_purge;
use crate::tiny::partial_purge::Chosen;
use core::ptr;
use core::sync::atomic::Ordering::Release;

/// How often somebody who wants everything tries to get into a heap whose owner is in.
const TRIES: usize = 64;
/// So often at once, before the visitor rests for a moment.
const SOON: usize = 8;
/// Batches of sparse slabs that are purged in one go: an owner that wakes up has to wait for as long.
const BATCHES: usize = 8;

/// Takes in what was freed to the heap of `owner`, unless that or anybody else is at it.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn take_in(owner: *mut Owner) {
    let Some(_visits) = visitor::try_lock() else { return };
    // SAFETY: owners are parts of heaps' records, which are never unmapped; we are the only visitor.
    unsafe {
        // What is left in slabs that are hardly used may be on its way here, too: that is for those who look later.
        if Visit::take_in(Heap::of(owner), true).is_some() {
            (*owner).was_visited(os::now_ms());
        }
    }
}

/// Takes in what was freed to any other heap, empties their magazines and run caches, and gives back what lies idle in their
/// slabs and in those of nobody. A heap whose owner is in at every try stays as it is.
pub(crate) fn everyone() {
    thread::with_heap(None, |mine| {
        if mine.is_null() {
            return;
        }
        if left_heaps::exist() {
            // SAFETY: the calling thread's.
            unsafe { left_heaps::take_over(mine) };
        }
        // All magazines first: what one holds may be what keeps another's slab.
        // SAFETY: as in `take_in`; `mine` is the calling thread's heap.
        unsafe {
            each_other(mine, |heap| {
                let Some(visit) = Visit::enter(heap) else { return Went::Nowhere };
                drain_magazines::drain(&raw mut (*heap).tops, &raw const (*heap).magazines, mine);
                (*visit.heap).run_cache.flush();
                Went::Through
            });
            let entered = Heap::enter(mine);
            Heap::flush_outbox(mine);
            drop(entered);
            each_other(mine, |heap| {
                let Some(visit) = Visit::take_in(heap, false) else { return Went::Nowhere };
                let more = (0..BATCHES).all(|_| visit.purge_sparse());
                if more { Went::Halfway } else { Went::Through }
            });
            let _entered = Heap::enter(mine);
            partial_purge::purge_orphans(&raw mut (*mine).bins);
        }
    });
}

/// Takes in what was freed to any other heap, and empties the magazines and run caches of those whose owners have done nothing
/// since before the purge delay. Whether there is any owner left that may be found so later. For a thread that comes round
/// again and again, `now` in milliseconds.
pub(crate) fn idle(now: u32) -> bool {
    let delay = options::get().purge_delay;
    thread::with_heap(None, |mine| {
        if mine.is_null() || delay < 0 {
            return false;
        }
        let mut more = false;
        // SAFETY: as in `everyone`.
        unsafe {
            registry::each(|heap| {
                let Some(_visits) = visitor::try_lock() else {
                    more = true;
                    return;
                };
                if heap == mine || !Heap::is_somebodys(heap) {
                    return;
                }
                match (*heap).seen.look(Heap::activity(heap), now, delay) {
                    Look::Active => more = true,
                    Look::Idle => {
                        let Some(visit) = Visit::enter(heap) else {
                            more = true;
                            return;
                        };
                        drain_magazines::drain(&raw mut (*heap).tops, &raw const (*heap).magazines, mine);
                        (*visit.heap).run_cache.flush();
                        drop(visit);
                        (*heap).seen.emptied(Heap::activity(heap));
                    }
                    Look::Emptied => {}
                }
            });
            let entered = Heap::enter(mine);
            Heap::flush_outbox(mine);
            drop(entered);
            registry::each(|heap| {
                if heap == mine || !Heap::is_somebodys(heap) {
                    return;
                }
                if let Some(_visits) = visitor::try_lock() {
                    // An owner that is at work takes in what is its own; should it not have the time, so much the better.
                    if !(*Heap::owner(heap)).ready.is_empty() || (*heap).seen.is_emptied() {
                        if let Some(visit) = Visit::take_in(heap, false) {
                            let emptied = (*heap).seen.is_emptied();
                            // The rest next time.
                            more |= emptied && (0..BATCHES).all(|_| visit.purge_sparse());
                        }
                    }
                }
            });
        }
        more
    })
}

/// Calls `f` with every heap but `mine` that a thread has, as the only visitor, until it says that it has been there.
unsafe fn each_other(mine: *mut Heap, f: impl Fn(*mut Heap) -> Went) {
    registry::each(|heap| {
        let mut tries = 0;
        while tries < TRIES {
            // SAFETY: records are never unmapped.
            if heap == mine || !unsafe { Heap::is_somebodys(heap) } {
                return;
            }
            let Some(visits) = visitor::lock() else { return };
            match f(heap) {
                Went::Through => return,
                Went::Nowhere if os::barrier::is_missing() => return,
                Went::Nowhere => tries += 1,
                Went::Halfway => {}
            }
            drop(visits);
            if tries % SOON == SOON - 1 {
                futex::pause();
            }
        }
    });
}

/// How far a visit got.
enum Went {
    /// To its end.
    Through,
    /// There is more to do.
    Halfway,
    /// The owner was in, or has gone.
    Nowhere,
}

/// Being in another thread's heap.
struct Visit {
    heap: *mut Heap,
}

impl Drop for Visit {
    fn drop(&mut self) {
        // SAFETY: records are never unmapped.
        unsafe { Heap::lock(self.heap) }.end_visit();
    }
}

impl Visit {
    /// Enters a heap. `None` when its owner is in, or has gone.
    ///
    /// # Safety
    ///
    /// The caller is the only visitor.
    unsafe fn enter(heap: *mut Heap) -> Option<Visit> {
        // SAFETY: passed on.
        unsafe {
            if !Heap::lock(heap).visit() {
                return None;
            }
            let visit = Visit { heap };
            Heap::is_somebodys(heap).then_some(visit)
        }
    }

    /// Enters a heap and takes in what was published to it, or only those slabs that are `whole`: of the others more is about
    /// to come, and would publish them again. `None`, and nothing done, when its owner is in, or has gone.
    ///
    /// # Safety
    ///
    /// As [`Visit::enter`].
    unsafe fn take_in(heap: *mut Heap, whole: bool) -> Option<Visit> {
        let owner = Heap::owner(heap);
        // SAFETY: passed on. Slabs taken off a ready list stay until they are taken in, which nobody but us can do to these.
        unsafe {
            let ready = &(*owner).ready;
            let (mut published, mut first) = (ptr::null_mut(), ptr::null_mut());
            let mut last: *mut Slab = ptr::null_mut();
            each(ready.take_all(), |slab| {
                let list = if whole && !Slab::is_whole(slab) { &mut first } else { &mut published };
                <Slab as Node>::set_next(slab, *list);
                *list = slab;
                if last.is_null() && !first.is_null() {
                    last = slab;
                }
            });
            if !first.is_null() {
                ready.push_all(first, last);
            }
            each(published, |slab| mark(slab, owner));
            // With the barrier that the marks need.
            let visit = Visit::enter(heap);
            let hazard = Heap::lock(heap).hazard();
            each(published, |slab| {
                // The owner may be busy with its current slabs, and with the one it names.
                if visit.is_none() || slab == hazard || (*slab).list == Listed::Current {
                    unmark(slab, owner);
                    ready.push(slab);
                } else if !Bins::accept_published(&raw mut (*heap).bins, slab) {
                    unmark(slab, owner);
                }
            });
            visit
        }
    }

    /// Gives back what lies idle in some sparse slabs. False when there are none left.
    unsafe fn purge_sparse(&self) -> bool {
        // SAFETY: passed on: we are in.
        unsafe {
            let (bins, lock) = (&raw mut (*self.heap).bins, Heap::lock(self.heap));
            let owner = Heap::owner(self.heap);
            let chosen = Chosen::from(bins, lock.hazard(), 0);
            if chosen.slabs().is_empty() {
                return false;
            }
            chosen.slabs().iter().for_each(|&slab| mark(slab, owner));
            let hazard = lock.hazard_after_barrier();
            if let Some(hazard) = hazard {
                chosen.purge(bins, hazard);
            }
            chosen.slabs().iter().for_each(|&slab| unmark(slab, owner));
            hazard.is_some()
        }
    }
}

/// Makes a slab of `owner` one that its owner does not take for its own.
unsafe fn mark(slab: *mut Slab, owner: *mut Owner) {
    // SAFETY: passed on. A barrier follows; Release for statistics: see `Slab::make`.
    unsafe { (*slab).owner.store(owner.map_addr(|a| a | VISITED), Release) }
}

/// Undoes [`mark`].
unsafe fn unmark(slab: *mut Slab, owner: *mut Owner) {
    // SAFETY: passed on. Release: pairs with the acquire with which the owner finds that it is its own.
    unsafe { (*slab).owner.store(owner, Release) }
}

/// Calls `f` with each slab of a list. It may do with it what it likes.
unsafe fn each(mut slab: *mut Slab, mut f: impl FnMut(*mut Slab)) {
    while !slab.is_null() {
        // SAFETY: passed on; the link is read before `f` can change it.
        unsafe {
            let next = <Slab as Node>::next(slab);
            f(slab);
            slab = next;
        }
    }
}
