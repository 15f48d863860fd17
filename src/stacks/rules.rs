//! How to get from a frame to its caller's, in one word, and a table of what was found for each pc.

use crate::stacks::frame::{EXTRA, FP, Frame, SP, Stack};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU64, AtomicUsize};

/// What there is behind a frame.
pub(super) enum Step {
    /// Its caller.
    Caller(Frame),
    /// Nothing: it is the outermost.
    Outermost,
    /// It cannot be told.
    Lost,
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// Where it was.
    Same,
    /// In memory, at this offset in bytes from what [`Rule::from`] says.
    At(i64),
}

/// What the offsets of saved registers count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// All from the canonical frame address (CFA).
    Cfa,
    /// The return address from the CFA, the others from the frame pointer: where the stack is realigned.
    Fp,
    /// All from the stack pointer: what the kernel saved for a signal handler.
    Sp,
}

/// The rule of a frame whose unwind table has simple rules: nearly all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The CFA, which is the caller's stack pointer, is this register plus an offset.
    pub register: usize,
    pub offset: i64,
    /// Or rather, it is the word there.
    pub is_loaded: bool,
    pub from: From,
    pub pc: Saved,
    pub fp: Saved,
    pub extra: Saved,
    /// The frame is the kernel's call of a signal handler: the caller was interrupted.
    pub is_signal: bool,
}

/// What is known of a pc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Rule(Rule),
    /// Its function has no caller.
    Outermost,
    /// Its module has no unwind table for it.
    NoTable,
}

const WORD: i64 = size_of::<usize>() as i64;
/// Bits of the offset of the CFA, and of those of saved registers, in words.
const CFA_BITS: u32 = 18;
const SAVED_BITS: u32 = 12;
/// A saved offset that stands for [`Saved::Same`].
const SAME: u64 = 1 << (SAVED_BITS - 1);

/// The lowest bits of a packed word.
const IS_RULE: u64 = 1;
const IS_OUTERMOST: u64 = 2;
const IS_NO_TABLE: u64 = 3;

/// A signed number of words in `bits` bits; `None` if it has no place there.
fn pack(bytes: i64, bits: u32) -> Option<u64> {
    let (words, half) = (bytes / WORD, 1i64 << (bits - 1));
    (bytes % WORD == 0 && -half < words && words < half).then_some(words as u64 & ((1 << bits) - 1))
}

fn unpack(word: u64, at: u32, bits: u32) -> i64 {
    ((word << (64 - at - bits)) as i64 >> (64 - bits)).wrapping_mul(WORD)
}

fn pack_saved(saved: Saved) -> Option<u64> {
    match saved {
        Saved::Same => Some(SAME),
        Saved::At(offset) => pack(offset, SAVED_BITS),
    }
}

fn unpack_saved(word: u64, at: u32) -> Saved {
    if word >> at & ((1 << SAVED_BITS) - 1) == SAME {
        return Saved::Same;
    }
    Saved::At(unpack(word, at, SAVED_BITS))
}

impl Known {
    /// In one word, not 0. `None` if an offset is too large.
    fn pack(&self) -> Option<u64> {
        let Known::Rule(rule) = self else {
            return Some(if *self == Known::Outermost { IS_OUTERMOST } else { IS_NO_TABLE });
        };
        let from = match rule.from {
            From::Cfa => 0,
            From::Fp => 1,
            From::Sp => 2,
        };
        Some(
            IS_RULE
                | (rule.register as u64) << 2
                | u64::from(rule.is_loaded) << 4
                | from << 5
                | u64::from(rule.is_signal) << 7
                | pack(rule.offset, CFA_BITS)? << 8
                | pack_saved(rule.pc)? << 26
                | pack_saved(rule.fp)? << 38
                | pack_saved(rule.extra)? << 50,
        )
    }

    /// What [`Known::pack`] has made a word of.
    pub(super) fn unpack(word: u64) -> Self {
        match word & 3 {
            IS_RULE => Known::Rule(Rule {
                register: (word >> 2 & 3) as usize,
                offset: unpack(word, 8, CFA_BITS),
                is_loaded: word >> 4 & 1 != 0,
                from: match word >> 5 & 3 {
                    0 => From::Cfa,
                    1 => From::Fp,
                    _ => From::Sp,
                },
                pc: unpack_saved(word, 26),
                fp: unpack_saved(word, 38),
                extra: unpack_saved(word, 50),
                is_signal: word >> 7 & 1 != 0,
            }),
            IS_OUTERMOST => Known::Outermost,
            _ => Known::NoTable,
        }
    }
}

impl Rule {
    /// Applies the rule.
    #[inline]
    pub(super) fn apply(&self, frame: &Frame, stack: &mut Stack) -> Step {
        self.caller(frame, stack).map_or(Step::Lost, Step::Caller)
    }

