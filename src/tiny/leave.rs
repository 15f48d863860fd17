//! Slabs leave a heap: given back when it is trimmed, given up when its thread ends, taken over in the child of a fork.

use super::bins::{Bins, no_slab, prepend};
use super::classes::CLASSES;
use super::sparse;
use crate::os;
use crate::stats::Counters;
use crate::superslab::{List, Slab, orphans, pool};
use core::ptr;

impl Bins {
    /// Gives back the slabs that have no block in use, current ones too.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn trim(&mut self, counters: &Counters) {
        // SAFETY: passed on; our own lists.
        unsafe {
            self.collect(counters);
            for class in 1..=CLASSES {
                let slab = self.current[class];
                if slab == no_slab() {
                    continue;
                }
                if (*slab).remote.has_chain() {
                    let chain = (*slab).remote.take();
                    Bins::absorb(slab, chain);
                }
                if Slab::in_use(slab) == 0 && (*slab).remote.is_armed() {
                    Bins::unlink(self, slab);
                    release(slab);
                }
            }
        }
    }

    /// Gives up all slabs: empty ones go back to the pool, the others become orphans. For a thread that ends.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn abandon(&mut self, counters: &Counters) {
        for class in 1..=CLASSES {
            loop {
                let lists = [self.current[class], self.partial[class], self.sparse[class], self.full];
                let Some(slab) = lists.into_iter().find(|&slab| !slab.is_null() && slab != no_slab()) else {
                    break;
                };
                // SAFETY: passed on; in one of our lists.
                unsafe { self.abandon_one(slab, counters) };
            }
        }
        // SAFETY: passed on.
        unsafe { sparse::tell(self) };
    }

    unsafe fn abandon_one(&mut self, slab: *mut Slab, counters: &Counters) {
        // SAFETY: passed on: the slab is ours and listed.
        unsafe {
            // A chain that was left on the stack; an orphan begins without one. First, because what is taken may be more
            // than what was there when the slab was armed: then somebody is about to publish it.
            if (*slab).remote.has_chain() {
                let chain = (*slab).remote.take();
                Bins::absorb(slab, chain);
            }
            if !(*slab).remote.is_armed() {
                // Published, or about to be by a thread that has yet to run: it must arrive before we let go of it. Once
                // it has, it may be gone altogether, so the caller looks at the lists again.
                self.collect(counters);
                os::yield_now();
                return;
            }
            let used = Slab::in_use(slab);
            let list = (*slab).list;
            Bins::unlink(self, slab);
            if used == 0 {
                release(slab);
            } else if !orphans::abandon(slab, used) {
                // Something was pushed meanwhile: it is published now, and we are here again.
                if list == List::Current {
                    self.make_current(slab);
                } else {
                    Bins::push(self, slab, list);
                }
            }
        }
    }

    /// Forgets all slabs, in the child of a fork that found them some other way.
    pub(crate) fn forget(&mut self) {
        self.current = [no_slab(); CLASSES + 1];
        self.partial = [ptr::null_mut(); CLASSES + 1];
        self.sparse = self.partial;
        self.full = ptr::null_mut();
        self.emptied = [0; CLASSES + 1];
        self.idle = 0;
    }

    /// In the child of a fork: takes in slabs that a thread of the parent was about to publish.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`], and no other thread exists.
    pub(crate) unsafe fn collect_in_child(&mut self, counters: &Counters) {
        // SAFETY: passed on; links are read before a slab moves.
        unsafe {
            self.collect(counters);
            self.each(|bins, slab| {
                if !(*slab).remote.is_armed() {
                    let chain = (*slab).remote.rearm();
                    Bins::absorb(slab, chain);
                    Bins::settle(bins, slab);
                }
            });
            sparse::recount(self);
        }
    }

    /// Every slab there is. `f` may release the one it gets, or move it to another list, and then may get it again.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(super) unsafe fn each(&mut self, mut f: impl FnMut(&mut Bins, *mut Slab)) {
        // SAFETY: passed on; links are read before a slab moves.
        unsafe {
            let mut list = |bins: &mut Bins, mut slab: *mut Slab| {
                let last = if slab.is_null() { slab } else { (*slab).prev };
                while !slab.is_null() && slab != no_slab() {
                    let next = if (*slab).list == List::Current { ptr::null_mut() } else { (*slab).next };
                    // A ring ends with the one before its first.
                    let next = if slab == last { ptr::null_mut() } else { next };
                    f(bins, slab);
                    slab = next;
                }
            };
            for class in 1..=CLASSES {
                list(self, self.current[class]);
                list(self, self.partial[class]);
                list(self, self.sparse[class]);
            }
            list(self, self.full);
        }
    }
}

