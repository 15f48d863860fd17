//! How slabs leave a heap: empty ones are released, others are given up when its thread ends, and in the
//! child of a fork those of threads that it does not have are taken away from their heaps.

use crate::superslab::slab::{Listed, Slab};
use crate::superslab::{orphans, pool};
use crate::sync::wrote;
use crate::tiny::{free_list, idle};

/// The outcome of giving up a slab.
pub(crate) enum GivenUp {
    /// It is an orphan now, and nobody's.
    Orphan,
    /// No block of it is in use. It is still the caller's, which should call [`release_slab`].
    Empty,
    /// It is still the caller's: it has been published or is about to be, or the orphans' lock was not free
    /// soon.
    Not,
}

/// Gives up a slab: makes an orphan of it if it has blocks in use.
///
/// # Safety
///
/// The calling thread owns the slab, and holds its heap's lock or stands in for its owner as [`disown`] says.
/// The slab is in none of the owner's lists.
unsafe fn give_up(slab: *mut Slab) -> GivenUp {
    // SAFETY: the slab is ours until `abandon` succeeds, and nothing of it is used after that.
    unsafe {
        // An orphan begins without a chain, so one that was left on the stack is taken. Before `is_armed`:
        // there may be more on the stack than when the slab was armed, and then somebody is about to publish
        // it.
        free_list::drain(slab);
        if !(*slab).remote.is_armed() {
            return GivenUp::Not;
        }
        match Slab::in_use(slab) {
            0 => GivenUp::Empty,
            // Fails if something was pushed meanwhile.
            used if orphans::abandon(slab, used) => GivenUp::Orphan,
            _ => GivenUp::Not,
        }
    }
}

/// [Gives up](give_up) a slab, and releases it if it has no block in use. False if it is still the caller's;
/// otherwise its slices are taken off those that the owner has `counted`. With `note` it is noted if there is
/// an orphan more.
///
/// # Safety
///
/// As [`give_up`].
pub(super) unsafe fn part_with(counted: &mut u32, slab: *mut Slab, note: bool) -> bool {
    // SAFETY: the caller's clauses are the same. An empty slab is still ours, and nobody is about to publish
    // it.
    unsafe {
        let slices = (*slab).slices as u32;
        match give_up(slab) {
            GivenUp::Orphan if note => orphans::note_change(),
            GivenUp::Orphan => (),
            GivenUp::Empty => release_slab(slab),
            GivenUp::Not => return false,
        }
        *counted = counted.saturating_sub(slices);
        true
    }
}

/// Gives the span of a slab without blocks in use back to the pool.
///
/// # Safety
///
/// The slab is the caller's alone and in no list: no block of it is in use, and nobody is about to publish
/// it.
pub(crate) unsafe fn release_slab(slab: *mut Slab) {
    // SAFETY: nobody else knows the slab any more, so it is ours to give back.
    unsafe {
        wrote(slab);
        wrote(&raw const (*slab).start);
        idle::on_release(slab);
        pool::give_span(slab, dirty(slab));
    }
}

/// [Releases](release_slab) the orphans that have been emptied.
pub(crate) fn release_emptied() {
    // SAFETY: what is passed here has been emptied, is ours alone, and in no list any more.
    orphans::release_emptied(|slab| unsafe { release_slab(slab) });
}

/// The slices of a span, bit 0 the first, that this slab may have made dirty. The pool knows which ones were
/// dirty before.
///
/// # Safety
///
/// The slab is the caller's alone.
pub(super) unsafe fn dirty(slab: *mut Slab) -> u32 {
    // SAFETY: nobody else writes the record.
    unsafe {
        let all = u32::MAX >> (32 - (*slab).slices as u32);
        if (*slab).revived {
            return all;
        }
        // Memory is handed out in order, so the slices below `bump` are dirty.
        let touched = (*slab).bump.addr() - (*slab).start.addr();
        let first = (*slab).start.addr() & 0xffff;
        let slices = if touched == 0 { 0 } else { (first + touched).div_ceil(1 << 16) };
        ((1u64 << slices) - 1) as u32
    }
}