    #[inline(always)]
    fn caller(&self, frame: &Frame, stack: &mut Stack) -> Option<Frame> {
        let registers = &frame.registers;
        let mut cfa = registers.get(self.register)?.wrapping_add_signed(self.offset as isize);
        if self.register == SP && frame.is_sp_a_guess {
            // The frame pointer points at where the caller's is saved.
            let Saved::At(offset) = self.fp else { return None };
            cfa = registers[FP].wrapping_add_signed(-offset as isize);
        }
        if self.is_loaded {
            cfa = stack.load(cfa)?;
        }
        let (pcs, others) = match self.from {
            From::Cfa => (cfa, cfa),
            From::Fp => (cfa, registers[FP]),
            From::Sp => (registers[SP], registers[SP]),
        };
        let mut get = |saved, base: usize, same| match saved {
            Saved::Same => Some(same),
            Saved::At(offset) => stack.load(base.wrapping_add_signed(offset as isize)),
        };
        let pc = get(self.pc, pcs, registers[EXTRA])?;
        let fp = get(self.fp, others, registers[FP])?;
        // The link register is where the return address is found, unless a signal came.
        let is_link = cfg!(not(target_arch = "x86_64"));
        let extra = get(self.extra, others, if is_link { pc } else { registers[EXTRA] })?;
        let pc = if self.is_signal { pc } else { return_address(pc) };
        Some(Frame { pc, registers: [cfa, fp, extra], is_exact: self.is_signal, is_sp_a_guess: false })
    }
}

/// The caller of a frame by a word that stands for the simplest of rules, which hold for nearly all frames:
/// all is saved at offsets from the CFA, and that is a register plus an offset. `None` for others, or if the
/// stack cannot be read.
#[inline(always)]
pub(super) fn caller_by_word(word: u64, frame: &Frame, stack: &mut Stack) -> Option<Frame> {
    const KIND: u64 = 0xf3;
    if word & KIND != IS_RULE || frame.is_sp_a_guess {
        return None;
    }
    let &[_, fp, extra] = &frame.registers;
    let cfa = frame.registers.get((word >> 2 & 3) as usize)?;
    let cfa = cfa.wrapping_add_signed(unpack(word, 8, CFA_BITS) as isize);
    let mut get = |at: u32, same: usize| {
        if word >> at & ((1 << SAVED_BITS) - 1) == SAME {
            return Some(same);
        }
        stack.load(cfa.wrapping_add_signed(unpack(word, at, SAVED_BITS) as isize))
    };
    let pc = get(26, extra)?;
    let fp = get(38, fp)?;
    let is_link = cfg!(not(target_arch = "x86_64"));
    let extra = get(50, if is_link { pc } else { extra })?;
    Some(Frame { pc: return_address(pc), registers: [cfa, fp, extra], is_exact: false, is_sp_a_guess: false })
}

/// The address without the signature that AArch64 may put into its upper bits.
pub(super) fn return_address(word: usize) -> usize {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let address;
        // SAFETY: `xpaclri`: changes x30 only, and does nothing on processors that sign no addresses.
        unsafe {
            core::arch::asm!("hint #7", inlateout("x30") word => address, options(pure, nomem, nostack));
        }
        address
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    word
}

/// Entries of the table, at most and at first: it grows while pcs find no place in it, so that a program of
/// which few are seen touches few pages.
const ENTRIES: usize = 16 << 10;
const FEWEST: usize = 1 << 10;

/// What was found for a pc: a word by [`Known::pack`], and a check that contains the pc. Relaxed: what two
/// threads have written in part does not pass the check.
struct Entry {
    check: AtomicU64,
    word: AtomicU64,
}

impl Entry {
    /// The word, if it is of this pc.
    fn known(&self, pc: usize, gone: u32) -> Option<u64> {
        let word = self.word.load(Relaxed);
        (word != 0 && self.check.load(Relaxed) == Table::check(pc, word, gone)).then_some(word)
    }
}

