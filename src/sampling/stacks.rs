//! The call stacks of a profile, each kept once.

use crate::sampling::grown::{Grown, Index, mix};

/// The number of the stack that stands for those which there was no room for.
pub(super) const OTHERS: u32 = u32::MAX;
/// In a [`head`]: of a stack that a site has.
const IN_USE: usize = 1 << 47;

/// All of them.
pub(super) struct Stacks {
    /// Each stack: its number of addresses, that of the list which it [has been left](Stacks::leave) to or 0,
    /// and how it ends, as in [`head`]; its hash; the addresses.
    words: Grown<usize>,
    /// Where each begins.
    starts: Grown<u32>,
    /// The number of each, larger than that of the one before.
    numbers: Grown<u32>,
    next: u32,
    index: Index,
}

fn head(addresses: usize, list: u32, end: u8) -> usize {
    addresses << 48 | (list as usize) << 8 | end as usize
}

fn hash_of(addresses: &[usize], end: u8) -> u64 {
    addresses.iter().fold(mix(0, u64::from(end)), |hash, &pc| mix(hash, pc as u64)) as usize as u64
}

/// What a [`head`] says, in this order.
fn parts(head: usize) -> (usize, u32, u8) {
    (head >> 48, (head >> 8) as u32, head as u8)
}

impl Stacks {
    /// No stacks.
    pub(super) const fn new() -> Self {
        let (starts, numbers) = (Grown::new(), Grown::new());
        Self { words: Grown::new(), starts, numbers, next: 0, index: Index::new() }
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
        self.numbers.clear();
        self.index.clear();
        self.next = 0;
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// The number of the next one.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    #[cfg(test)]
    pub(super) fn set_next(&mut self, next: u32) {
        self.next = next;
    }

    /// The places of those from a number on, each with its number.
    pub(super) fn from(&self, number: u32) -> impl Iterator<Item = (usize, u32)> {
        let first = self.numbers.partition_point(|&known| known < number);
        self.numbers.iter().copied().enumerate().skip(first)
    }

    /// How many words they take.
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    /// How the stack at a place ends, and its addresses, innermost first.
    pub(super) fn get(&self, place: usize) -> (u8, &[usize]) {
        let start = self.starts.get(place).map_or(usize::MAX, |&start| start as usize);
        let (len, _, end) = parts(self.words.get(start).copied().unwrap_or(0));
        let addresses = start.checked_add(2).and_then(|from| self.words.get(from..from + len));
        (end, addresses.unwrap_or_default())
    }

    /// The number of the list of modules by which the stack at a place is named; 0 for the last one.
    pub(super) fn list(&self, place: usize) -> u32 {
        let start = self.starts.get(place).map_or(usize::MAX, |&start| start as usize);
        parts(self.words.get(start).copied().unwrap_or(0)).1
    }

    /// Leaves the stacks that go through these ranges of addresses to the list of this number: they are found
    /// no more. Whether there are any.
    #[cfg_attr(not(feature = "profile"), allow(dead_code))]
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn leave(&mut self, ranges: &[(usize, usize)], list: u32) -> bool {
        let mut any = false;
        for &start in self.starts.iter() {
            let Some([head_word, _, rest @ ..]) = self.words.get_mut(start as usize..) else { continue };
            let (len, left_to, end) = parts(*head_word);
            // The call is in front of the address that it returns to.
            let goes = |pc: &usize| ranges.iter().any(|&(from, to)| from < *pc && *pc <= to);
            if left_to == 0 && rest.get(..len).unwrap_or_default().iter().any(goes) {
                *head_word = head(len, list, end);
                any = true;
            }
        }
        any
    }

    /// The number of a stack, if it is there.
    pub(super) fn find(&self, addresses: &[usize], end: u8) -> Option<u32> {
        let is_it = |place: u32| {
            let place = place as usize - 1;
            self.get(place) == (end, addresses) && self.list(place) == 0
        };
        let found = self.index.find(hash_of(addresses, end), is_it)?;
        self.numbers.get(found as usize - 1).copied()
    }

    /// The number of a stack, which is added if it is new. `None` when there is no memory.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn intern(&mut self, addresses: &[usize], end: u8) -> Option<u32> {
        if let Some(number) = self.find(addresses, end) {
            return Some(number);
        }
        let (start, place, number) = (self.words.len(), self.starts.len(), self.next);
        let begins = u32::try_from(start).ok()?;
        let words = [head(addresses.len(), 0, end), hash_of(addresses, end) as usize];
        let whole = number != OTHERS
            && self.words.append(&words)
            && self.words.append(addresses)
            && self.starts.push(begins)
            && self.numbers.push(number)
            && self.index_place(place);
        if !whole {
            self.words.truncate(start);
            self.starts.truncate(place);
            self.numbers.truncate(place);
            return None;
        }
        self.next += 1;
        Some(number)
    }

