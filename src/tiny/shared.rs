//! Slabs that many threads share: of blocks which one thread makes and another frees.
//!
//! Where many threads send each other blocks of many sizes, and each has a slab for each size, nearly all of
//! these slabs' memory is free: what one thread has, the others do not see. So of more than a few threads
//! none has such a slab for long. It takes what it needs at the moment, and gives the slab up: as an orphan
//! that serves whoever needs a block of its class next.
//!
//! A slab is [shared](SHARED) once its owner, when it has no freed block left and would touch a new page or
//! look for another slab, finds blocks there that others have freed. New ones are shared from the start in a
//! heap that shares others. A thread that frees itself what it takes pays for that, because what it frees
//! goes the long way: so now and then it [keeps](KEPT) one, and for a while those of a class that it needs
//! [in a burst](crate::tiny::classes::Bursts).

use crate::base::counters::Counters;
use crate::base::options;
use crate::superslab::orphans;
use crate::superslab::slab::{KEPT, Listed, SHARED, Slab};
use crate::sync::Ordering::Relaxed;
use crate::tiny::bins::Bins;
use crate::tiny::classes::Bursts;
use crate::tiny::release::part_with;

/// Slabs of blocks of fewer bytes are not shared: one page has many of them, and two threads' blocks would
/// lie in one cache line.
const LEAST: u32 = 512;
/// Of so many slabs that a thread adopts it keeps one, if that is shared. It is shared again when the thread
/// finds there what others have freed.
const KEEPS: u64 = 64;

impl Bins {
    /// Starts anew, for another owner.
    pub(crate) fn share_nothing(&mut self) {
        (self.shares, self.bursts) = (false, Bursts::NONE);
    }

    /// The owner of `slab` has found blocks there that others have freed, and takes these next.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, to which the slab belongs, and holds their heap's lock.
    #[inline(always)]
    pub(super) unsafe fn note_freed_by_others(&mut self, slab: *mut Slab, are_many: impl Fn() -> bool) {
        // SAFETY: the slab is ours, and so is `rest`; `stride` is constant.
        unsafe {
            if (*slab).stride >= LEAST && are_many() && options::get().orphans {
                (*slab).rest = (*slab).rest & !KEPT | SHARED;
                self.shares = true;
                self.bursts.end((*slab).class);
            }
        }
    }

    /// A slab has been made, while there are many threads.
    ///
    /// # Safety
    ///
    /// As [`Bins::note_freed_by_others`].
    #[inline(always)]
    pub(super) unsafe fn note_made(&mut self, slab: *mut Slab) {
        // SAFETY: the slab is ours, and so is `rest`; `stride` is constant.
        unsafe {
            if self.shares && (*slab).stride >= LEAST {
                (*slab).rest |= SHARED;
            }
        }
    }

    /// A slab has been adopted. If it is shared, it is kept now and then.
    ///
    /// # Safety
    ///
    /// As [`Bins::note_freed_by_others`].
    #[inline(always)]
    pub(super) unsafe fn note_adopted(&mut self, slab: *mut Slab, counters: &Counters) {
        // SAFETY: the slab is ours, and so is `rest`.
        unsafe {
            if (*slab).rest & SHARED != 0 {
                self.shares = counters.refill_orphan.get() % KEEPS != 0;
                (*slab).rest = (*slab).rest & !KEPT | if self.shares { 0 } else { KEPT };
            }
        }
    }

    /// Whether there is a current slab of `class`, which is shared. Its owner keeps it unless it `may_be`.
    ///
    /// # Safety
    ///
    /// As [`Bins::note_freed_by_others`]; `class` is a size class.
    pub(crate) unsafe fn is_shared(bins: *mut Bins, class: usize, may_be: impl Fn() -> bool) -> bool {
        // SAFETY: the slab is ours, or `NO_SLAB`, which is not shared.
        unsafe {
            let slab = Bins::current(bins, class).load(Relaxed);
            if (*slab).rest & (SHARED | KEPT) != SHARED {
                return false;
            }
            let is_shared = may_be();
            if !is_shared {
                (*slab).rest |= KEPT;
            }
            is_shared
        }
    }

    /// Gives up the current slab of `class`, which is shared. If it has no block left it is listed as full,
    /// until others have freed one: it would only be in the way of those who look for one.
    ///
    /// # Safety
    ///
    /// As [`Bins::is_shared`], which has just said so. At least one block of the slab is in use.
    pub(crate) unsafe fn leave(bins: *mut Bins, class: usize, counters: &Counters) {
        // SAFETY: the slab is ours, and the lock is held; it is in no list when it is given up. If it stays
        // ours, its class has no current slab, since `collect` makes none.
        unsafe {
            let slab = Bins::current(bins, class).load(Relaxed);
            if !(*slab).remote.is_armed() {
                // Others have published it to us, so that it can be given up only when it is collected.
                (*bins).collect_for(slab, counters);
            }
            if !Bins::has_more(slab) {
                return (*bins).used_up(slab);
            }
            // Nobody waits for others to give up theirs, or to take one.
            if !orphans::is_busy(class as u8) {
                Bins::unlink(bins, slab);
                if !part_with(&mut (*bins).slices, slab, false) {
                    (*bins).make_current(slab);
                }
            }
        }
    }

