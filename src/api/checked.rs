//! Checks on every free, for builds with debug assertions or the feature `checked`. A release build makes
//! them only when a block returns to its slab.

use crate::base::misuse::{self, Fault};
use crate::front::fast_path::MagazineTops;
use crate::front::{thread, tls};
use crate::superslab::pagemap;
use crate::superslab::slab::Slab;
use crate::tiny::partial_purge;

/// In such builds, reports misuse if `block` cannot be a block of `class` that is in use.
#[inline(always)]
pub(super) fn free(block: *mut u8, class: u8) {
    if cfg!(any(feature = "checked", debug_assertions)) {
        check(block, class);
    }
}

fn check(block: *mut u8, class: u8) {
    let kind = pagemap::kind(block);
    if kind == pagemap::HARDENED {
        // Which checks every free itself.
        return;
    }
    if kind != class {
        let fault = if kind == pagemap::FOREIGN { Fault::Foreign } else { Fault::Size };
        return misuse::report("free", block, fault);
    }
    // SAFETY: the page map says that the page belongs to a slab. That has a block in use, unless this is a
    // double free: then its record is at least still mapped.
    match unsafe { partial_purge::block_at(Slab::of(block), block) } {
        None => misuse::report("free", block, Fault::Interior),
        Some(true) => misuse::report("free", block, Fault::DoubleFree),
        Some(false) => {}
    }
    if thread::own_heap().is_null() {
        return;
    }
    // SAFETY: the calling thread owns a heap, as has just been checked; `class` is a kind of the page map.
    if unsafe { MagazineTops::holds(tls::get().cast(), class as usize, block) } {
        misuse::report("free", block, Fault::DoubleFree);
    }
}
