//! Visitors of other threads' heaps: the lock that admits one visitor at a time in the process, and what a
//! visitor remembers of a heap's owner.

use crate::os;
use crate::os::futex::{Guard, Lock};
use crate::os::process;
use crate::os::signals::Blocked;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicU32, AtomicUsize};

/// Held by the visitor.
static VISITS: Lock<()> = Lock::new(());
/// In the child of a fork that nobody has repaired: whether a thread that does not exist here holds it, for
/// ever. Relaxed: `process::forked` publishes it.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Waits until the visit in progress is over, but only some milliseconds. The caller looks again: the visitor
/// may be in another heap by then.
#[cold]
#[inline(never)]
pub(crate) fn wait() {
    VISITS.nap();
}

/// The right to visit, until dropped. No signal handler interrupts the thread meanwhile: an owner that wakes
/// up waits for the visitor, and a handler on the visitor's thread that waited for that owner would wait for
/// ever.
pub(crate) struct Visits {
    _guard: Guard<'static, ()>,
    // Dropped last, since fields are dropped in order.
    _signals: Blocked,
}

impl Visits {
    /// Whether somebody waits for the end of this visit: the owner of the heap, or another visitor.
    pub(crate) fn are_waited_for(&self) -> bool {
        VISITS.is_waited_for()
    }
}

/// Waits some milliseconds at most for the right to visit.
pub(crate) fn lock() -> Option<Visits> {
    visits(|| VISITS.lock_soon())
}

/// Takes the right to visit, if nobody has it.
pub(crate) fn try_lock() -> Option<Visits> {
    if VISITS.is_held() { None } else { visits(|| VISITS.try_lock()) }
}

fn visits(take: impl FnOnce() -> Option<Guard<'static, ()>>) -> Option<Visits> {
    // Before anybody visits in the child of a fork it is known whether somebody was visiting.
    process::look();
    let signals = Blocked::all();
    take().map(|guard| Visits { _guard: guard, _signals: signals })
}

/// In the child of a fork: see [`Lock::inherit`]. Returns whether the fork has stopped a visitor.
pub(crate) fn inherit() -> bool {
    // Whatever was so in the parent.
    STOPPED.store(false, Relaxed);
    let visited = VISITS.is_held();
    VISITS.inherit();
    visited
}

/// In the child of a fork, where a thread notices that has never visited, nor any other that the child has
/// started: notes whether the fork has stopped a visitor.
pub(crate) fn look_who_was_stopped() {
    STOPPED.store(VISITS.is_held(), Relaxed);
}

/// Whether the fork has stopped a visitor, as was noted.
pub(crate) fn was_stopped() -> bool {
    STOPPED.load(Relaxed)
}

/// What was seen of a heap's owner, and when. Touched only with the right to visit, which passes from thread
/// to thread and orders the accesses: so they are relaxed.
pub(crate) struct Seen {
    /// The heap's [`activity`](super::heap::Heap::activity) then.
    activity: AtomicUsize,
    /// When that was first seen, in milliseconds.
    since: AtomicU32,
    /// Whether the heap's magazines have been emptied since.
    emptied: AtomicBool,
}

/// The result of a look at a heap's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// It has allocated or freed during the delay.
    Active,
    /// It has not.
    Idle,
    /// It has not since a visitor emptied its magazines.
    Emptied,
}

impl Seen {
    /// Nothing was seen yet.
    pub(crate) const fn new() -> Self {
        Self { activity: AtomicUsize::new(0), since: AtomicU32::new(0), emptied: AtomicBool::new(false) }
    }

    /// Looks at `now`, in milliseconds, at an owner whose [`Heap::activity`](super::heap::Heap::activity) is
    /// `activity`. It is idle if that has not changed for `delay` milliseconds.
    pub(crate) fn look(&self, activity: usize, now: u32, delay: i64) -> Look {
        if self.activity.swap(activity, Relaxed) != activity {
            self.since.store(now, Relaxed);
            self.emptied.store(false, Relaxed);
        }
        if self.is_emptied() {
            Look::Emptied
        } else if os::elapsed(self.since.load(Relaxed), now) as i64 >= delay {
            Look::Idle
        } else {
            Look::Active
        }
    }

    /// Notes that the heap's magazines have been emptied since the last look. That is no activity, and what
    /// the owner has done meanwhile is seen by the next look.
    pub(crate) fn emptied(&self) {
        self.emptied.store(true, Relaxed);
    }

    /// Whether the last look, or what followed it, found the heap [emptied](Look::Emptied).
    pub(crate) fn is_emptied(&self) -> bool {
        self.emptied.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_idle_once_it_has_done_nothing_for_the_delay() {
        let seen = Seen::new();
        assert_eq!(seen.look(7, 1000, 250), Look::Active);
        assert_eq!(seen.look(7, 1249, 250), Look::Active);
        assert_eq!(seen.look(8, 1260, 250), Look::Active, "it has done something");
        assert_eq!(seen.look(8, 1509, 250), Look::Active);
        assert_eq!(seen.look(8, 1510, 250), Look::Idle);
        seen.emptied();
        assert_eq!((seen.look(8, 1520, 250), seen.look(8, 5000, 250)), (Look::Emptied, Look::Emptied));
        assert_eq!(seen.look(9, 5000, 250), Look::Active, "it has filled some again");
        assert_eq!(seen.look(9, 5250, 250), Look::Idle);
        seen.emptied();
        assert_eq!(seen.look(10, 5251, 250), Look::Active);
        assert!(!seen.is_emptied());
        assert_eq!(seen.look(11, 3, 0), Look::Idle, "no delay");
    }

    /// Whether a signal is held back from the calling thread.
    fn is_blocked(signal: i32) -> bool {
        // SAFETY: the set is ours; nothing is changed.
        unsafe {
            let mut set = core::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &mut set) == 0
                && libc::sigismember(&set, signal) == 1
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn one_visits_at_a_time_and_a_child_knows_whether_one_did() {
        assert!(crate::os::child::is_so(|| {
            inherit();
            let take: [fn() -> Option<Visits>; 2] = [lock, try_lock];
            for take in take {
                let visits = take();
                assert!(visits.is_some() && try_lock().is_none() && is_blocked(libc::SIGTERM));
                drop(visits);
                assert!(!is_blocked(libc::SIGTERM));
            }
            look_who_was_stopped();
            assert!(!was_stopped() && !inherit());
            core::mem::forget(lock());
            look_who_was_stopped();
            assert!(was_stopped() && VISITS.is_held());
            // It is this thread's, and stays so.
            inherit() && VISITS.is_held() && !was_stopped()
        }));
    }

    /// The child of a fork beside a visitor does not wait for it.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_child_is_rid_of_the_visitor() {
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Others have it, too.
                let visits = (0..).find_map(|_| lock());
                barrier.wait();
                barrier.wait();
                drop(visits);
            });
            barrier.wait();
            let is_so = crate::os::child::is_so(|| inherit() && try_lock().is_some() && !inherit());
            barrier.wait();
            assert!(is_so);
        });
    }
}
