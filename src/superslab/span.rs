//! Spans that have been taken from the pool.

use crate::lockfree::slice_sets::{Sets, span_mask};
use crate::superslab::desc::DescRef;
use crate::superslab::pagemap;
use crate::superslab::slab::Slab;

/// A mask of the slices that a span may consist of: slice 0 lies behind the header and serves only slabs of
/// one slice.
pub(super) fn usable(slices: usize, class: u8) -> u32 {
    if slices == 1 && class != pagemap::RUN { u32::MAX } else { BEHIND_FIRST }
}

/// All slices except slice 0, which lies behind the header.
pub(super) const BEHIND_FIRST: u32 = !1;

/// A span that the caller has taken from the pool.
pub(crate) struct Span {
    /// The record of its first slice: see [`Slab::claim`].
    pub(crate) slab: *mut Slab,
    /// Whether its slices are known to be zero.
    pub(crate) zero: bool,
}

/// Makes a span of slices that have been taken.
pub(super) fn make_span(desc: DescRef, index: usize, slices: usize, class: u8, before: Sets) -> Span {
    // SAFETY: the caller has just taken these slices out of the free ones, so they are ours alone, and the
    // SuperSlab stays as long as they are not free. The descriptor has its address: `Desc::fill` stores that
    // before it makes the slices free.
    let slab = unsafe { Slab::claim(desc, index, slices, class) };
    let mapped = if class == pagemap::RUN { 1 } else { slices };
    pagemap::set(Slab::address(slab), mapped, class);
    Span { slab, zero: before.dirty & span_mask(index, slices) == 0 }
}