/// Gives the span of a slab without blocks in use back to the pool.
///
/// # Safety
///
/// The slab is the caller's and in no list.
pub(crate) unsafe fn release(slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe {
        sparse::on_release(slab);
        pool::give(slab, dirty(slab));
    }
}

/// The pages of a span, bit 0 the first, that may be dirty now; those that were so when it was taken the pool knows.
unsafe fn dirty(slab: *mut Slab) -> u32 {
    // SAFETY: passed on.
    unsafe {
        let all = u32::MAX >> (32 - (*slab).pages as u32);
        if (*slab).revived {
            return all;
        }
        // What was handed out once is dirty, page by page.
        let touched = (*slab).bump.addr() - (*slab).start.addr();
        let first = (*slab).start.addr() & 0xffff;
        let pages = if touched == 0 { 0 } else { (first + touched).div_ceil(1 << 16) };
        ((1u64 << pages) - 1) as u32
    }
}

/// Makes an orphan of a slab whose owner did not survive a fork. False when no block is in use: it is then the caller's
/// to [`release`].
///
/// # Safety
///
/// The slab's owner no longer exists, nor does any other thread.
pub(crate) unsafe fn disown(slab: *mut Slab) -> bool {
    // SAFETY: passed on.
    unsafe {
        Slab::enlist(slab, List::None);
        if (*slab).revived {
            // Its owner may have been stopped between the two: what is between them may be in use.
            Slab::set_bump(slab, (*slab).end);
        }
        let chain = (*slab).remote.rearm();
        prepend(slab, chain.head);
        Slab::count_waiting(slab, chain.count, 0);
        let used = Slab::in_use(slab);
        used != 0 && orphans::abandon(slab, used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superslab::{Owner, SUPERSLAB};
    use crate::tiny::classes::STRIDES;

    #[test]
    fn nothing_is_taken_from_a_slab_whose_owner_stopped_while_it_revived_memory() {
        const CLASS: u8 = CLASSES as u8;
        let base = os::map_aligned(SUPERSLAB, SUPERSLAB);
        assert!(!base.is_null());
        // SAFETY: a place for a SuperSlab that nobody else knows. The owner is only an address.
        unsafe {
            let slab = Slab::claim(base, 8, 8, CLASS, ptr::null_mut());
            Slab::make(slab, STRIDES[CLASS as usize], false, ptr::without_provenance_mut::<Owner>(4096));
            Slab::enlist(slab, List::Current);
            (0..3).for_each(|_| Slab::count_taken(slab));
            // All of it has been handed out; the memory that is revived begins with the third block.
            (*slab).bump = (*slab).start.wrapping_add(2 * STRIDES[CLASS as usize] as usize);
            (*slab).revived = true;
            assert!(disown(slab));
            let adopted = orphans::adopt(CLASS).unwrap();
            assert!(adopted.slab == slab && adopted.in_use == 3 && adopted.chain.head.is_null());
            assert!((*slab).free.is_null() && (*slab).bump == (*slab).end);
            os::unmap(base, SUPERSLAB);
        }
    }
}
