//! Memory of the profile's own: arrays that grow.

use crate::os;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;
use core::ops::{Deref, DerefMut};
use core::{ptr, slice};

/// Bytes that all of these have mapped.
pub(super) static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that an array has mapped at first. What is not touched is not resident, and to map more later costs
/// more.
const FIRST: usize = 16 << 10;

/// An array in a mapping of its own, which doubles when it is full. The elements behind the last one are all
/// zero.
pub(super) struct Grown<T> {
    first: *mut T,
    len: usize,
    /// Bytes that are mapped.
    bytes: usize,
}

// SAFETY: it owns its memory, as a `Vec` does.
unsafe impl<T: Send> Send for Grown<T> {}

/// A type of which all-zero bytes are a value.
///
/// # Safety
///
/// They are.
pub(super) unsafe trait Zero: Copy {}
// SAFETY: numbers.
unsafe impl Zero for u8 {}
// SAFETY: numbers.
unsafe impl Zero for u32 {}
// SAFETY: numbers.
unsafe impl Zero for usize {}

impl<T: Zero> Grown<T> {
    /// An empty array, without memory.
    pub(super) const fn new() -> Self {
        Self { first: ptr::dangling_mut(), len: 0, bytes: 0 }
    }

    /// Makes it `len` elements long at least; new ones are zero. False, and nothing changed, when there is no
    /// memory.
    #[must_use]
    pub(super) fn extend_to(&mut self, len: usize) -> bool {
        if len <= self.len {
            return true;
        }
        let Some(needed) = len.checked_mul(size_of::<T>()) else { return false };
        if needed > self.bytes {
            let bytes = needed.max(2 * self.bytes).max(FIRST);
            let Some(bytes) = bytes.checked_next_multiple_of(os::page_size()) else { return false };
            let new = os::map_uncounted(bytes).cast::<T>();
            if new.is_null() {
                return false;
            }
            // SAFETY: the new mapping is larger than the old elements, and apart from them.
            unsafe { ptr::copy_nonoverlapping(self.first, new, self.len) };
            self.release();
            (self.first, self.bytes) = (new, bytes);
            BYTES.fetch_add(bytes, Relaxed);
        }
        self.len = len;
        true
    }

    /// Makes room for `more` elements, if there is memory: one mapping instead of several.
    pub(super) fn reserve(&mut self, more: usize) {
        let before = self.len;
        if before.checked_add(more).is_some_and(|len| self.extend_to(len)) {
            self.len = before;
        }
    }

    /// Appends an element. False when there is no memory.
    #[must_use]
    pub(super) fn push(&mut self, value: T) -> bool {
        self.append(&[value])
    }

    /// Appends elements, all or none. False when there is no memory.
    #[must_use]
    pub(super) fn append(&mut self, values: &[T]) -> bool {
        let before = self.len;
        let Some(len) = before.checked_add(values.len()) else { return false };
        self.extend_to(len) && {
            // SAFETY: there is room for them behind what was there, and it is ours alone.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.first.add(before), values.len()) };
            true
        }
    }

    /// Forgets the elements behind the first `len`, and keeps their memory.
    pub(super) fn truncate(&mut self, len: usize) {
        if let Some(rest) = self.get_mut(len..) {
            // SAFETY: all-zero bytes are a value of `T`.
            unsafe { rest.as_mut_ptr().write_bytes(0, rest.len()) };
            self.len = len;
        }
    }

    /// Unmaps the memory, without forgetting where it was.
    fn release(&mut self) {
        if self.bytes != 0 {
            // SAFETY: a mapping of ours, whose elements nobody uses any more.
            unsafe { os::discard_uncounted(self.first.cast(), self.bytes) };
            BYTES.fetch_sub(self.bytes, Relaxed);
        }
    }

    /// Forgets everything, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.release();
        *self = Self::new();
    }
}

impl<T> Deref for Grown<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: that many elements lie there, or none at a dangling address.
        unsafe { slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T> DerefMut for Grown<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the reference to this is exclusive.
        unsafe { slice::from_raw_parts_mut(self.first, self.len) }
    }
}

/// A table of numbers by hash: open addressing with linear probing. What the numbers stand for, and whether
/// two are equal, its user knows; 0 is no number.
pub(super) struct Index {
    slots: Grown<u32>,
    used: usize,
}

impl Index {
    /// An empty table.
    pub(super) const fn new() -> Self {
        Self { slots: Grown::new(), used: 0 }
    }

