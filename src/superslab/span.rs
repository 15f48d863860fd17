//! Spans that have been taken from the pool.

use crate::lockfree::page_sets::{Sets, span_mask};
use crate::superslab::desc::DescRef;
use crate::superslab::pagemap;
use crate::superslab::slab::Slab;

/// A mask of the pages that a span may consist of: page 0 lies behind the header and serves only slabs of one
/// page.
pub(super) fn usable(pages: usize, class: u8) -> u32 {
    if pages == 1 && class != pagemap::RUN { u32::MAX } else { BEHIND_FIRST }
}

/// All pages except page 0, which lies behind the header.
pub(super) const BEHIND_FIRST: u32 = !1;

/// A span that the caller has taken from the pool.
pub(crate) struct Span {
    /// The record of its first page: see [`Slab::claim`].
    pub(crate) slab: *mut Slab,
    /// Whether its pages are known to be zero.
    pub(crate) zero: bool,
}

/// Makes a span of pages that have been taken.
pub(super) fn make_span(desc: DescRef, index: usize, pages: usize, class: u8, before: Sets) -> Span {
    // SAFETY: the caller has just taken these pages out of the free ones, so they are ours alone, and the
    // SuperSlab stays as long as they are not free. The descriptor has its address: `Desc::fill` stores that
    // before it makes the pages free.
    let slab = unsafe { Slab::claim(desc, index, pages, class) };
    let mapped = if class == pagemap::RUN { 1 } else { pages };
    pagemap::set(Slab::address(slab), mapped, class);
    Span { slab, zero: before.dirty & span_mask(index, pages) == 0 }
}
