//! Where blocks of one class come from: a slab, and those of its blocks that are handed out next. A thread
//! has one for each class, and those of [`shared`](crate::hardened::shared) serve all threads.

use crate::base::table::Table;
use crate::hardened::place::Place;
use crate::hardened::slab::Slab;
use crate::sync::Ordering::Relaxed;
use core::cell::Cell;

/// So many blocks are handed out in the order of their addresses, on average, before the next is chosen at
/// random. All at random, python3 took half as much time again: it walks through what it has allocated in
/// that order, and the processor's prefetching relies on it.
const RUN: u32 = 8;

/// All zero is valid, and means nothing.
pub(super) struct Source {
    pub(super) slab: Cell<Option<&'static Slab>>,
    /// The blocks of the word `word` that the owner has taken the bits of and can hand out, rotated to the
    /// right by `turn`: the lowest is handed out next.
    pub(super) bits: Cell<u64>,
    pub(super) word: Cell<usize>,
    turn: Cell<u32>,
    /// How many blocks the word is for: 64, or fewer at the end of a slab.
    width: Cell<u32>,
    /// So many blocks are handed out before `turn` is chosen anew.
    left: Cell<u32>,
    /// What the slab's `free` lacks: blocks that the thread has freed while this was its current slab, less
    /// those that it has taken. Only the thread uses it, so this spares it one atomic operation for each.
    pub(super) uncounted: Cell<i32>,
}

/// Where in `0..words` to begin: anywhere if there is a random number, or at 0. There is one word at least,
/// which the compiler does not see.
fn any_below(words: usize, random: Option<u64>) -> usize {
    random.and_then(|random| (random as usize).checked_rem(words)).unwrap_or(0)
}

impl Source {
    pub(super) const fn new() -> Source {
        Source {
            slab: Cell::new(None),
            bits: Cell::new(0),
            word: Cell::new(0),
            turn: Cell::new(0),
            width: Cell::new(0),
            left: Cell::new(0),
            uncounted: Cell::new(0),
        }
    }

    /// Begins with a slab, which is the owner's alone.
    pub(super) fn begin(&self, slab: &'static Slab, random: Option<u64>) {
        self.uncounted.set(0);
        self.word.set(any_below(slab.words(), random));
        self.slab.set(Some(slab));
    }

    /// The block that is handed out next. There is one.
    #[inline(always)]
    pub(super) fn next<'a>(&self, slab: &'a Slab, bits: u64) -> Place<'a> {
        slab.nth(self.word.get() * 64 + (bits.trailing_zeros().wrapping_add(self.turn.get()) % 64) as usize)
    }

    /// Whether `turn` is to be chosen anew now that one more block was handed out.
    #[inline(always)]
    pub(super) fn is_run_over(&self) -> bool {
        self.left.set(self.left.get().wrapping_sub(1));
        self.left.get() == 0
    }

    /// Begins another run of `bits`, as they are now: at a random place.
    #[inline(always)]
    pub(super) fn turn(&self, bits: u64, random: u32) {
        // Not any of 64: behind the last block all of them would be the first one.
        let turn = ((random >> 8) * self.width.get()) >> 24;
        let by = turn.wrapping_sub(self.turn.get());
        self.bits.set(bits.rotate_right(by % 64));
        self.turn.set(turn);
        self.left.set(RUNS[random as usize] as u32);
    }

    /// Takes the next block out of the bits. There is one.
    pub(super) fn take_one<'a>(&self, slab: &'a Slab, random: impl FnOnce() -> Option<u64>) -> Place<'a> {
        let bits = self.bits.get();
        let place = self.next(slab, bits);
        self.bits.set(bits & (bits - 1));
        if self.is_run_over() {
            if let Some(random) = random() {
                self.turn(self.bits.get(), random as u32);
            }
        }
        place
    }

    /// Takes a word of bits from the slab, which the owner's are. False if all its blocks are taken.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn take_word(&self, slab: &Slab, mut random: impl FnMut() -> Option<u64>) -> bool {
        let words = slab.words();
        // In a big slab one after the other, from a random one on: there are many, and the processor fetches
        // ahead. In others each is chosen at random.
        let from = if slab.is_big() { self.word.get() } else { any_below(words, random()) };
        for word in (from..words).chain(0..from) {
            if slab.word(word).load(Relaxed) == 0 {
                continue;
            }
            let bits = slab.take_bits(word);
            if bits != 0 {
                self.uncounted.set(self.uncounted.get() - bits.count_ones() as i32);
                self.word.set(word);
                self.turn.set(0);
                self.width.set((slab.blocks() - word * 64).min(64) as u32);
                self.turn(bits, random().map_or(0, |random| random as u32));
                return true;
            }
        }
        false
    }

    /// Counts in the slab's record what is not counted yet.
    pub(super) fn settle(&self, slab: &Slab) {
        slab.count(self.uncounted.take());
    }

    /// Whether no block of the slab is in use, or held.
    pub(super) fn is_all_free(&self, slab: &Slab) -> bool {
        let ready = self.bits.get().count_ones() as i32;
        // Relaxed: who gives the slab up then counts again.
        slab.free.load(Relaxed) + self.uncounted.get() + ready == slab.blocks() as i32
    }

    /// Puts back into the slab what can still be handed out, and counts it.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn put_back(&self, slab: &Slab) {
        let bits = self.bits.take().rotate_left(self.turn.get());
        slab.put_bits(self.word.get(), bits);
        self.uncounted.set(self.uncounted.get() + bits.count_ones() as i32);
        self.settle(slab);
    }

    /// Forgets its slab.
    pub(super) fn forget(&self) {
        self.slab.set(None);
        self.bits.set(0);
        self.uncounted.set(0);
    }
}

/// How long runs are: each of these is as likely as the others. As if it was decided behind each block, by
/// one chance in [`RUN`], that it is the last one.
static RUNS: Table<u8, 256> = {
    let mut runs = Table([0; 256]);
    let (mut index, mut run) = (0, 1);
    // The chance that a run is longer than `run`, in units of 2^-32.
    let mut longer = (1u64 << 32) / RUN as u64 * (RUN as u64 - 1);
    while index < 256 {
        if (256 - index as u64) << 24 > longer {
            runs.0[index] = run;
            index += 1;
        } else {
            longer = longer / RUN as u64 * (RUN as u64 - 1);
            run += 1;
        }
    }
    runs
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::classes;

    /// Also in slabs of fewer than 64, and in the last word of any.
    #[test]
    fn each_block_is_as_likely_the_first_one() {
        for class in [30, 45, classes::CLASSES] {
            let slab = Slab::make_usual(class).unwrap();
            let source = Source::new();
            let mut firsts = [0; 4096];
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            const ROUNDS: usize = 20_000;
            for _ in 0..ROUNDS {
                assert!(source.take_word(slab, || {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    Some(random >> 32)
                }));
                firsts[source.next(slab, source.bits.get()).index] += 1;
                source.put_back(slab);
            }
            // Each word is as likely as the others, and so are the blocks of one.
            for (index, &times) in firsts[..slab.blocks()].iter().enumerate() {
                let width = (slab.blocks() - index / 64 * 64).min(64);
                let expected = ROUNDS / slab.words() / width;
                assert!((expected / 2..expected * 2).contains(&times), "{class}: {index} {times} {expected}");
            }
        }
    }
}
