//! A visit to another thread's heap: what a visitor may do there, and when.

use crate::front::heap::Heap;
use crate::lockfree::ready_list::nodes;
use crate::reclaim::drain_magazines;
use crate::superslab::layout::SLICE;
use crate::superslab::slab::{LEFT, Listed, Owner, Slab, VISITED};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{Node, reads};
use crate::tiny::bins::Bins;
use crate::tiny::partial_purge::{Among, BATCH, Chosen};
use core::ptr;

/// Batches of slabs that are purged in one visit. An owner that wakes up waits as long as that takes.
const BATCHES: usize = 8;

/// Being inside another thread's heap, as its only visitor.
pub(super) struct Visit {
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
    pub(super) unsafe fn enter(heap: *mut Heap) -> Option<Visit> {
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
    pub(super) unsafe fn empty_caches(&self, mine: *mut Heap) {
        let heap = self.heap;
        // SAFETY: we visit the heap that both are parts of; `mine` is as this function's contract says.
        unsafe { drain_magazines::drain(&(*heap).tops, &(*heap).magazines, mine) };
        // SAFETY: we are inside, and the owner changes its run cache only when it is.
        unsafe { (*heap).run_cache.flush() };
    }

    /// Takes in what was published to the heap. With `whole`, only slabs of which every block has come back:
    /// for the others more blocks are about to arrive, which would publish them again. Returns how many
    /// slices these have.
    pub(super) fn take_in(&self, whole: bool) -> usize {
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
                if (*slab).owner.load(Relaxed).addr() & LEFT != 0 {
                    // As in `Bins::collect`: a fork has stopped whoever gave it up.
                } else if whole && !Slab::is_whole(slab) {
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
    pub(super) fn withdraw(&self, all: bool) {
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
    pub(super) fn enough(&self) -> usize {
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
    pub(super) fn purge_batches(&self, among: &mut Among) -> bool {
        (0..BATCHES).all(|_| self.purge(among))
    }
}

/// Marks a slab of `owner`, so that its owner does not find it to be its own. A barrier must follow.
///
/// # Safety
///
/// `owner` owns the slab, and it stays so until [`unmark`]: the caller visits the owner's heap, or has taken
/// the slab off the owner's ready list, so that it is disarmed and can be neither released nor given up.
pub(super) unsafe fn mark(slab: *mut Slab, owner: *mut Owner) {
    // Release: pairs with the acquire of statistics, which read the slab's fields: see `Slab::make`. For the
    // owner it is the barrier that counts.
    // SAFETY: by this function's contract the record stays a slab's; the field is atomic.
    unsafe {
        reads(&raw const (*slab).start);
        (*slab).owner.store(owner.map_addr(|a| a | VISITED), Release)
    }
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
    unsafe {
        reads(&raw const (*slab).start);
        (*slab).owner.store(owner, Release)
    }
}