    /// The number with this hash for which `is_it` is true.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.probe(hash)
            .map(|at| self.slots.get(at).copied().unwrap_or(0))
            .find(|&n| n == 0 || is_it(n))
            .filter(|&n| n != 0)
    }

    /// Adds a number. `hash_of` gives the hash of any that is in the table. False when there is no memory.
    #[must_use]
    pub(super) fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) -> bool {
        if self.used * 2 >= self.slots.len() {
            let mut larger = Index::new();
            if !larger.slots.extend_to((self.slots.len() * 2).max(512)) {
                return false;
            }
            self.slots.iter().filter(|&&n| n != 0).for_each(|&n| larger.put(hash_of(n), n));
            self.slots.clear();
            *self = larger;
        }
        self.put(hash, number);
        true
    }

    /// Takes a number out. `hash_of` gives the hash of any that is in the table.
    pub(super) fn remove(&mut self, hash: u64, number: u32, hash_of: impl Fn(u32) -> u64) {
        let mask = self.slots.len().wrapping_sub(1);
        let there = |slots: &[u32], at: usize| slots.get(at).copied().unwrap_or(0);
        let found = self.probe(hash).find(|&at| [0, number].contains(&there(&self.slots, at)));
        let Some(mut hole) = found.filter(|&at| there(&self.slots, at) == number) else { return };
        // Those behind it that would not be found any more move up. There is always a free place.
        let mut at = hole;
        loop {
            at = at.wrapping_add(1) & mask;
            let next = there(&self.slots, at);
            if next == 0 {
                break;
            }
            let past = |from: usize| at.wrapping_sub(from) & mask;
            if past(hash_of(next) as usize) >= past(hole) {
                self.slots.iter_mut().skip(hole).take(1).for_each(|slot| *slot = next);
                hole = at;
            }
        }
        self.slots.iter_mut().skip(hole).take(1).for_each(|slot| *slot = 0);
        self.used -= 1;
    }

    /// Where to look for a number with this hash, one place after the other.
    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len().wrapping_sub(1);
        let len = self.slots.len();
        (0..len).map(move |i| (hash as usize).wrapping_add(i) & mask)
    }

    fn put(&mut self, hash: u64, number: u32) {
        let free = self.probe(hash).find(|&at| self.slots.get(at) == Some(&0));
        if let Some(slot) = free.and_then(|at| self.slots.get_mut(at)) {
            *slot = number;
            self.used += 1;
        }
    }

    /// How many places it has.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Forgets everything, and keeps the memory.
    pub(super) fn empty(&mut self) {
        self.slots.fill(0);
        self.used = 0;
    }

    /// Forgets everything, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.used = 0;
    }
}

/// Mixes a number into a hash.
pub(super) fn mix(hash: u64, number: u64) -> u64 {
    let x = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_keep_their_elements() {
        let mut array = Grown::<u32>::new();
        for i in 0..10_000 {
            assert!(array.push(i));
        }
        assert_eq!(array.len(), 10_000);
        assert!(array.iter().copied().eq(0..10_000));
        array.truncate(5);
        assert!(array.extend_to(10) && array[..] == [0, 1, 2, 3, 4, 0, 0, 0, 0, 0]);
        assert!(!array.extend_to(usize::MAX / 2));
        array.clear();
        assert!(array.is_empty());
    }

    #[test]
    fn the_index_finds_what_was_put_there() {
        let mut index = Index::new();
        let hash = |n: u32| mix(0, u64::from(n % 100));
        for n in 1..2000 {
            assert_eq!(index.find(hash(n), |m| m == n), None);
            assert!(index.insert(hash(n), n, hash));
        }
        assert!((1..2000).all(|n| index.find(hash(n), |m| m == n) == Some(n)));
        // Those with the same hash stay when one of them goes.
        for n in (1..2000).step_by(3) {
            index.remove(hash(n), n, hash);
            index.remove(hash(n), n, hash);
        }
        assert!((1..2000).all(|n| index.find(hash(n), |m| m == n).is_some() == (n % 3 != 1)));
        assert!((1..2000).step_by(3).all(|n| index.insert(hash(n), n, hash)));
        assert!((1..2000).all(|n| index.find(hash(n), |m| m == n) == Some(n)));
        index.clear();
        assert_eq!(index.find(hash(1), |m| m == 1), None);
    }
}
