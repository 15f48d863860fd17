//! The granules of a slab: the pieces of its span that are given back, and found missing, one by one.
//!
//! A granule is one page of the system, or more where a span has too many for a mask. [`Slab::purged`](super::slab::Slab) says which
//! ones have been given back, and no block that touches one of these is in use, on a list, or above `bump`.

use crate::os;
use crate::superslab::layout::PAGE_SHIFT;
use crate::superslab::pool;
use crate::superslab::slab::Slab;

/// Where a slab's granules lie.
pub(crate) struct Granules {
    /// The span's first byte.
    pub(crate) span: *mut u8,
    /// log2 of a granule's bytes, and how many there are: at most 64.
    pub(crate) shift: u32,
    /// See `shift`.
    pub(crate) count: usize,
}

impl Granules {
    /// Those of a slab.
    ///
    /// # Safety
    ///
    /// A slab's record.
    pub(crate) unsafe fn of(slab: *mut Slab) -> Granules {
        // SAFETY: passed on.
        Granules::of_span(slab, unsafe { (*slab).pages as usize })
    }

    /// Those of a slab of so many pages.
    pub(super) fn of_span(slab: *mut Slab, pages: usize) -> Granules {
        let bytes = pages << PAGE_SHIFT;
        let granule = os::page_size().max(bytes / 64);
        let shift = granule.trailing_zeros();
        Granules { span: pool::address(slab), shift, count: bytes >> shift }
    }

    /// The granules that the bytes from `from` to `to`, which are not none, lie in.
    pub(crate) fn touching(&self, from: *mut u8, to: *mut u8) -> u64 {
        let first = (from.addr() - self.span.addr()) >> self.shift;
        let last = (to.addr() - 1 - self.span.addr()) >> self.shift;
        (u64::MAX >> (63 - last)) & (u64::MAX << first)
    }

    /// The mask of all.
    pub(crate) fn all(&self) -> u64 {
        u64::MAX >> (64 - self.count)
    }

    /// From where to where a run lies.
    pub(crate) fn range(&self, run: Run) -> (*mut u8, *mut u8) {
        let from = self.span.wrapping_add((run.first as usize) << self.shift);
        (from, from.wrapping_add((run.count as usize) << self.shift))
    }

    /// From where to where the blocks lie that touch a run of granules.
    ///
    /// # Safety
    ///
    /// The granules are those of `slab`, a slab that has been made.
    pub(crate) unsafe fn window(&self, slab: *mut Slab, run: Run) -> (*mut u8, *mut u8) {
        // SAFETY: passed on: constant fields of a slab.
        unsafe { self.window_of((*slab).start, (*slab).stride as usize, (*slab).last as usize, run) }
    }

    /// [`window`](Granules::window) of a slab with its first block at `start`.
    pub(super) fn window_of(
        &self,
        start: *mut u8,
        stride: usize,
        last: usize,
        run: Run,
    ) -> (*mut u8, *mut u8) {
        let stride = stride.max(1);
        let (from, to) = self.range(run);
        let (from, to) = (from.addr().saturating_sub(start.addr()), to.addr().saturating_sub(start.addr()));
        let (from, to) = (from / stride * stride, to.div_ceil(stride) * stride);
        (start.wrapping_add(from), start.wrapping_add(to.min(last + stride)))
    }
}

/// Granules side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first one.
    pub(crate) first: u32,
    /// How many there are.
    pub(crate) count: u32,
}

impl Run {
    /// The runs of set bits of a mask, from the lowest on.
    pub(crate) fn each(mut mask: u64) -> impl Iterator<Item = Run> {
        core::iter::from_fn(move || {
            if mask == 0 {
                return None;
            }
            let first = mask.trailing_zeros();
            let run = Run { first, count: (mask >> first).trailing_ones() };
            mask &= !run.mask();
            Some(run)
        })
    }

    /// Its bits.
    pub(crate) fn mask(self) -> u64 {
        (u64::MAX >> (64 - self.count)) << self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_its_runs() {
        let runs = |mask: u64| Run::each(mask).map(|run| (run.first, run.count)).collect::<Vec<_>>();
        assert_eq!(runs(0), []);
        assert_eq!(runs(u64::MAX), [(0, 64)]);
        assert_eq!(runs(1 << 63), [(63, 1)]);
        assert_eq!(runs(0b1101_1001), [(0, 1), (3, 2), (6, 2)]);
        for mask in [1, 0b1101_1001, u64::MAX, u64::MAX << 7, 0x8000_0000_0000_0001] {
            assert_eq!(Run::each(mask).fold(0, |all, run| all | run.mask()), mask);
        }
    }
}