/// Gives up a slab whose owner was left behind by a fork. The owner may have been stopped anywhere, so its
/// lists are not relied on, only the slab's record is.
///
/// # Safety
///
/// The slab's owner does not exist in this process, and the calling thread alone stands in for it.
pub(crate) unsafe fn disown(slab: *mut Slab) -> GivenUp {
    // SAFETY: the caller has the rights of the owner. Its lists are never used again, so the slab counts as
    // unlisted.
    unsafe {
        if (*slab).list == Listed::Sparse {
            idle::forget((*slab).slices as usize);
        }
        Slab::enlist(slab, Listed::None);
        if (*slab).revived {
            // Its owner may have been stopped between the stores to `bump` and `end`: memory between may be
            // in use.
            Slab::set_bump(slab, (*slab).end);
        }
        give_up(slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{self, child};
    use crate::superslab::desc::Desc;
    use crate::superslab::layout::SUPERSLAB;
    use crate::superslab::slab::Owner;
    use crate::tiny::bins::Bins;
    use crate::tiny::classes::{CLASSES, stride};
    use crate::tiny::free::is_owned_by;
    use core::ptr;

    #[test]
    fn nothing_is_taken_from_a_slab_whose_owner_stopped_while_it_revived_memory() {
        let _alone = orphans::ALONE.lock();
        const CLASS: u8 = CLASSES as u8;
        let base = os::map_aligned(core::ptr::null_mut(), SUPERSLAB, SUPERSLAB);
        assert!(!base.is_null());
        // SAFETY: the place for a SuperSlab was just mapped, and nobody else knows it. The owner is never
        // followed.
        unsafe {
            let slab = Slab::claim(Desc::stand_in(base), 8, 8, CLASS);
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
            // Who adopts it counts it.
            let (owner, mut bins) = (Owner::new(), Bins::new());
            (bins.owner, bins.present, bins.slices) = ((&raw const owner).cast_mut(), 1 << 2, 5);
            bins.install_adopted(adopted);
            assert_eq!((bins.present, bins.slices), (1 << 2 | 1 << CLASS, 13));
            assert!(is_owned_by(slab, bins.owner) && Slab::in_use(slab) == 3 && (*slab).remote.is_armed());
            os::discard(base, SUPERSLAB);
        }
    }

    /// Who looks at all orphans reaches each of them once, while the others can be adopted.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn orphans_are_gone_through_from_the_last_to_the_first() {
        let _alone = orphans::ALONE.lock();
        const CLASS: u8 = CLASSES as u8;
        // Nobody else frees blocks of orphans there.
        let is_so = child::is_so(|| {
            let base = os::map_aligned(core::ptr::null_mut(), SUPERSLAB, SUPERSLAB);
            assert!(!base.is_null());
            // SAFETY: as in the test above: a place that nobody else knows.
            unsafe {
                let (owner, mut bins) = (Owner::new(), Bins::new());
                bins.owner = (&raw const owner).cast_mut();
                let slabs = [8, 16, 24].map(|first| {
                    let slab = Slab::claim(Desc::stand_in(base), first, 8, CLASS);
                    Slab::make(slab, stride(CLASS as usize), false, bins.owner);
                    Slab::count_taken(slab);
                    assert!(part_with(&mut 8, slab, false));
                    slab
                });
                let before = orphans::count(CLASS);
                let mut seen = std::vec::Vec::new();
                for _ in 0..before {
                    let orphan = orphans::adopt_last(CLASS).unwrap();
                    let slab = orphan.slab;
                    seen.push(slab);
                    assert_eq!(orphans::count(CLASS), before - 1);
                    bins.install_adopted(orphan);
                    assert!(part_with(&mut 8, slab, false));
                }
                seen.retain(|slab| slabs.contains(slab));
                assert_eq!(seen, slabs);
                // They are as they were, the last one that was given up in front.
                for slab in slabs.into_iter().rev() {
                    assert_eq!(orphans::adopt(CLASS).unwrap().slab, slab);
                }
                os::discard(base, SUPERSLAB);
            }
            true
        });
        assert!(is_so);
    }
}