    /// Lets the stack at a place be found. False when there is no memory.
    fn index_place(&mut self, place: usize) -> bool {
        let (words, starts) = (&self.words, &self.starts);
        let hash_of = |place: u32| {
            let start = starts.get(place as usize - 1).map_or(0, |&start| start as usize);
            words.get(start + 1).map_or(0, |&hash| hash as u64)
        };
        self.index.insert(hash_of(place as u32 + 1), place as u32 + 1, hash_of)
    }

    /// Marks a stack: the next [`sweep`](Stacks::sweep) leaves it.
    pub(super) fn keep(&mut self, number: u32) {
        // Mostly none before it has gone.
        let found = match self.numbers.get(number as usize) {
            Some(&there) if there == number => Ok(number as usize),
            _ => self.numbers.binary_search(&number),
        };
        let start = found.ok().and_then(|place| self.starts.get(place)).map_or(usize::MAX, |&s| s as usize);
        if let Some(head) = self.words.get_mut(start) {
            *head |= IN_USE;
        }
    }

    /// Forgets the stacks that are not marked, and takes the marks away. The others keep their numbers.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn sweep(&mut self) {
        let (mut words, mut places) = (0, 0);
        self.index.empty();
        for place in 0..self.starts.len() {
            let (Some(&start), Some(&number)) = (self.starts.get(place), self.numbers.get(place)) else {
                break;
            };
            let start = start as usize;
            let Some(head) = self.words.get_mut(start).filter(|head| **head & IN_USE != 0) else { continue };
            *head &= !IN_USE;
            let whole = start..start + 2 + parts(*head).0;
            if whole.end > self.words.len() {
                continue;
            }
            let next = words + whole.len();
            // Not `copy_within`, which panics where `words` lies behind `start`, as it never does.
            for (to, from) in (words..next).zip(whole) {
                if let Some(&word) = self.words.get(from) {
                    self.words.iter_mut().skip(to).take(1).for_each(|to| *to = word);
                }
            }
            self.starts.iter_mut().skip(places).take(1).for_each(|to| *to = words as u32);
            self.numbers.iter_mut().skip(places).take(1).for_each(|to| *to = number);
            // There is room, since there was for more.
            let _ = self.index_place(places);
            (words, places) = (next, places + 1);
        }
        self.words.truncate(words);
        self.starts.truncate(places);
        self.numbers.truncate(places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn stacks_that_are_kept_keep_their_numbers() {
        let mut stacks = Stacks::new();
        let of = |n: u32| vec![n as usize; 1 + n as usize % 5];
        let is_kept = |n: &u32| n % 3 == 0;
        let is_left = |n: &u32| (11..=20).contains(n);
        (0..1000).for_each(|n| assert_eq!(stacks.intern(&of(n), 0), Some(n)));
        assert!(stacks.leave(&[(10, 20)], 9));
        let places = stacks.index.places();
        // The second time they lie elsewhere than their numbers say.
        for _ in 0..2 {
            (0..1000).filter(is_kept).for_each(|n| stacks.keep(n));
            stacks.sweep();
            for n in 0..1000 {
                let expected = Some(n).filter(|n| is_kept(n) && !is_left(n));
                assert_eq!(stacks.find(&of(n), 0), expected);
            }
            for from in [0, 500, 998, 1000] {
                let found: Vec<_> = stacks.from(from).collect();
                assert!(found.iter().map(|&(_, number)| number).eq((from..1000).filter(is_kept)));
                for (place, number) in found {
                    assert_eq!(stacks.get(place), (0, &of(number)[..]));
                    assert_eq!(stacks.list(place), if is_left(&number) { 9 } else { 0 });
                }
            }
            let words = (0..1000).filter(is_kept).map(|n| 2 + of(n).len()).sum::<usize>();
            assert_eq!((stacks.len(), stacks.words(), stacks.next()), (334, words, 1000));
        }
        // No number is used again, and what has gone takes no room.
        for n in 1000..3000 {
            assert_eq!(stacks.intern(&of(n), 0), Some(n));
            if n % 100 == 0 {
                stacks.sweep();
                assert_eq!((stacks.len(), stacks.words()), (0, 0));
            }
        }
        assert_eq!(stacks.index.places(), places);
        stacks.clear();
    }
}
