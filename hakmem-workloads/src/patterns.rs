//! Small kernels that can be repeated for ever: for criterion, for counting instructions, and inside the
//! workloads.

use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::random::Random;

/// The order in which a pattern allocates and frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All up, then freed last first, as a stack of calls does.
    Lifo,
    /// All up, then freed in the order of their allocation, as a queue does.
    Fifo,
    /// All up, then freed in random order.
    Random,
    /// All up, every second freed and made again, then freed, odd ones first.
    Interleaved,
    /// Sizes from 1 to the given one in random order, freed in random order.
    Mixed,
    /// A set of live blocks of random sizes, 8 to the given size, of which random ones are replaced.
    Replace,
    /// Zeroed blocks, freed last first.
    Zeroed,
    /// Blocks that grow from half the given size to it in four steps, then freed last first.
    Grow,
}

/// A kernel over `count` blocks: its own memory is mapped and touched before, and [`Pattern::round`]
/// allocates nothing else.
pub struct Pattern {
    kind: Kind,
    size: usize,
    blocks: Mapped<usize>,
    sizes: Mapped<u32>,
    order: Mapped<u32>,
    random: Random,
    /// `Replace` keeps its blocks between rounds.
    filled: bool,
}

/// A pattern and its name, such as "lifo-64".
pub struct NamedPattern {
    /// The name.
    pub name: &'static str,
    /// The pattern.
    pub pattern: Pattern,
}

/// The patterns that are counted and compared one by one.
const STANDARD: [(&str, Kind, usize, usize); 18] = [
    ("hit-16", Kind::Lifo, 16, 50),
    ("hit-64", Kind::Lifo, 64, 50),
    ("hit-512", Kind::Lifo, 512, 50),
    ("hit-1024", Kind::Lifo, 1024, 50),
    ("hit-4096", Kind::Lifo, 4096, 4),
    ("lifo-64", Kind::Lifo, 64, 1_000),
    ("fifo-64", Kind::Fifo, 64, 1_000),
    ("random-64", Kind::Random, 64, 1_000),
    ("interleaved-64", Kind::Interleaved, 64, 1_000),
    ("mixed-1024", Kind::Mixed, 1024, 1_000),
    ("replace-511", Kind::Replace, 511, 8_192),
    ("burst-64", Kind::Lifo, 64, 100_000),
    ("calloc-64", Kind::Zeroed, 64, 50),
    ("calloc-1024", Kind::Zeroed, 1024, 50),
    ("grow-256", Kind::Grow, 256, 50),
    ("lifo-4096", Kind::Lifo, 4096, 50),
    ("lifo-16384", Kind::Lifo, 16_384, 50),
    ("lifo-65536", Kind::Lifo, 65_536, 50),
];

/// The standard patterns, ready to run.
pub fn patterns() -> Vec<NamedPattern> {
    names().filter_map(|name| Some(NamedPattern { name, pattern: pattern(name)? })).collect()
}

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    STANDARD.iter().map(|standard| standard.0)
}

/// The standard pattern of this name.
pub fn pattern(name: &str) -> Option<Pattern> {
    let (_, kind, size, count) = STANDARD.iter().find(|standard| standard.0 == name)?;
    Some(Pattern::new(*kind, *size, *count))
}

impl Pattern {
    /// A pattern over `count` blocks of `size` bytes (or up to that many, see [`Kind`]), both at least 1.
    pub fn new(kind: Kind, size: usize, count: usize) -> Self {
        Self::seeded(kind, size, count, 1)
    }

    /// The same with a seed for what is random in it.
    pub fn seeded(kind: Kind, size: usize, count: usize, seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let sizes = Mapped::from_fn(count, |_| match kind {
            Kind::Mixed => random.between(1, size) as u32,
            Kind::Replace => random.between(8.min(size), size) as u32,
            _ => size as u32,
        });
        let order = random.permutation(count);
        Self { kind, size, blocks: Mapped::new(count), sizes, order, random, filled: false }
    }

