//! What a profile counts for: where, and what.

use crate::sampling::grown::{Zero, mix};

/// Where and what: one combination of a call stack, a thread, a tag and a size.
#[derive(Clone, Copy)]
pub(super) struct Site {
    /// What the file calls it. Sites lie in this order, with gaps where some were given up: see `fold.rs`.
    pub(super) number: u32,
    /// The number of its stack, or `OTHERS`.
    pub(super) stack: u32,
    pub(super) thread: u32,
    /// `u32::MAX` for none, as in the file.
    pub(super) tag: u32,
    /// The `Store::peak` for which `at_peak` holds; if that has grown since, `live` does.
    pub(super) peak: u32,
    /// Samples that live: fewer than this can count, as each has an entry in a table.
    pub(super) live: u32,
    /// 0 of one that has just been given up.
    pub(super) size: u64,
    /// Samples so far.
    pub(super) allocated: u64,
    pub(super) at_peak: u64,
    /// Bytes that the live ones pin.
    pub(super) pinned: f64,
    /// 0 if the last snapshot that was appended to the file says the same.
    pub(super) changed: u32,
    /// The number of its first lifetime, counted from 1; 0 for none.
    pub(super) lifetimes: u32,
}

// SAFETY: it consists of numbers.
unsafe impl Zero for Site {}

/// A line of the cache: there may be many.
const _: () = assert!(size_of::<Site>() == 64);

/// Where the site of this number lies, if it is there.
#[inline]
pub(super) fn place(sites: &[Site], number: u32) -> Option<usize> {
    let is_it = |site: &Site| site.number == number;
    if sites.get(number as usize).is_some_and(is_it) {
        return Some(number as usize);
    }
    sites.binary_search_by_key(&number, |site| site.number).ok()
}

/// So much is kept, about: see `Store::make_room`.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) sites: usize,
    /// Addresses of stacks, and two more for each.
    pub(super) words: usize,
}

impl Bounds {
    pub(super) const USUAL: Self = Self { sites: 1 << 18, words: 4 << 20 };
}

/// What an index finds a site by.
pub(super) fn hash_of(stack: u32, thread: u32, tag: u32, size: u64) -> u64 {
    let first = mix(size, u64::from(stack) << 32 | u64::from(thread));
    mix(first, u64::from(tag))
}

impl Site {
    /// Before `live` changes: what it was at the peak, if that has been since it last changed.
    pub(super) fn keep_peak(&mut self, peak: u32) {
        if self.peak != peak {
            (self.peak, self.at_peak) = (peak, self.live.into());
        }
    }
}
