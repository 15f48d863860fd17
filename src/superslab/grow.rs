//! Another SuperSlab for the pool: of memory that nobody uses any more, or from the system.

use crate::lockfree::waker;
use crate::os;
use crate::superslab::desc::CHUNK;
use crate::superslab::layout::{HEADER, SUPERSLAB};
use crate::superslab::{desc, pagemap, span_index, thp};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU64, AtomicUsize};
use core::ptr;

/// SuperSlabs mapped since the start. Relaxed, like the next one: a figure and a hint.
pub(crate) static SUPERSLABS_MAPPED: AtomicU64 = AtomicU64::new(0);
/// Where to ask the system for the next SuperSlab: beside the last one, so that mappings merge.
static HINT: AtomicUsize = AtomicUsize::new(0);

/// Memory for a SuperSlab: as much, at a multiple of its length, mapped, and nobody's.
pub(crate) struct Spare {
    pub(crate) base: *mut u8,
    /// Whether huge pages have been advised.
    pub(crate) huge: bool,
    /// Whether it is known to be zero, and hardly resident.
    pub(crate) clean: bool,
}

/// Which memory a SuperSlab should be made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Without huge pages.
    Small,
    /// With huge pages.
    Huge,
    /// Any that is still mapped, though nobody wants it any more: the system has refused to take it back, and
    /// now it has refused more memory.
    Any,
}

/// Where memory for a SuperSlab is looked for, before the system is asked, and [again](Wanted::Any) when it
/// has refused. What it returns is the caller's.
pub(crate) type Spares = fn(Wanted) -> Option<Spare>;

/// Adds a SuperSlab to the pool. False if the system or a limit refuses.
pub(super) fn grow(spares: Spares) -> bool {
    let growth = thp::growth();
    let wanted = if growth.wants_huge { Wanted::Huge } else { Wanted::Small };
    let new = || map_superslab(growth.wants_huge);
    let found = spares(wanted).or_else(new).or_else(|| spares(Wanted::Any));
    let Some(Spare { base, huge, clean }) = found else {
        growth.undo();
        return false;
    };
    if !pagemap::prepare(base) {
        // SAFETY: ours, mapped with this length, and nobody else knows it.
        unsafe { os::discard(base, SUPERSLAB) };
        growth.undo();
        return false;
    }
    if !clean {
        // The records of slabs are zero at first.
        // SAFETY: the front of our mapping.
        unsafe { base.write_bytes(0, HEADER) };
    }
    while !span_index::add(base, huge, !clean) {
        let chunk = os::map_uncounted(CHUNK);
        if chunk.is_null() {
            // Where this cannot be unmapped, it is left for whoever maps memory next: the descriptors.
            // SAFETY: ours, mapped with this length, and nobody else knows it.
            unsafe { os::discard(base, SUPERSLAB) };
            growth.undo();
            let chunk = os::map_uncounted(CHUNK);
            if chunk.is_null() {
                return false;
            }
            desc::supply(chunk);
            return grow(spares);
        }
        desc::supply(chunk);
    }
    if !clean {
        // It is dirty.
        waker::notify_unlocked();
    }
    true
}

/// Maps memory for a SuperSlab. `None` if the system or a limit refuses.
fn map_superslab(huge: bool) -> Option<Spare> {
    let hint = ptr::without_provenance_mut(HINT.load(Relaxed));
    let base = os::map_aligned(hint, SUPERSLAB, SUPERSLAB);
    if base.is_null() {
        return None;
    }
    HINT.store(base.addr().wrapping_sub(SUPERSLAB), Relaxed);
    // Advises against huge pages, too: where the system gives them to everybody, a process that needs a few
    // pages of many SuperSlabs would get all pages of them.
    if huge || thp::refuses() {
        // SAFETY: mapped just now with this length.
        unsafe { os::advise_huge(base, SUPERSLAB, huge) };
    }
    SUPERSLABS_MAPPED.fetch_add(1, Relaxed);
    Some(Spare { base, huge, clean: true })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lockfree::slice_sets::Sets;
    use crate::lockfree::waker::WAKER;
    use crate::os::child;
    use crate::superslab::desc::descs;

    /// Mapped, and written to where the records of slabs will be.
    fn spare(clean: bool) -> Option<Spare> {
        let base = os::map_aligned(ptr::null_mut(), SUPERSLAB, SUPERSLAB);
        if !clean {
            // SAFETY: mapped just now with this length.
            unsafe { base.write_bytes(0xff, SUPERSLAB) };
        }
        Some(Spare { base, huge: false, clean })
    }

    /// In a child: other tests use the pool as well.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn what_was_used_is_dirty_and_its_records_are_zero() {
        assert!(child::is_so(|| {
            span_index::inherit();
            let cases: [(Spares, bool, u64); 3] =
                [(|_| spare(false), true, 0), (|_| spare(true), false, 0), (|_| None, false, 1)];
            cases.iter().all(|&(spares, used, mapped)| {
                let known: std::vec::Vec<_> = descs().map(|desc| desc.base()).collect();
                let before = SUPERSLABS_MAPPED.load(Relaxed);
                assert!(WAKER.arm() && grow(spares));
                let woken = !WAKER.is_asleep();
                WAKER.rise();
                let desc = descs().find(|desc| !known.contains(&desc.base())).unwrap();
                // SAFETY: the front of a SuperSlab, which nobody uses yet.
                let header = unsafe { core::slice::from_raw_parts(desc.base(), HEADER) };
                assert!(header.iter().all(|&byte| byte == 0));
                let dirty = desc.slices.get() == Sets::ALL_DIRTY;
                assert_eq!((woken, desc.reused.load(Relaxed), dirty), (used, used, used));
                SUPERSLABS_MAPPED.load(Relaxed) == before + mapped
            })
        }));
    }
}
