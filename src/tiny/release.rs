//! Slabs leave a heap: given back when it is trimmed, given up when its thread ends, taken over in the child of a fork.

use crate::superslab::slab::{Listed, Slab};
use crate::superslab::{orphans, pool};
use crate::tiny::{free_list, idle};

/// What came of giving up a slab.
pub(crate) enum GivenUp {
    /// It is an orphan now, and nobody's.
    Orphan,
    /// No block of it is in use: it is still the caller's, to [`release_slab`].
    Empty,
    /// It is still the caller's: somebody is about to publish it, or it has been published.
    Not,
}

/// Gives up a slab: makes an orphan of it if it has blocks in use.
///
/// # Safety
///
/// The slab is the caller's and in no list.
pub(super) unsafe fn give_up(slab: *mut Slab) -> GivenUp {
    // SAFETY: passed on.
    unsafe {
        // A chain that was left on the stack; an orphan begins without one. First, because what is taken may be more
        // than what was there when the slab was armed: then somebody is about to publish it.
        if (*slab).remote.has_chain() {
            let chain = (*slab).remote.take_chain();
            free_list::absorb(slab, chain);
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
pub(crate) unsafe fn release_slab(slab: *mut Slab) {
    // SAFETY: passed on.
    unsafe {
        idle::on_release(slab);
        pool::give_span(slab, dirty(slab));
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
        if (*slab).list == Listed::Sparse {
            idle::forget((*slab).pages as usize);
        }
        Slab::enlist(slab, Listed::None);
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
    use crate::superslab::desc::Desc;
    use crate::superslab::layout::SUPERSLAB;
    use crate::superslab::slab::Owner;
    use crate::tiny::classes::{CLASSES, stride};
    use core::ptr;

    #[test]
    fn nothing_is_taken_from_a_slab_whose_owner_stopped_while_it_revived_memory() {
        const CLASS: u8 = CLASSES as u8;
        let base = os::map_aligned(SUPERSLAB, SUPERSLAB);
        assert!(!base.is_null());
        // SAFETY: a place for a SuperSlab that nobody else knows. The owner is only an address.
        unsafe {
            let slab = Slab::claim(base, 8, 8, CLASS, Desc::stand_in());
            Slab::make(slab, stride(CLASS as usize), false, ptr::without_provenance_mut::<Owner>(4096));
            Slab::enlist(slab, Listed::Current);
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
