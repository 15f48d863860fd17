//! Iterating over all spans in use.

use crate::superslab::desc::{self, Desc};
use crate::superslab::layout::{SLICE_SHIFT, SLICES};
use crate::superslab::pagemap::{self, FOREIGN};
use crate::superslab::slab::Slab;
use crate::superslab::span_index::with;

/// Calls `f` with the record of every span in use, with the pool locked. False, and nothing is done, if the
/// lock is not free soon.
pub(crate) fn each_span(mut f: impl FnMut(*mut Slab)) -> bool {
    with(|_| desc::descs().for_each(|desc| spans(desc, &mut f))).is_some()
}

/// Calls `f` with the record of every span in use of a SuperSlab. The caller holds the pool's lock.
pub(super) fn spans(d: &Desc, mut f: impl FnMut(*mut Slab)) {
    // In this order: a SuperSlab that is hidden as a whole may have been unmapped, and one that is not hidden
    // any more because it has been removed has no address.
    if d.is_hidden() {
        return;
    }
    let (base, free) = (d.base(), d.slices.get().free);
    if base.is_null() {
        return;
    }
    let mut index = 0;
    while index < SLICES {
        if free & (1 << index) != 0
            || pagemap::kind_published(base.wrapping_add(index << SLICE_SHIFT)) == FOREIGN
        {
            index += 1;
            continue;
        }
        let slab = Slab::at(base, index);
        // SAFETY: a SuperSlab is hidden, under the pool's lock, before it is unmapped. This one was not, so
        // it stays mapped while the lock is held.
        let seen = unsafe { Slab::glimpse(slab) };
        // While a span is being given back, some of its slices may be out of the page map already.
        if seen.lead == 0 {
            f(slab);
            index += seen.slices;
        } else {
            index += 1;
        }
    }
}