/// What was found so far, for all threads. Untouched, and so not resident, until a stack is walked.
pub(super) struct Table {
    entries: [Entry; ENTRIES],
    /// How often the number of those in use has doubled; all zero is the empty table. Relaxed, as `crowded`:
    /// a pc is looked for wherever it may have been put.
    doubled: AtomicUsize,
    /// How many pcs have taken the place of others since that has grown.
    crowded: AtomicUsize,
}

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Table {
    /// An empty table.
    pub(super) const fn new() -> Self {
        Self {
            entries: [const { Entry { check: AtomicU64::new(0), word: AtomicU64::new(0) } }; ENTRIES],
            doubled: AtomicUsize::new(0),
            crowded: AtomicUsize::new(0),
        }
    }

    /// How many entries are in use.
    fn used(&self) -> usize {
        FEWEST << self.doubled.load(Relaxed)
    }

    /// The two entries that may be of a pc while `used` ones are, in the same line of the cache.
    fn entries(&self, pc: usize, used: usize) -> [&Entry; 2] {
        let at = ((pc as u64).wrapping_mul(ODD) >> 32) as usize & (used - 1);
        [&self.entries[at % ENTRIES], &self.entries[(at ^ 1) % ENTRIES]]
    }

    /// The word is mixed in so that halves of two entries do not fit, and the number of modules that have
    /// gone so that an entry is void when one more has.
    fn check(pc: usize, word: u64, gone: u32) -> u64 {
        pc as u64 ^ (word ^ u64::from(gone) << 32).wrapping_mul(ODD)
    }

    /// What is known of a pc, as a word.
    #[inline(always)]
    pub(super) fn get(&self, pc: usize, gone: u32) -> Option<u64> {
        let [one, other] = self.entries(pc, self.used());
        one.known(pc, gone).or_else(|| other.known(pc, gone)).or_else(|| self.get_before(pc, gone))
    }

    /// The word of a pc from before the table has grown, which moves to where it is found sooner.
    #[cold]
    #[inline(never)]
    fn get_before(&self, pc: usize, gone: u32) -> Option<u64> {
        let mut used = self.used();
        while used > FEWEST {
            used /= 2;
            let word = self.entries(pc, used).into_iter().find_map(|entry| entry.known(pc, gone));
            if let Some(word) = word {
                self.put_word(pc, gone, word);
                return Some(word);
            }
        }
        None
    }

    /// Remembers it, if it fits.
    pub(super) fn put(&self, pc: usize, gone: u32, known: Known) {
        if let Some(word) = known.pack() {
            self.put_word(pc, gone, word);
        }
    }

    fn put_word(&self, pc: usize, gone: u32, word: u64) {
        let used = self.used();
        let [one, other] = self.entries(pc, used);
        // The other one if it has it already, or only that is free.
        let is_free = |entry: &Entry| entry.word.load(Relaxed) == 0;
        let is_others = one.known(pc, gone).is_none() && !is_free(one);
        let is_other = is_others && (is_free(other) || other.known(pc, gone).is_some());
        let entry = if is_other { other } else { one };
        if is_others && !is_other {
            self.make_room(used);
        }
        entry.word.store(word, Relaxed);
        entry.check.store(Self::check(pc, word, gone), Relaxed);
    }

    /// Notes that a pc takes the place of another one, and grows when many have.
    fn make_room(&self, used: usize) {
        if used < ENTRIES && self.crowded.fetch_add(1, Relaxed) >= used / 16 {
            self.crowded.store(0, Relaxed);
            self.doubled.store((used * 2 / FEWEST).max(1).ilog2() as usize, Relaxed);
        }
    }

    /// Forgets everything.
    #[cfg(all(test, not(miri)))]
    pub(super) fn clear(&self) {
        self.entries.iter().for_each(|entry| entry.word.store(0, Relaxed));
        self.doubled.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_fit_in_words() {
        let rule = Rule {
            register: EXTRA,
            offset: 16,
            is_loaded: false,
            from: From::Cfa,
            pc: Saved::At(-8),
            fp: Saved::Same,
            extra: Saved::Same,
            is_signal: false,
        };
        let rules = [
            rule,
            Rule { register: FP, offset: -8, is_loaded: true, from: From::Fp, fp: Saved::At(0), ..rule },
            Rule { offset: 160, from: From::Sp, pc: Saved::At(168), is_signal: true, ..rule },
            Rule { offset: (1 << 20) - 8, fp: Saved::At(-16376), extra: Saved::At(16376), ..rule },
        ];
        let table = std::boxed::Box::new(Table::new());
        for known in rules.map(Known::Rule).into_iter().chain([Known::Outermost, Known::NoTable]) {
            assert_eq!(Known::unpack(known.pack().unwrap()), known);
            table.put(0x1234, 1, known);
            assert_eq!(table.get(0x1234, 1).map(Known::unpack), Some(known));
            assert_eq!(table.get(0x1234, 2), None);
            assert_eq!(table.get(0x1235, 1), None);
        }
        // Two pcs of the same hash, of which the second is remembered beside the first.
        let first = table.entries(0x1234, FEWEST)[0];
        let twin = (0x1235..).find(|&pc| core::ptr::eq(table.entries(pc, FEWEST)[0], first)).unwrap();
        table.put(twin, 1, Known::Outermost);
        assert_eq!(
            [0x1234, twin].map(|pc| table.get(pc, 1).map(Known::unpack)),
            [Some(Known::NoTable), Some(Known::Outermost)]
        );
        // Many pcs: the table grows, and most are still there.
        (1..=8192).for_each(|pc| table.put(pc * 16, 2, Known::NoTable));
        assert!(table.used() > 4096);
        let known = (1..=8192).filter(|pc| table.get(pc * 16, 2).is_some()).count();
        assert!(known > 7000, "{known}");
        for (offset, saved) in [(1 << 20, -8), (12, -8), (8, 16384), (8, -16384), (8, -4)] {
            assert_eq!(Known::Rule(Rule { offset, fp: Saved::At(saved), ..rule }).pack(), None);
        }
    }
}
