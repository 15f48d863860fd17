//! The call stacks of a profile, each kept once.

use crate::sampling::grown::{Grown, Index, mix};

/// All of them.
pub(super) struct Stacks {
    /// Each stack: its number of addresses, that of the list which it [has been left](Stacks::leave) to or 0,
    /// and how it ends, as in [`head`]; its hash; the addresses.
    words: Grown<usize>,
    /// Where each begins.
    starts: Grown<u32>,
    index: Index,
}

fn head(addresses: usize, list: u32, end: u8) -> usize {
    addresses << 48 | (list as usize) << 8 | end as usize
}

/// What a [`head`] says, in this order.
fn parts(head: usize) -> (usize, u32, u8) {
    (head >> 48, (head >> 8) as u32, head as u8)
}

impl Stacks {
    /// No stacks.
    pub(super) const fn new() -> Self {
        Self { words: Grown::new(), starts: Grown::new(), index: Index::new() }
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
        self.index.clear();
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    /// How many words they take.
    pub(super) fn words(&self) -> usize {
        self.words.len()
    }

    /// How a stack ends, and its addresses, innermost first.
    pub(super) fn get(&self, number: usize) -> (u8, &[usize]) {
        let start = self.starts.get(number).map_or(usize::MAX, |&start| start as usize);
        let (len, _, end) = parts(self.words.get(start).copied().unwrap_or(0));
        let addresses = start.checked_add(2).and_then(|from| self.words.get(from..from + len));
        (end, addresses.unwrap_or_default())
    }

    /// The number of the list of modules by which a stack is named; 0 for the last one.
    pub(super) fn list(&self, number: usize) -> u32 {
        let start = self.starts.get(number).map_or(usize::MAX, |&start| start as usize);
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

    /// The number of a stack. `None` when there is no memory.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn intern(&mut self, addresses: &[usize], end: u8) -> Option<u32> {
        let hash = addresses.iter().fold(mix(0, u64::from(end)), |hash, &pc| mix(hash, pc as u64));
        let head = head(addresses.len(), 0, end);
        let is_it = |number: u32| {
            let number = number as usize - 1;
            self.get(number) == (end, addresses) && self.list(number) == 0
        };
        if let Some(number) = self.index.find(hash, is_it) {
            return Some(number - 1);
        }
        let (start, number) = (self.words.len(), self.starts.len() as u32 + 1);
        let begins = u32::try_from(start).ok()?;
        let kept = self.words.append(&[head, hash as usize]) && self.words.append(addresses);
        let (words, starts) = (&self.words, &mut self.starts);
        let whole = kept && starts.push(begins) && {
            let hash_of = |number: u32| {
                let start = starts.get(number as usize - 1).map_or(0, |&start| start as usize);
                words.get(start + 1).map_or(0, |&hash| hash as u64)
            };
            self.index.insert(hash as usize as u64, number, hash_of)
        };
        if !whole {
            self.words.truncate(start);
            self.starts.truncate(number as usize - 1);
        }
        whole.then_some(number - 1)
    }
}
