//! Checks on every free, for builds with debug assertions or the feature `checked`: what a release build sees only on a
//! block's way home shows at once.

use super::hot::Hot;
use super::{thread, tls};
use crate::misuse::{self, Fault};
use crate::superslab::{Slab, pagemap};
use crate::tiny::sparse;

/// Complains when `block` cannot be a block of `class` that is in use.
pub(super) fn free(block: *mut u8, class: u8) {
    let kind = pagemap::kind(block);
    if kind != class {
        let fault = if kind == pagemap::FOREIGN { Fault::Foreign } else { Fault::Size };
        return misuse::report("free", block, fault);
    }
    // SAFETY: the page map says that it is a slab's.
    match unsafe { sparse::block_at(Slab::of(block), block) } {
        None => misuse::report("free", block, Fault::Interior),
        Some(true) => misuse::report("free", block, Fault::DoubleFree),
        Some(false) => {}
    }
    // SAFETY: the thread's own heap.
    if !thread::own_heap().is_null() && unsafe { Hot::holds(tls::get().cast(), class as usize, block) } {
        misuse::report("free", block, Fault::DoubleFree);
    }
}
