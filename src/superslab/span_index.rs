//! The pool's index over the descriptors of its SuperSlabs, guarded by the pool's lock.
//!
//! The truth is in the descriptors, in atomics ([`desc`](super::desc)). The index has them in buckets by
//! their number of free slices, and those with purgeable slices in order of age; so a span is found in a few
//! steps. It can be rebuilt at any time ([`State::rebuild`]): a thread that does not get the lock soon
//! changes only the descriptors, and marks the index as stale ([`set_stale`]).

mod changes;

use crate::base::list::List;
use crate::base::options;
use crate::base::table::Table;
use crate::lockfree::slice_sets::{Sets, span_mask};
use crate::os;
use crate::os::futex::{Guard, Inherit, Lock};
use crate::os::process;
use crate::superslab::decay::Policy;
use crate::superslab::desc::{
    self, Bucket, Desc, DescRef, Dirt, all_descs, as_member, descs, members, of_member,
};
use crate::superslab::span::{Span, make_span};
use crate::sync::AtomicBool;
use crate::sync::Ordering::{self, Relaxed};

pub(super) use changes::{add, put_back, remove, take_unlocked};

/// The index does not agree with the descriptors.
static STALE: AtomicBool = AtomicBool::new(false);

/// Notes that descriptors have been changed without the lock.
pub(super) fn set_stale() {
    // Release: pairs with the acquire in `is_stale`.
    STALE.store(true, Ordering::Release);
}

/// Whether the index is stale. Resets that, so the caller has to rebuild it.
fn is_stale() -> bool {
    // Acquire: pairs with the release in `set_stale`.
    STALE.load(Relaxed) && STALE.swap(false, Ordering::Acquire)
}

/// The number of buckets: as many as [`State::filled`] has bits. More than there are numbers of free slices,
/// so that an index that is wrong for a moment still has a bucket.
const BUCKETS: usize = 64;

/// The index over the descriptors.
pub(crate) struct State {
    /// SuperSlabs by the number of free slices, as indexed. Numbers above 32 are wrong, for a moment.
    buckets: Table<List<Desc, Bucket>, BUCKETS>,
    /// Bit n is set if bucket n is not empty.
    pub(super) filled: u64,
    /// Descriptors that were in use once and are not now.
    spare: List<Desc, Bucket>,
    /// The number of SuperSlabs.
    pub(super) superslabs: usize,
    /// The one that was added last, while it is there.
    pub(super) newest: Option<DescRef>,
    /// Slices in spans.
    pub(crate) used_slices: usize,
    /// Free slices that are dirty.
    pub(crate) dirty_slices: usize,
    /// SuperSlabs that have such slices, in the order in which they came to have them.
    dirty: List<Desc, Dirt>,
    /// The number of purges of everything so far.
    pub(crate) visits: u32,
    pub(crate) policy: Policy,
}

// SAFETY: the lists hold descriptors, which any thread may use under the lock.
unsafe impl Send for State {}

impl State {
    /// A pool without SuperSlabs.
    pub(super) const fn new() -> Self {
        Self {
            buckets: Table([const { List::new() }; BUCKETS]),
            filled: 0,
            spare: List::new(),
            superslabs: 0,
            newest: None,
            used_slices: 0,
            dirty_slices: 0,
            dirty: List::new(),
            visits: 0,
            policy: Policy::new(),
        }
    }

    /// Makes the index anew from the descriptors. Dirty slices count as having become dirty now.
    pub(super) fn rebuild(&mut self) {
        let policy = core::mem::replace(&mut self.policy, Policy::new());
        *self = Self { visits: self.visits, policy, ..Self::new() };
        let now = os::now_ms();
        for desc in all_descs() {
            if !desc.base().is_null() {
                let hidden = desc.job.load(Relaxed);
                self.used_slices += count(!(desc.slices.get().free | hidden));
                self.enter(desc, now);
            } else if !desc.taken.load(Relaxed) {
                self.spare(desc);
            }
        }
    }

    /// Adds a SuperSlab that is in no list to the index.
    pub(super) fn enter(&mut self, desc: DescRef, now: u32) {
        let sets = desc.slices.get();
        self.superslabs += 1;
        if self.newest.is_none_or(|newest| desc.age() < newest.age()) {
            self.newest = Some(desc);
        }
        desc.free_slices.set(0);
        desc.purgeable_slices.set(0);
        self.link(desc);
        self.index(desc, now, count(sets.free) as i8, count(sets.purgeable()) as i8);
    }

    /// Takes a SuperSlab that was hidden as a whole out of the index, and keeps its descriptor.
    pub(super) fn forget(&mut self, desc: DescRef) {
        self.unlink(desc);
        // All of it was hidden, so nothing of it should count as dirty; but a thread without the lock may
        // have been in the middle of a change.
        if desc.purgeable_slices.get() != 0 {
            self.index(desc, 0, 0, -(desc.purgeable_slices.get() as i8));
        }
        if self.newest.is_some_and(|newest| core::ptr::eq(newest, desc)) {
            self.newest = None;
        }
        desc.clear();
        self.spare(desc);
        self.superslabs = self.superslabs.saturating_sub(1);
    }

