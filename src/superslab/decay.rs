//! When free pages that are dirty are given back.

use crate::base::pause::Pause;
use crate::superslab::layout::PAGE;

/// Dirty pages that are always allowed: 16 MiB.
pub(super) const ALLOWED: usize = (16 << 20) / PAGE;
/// Of the pages in use, this part may lie dirty besides.
pub(super) const ALLOWED_PART: usize = 8;
/// A purge for being over the allowance goes below it by this part: the next pages freed are wanted again more often than
/// those that have lain longest.
pub(super) const KEPT_PART: usize = 8;
/// How long a purge can be regretted, and how long half of the regret lasts, in milliseconds.
pub(super) const REGRET: u32 = 1000;
/// Milliseconds after which the system is asked again at the latest when it has refused all that was to be given back.
pub(super) const PAUSE: u32 = 4096;
/// What the policy remembers. Guarded by the pool's lock.
pub(crate) struct Policy {
    /// Pages that the allowance is widened by, and the most pages in use of late: by no more than that.
    pub(super) slack: usize,
    pub(super) peak: usize,
    /// Pages purged for being over the allowance, and when that was last done.
    pub(super) purged: usize,
    pub(super) when: u32,
    /// When pages were last looked through by age, and when the slack was last of use or halved.
    pub(super) looked: u32,
    pub(super) halved: u32,
    /// When the background thread last looked.
    pub(super) seen: u32,
    /// Nothing is given back for being over the allowance, because the system has refused all of it: memory that is locked.
    pub(super) pause: Pause,
}

impl Policy {
    pub(crate) const fn new() -> Self {
        Self {
            slack: 0,
            peak: 0,
            purged: 0,
            when: 0,
            looked: 0,
            halved: 0,
            seen: 0,
            pause: Pause::up_to(PAUSE),
        }
    }

    /// `pages` pages are in use.
    pub(crate) fn used(&mut self, pages: usize) {
        self.peak = self.peak.max(pages);
    }

    /// `pages` pages had to be touched afresh.
    pub(crate) fn fresh(&mut self, pages: usize) {
        let regretted = pages.min(self.purged);
        self.purged -= regretted;
        self.slack = (self.slack + regretted).min(self.peak);
    }

    /// Pages were taken again that would have been given back without the slack: it is worth having, and stays.
    pub(crate) fn worth_it(&mut self, now: u32) {
        self.halved = now;
    }
}

/// Dirty pages that may lie about, without what regret adds.
pub(super) fn allowed_always(used_pages: usize) -> usize {
    ALLOWED + used_pages / ALLOWED_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_bounded_by_what_was_purged_and_by_the_peak() {
        let mut policy = Policy::new();
        policy.used(1000);
        policy.used(400);
        policy.fresh(50);
        assert_eq!(policy.slack, 0, "nothing was purged");
        policy.purged = 300;
        policy.fresh(200);
        policy.fresh(200);
        assert_eq!((policy.slack, policy.purged), (300, 0));
        policy.purged = 900;
        policy.fresh(900);
        assert_eq!((policy.slack, policy.peak), (1000, 1000));
    }
}
