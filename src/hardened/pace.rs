//! How often a thread takes blocks of a class, which says whether a slab of its own pays.

use crate::os;
use core::cell::Cell;

/// So many blocks in a millisecond are many. Who takes more finds what it has freed still in its processor's
/// cache, which is worth more than the memory of a slab: 16 threads on as many processors that did nothing
/// else took 1.6 times as long with shared slabs.
const MANY: u32 = 32;
/// The clock ticks once in up to so many milliseconds, of which one may come between any two blocks.
const TICK: u32 = 4;

/// All zero is valid: nothing yet.
pub(super) struct Pace {
    /// Blocks taken since then.
    taken: Cell<u32>,
    /// In milliseconds.
    since: Cell<u32>,
}

impl Pace {
    /// The thread takes `blocks` blocks from now on, and then asks again.
    pub(super) fn begin(&self, blocks: u32) {
        self.taken.set(blocks);
        self.since.set(os::now_ms());
    }

    /// Whether the thread takes many. It `owns` a slab, of which it has used up what it took in
    /// [`Pace::begin`], or takes one block more of those that threads share.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn is_fast(&self, owns: bool) -> bool {
        if !owns {
            self.taken.set(self.taken.get() + 1);
            if self.taken.get() < MANY {
                return false;
            }
        }
        self.is_fast_at(os::now_ms())
    }

    /// As if what was taken last was long ago.
    #[cfg(test)]
    pub(super) fn rest(&self) {
        self.since.set(os::now_ms().wrapping_sub(60_000));
    }

    /// Whether those taken so far are many by now, in milliseconds. Then it begins anew.
    fn is_fast_at(&self, now: u32) -> bool {
        let elapsed = os::elapsed(self.since.replace(now), now);
        self.taken.replace(0) >= elapsed.saturating_sub(TICK).saturating_mul(MANY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_many_within_a_while_is_fast() {
        let pace = Pace { taken: Cell::new(0), since: Cell::new(0) };
        // Only the last of so many looks at the clock.
        assert!((1..MANY).all(|_| !pace.is_fast(false)));
        let at = |taken: u32, now: u32| {
            pace.taken.set(taken);
            pace.is_fast_at(now)
        };
        assert!(!at(MANY, 1000));
        assert!(at(MANY, 1000) && at(MANY, 1000 + TICK) && !at(MANY, 1002 + 2 * TICK));
        // A slab's last block, whose word was used up within a tick.
        assert!(at(1, 1002 + 3 * TICK) && !at(1, 1003 + 4 * TICK));
        // The clock begins anew.
        pace.since.set(u32::MAX);
        assert!(at(MANY, 2));
        assert_eq!(pace.taken.get(), 0);
        // Exactly so many, and one less.
        assert!(at(MANY, 3 + TICK) && !at(MANY - 1, 4 + 2 * TICK));
    }

    #[test]
    fn only_blocks_of_shared_slabs_are_counted_one_by_one() {
        let pace = Pace { taken: Cell::new(0), since: Cell::new(0) };
        pace.rest();
        for taken in 1..MANY {
            assert!(!pace.is_fast(false));
            assert_eq!(pace.taken.get(), taken);
        }
        // This one looks at the clock.
        assert!(!pace.is_fast(false));
        assert_eq!(pace.taken.get(), 0);
        // A slab of its own that served so few blocks, a minute ago: what was taken before does not count.
        pace.begin(5);
        pace.rest();
        assert!(!pace.is_fast(true));
        assert_eq!(pace.taken.get(), 0);
    }
}
