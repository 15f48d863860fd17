//! Doubt whether memory in huge pages is filled, because it holds little but zeros. Those may have been
//! written, too. So after each doubt there have to be twice as many that are full before the next one, unless
//! it was right.

use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// The most that [`raised`](Doubt::raised) comes to.
const MOST: usize = 12;

/// How often it was doubted. Races lose a count at worst.
pub(crate) struct Doubt {
    /// Doubts since the last one that was right.
    raised: AtomicUsize,
    /// How many were seen to be full since the last doubt.
    full: AtomicUsize,
}

impl Doubt {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self { raised: AtomicUsize::new(0), full: AtomicUsize::new(0) }
    }

    /// Whether there is cause for doubt if one holds little.
    pub(crate) fn may_be_raised(&self) -> bool {
        self.full.load(Relaxed) + 1 >= 1 << self.raised.load(Relaxed)
    }

    /// Raises a doubt, if there [is cause](Self::may_be_raised). Returns whether there is.
    pub(crate) fn raise(&self) -> bool {
        let may = self.may_be_raised();
        if may {
            self.raised.store(MOST.min(self.raised.load(Relaxed) + 1), Relaxed);
            self.full.store(0, Relaxed);
        }
        may
    }

    /// Whether there was a doubt, and none that is full since.
    pub(crate) fn is_open(&self) -> bool {
        self.raised.load(Relaxed) != 0 && self.full.load(Relaxed) == 0
    }

    /// One is full.
    pub(crate) fn dispel(&self) {
        self.full.fetch_add(1, Relaxed);
    }

    /// What has no huge pages is not filled: if there was a doubt, it was right.
    pub(crate) fn confirm(&self) {
        self.raised.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_each_doubt_more_have_to_be_full() {
        let doubt = Doubt::new();
        let mut needed = std::vec::Vec::new();
        for _ in 0..MOST + 2 {
            let full = (0..).find(|_| doubt.may_be_raised() || (doubt.dispel(), false).1).unwrap();
            needed.push(full);
            assert!(doubt.raise() && doubt.is_open() && !doubt.raise());
        }
        let expected: std::vec::Vec<_> = (0..MOST + 2).map(|n| (1 << n.min(MOST)) - 1).collect();
        assert_eq!(needed, expected);
        doubt.confirm();
        assert!(!doubt.is_open() && doubt.raise());
        doubt.dispel();
        assert!(!doubt.is_open());
    }
}
