//! Mappings that are better purged than cleared.

use crate::large::huge::sample::look_at_few;
use crate::large::huge::{Density, Mapping, SEEN};
use crate::superslab::thp::HUGE_PAGE;
use crate::sync::Ordering::Relaxed;

/// After so many mappings that were cleared because they were dense, one is purged all the same. Twice as
/// many after that, up to the most, while it does not help.
pub(super) const CLEARED: usize = 32;
pub(super) const MOST_CLEARED: usize = 1024;

/// Whether less than half of a mapping is resident, judging by a few system pages. One with huge pages is not
/// dense then: that counts, since whoever uses the same memory again and again never makes a control.
pub(crate) fn is_sparse(mapping: Mapping) -> bool {
    SEEN.is_sparse(mapping)
}

/// Whether a mapping that has to be zero is better purged than cleared. It is if it is sparse: faulting in
/// what is touched next costs less than clearing all of it. What was cleared is dense, whatever the program
/// touches of it: so that is found out now and then.
pub(crate) fn is_better_purged(mapping: Mapping) -> bool {
    SEEN.is_better_purged(mapping)
}

impl Density {
    /// [`is_better_purged`].
    pub(super) fn is_better_purged(&self, mapping: Mapping) -> bool {
        if self.is_sparse(mapping) {
            if self.purged.load(Relaxed) == mapping.block {
                self.may_clear.store(CLEARED, Relaxed);
            }
            return true;
        }
        let may_clear = self.may_clear.load(Relaxed);
        if mapping.len < HUGE_PAGE || self.cleared.fetch_add(1, Relaxed) < may_clear {
            return false;
        }
        self.cleared.store(0, Relaxed);
        self.purged.store(mapping.block, Relaxed);
        self.may_clear.store(MOST_CLEARED.min(2 * may_clear), Relaxed);
        true
    }

    /// [`is_sparse`].
    pub(super) fn is_sparse(&self, mapping: Mapping) -> bool {
        if mapping.len < HUGE_PAGE {
            return false;
        }
        let (looked, resident) = look_at_few(mapping);
        let sparse = resident * 2 < looked;
        if sparse && mapping.huge {
            self.add(mapping.len, looked, resident);
        }
        sparse
    }
}