    /// Keeps a descriptor that is not in use.
    fn spare(&mut self, desc: DescRef) {
        // SAFETY: having `self` we hold the pool's lock; the descriptor is in no bucket, so its links are
        // free to use.
        unsafe { self.spare.push_front(as_member(desc)) };
    }

    /// A descriptor that is not in use, claimed for the caller. One that is spare may have been claimed
    /// without the lock.
    pub(super) fn take_spare(&mut self) -> Option<DescRef> {
        // SAFETY: having `self` we hold the pool's lock, and descriptors stay.
        let mut spare = core::iter::from_fn(|| unsafe { self.spare.pop_front() }.and_then(of_member));
        spare.find(|desc| desc.claim())
    }

    /// The SuperSlabs with this number of free slices, first the one that came to have it last. While they
    /// are passed on, the index of each may change.
    pub(super) fn bucket(&self, free: usize) -> impl Iterator<Item = DescRef> + use<> {
        members(&self.buckets[free])
    }

    /// The same, first the one that has had it longest.
    pub(super) fn bucket_from_last(&self, free: usize) -> impl Iterator<Item = DescRef> + use<> {
        desc::members_from_last(&self.buckets[free])
    }

    /// The SuperSlabs that have purgeable slices, first the one that has had them longest. While they are
    /// passed on, the index of each may change.
    pub(super) fn dirty(&self) -> impl Iterator<Item = DescRef> + use<> {
        members(&self.dirty)
    }

    /// Hides the slices of a SuperSlab that can be given back. False if there are none, or others of its
    /// slices are being given back.
    pub(super) fn hide(&mut self, desc: DescRef) -> bool {
        if desc.has_job() {
            return false;
        }
        // One that is entirely free will be unmapped, unless somebody takes slices of it now.
        let (huge, whole) = (desc.huge.load(Relaxed), desc.slices.get().free == u32::MAX);
        if huge && !whole {
            self.soil(desc);
        }
        let (hidden, dirty) = desc.begin_job();
        self.index(desc, 0, -(count(hidden) as i8), -(count(hidden & dirty) as i8));
        if huge && whole && hidden != u32::MAX {
            self.soil(desc);
        }
        hidden != 0
    }

    /// Brings the index up to date after hidden slices have become free again.
    pub(super) fn reindex(&mut self, desc: DescRef, hidden: u32, after: Sets, now: u32) {
        self.index(desc, now, count(hidden) as i8, count(after.dirty & hidden) as i8);
    }

    /// [Soils](Desc::soil) a SuperSlab.
    pub(super) fn soil(&mut self, desc: DescRef) {
        let more = desc.soil();
        self.index(desc, os::now_ms(), 0, count(more) as i8);
    }

    /// Gives the slices of a span back. `dirty` maps the slices of the SuperSlab that were dirty to those
    /// that are dirty then.
    pub(super) fn give_span(
        &mut self,
        desc: DescRef,
        mask: u32,
        slices: usize,
        dirty: impl Fn(u32) -> u32,
        now: u32,
    ) {
        let after = desc.give(mask, dirty);
        self.used_slices = self.used_slices.saturating_sub(slices);
        self.index(desc, now, slices as i8, part(after.dirty, mask, slices) as i8);
    }

    /// Takes all slices in `mask`, `slices` in number. False, and nothing changed, if one of them is not
    /// free.
    pub(super) fn take_these(&mut self, desc: DescRef, mask: u32, slices: usize, now: u32) -> bool {
        let take =
            |sets: Sets| (sets.free & mask == mask).then_some(Sets { free: sets.free & !mask, ..sets });
        let Some((before, _)) = desc.slices.change(take) else { return false };
        self.used_slices += slices;
        self.index(desc, now, -(slices as i8), -(part(before.dirty, mask, slices) as i8));
        true
    }

    /// Brings the index up to date after a change of a SuperSlab. `free` is the change in the number of its
    /// free slices, and `purgeable` in the number of those that are dirty, too.
    #[inline(always)]
    fn index(&mut self, desc: DescRef, now: u32, free: i8, purgeable: i8) {
        if purgeable != 0 {
            let before = desc.purgeable_slices.get();
            let after = before.saturating_add_signed(purgeable);
            desc.purgeable_slices.set(after);
            self.dirty_slices = self.dirty_slices.saturating_add_signed(purgeable as isize);
            if (before == 0) != (after == 0) {
                self.index_dirt(desc, now, after != 0);
            }
        }
        if free != 0 {
            self.unlink(desc);
            // Changes that others have made without the lock may be missing, so this may be wrong for a
            // while.
            desc.free_slices.set(desc.free_slices.get().wrapping_add_signed(free) & (BUCKETS as u8 - 1));
            self.link(desc);
        }
    }

