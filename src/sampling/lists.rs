//! The lists of modules that the stacks of a profile were noted under: the last one, and of the earlier ones
//! those that had a module which is not there any more, with a stack that goes through it. Another module may
//! take its place, and other stacks the same addresses.
//!
//! Each is kept as the payload of its frame in the file: see `docs/profile-format.md`.

use crate::sampling::grown::Grown;
use crate::sampling::stacks::Stacks;
use core::mem;

/// Bytes of earlier lists that are kept at most. What is noted after that is named by the last list.
const MOST: usize = 4 << 20;

/// Ranges of addresses that are told apart when many modules go at once.
const RANGES: usize = 16;

/// All of them.
pub(super) struct Lists {
    /// The last one, and its number among all that there were; 0 for none.
    last: Grown<u8>,
    version: u32,
    /// The next one, while it is made.
    next: Grown<u8>,
    /// The earlier ones, and where each ends.
    earlier: Grown<u8>,
    ends: Grown<usize>,
}

impl Lists {
    /// No lists.
    pub(super) const fn new() -> Self {
        let (last, next, earlier) = (Grown::new(), Grown::new(), Grown::new());
        Self { last, version: 0, next, earlier, ends: Grown::new() }
    }

    /// Forgets all, and gives the memory back.
    pub(super) fn clear(&mut self) {
        self.last.clear();
        self.next.clear();
        self.earlier.clear();
        self.ends.clear();
        self.version = 0;
    }

    /// The last list, and its number.
    pub(super) fn last(&self) -> (&[u8], u32) {
        (&self.last, self.version)
    }

    /// The earlier lists, in the order of time.
    pub(super) fn earlier(&self) -> impl Iterator<Item = &[u8]> {
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter()).map(|(from, &to)| self.earlier.get(from..to).unwrap_or_default())
    }

    /// Takes over the list that is the current one now, if it is another one. Called by a thread whose stack
    /// is noted next: what is on that is mapped, and stays so meanwhile.
    #[cfg(feature = "profile")]
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn follow(&mut self, stacks: &mut Stacks) {
        use crate::stacks::modules;
        if modules::version() == self.version {
            return;
        }
        let next = &mut self.next;
        next.truncate(0);
        let mut whole = next.append(&[0; 4]);
        let mut count = 0u32;
        let version = modules::each(|module| {
            count += 1;
            for word in [module.start as u64, module.end as u64, module.offset] {
                whole &= next.append(&word.to_le_bytes());
            }
            whole &= next.push(module.build_id.len() as u8) && next.append(module.build_id);
            whole &= next.append(&(module.path.len() as u16).to_le_bytes()) && next.append(module.path);
        });
        if let (Some(version), true) = (version, whole) {
            next.iter_mut().zip(count.to_le_bytes()).for_each(|(to, byte)| *to = byte);
            self.replace(version, stacks);
        }
    }

    #[cfg(not(feature = "profile"))]
    pub(super) fn follow(&mut self, _stacks: &mut Stacks) {}

    /// Makes `next` the last list, and keeps what that was if it is still needed.
    #[unsafe(link_section = "hakmem_rare")]
    fn replace(&mut self, version: u32, stacks: &mut Stacks) {
        let gone = gone(&self.last, &self.next);
        let (before, number) = (self.earlier.len(), self.ends.len());
        let end = before + self.last.len();
        if end <= MOST && gone.iter().any(|range| range.0 < range.1) {
            let kept = self.earlier.append(&self.last) && self.ends.push(end);
            if !(kept && stacks.leave(&gone, number as u32 + 1)) {
                self.earlier.truncate(before);
                self.ends.truncate(number);
            }
        }
        mem::swap(&mut self.last, &mut self.next);
        self.version = version;
    }

    /// As [`follow`](Lists::follow) does, with a list of files at these addresses.
    #[cfg(test)]
    pub(super) fn pass(&mut self, modules: &[(u64, u64, &str)], stacks: &mut Stacks) {
        self.next.truncate(0);
        let mut bytes = (modules.len() as u32).to_le_bytes().to_vec();
        for (start, end, path) in modules {
            bytes.extend([*start, *end, 0].map(u64::to_le_bytes).as_flattened());
            bytes.push(0);
            bytes.extend((path.len() as u16).to_le_bytes());
            bytes.extend(path.as_bytes());
        }
        assert!(self.next.append(&bytes));
        self.replace(self.version + 1, stacks);
    }
}

/// The modules of a list, each with its bytes.
fn modules(list: &[u8]) -> impl Iterator<Item = Module<'_>> {
    let mut rest = list.get(4..).unwrap_or_default();
    core::iter::from_fn(move || {
        let number = |at: usize| Some(u64::from_le_bytes(rest.get(at..at + 8)?.try_into().ok()?) as usize);
        let (start, end) = (number(0)?, number(8)?);
        let id = usize::from(*rest.get(24)?);
        let path: [u8; 2] = rest.get(25 + id..27 + id)?.try_into().ok()?;
        let path = usize::from(u16::from_le_bytes(path));
        let (bytes, others) = rest.split_at_checked(27 + id + path)?;
        rest = others;
        Some(Module { start, end, is_file: path != 0, bytes })
    })
}

struct Module<'a> {
    start: usize,
    end: usize,
    is_file: bool,
    bytes: &'a [u8],
}

/// The addresses of files that are in the old list and not in the new one. What was made at run time comes
/// and goes, and has no names.
#[unsafe(link_section = "hakmem_rare")]
fn gone(old: &[u8], new: &[u8]) -> [(usize, usize); RANGES] {
    let mut ranges = [(0, 0); RANGES];
    let mut found = 0;
    let mut new = modules(new).peekable();
    for module in modules(old).filter(|module| module.is_file) {
        while new.next_if(|new| new.start < module.start).is_some() {}
        if new.peek().is_some_and(|new| new.bytes == module.bytes) {
            continue;
        }
        match ranges.get_mut(found) {
            Some(range) => *range = (module.start, module.end),
            // As if all that is between the last two had gone, too: the old list names that as well.
            None => ranges[RANGES - 1].1 = module.end,
        }
        found += 1;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_gone_is_found() {
        let mut lists = Lists::new();
        let mut stacks = Stacks::new();
        let found = |lists: &Lists| gone(&lists.last, &lists.next);
        lists.pass(&[(10, 20, "a"), (30, 40, "b"), (50, 60, ""), (70, 80, "c")], &mut stacks);
        lists.pass(&[(10, 20, "a"), (30, 41, "b"), (45, 50, "new"), (70, 80, "d")], &mut stacks);
        // The one before is in `next` now.
        mem::swap(&mut lists.last, &mut lists.next);
        let ranges = found(&lists);
        assert_eq!(ranges[..3], [(30, 40), (70, 80), (0, 0)]);
        let many: std::vec::Vec<_> = (0..20).map(|n| (n * 10, n * 10 + 5, "x")).collect();
        lists.pass(&many, &mut stacks);
        lists.pass(&[], &mut stacks);
        mem::swap(&mut lists.last, &mut lists.next);
        assert_eq!(found(&lists)[14..], [(140, 145), (150, 195)]);
        // No stack goes through any.
        assert_eq!(lists.earlier().count(), 0);
        lists.clear();
    }
}
