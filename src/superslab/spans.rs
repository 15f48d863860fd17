//! Looking through all spans in use.

use crate::superslab::desc::{self, Desc};
use crate::superslab::layout::{PAGE_SHIFT, PAGES};
use crate::superslab::pagemap::{self, FOREIGN};
use crate::superslab::slab::Slab;
use crate::superslab::span_index::lock;

/// Calls `f` with the record of every span in use. The pool is locked meanwhile. False, and nothing done, when it cannot be.
pub(crate) fn each_span(mut f: impl FnMut(*mut Slab)) -> bool {
    let Some(_pool) = lock() else { return false };
    desc::descs().for_each(|desc| spans(desc, &mut f));
    true
}

/// Calls `f` with the record of every span in use of a SuperSlab; the pool is locked.
pub(super) fn spans(d: &Desc, mut f: impl FnMut(*mut Slab)) {
    let (base, free) = (d.base(), d.pages.get().free);
    // One that is hidden as a whole may be gone.
    let mut index = if d.is_hidden() { PAGES } else { 0 };
    while index < PAGES {
        if free & (1 << index) != 0
            || pagemap::kind_published(base.wrapping_add(index << PAGE_SHIFT)) == FOREIGN
        {
            index += 1;
            continue;
        }
        let slab = Slab::at(base, index);
        // SAFETY: the record of a page of a SuperSlab, which stays while the pool is locked.
        let seen = unsafe { Slab::glimpse(slab) };
        // A span that is just being given back may be half out of the page map.
        if seen.lead == 0 {
            f(slab);
            index += seen.pages.max(1);
        } else {
            index += 1;
        }
    }
}
