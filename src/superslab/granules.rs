//! The granules of a slab: the units in which memory of its span is given back to the system.
//!
//! A granule is one system page, or more where a span has too many for a mask.
//! [`Slab::purged`](super::slab::Slab) says which granules have been given back. No block that touches one of
//! these is in use, on a list, or above `bump`.

use crate::os;
use crate::superslab::layout::SLICE_SHIFT;
use crate::superslab::slab::Slab;
use crate::superslab::slab::glimpse::Glimpse;

/// Where a slab's granules lie.
pub(crate) struct Granules {
    /// The span's first byte.
    pub(crate) span: *mut u8,
    /// log2 of a granule's bytes, and how many there are: at most 64.
    pub(crate) shift: u32,
    /// See `shift`.
    pub(crate) count: usize,
    /// The slab's first block, the bytes from block to block, and the offset of the last block.
    start: *mut u8,
    /// See `start`.
    stride: usize,
    /// See `start`.
    last: usize,
}

impl Granules {
    /// The granules of a slab.
    ///
    /// # Safety
    ///
    /// `slab` is the record of a live slab, and the caller is its owner or one of its blocks is in use.
    pub(crate) unsafe fn of(slab: *mut Slab) -> Granules {
        // SAFETY: by the caller's duty the record stays.
        Granules::of_seen(slab, unsafe { Slab::glimpse(slab) })
    }

    /// The granules of a slab whose record looked like `seen`.
    pub(super) fn of_seen(slab: *mut Slab, seen: Glimpse) -> Granules {
        let bytes = seen.slices << SLICE_SHIFT;
        let granule = os::page_size().max((bytes / 64).next_power_of_two());
        let shift = granule.trailing_zeros();
        Granules {
            span: Slab::address(slab),
            shift,
            count: bytes >> shift,
            start: seen.start,
            stride: seen.stride,
            last: seen.last,
        }
    }

    /// A mask of the granules that hold the bytes from `from` to `to`, of which there is at least one.
    pub(crate) fn touching(&self, from: *mut u8, to: *mut u8) -> u64 {
        let first = (from.addr() - self.span.addr()) >> self.shift;
        let last = (to.addr() - 1 - self.span.addr()) >> self.shift;
        (u64::MAX >> (63 - last)) & (u64::MAX << first)
    }

    /// The beginning and the end of a run.
    pub(crate) fn range(&self, run: Run) -> (*mut u8, *mut u8) {
        let from = self.span.wrapping_add((run.first as usize) << self.shift);
        (from, from.wrapping_add((run.count as usize) << self.shift))
    }

    /// The beginning and the end of the blocks that touch a run of granules.
    pub(crate) fn window(&self, run: Run) -> (*mut u8, *mut u8) {
        let (from, to) = self.range(run);
        let offset = |address: *mut u8| address.addr().saturating_sub(self.start.addr());
        let from = offset(from) / self.stride * self.stride;
        let to = offset(to).div_ceil(self.stride) * self.stride;
        (self.start.wrapping_add(from), self.start.wrapping_add(to.min(self.last + self.stride)))
    }
}

/// A run of adjacent granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first one.
    pub(crate) first: u32,
    /// How many there are.
    pub(crate) count: u32,
}

impl Run {
    /// The runs of set bits of a mask, in ascending order.
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

    /// The run as a mask.
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