    /// Gives up a slab that was published, if it is shared: also a current one, of a class in a burst for
    /// example. False, and nothing was done, if it is not, or is `wanted`.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins and holds their heap's lock. The slab belongs to them and has been
    /// taken off the ready list.
    #[inline(always)]
    pub(super) unsafe fn pass_on(bins: *mut Bins, slab: *mut Slab, wanted: *mut Slab) -> bool {
        // SAFETY: the slab is ours, so `rest` and `list` are.
        unsafe {
            let is_free = (*slab).list != Listed::None && slab != wanted;
            let passes = is_free && (*slab).rest & (SHARED | KEPT) == SHARED;
            if passes {
                Bins::pass_on_shared(bins, slab);
            }
            passes
        }
    }

    /// [`Bins::pass_on`] of one that is shared, and not wanted.
    ///
    /// # Safety
    ///
    /// As [`Bins::pass_on`].
    #[inline(never)]
    unsafe fn pass_on_shared(bins: *mut Bins, slab: *mut Slab) {
        // SAFETY: the slab is ours, and the lock is held; it is in no list when it is given up.
        unsafe {
            (*bins).bursts.end((*slab).class);
            let waiting = (*slab).remote.arm();
            Slab::count_waiting(slab, waiting, waiting);
            if (*slab).list == Listed::Sparse {
                Bins::count_emptied(bins, slab, -1);
            }
            Bins::unlink(bins, slab);
            if !part_with(&mut (*bins).slices, slab, true) {
                Bins::keep(bins, slab);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::child;
    use crate::superslab::slab::{LEFT, LONG, Owner};
    use crate::tiny::bins::no_slab;
    use crate::tiny::bins::tests::with_slab;
    use crate::tiny::classes;
    use crate::tiny::free::push_remote;
    extern crate std;
    use std::vec::Vec;

    /// Takes all blocks that the current slab of `class` has.
    ///
    /// # Safety
    ///
    /// The bins are the calling thread's alone.
    unsafe fn take_all(bins: *mut Bins, class: usize, counters: &Counters) -> Vec<*mut u8> {
        core::iter::from_fn(|| {
            // SAFETY: the caller's clause.
            let block = unsafe { Bins::alloc(bins, class, counters) }.ptr;
            (!block.is_null()).then_some(block)
        })
        .collect()
    }

    /// Frees so many blocks as another thread does.
    ///
    /// # Safety
    ///
    /// The blocks are in use, and of this slab.
    unsafe fn free_elsewhere(slab: *mut Slab, blocks: &mut Vec<*mut u8>, count: usize) {
        for _ in 0..count {
            let block = blocks.pop().unwrap().cast();
            // SAFETY: the caller's clause.
            unsafe { push_remote(slab, block, block, 1) };
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn slabs_into_which_others_free_serve_whoever_needs_a_block() {
        assert!(child::is_so(|| {
            for least in [LEAST, LONG + 1] {
                let class = (1..).find(|&class| classes::stride(class) >= least).unwrap();
                let slices = classes::slices(class as u8);
                with_slab(class, slices, false, |bins, slab, counters| {
                    serves_all(bins, class, slab, counters)
                });
            }
            true
        }));
    }

    /// That, with a new slab.
    fn serves_all(bins: *mut Bins, class: usize, slab: *mut Slab, counters: &Counters) {
        let listed = orphans::count(class as u8);
        let (owner, mut other) = (Owner::new(), Bins::new());
        let other = &raw mut other;
        // SAFETY: slab and bins are this thread's alone; so are the blocks.
        unsafe {
            ((*other).owner, (*other).secret) = ((&raw const owner).cast_mut(), (*bins).secret);
            (*other).present = 1 << (class + 1);
            let has = |bins| Bins::current(bins, class).load(Relaxed) == slab;
            let is_orphan = || {
                let left = (*slab).owner.load(Relaxed).addr() & LEFT != 0;
                assert_eq!(left, orphans::count(class as u8) == listed + 1);
                assert!(!left || (*slab).list == Listed::None && !has(bins) && !has(other));
                left
            };
            let leave = |bins, many| {
                let is_shared = Bins::is_shared(bins, class, || many);
                if is_shared {
                    Bins::leave(bins, class, counters);
                }
                is_shared
            };
            let refill = |bins: *mut Bins, many| {
                let block = (*bins).refill(class as u8, counters, || many).ptr;
                assert!(Slab::of(block) == slab);
                block
            };
            let mut blocks = take_all(bins, class, counters);
            // With few threads it stays where it is.
            free_elsewhere(slab, &mut blocks, 2);
            blocks.push(refill(bins, false));
            assert!(!leave(bins, false) && has(bins) && !is_orphan() && !(*bins).shares);
            blocks.extend(take_all(bins, class, counters));
            // With many it is given up, whatever was needed before.
            (0..3).for_each(|_| _ = (*bins).bursts.note(class));
            free_elsewhere(slab, &mut blocks, 2);
            blocks.push(refill(bins, true));
            assert!(!(*bins).bursts.note(class));
            assert!(leave(bins, true) && is_orphan() && (*bins).shares);
            // But not one that has nothing left: only after another thread has freed a block.
            blocks.push(refill(other, true));
            assert!(leave(other, true) && !is_orphan() && !has(other) && (*other).shares);
            assert!((*slab).list == Listed::Full && (*other).bytes() != 0);
            (*other).collect(counters);
            assert_eq!((*slab).list, Listed::Full);
            free_elsewhere(slab, &mut blocks, 3);
            (*other).collect(counters);
            assert!(is_orphan() && (*other).bytes() == 0);
            // A current one, too, but for who has come to take blocks of it. That one gives it up next.
            for is_needed in [true, false] {
                blocks.push(refill(other, true));
                (0..3).for_each(|_| _ = (*other).bursts.note(class));
                free_elsewhere(slab, &mut blocks, 1);
                assert!(!(*slab).remote.is_armed());
                (*other).collect_for(if is_needed { slab } else { no_slab() }, counters);
                assert!(has(other) == is_needed && is_orphan() != is_needed);
                assert!((*other).bursts.note(class) == is_needed, "a sign that others free them");
                assert!(is_orphan() || (*slab).remote.is_armed() && leave(other, true) && is_orphan());
            }
            // One that has been published is given up by who has taken blocks of it.
            blocks.push(refill(other, true));
            free_elsewhere(slab, &mut blocks, 1);
            assert!(!(*slab).remote.is_armed() && leave(other, true) && is_orphan());
            // Now and then a thread keeps one, until others are seen to free what it takes.
            counters.refill_orphan.add(KEEPS - 1 - counters.refill_orphan.get());
            blocks.push(refill(bins, true));
            assert!(!leave(bins, true) && has(bins) && !(*bins).shares);
            blocks.extend(take_all(bins, class, counters));
            free_elsewhere(slab, &mut blocks, 2);
            blocks.push(refill(bins, true));
            assert!(leave(bins, true) && is_orphan() && (*bins).shares);
            // When there are only few threads any more, who adopts it keeps it.
            blocks.push(refill(other, true));
            assert!(!leave(other, false) && !leave(other, true) && has(other));
            // What has been published cannot be given up at once.
            assert!((*other).has_had(class) && (*other).has_had(class + 1));
            free_elsewhere(slab, &mut blocks, 1);
            let ready = owner.ready.take_all();
            assert!(!(*other).abandon(counters, false));
            assert!((*other).has_had(class) && !(*other).has_had(class + 1));
            owner.ready.push(ready);
            assert!((*other).abandon(counters, false) && is_orphan() && !(*other).has_had(class));
            assert_eq!(counters.refill_span.get(), 0);
        }
    }

    #[test]
    fn slabs_of_short_blocks_are_not_shared() {
        let class = (1..).find(|&class| classes::stride(class) >= LEAST).unwrap() - 1;
        with_slab(class, classes::slices(class as u8), false, |bins, slab, counters| {
            // SAFETY: slab, bins and blocks are this thread's alone.
            unsafe {
                let mut blocks = take_all(bins, class, counters);
                free_elsewhere(slab, &mut blocks, 2);
                assert!(!(*bins).refill(class as u8, counters, || true).ptr.is_null());
                assert!(!Bins::is_shared(bins, class, || true) && !(*bins).shares);
            }
        });
    }

    /// A heap that shares slabs shares new ones, but not those that it had.
    #[test]
    fn new_slabs_are_shared_where_others_are() {
        let class = (1..).find(|&class| classes::stride(class) >= LEAST).unwrap();
        for shares in [false, true] {
            with_slab(class, classes::slices(class as u8), false, |bins, slab, _| {
                // SAFETY: slab and bins are this thread's alone.
                unsafe {
                    (*bins).shares = shares;
                    assert!(!Bins::is_shared(bins, class, || true));
                    (*bins).note_made(slab);
                    assert_eq!(Bins::is_shared(bins, class, || true), shares);
                }
            });
        }
    }
}
