//! How long the freed samples of each site have lived.

use crate::sampling::grown::{Grown, Zero};
use core::iter;

/// How many samples of a site lived how long.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    /// The power of two of nanoseconds.
    pub(super) log: u32,
    /// The number of the site's next one, counted from 1; 0 for none.
    next: u32,
    pub(super) count: u64,
}

// SAFETY: it consists of numbers.
unsafe impl Zero for Lifetime {}

/// Those of all sites, each of which has a list: 64 at most.
pub(super) struct Lifetimes(Grown<Lifetime>);

impl Lifetimes {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self(Grown::new())
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts a sample in the list that begins with the number `first`.
    pub(super) fn count(&mut self, first: &mut u32, log: u32) {
        let mut at = *first;
        while let Some(known) = self.0.get_mut((at as usize).wrapping_sub(1)) {
            if known.log == log {
                known.count += 1;
                return;
            }
            at = known.next;
        }
        if self.0.push(Lifetime { log, next: *first, count: 1 }) {
            *first = self.0.len() as u32;
        }
    }

    /// The list that begins with this number.
    pub(super) fn list(&self, first: u32) -> impl Iterator<Item = Lifetime> {
        let by_number = |number: u32| self.0.get((number as usize).wrapping_sub(1)).copied();
        iter::successors(by_number(first), move |known| by_number(known.next))
    }
}
