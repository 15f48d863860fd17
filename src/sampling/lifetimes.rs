//! How long the freed samples of each site have lived.

use crate::sampling::grown::{Grown, Zero};
use core::{iter, mem};

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
pub(super) struct Lifetimes {
    all: Grown<Lifetime>,
    /// The first that is no site's, by its `next`; 0 for none.
    free: u32,
}

impl Lifetimes {
    /// None yet.
    pub(super) const fn new() -> Self {
        Self { all: Grown::new(), free: 0 }
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.free = 0;
    }

    /// How many there have been at once.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Counts a sample in the list that begins with the number `first`.
    pub(super) fn count(&mut self, first: &mut u32, log: u32) {
        if self.add(*first, log, 1) {
            return;
        }
        let new = Lifetime { log, next: *first, count: 1 };
        let at = self.free;
        if let Some(free) = self.get_mut(at) {
            let next = mem::replace(free, new).next;
            (self.free, *first) = (next, at);
        } else if self.all.push(new) {
            *first = self.all.len() as u32;
        }
    }

    /// Adds to the one of a list that has this `log`, if there is one.
    fn add(&mut self, first: u32, log: u32, count: u64) -> bool {
        let mut at = first;
        while let Some(known) = self.get_mut(at) {
            if known.log == log {
                known.count += count;
                return true;
            }
            at = known.next;
        }
        false
    }

    /// Adds the list that begins with the number `other` to that which begins with `first`.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn merge(&mut self, first: &mut u32, other: u32) {
        let mut at = other;
        while let Some(&mut Lifetime { log, next, count }) = self.get_mut(at) {
            let list = if self.add(*first, log, count) { &mut self.free } else { &mut *first };
            let after = mem::replace(list, at);
            if let Some(moved) = self.get_mut(at) {
                moved.next = after;
            }
            at = next;
        }
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Lifetime> {
        self.all.get_mut((number as usize).wrapping_sub(1))
    }

    /// The list that begins with this number.
    pub(super) fn list(&self, first: u32) -> impl Iterator<Item = Lifetime> {
        let by_number = |number: u32| self.all.get((number as usize).wrapping_sub(1)).copied();
        iter::successors(by_number(first), move |known| by_number(known.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_is_merged_is_used_again() {
        let mut lifetimes = Lifetimes::new();
        let mut lists = [0; 2];
        for (list, log) in [(0, 3), (0, 5), (0, 3), (1, 5), (1, 7), (1, 7)] {
            lifetimes.count(&mut lists[list], log);
        }
        let other = lists[1];
        lifetimes.merge(&mut lists[0], other);
        let mut all: Vec<_> = lifetimes.list(lists[0]).map(|known| (known.log, known.count)).collect();
        all.sort();
        assert_eq!(all, [(3, 2), (5, 2), (7, 2)]);
        // One of the four is free.
        lists[1] = 0;
        lifetimes.count(&mut lists[1], 9);
        assert_eq!((lifetimes.all.len(), lifetimes.free), (4, 0));
        assert!(lifetimes.list(lists[1]).map(|known| (known.log, known.count)).eq([(9, 1)]));
        lifetimes.clear();
    }
}
