//! A block in a thread's quarantine, as the ring there has it.

use crate::hardened::place::Place;
use crate::hardened::records;
use crate::hardened::slab::Slab;
use crate::hardened::spans::BIG;
use crate::superslab::layout::SLICE;
use core::ptr;

/// A block in the quarantine: its slab's record and its number, in one word. Null where there is none.
#[derive(Clone, Copy)]
pub(super) struct Held(*const Slab);

/// Records lie at multiples of so many bytes.
const ALIGN: u32 = records::ALIGN.trailing_zeros();
/// Bits for the address of a record, without those that are zero. What is above is for numbers of blocks.
const ADDRESS: u32 = 44;
const _: () = assert!(BIG * SLICE / 16 <= 1 << (64 - ADDRESS));

impl Held {
    #[inline(always)]
    pub(super) fn new(place: Place<'static>) -> Held {
        Held(ptr::from_ref(place.slab).map_addr(|at| at >> ALIGN | place.index << ADDRESS))
    }

    #[inline(always)]
    pub(super) fn place(self) -> Option<Place<'static>> {
        let slab = self.0.map_addr(|at| at << (64 - ADDRESS) >> (64 - ADDRESS - ALIGN));
        // SAFETY: null, or the address of the slab in `new`. Records stay mapped.
        unsafe { slab.as_ref() }.map(|slab| slab.nth(self.0.addr() >> ADDRESS))
    }
}