    /// One round; how many operations it made: an allocation, a free and a change of size are one each.
    #[inline]
    pub fn round<H: Heap>(&mut self, heap: &H) -> u64 {
        let count = self.blocks.len();
        match self.kind {
            Kind::Lifo => {
                self.fill(heap);
                for i in (0..count).rev() {
                    self.give_up(heap, i);
                }
                2 * count as u64
            }
            Kind::Fifo => {
                self.fill(heap);
                for i in 0..count {
                    self.give_up(heap, i);
                }
                2 * count as u64
            }
            Kind::Random | Kind::Mixed => {
                self.fill(heap);
                for i in 0..count {
                    self.give_up(heap, self.order[i] as usize);
                }
                2 * count as u64
            }
            Kind::Interleaved => {
                self.fill(heap);
                for i in (0..count).step_by(2) {
                    self.give_up(heap, i);
                }
                for i in (0..count).step_by(2) {
                    self.make(heap, i);
                }
                for i in (1..count).step_by(2).chain((0..count).step_by(2)) {
                    self.give_up(heap, i);
                }
                2 * (count + count.div_ceil(2)) as u64
            }
            Kind::Replace => self.replace(heap),
            Kind::Zeroed => {
                for i in 0..count {
                    self.blocks[i] = block::make_zeroed(heap, self.size) as usize;
                }
                for i in (0..count).rev() {
                    self.give_up(heap, i);
                }
                2 * count as u64
            }
            Kind::Grow => self.grow(heap),
        }
    }

    #[inline(always)]
    fn make<H: Heap>(&mut self, heap: &H, i: usize) {
        self.blocks[i] = block::make(heap, self.sizes[i] as usize) as usize;
    }

    #[inline(always)]
    fn give_up<H: Heap>(&mut self, heap: &H, i: usize) {
        // SAFETY: made by `make` with this size, and given up once: every kind frees each index once per
        // `make`.
        unsafe { block::drop(heap, self.blocks[i] as *mut u8, self.sizes[i] as usize) };
    }

    #[inline(always)]
    fn fill<H: Heap>(&mut self, heap: &H) {
        for i in 0..self.blocks.len() {
            self.make(heap, i);
        }
    }

    fn replace<H: Heap>(&mut self, heap: &H) -> u64 {
        let (count, low) = (self.blocks.len(), 8.min(self.size));
        let mut operations = 0;
        if !self.filled {
            self.fill(heap);
            self.filled = true;
            operations += count as u64;
        }
        for _ in 0..count {
            let (i, size) = self.random.pair(count, low, self.size);
            self.give_up(heap, i);
            self.sizes[i] = size as u32;
            self.make(heap, i);
        }
        operations + 2 * count as u64
    }

    fn grow<H: Heap>(&mut self, heap: &H) -> u64 {
        const STEPS: usize = 4;
        let (count, half) = (self.blocks.len(), self.size / 2 + 1);
        for i in 0..count {
            let mut size = half;
            let mut block = block::make(heap, size);
            for step in 1..=STEPS {
                let next = half + (self.size.max(half) - half) * step / STEPS;
                // SAFETY: live, of this size, and its old address is forgotten.
                block = unsafe { block::resize(heap, block, size, next) };
                size = next;
            }
            (self.blocks[i], self.sizes[i]) = (block as usize, size as u32);
        }
        for i in (0..count).rev() {
            self.give_up(heap, i);
        }
        (count * (2 + STEPS)) as u64
    }

    /// Allocates all blocks and keeps them; how many operations that took.
    pub fn up<H: Heap>(&mut self, heap: &H) -> u64 {
        self.fill(heap);
        self.filled = true;
        self.blocks.len() as u64
    }

    /// Frees all blocks that are there, in the order of their allocation; how many operations that took.
    pub fn down<H: Heap>(&mut self, heap: &H) -> u64 {
        self.clear(heap)
    }

    /// Frees what `Replace` keeps; how many operations that took.
    pub fn clear<H: Heap>(&mut self, heap: &H) -> u64 {
        if !std::mem::take(&mut self.filled) {
            return 0;
        }
        for i in 0..self.blocks.len() {
            self.give_up(heap, i);
        }
        self.blocks.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::Checked;

    #[test]
    fn every_pattern_counts_right_and_leaves_nothing() {
        for NamedPattern { name, mut pattern } in patterns() {
            let heap = Checked::default();
            let mut operations = pattern.round(&heap) + pattern.round(&heap);
            operations += pattern.clear(&heap);
            assert_eq!(operations, heap.operations(), "{name}");
            assert_eq!(heap.live(), 0, "{name}");
        }
    }

    #[test]
    fn tiny_and_odd_ones_too() {
        for kind in [
            Kind::Lifo,
            Kind::Fifo,
            Kind::Random,
            Kind::Interleaved,
            Kind::Mixed,
            Kind::Replace,
            Kind::Zeroed,
            Kind::Grow,
        ] {
            for (size, count) in [(1, 1), (7, 3), (5_000, 2)] {
                let heap = Checked::default();
                let mut pattern = Pattern::new(kind, size, count);
                let operations = pattern.round(&heap) + pattern.clear(&heap);
                assert_eq!((operations, heap.live()), (heap.operations(), 0), "{kind:?} {size} {count}");
            }
        }
    }
}
