//! The call stacks of a profile, each kept once.

use crate::sampling::grown::{Grown, Index, mix};

/// All of them.
pub(super) struct Stacks {
    /// Each stack: its number of addresses, shifted by 8, with how it ends; its hash; the addresses.
    words: Grown<usize>,
    /// Where each begins.
    starts: Grown<u32>,
    index: Index,
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
        let head = self.words.get(start).copied().unwrap_or(0);
        let addresses = start.checked_add(2).and_then(|from| self.words.get(from..from + (head >> 8)));
        (head as u8, addresses.unwrap_or_default())
    }

    /// The number of a stack. `None` when there is no memory.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn intern(&mut self, addresses: &[usize], end: u8) -> Option<u32> {
        let hash = addresses.iter().fold(mix(0, u64::from(end)), |hash, &pc| mix(hash, pc as u64));
        let head = addresses.len() << 8 | end as usize;
        let is_it = |number: u32| self.get(number as usize - 1) == (end, addresses);
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
