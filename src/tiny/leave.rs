//! Slabs leave a heap: given back when it is trimmed, given up when its thread ends, taken over in the child of a fork.

use super::bins::{Bins, no_slab};
use super::classes::bits;
use super::sparse;
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
            for class in bits(self.present) {
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

    /// Gives up all slabs: empty ones go back to the pool, the others become orphans. For a thread that ends. A slab that another
    /// thread is about to publish stays, for the thread that gets these bins next: nobody waits for it.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn abandon(&mut self, counters: &Counters) {
        // SAFETY: passed on.
        unsafe {
            // What is on its way mostly arrives between the two.
            if self.abandon_listed() != 0 {
                self.collect(counters);
                self.abandon_listed();
            }
        }
        sparse::tell(self);
    }

    /// Gives up the slabs that can be given up now; how many stay.
    unsafe fn abandon_listed(&mut self) -> usize {
        let mut staying = ptr::null_mut::<Slab>();
        let mut count = 0;
        // SAFETY: passed on: each of the lists is ours, and `give_up` leaves it without the one it gets.
        unsafe {
            let mut give_up_all = |bins: &mut Bins, first: fn(&Bins, usize) -> *mut Slab, class| loop {
                let slab = first(bins, class);
                if slab.is_null() || slab == no_slab() {
                    return;
                }
                Bins::unlink(bins, slab);
                match give_up(slab) {
                    GivenUp::Orphan => {}
                    GivenUp::Empty => release(slab),
                    GivenUp::Not => {
                        (*slab).next = staying;
                        staying = slab;
                        count += 1;
                    }
                }
            };
            for class in bits(self.present) {
                give_up_all(self, |bins, class| bins.current[class], class);
                give_up_all(self, |bins, class| bins.partial[class], class);
                give_up_all(self, |bins, class| bins.sparse[class], class);
            }
            give_up_all(self, |bins, _| bins.full, 0);
            while !staying.is_null() {
                let slab = staying;
                staying = (*slab).next;
                // Wherever it belongs, it gets there when it is published.
                Bins::push(self, slab, List::Full);
            }
        }
        count
    }

    /// No slabs: in a new record, or after all have been [`disown`]ed.
    pub(crate) fn clear(&mut self) {
        self.current.0.fill(no_slab());
        self.partial.0.fill(ptr::null_mut());
        self.sparse = self.partial;
        self.full = ptr::null_mut();
        self.emptied.0.fill(0);
        self.present = 0;
        sparse::tell(self);
    }
}

/// What came of giving up a slab.
pub(crate) enum GivenUp {
    /// It is an orphan now, and nobody's.
    Orphan,
    /// No block of it is in use: it is still the caller's, to [`release`].
    Empty,
    /// It is still the caller's: somebody is about to publish it, or it has been published.
    Not,
}

/// Gives up a slab: makes an orphan of it if it has blocks in use.
///
/// # Safety
///
/// The slab is the caller's and in no list.
unsafe fn give_up(slab: *mut Slab) -> GivenUp {
    // SAFETY: passed on.
    unsafe {
        // A chain that was left on the stack; an orphan begins without one. First, because what is taken may be more
        // than what was there when the slab was armed: then somebody is about to publish it.
        if (*slab).remote.has_chain() {
            let chain = (*slab).remote.take();
            Bins::absorb(slab, chain);
        }
        if !(*slab).remote.is_armed() {
            return GivenUp::Not;
        }
        match Slab::in_use(slab) {
            0 => GivenUp::Empty,
            // Fails when something was pushed meanwhile.
            used if orphans::abandon(slab, used) => GivenUp::Orphan,
            _ => GivenUp::Not,
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

/// Gives up a slab whose owner a fork has left behind: stopped anywhere, so that its lists are not relied on, only the slab's
/// record is.
///
/// # Safety
///
/// The slab's owner does not exist in this process, and the caller alone stands in for it.
pub(crate) unsafe fn disown(slab: *mut Slab) -> GivenUp {
    // SAFETY: passed on.
    unsafe {
        if (*slab).list == List::Sparse {
            sparse::forget((*slab).pages as usize);
        }
        Slab::enlist(slab, List::None);
        if (*slab).revived {
            // Its owner may have been stopped between the two: what is between them may be in use.
            Slab::set_bump(slab, (*slab).end);
        }
        give_up(slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os;
    use crate::superslab::{Desc, Owner, SUPERSLAB};
    use crate::tiny::classes::{CLASSES, stride};

    #[test]
    fn nothing_is_taken_from_a_slab_whose_owner_stopped_while_it_revived_memory() {
        const CLASS: u8 = CLASSES as u8;
        let base = os::map_aligned(SUPERSLAB, SUPERSLAB);
        assert!(!base.is_null());
        // SAFETY: a place for a SuperSlab that nobody else knows. The owner is only an address.
        unsafe {
            let slab = Slab::claim(base, 8, 8, CLASS, Desc::stand_in());
            Slab::make(slab, stride(CLASS as usize), false, ptr::without_provenance_mut::<Owner>(4096));
            Slab::enlist(slab, List::Current);
            (0..3).for_each(|_| Slab::count_taken(slab));
            // All of it has been handed out; the memory that is revived begins with the third block.
            (*slab).bump = (*slab).start.wrapping_add(2 * stride(CLASS as usize) as usize);
            (*slab).revived = true;
            assert!(matches!(disown(slab), GivenUp::Orphan));
            let adopted = orphans::adopt(CLASS).unwrap();
            assert!(adopted.slab == slab && adopted.in_use == 3 && adopted.chain.head.is_null());
            assert!((*slab).free.is_null() && (*slab).bump == (*slab).end);
            os::unmap(base, SUPERSLAB);
        }
    }
}