    /// Puts a SuperSlab that has purgeable slices now into the list of these, or takes out one that has none
    /// any more.
    fn index_dirt(&mut self, desc: DescRef, now: u32, dirty: bool) {
        // SAFETY: having `self` we hold the pool's lock. A SuperSlab is in this list if and only if its
        // `purgeable_slices` are not 0, and the caller calls this when that changes.
        unsafe {
            if dirty {
                desc.since.set(now);
                self.dirty.push_back(as_member(desc));
            } else {
                self.dirty.remove(as_member(desc));
            }
        }
    }

    /// Puts a SuperSlab into the bucket for its number of free slices.
    fn link(&mut self, desc: DescRef) {
        let bucket = desc.free_slices.get() as usize;
        // SAFETY: having `self` we hold the pool's lock, and the descriptor is in no bucket.
        unsafe { self.buckets[bucket].push_front(as_member(desc)) };
        self.filled |= 1 << bucket;
    }

    /// Takes a SuperSlab out of its bucket.
    fn unlink(&mut self, desc: DescRef) {
        let bucket = desc.free_slices.get() as usize;
        // SAFETY: having `self` we hold the pool's lock. `free_slices` changes only between `unlink` and
        // `link`, so this is the bucket that the descriptor is in.
        unsafe { self.buckets[bucket].remove(as_member(desc)) };
        if self.buckets[bucket].first().is_null() {
            self.filled &= !(1 << bucket);
        }
    }

    /// Takes a span of `slices` slices for `class`, out of the fullest SuperSlab with `room` adjacent free
    /// slices. Looks at no more than `looks` SuperSlabs of each bucket, and only at their slices in the mask
    /// `among`.
    pub(super) fn take_span(
        &mut self,
        slices: usize,
        room: usize,
        class: u8,
        among: u32,
        looks: usize,
        now: u32,
    ) -> Option<Span> {
        let mut buckets = self.filled & (u64::MAX << (room & (BUCKETS - 1)));
        while buckets != 0 {
            for desc in self.bucket(buckets.trailing_zeros() as usize).take(looks) {
                if let Some((index, before)) = desc.slices.take(slices, room, among) {
                    self.taken(desc, slices, part(before.dirty, span_mask(index, slices), slices), now);
                    return Some(make_span(desc, index, slices, class, before));
                }
            }
            buckets &= buckets - 1;
        }
        None
    }

    /// Brings the index up to date after `slices` slices have been taken, of which `dirty` were dirty.
    #[inline(always)]
    fn taken(&mut self, desc: DescRef, slices: usize, dirty: usize, now: u32) {
        self.index(desc, now, -(slices as i8), -(dirty as i8));
        self.used_slices += slices;
        if dirty > 0 {
            self.policy.delay.used_again(dirty, desc.since.get(), options::get().purge_delay, || now);
        }
        let before = self.dirty_slices + dirty;
        self.policy.taken(slices - dirty.min(slices), self.used_slices, before, dirty > 0, now);
    }
}

impl Inherit for State {
    fn inherit(&mut self, torn: bool) {
        let mut jobs = false;
        for desc in descs() {
            // The thread that survives in the child goes on with its own jobs.
            if desc.has_job_of_another(process::survivor()) {
                jobs = true;
                if desc.unmapping.load(Relaxed) {
                    // The SuperSlab may be unmapped, and the address used for something else.
                    desc.clear();
                } else {
                    desc.end_job(0);
                }
            }
        }
        if torn || jobs {
            self.rebuild();
        }
    }
}

pub(super) static POOL: Lock<State> = Lock::new(State::new());

/// Locks the pool, and rebuilds its index if that is stale. `None` if the lock is not free soon: a signal
/// handler may have interrupted the thread that holds it.
pub(super) fn lock() -> Option<Guard<'static, State>> {
    POOL.lock_soon().map(up_to_date)
}

/// [`lock`] with more patience: see [`Lock::lock_patiently`].
pub(super) fn lock_patiently() -> Option<Guard<'static, State>> {
    POOL.lock_patiently().map(up_to_date)
}

fn up_to_date(mut pool: Guard<'static, State>) -> Guard<'static, State> {
    if is_stale() {
        pool.rebuild();
    }
    pool
}

/// Runs `f` with the pool locked; `None`, and `f` is not run, if [`lock`] fails.
pub(crate) fn with<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    lock().map(|mut pool| f(&mut pool))
}

/// In the child of a fork: see [`Lock::inherit`].
pub(crate) fn inherit() {
    POOL.inherit();
}

/// How many of the slices in `mask`, `slices` in number, are in `set`. Mostly all or none.
#[inline(always)]
fn part(set: u32, mask: u32, slices: usize) -> usize {
    match set & mask {
        0 => 0,
        all if all == mask => slices,
        some => count(some),
    }
}

/// The number of bits set. Most masks here are empty, and the baseline x86-64 has no instruction that counts
/// bits.
fn count(mask: u32) -> usize {
    if mask == 0 { 0 } else { mask.count_ones() as usize }
}

#[cfg(test)]
mod tests;
