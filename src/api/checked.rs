//! Checks on every free, for builds with debug assertions or the feature `checked`: what a release build sees only on a
//! block's way home shows at once.

use crate::base::misuse;
use crate::base::misuse::Fault;
use crate::front::fast_path::MagazineTops;
use crate::front::{thread, tls};
use crate::superslab::pagemap;
use crate::superslab::slab::Slab;
use crate::tiny::partial_purge;

/// Complains when `block` cannot be a block of `class` that is in use.
pub(crate) fn free(block: *mut u8, class: u8) {
    let kind = pagemap::kind(block);
    if kind != class {
        let fault = if kind == pagemap::FOREIGN { Fault::Foreign } else { Fault::Size };
        return misuse::report("free", block, fault);
    }
    // SAFETY: the page map says that it is a slab's.
    match unsafe { partial_purge::block_at(Slab::of(block), block) } {
        None => misuse::report("free", block, Fault::Interior),
        Some(true) => misuse::report("free", block, Fault::DoubleFree),
        Some(false) => {}
    }
    if thread::own_heap().is_null() {
        return;
    }
    // SAFETY: the thread's own heap.
    if unsafe { MagazineTops::holds(tls::get().cast(), class as usize, block) } {
        misuse::report("free", block, Fault::DoubleFree);
    }
}
