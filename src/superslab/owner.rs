//! The owner of slabs, and when another thread should visit it.

use crate::lockfree::ready_list::ReadyList;
use crate::os;
use crate::superslab::decay::Patience;
use crate::sync::{AtomicU32, AtomicUsize, Node, Ordering};

/// The owner of slabs: a thread's heap, as far as this layer knows it. Never unmapped, and made of atomics
/// only.
pub(crate) struct Owner<S> {
    /// Slabs that other threads have published.
    pub(crate) ready: ReadyList<S>,
    /// Slices of slabs that other threads have emptied since the owner last took in what was published.
    pub(crate) idle: AtomicUsize,
    /// When a visitor took that in instead of the owner, in milliseconds and never 0. Set to 0 when the owner
    /// is back.
    pub(crate) visited: AtomicU32,
    /// Owners that were back soon after a visit are visited later the next time.
    patience: Patience,
    /// Slices that others have to empty until the next visit, as the last one has found more that were only
    /// partly free: it walked over all of those.
    least: AtomicUsize,
}

/// An owner is visited if other threads have emptied this many slices of its slabs, and it has not taken them
/// in: 8 MiB.
const VISIT_FROM: usize = 128;
/// And one in this many of those that the last visit has left.
const LEFT_PART: usize = 8;
/// An owner that is back within this many milliseconds would have taken everything in itself.
const SOON: u32 = 1000;

impl<S: Node> Owner<S> {
    /// An owner without slabs.
    pub(crate) const fn new() -> Self {
        Self {
            ready: ReadyList::new(),
            idle: AtomicUsize::new(0),
            visited: AtomicU32::new(0),
            patience: Patience::none(),
            least: AtomicUsize::new(0),
        }
    }

    /// Forgets all figures, for the next thread that uses the record. The ready list stays.
    pub(crate) fn reset(&self) {
        // Relaxed, here and below: these are figures, and nothing else depends on them.
        self.idle.store(0, Ordering::Relaxed);
        self.visited.store(0, Ordering::Relaxed);
        self.patience.forget();
        self.least.store(0, Ordering::Relaxed);
    }

    /// Counts slices that another thread has emptied. Returns whether the owner should be visited.
    pub(crate) fn count_emptied(&self, slices: usize) -> bool {
        let idle = self.idle.fetch_add(slices, Ordering::Relaxed) + slices;
        let least = self.least.load(Ordering::Relaxed);
        let much = idle >= self.patience.stretch(VISIT_FROM).max(least);
        if much {
            self.idle.store(0, Ordering::Relaxed);
        }
        much
    }

    /// Somebody takes in what has been published: nobody else need visit for that.
    pub(crate) fn note_taken_in(&self) {
        self.idle.store(0, Ordering::Relaxed);
        self.least.store(0, Ordering::Relaxed);
    }

    /// Notes that the owner should be visited but is not: the next [`count_emptied`](Owner::count_emptied)
    /// will say so again.
    pub(crate) fn put_off_visit(&self) {
        let enough = Patience::longest(VISIT_FROM).max(self.least.load(Ordering::Relaxed));
        self.idle.fetch_add(enough, Ordering::Relaxed);
    }

    /// A visitor has taken in what was published, at `now` in milliseconds, but for `left` slices that are
    /// only partly free.
    pub(crate) fn note_visit(&self, now: u32, left: usize) {
        self.visited.store(now.max(1), Ordering::Relaxed);
        self.least.store(left / LEFT_PART, Ordering::Relaxed);
    }

    /// The owner itself takes in what was published, at `now` in milliseconds.
    pub(crate) fn note_return(&self, now: impl FnOnce() -> u32) {
        self.idle.store(0, Ordering::Relaxed);
        self.least.store(0, Ordering::Relaxed);
        let visited = self.visited.load(Ordering::Relaxed);
        if visited != 0 {
            self.visited.store(0, Ordering::Relaxed);
            self.patience.learn(os::elapsed(visited, now()) < SOON);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each visit walks over all that was published: so the next one comes when that was worth it.
    #[test]
    fn the_more_a_visit_has_left_the_later_comes_the_next() {
        let owner = Owner::<crate::superslab::block::Block>::new();
        owner.note_visit(5, 8 * 1000 + 7);
        assert!(!owner.count_emptied(999) && owner.count_emptied(1) && !owner.count_emptied(999));
        owner.put_off_visit();
        assert!(owner.count_emptied(1));
        owner.note_visit(5, 8 * 5);
        assert!(!owner.count_emptied(VISIT_FROM - 1) && owner.count_emptied(1));
        let return_late = |owner: &Owner<_>| owner.note_return(|| 5 + SOON);
        for forget in [Owner::reset, Owner::note_taken_in, return_late] {
            owner.note_visit(5, 1 << 20);
            forget(&owner);
            assert!(owner.count_emptied(VISIT_FROM));
        }
    }

    #[test]
    fn an_owner_that_is_back_soon_is_visited_later() {
        let owner = Owner::<crate::superslab::block::Block>::new();
        assert!(!owner.count_emptied(VISIT_FROM - 1) && owner.count_emptied(1));
        owner.note_visit(0, 0);
        owner.note_return(|| SOON - 1);
        assert!(!owner.count_emptied((VISIT_FROM << 3) - 1) && owner.count_emptied(1));
        owner.note_return(|| unreachable!("there was no visit"));
        for _ in 0..2 {
            owner.note_visit(5, 0);
            owner.note_return(|| 6);
        }
        assert!(!owner.count_emptied(Patience::longest(VISIT_FROM) - 1) && owner.count_emptied(1));
        owner.note_visit(5, 0);
        owner.note_return(|| SOON + 6);
        assert!(owner.count_emptied(VISIT_FROM), "it was away for long");
        owner.count_emptied(9);
        owner.reset();
        assert!(!owner.count_emptied(VISIT_FROM - 1));
    }
}
