//! How the background thread goes to sleep, and how it is woken.
//!
//! It sleeps until it is woken when nothing is dirty, and is woken by whoever makes something dirty. Each
//! side does two things, in opposite order. The thread says that it sleeps and *then* looks whether something
//! is dirty, under the lock that guards it. The other makes something dirty, under the same lock, and *then*
//! looks whether the thread sleeps. Whichever critical section comes second sees what the other side did
//! before the first. So no wake-up is lost, and the others pay for one relaxed load only. Who does not get
//! the lock soon, and changes something without it, pays for a fence; so does the hardened heap, whose
//! figures are under no lock.
//!
//! What is in the heaps of idle threads is dirty in no such sense. Threads that take memory from slabs, or
//! free to those of others, wake the sleeper, too, but it may miss that: so it looks again after some time.

use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicU32, fence};

/// The thread runs, or is about to look for something dirty.
const AWAKE: u32 = 0;
/// It sleeps until a timeout; only `rouse` and `stop` wake it.
const DOZING: u32 = 1;
/// It sleeps until it is woken.
const ASLEEP: u32 = 2;
/// It has been asked to end.
const STOPPED: u32 = 3;

/// One sleeper's word. Every change but a reset is an atomic exchange, so none undoes another. All orderings
/// are relaxed: the locks and fences (see above) make visible what must be seen in time.
pub(crate) struct Waker {
    word: AtomicU32,
}

impl Waker {
    /// Awake.
    pub(crate) const fn new() -> Self {
        Self { word: AtomicU32::new(AWAKE) }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Relaxed, Relaxed).is_ok()
    }

    /// The sleeper says that it sleeps. Then it looks once more, and [`Self::doze`]s or waits while
    /// [`Self::is_asleep`]. False when it has been stopped.
    pub(crate) fn arm(&self) -> bool {
        let armed = self.change(AWAKE, ASLEEP);
        // Pairs with the one in `notify_unlocked`.
        fence(SeqCst);
        armed
    }

    /// The sleeper has armed and has found something that is not due yet: it will sleep with a timeout. False
    /// when it has been woken or stopped meanwhile.
    pub(crate) fn doze(&self) -> bool {
        self.change(ASLEEP, DOZING)
    }

    /// [`doze`](Waker::doze) although it has been woken meanwhile. False when it has been stopped.
    pub(crate) fn doze_all_the_same(&self) -> bool {
        self.change(AWAKE, DOZING)
    }

    /// The sleeper continues, whatever has woken it.
    pub(crate) fn rise(&self) {
        let _ = self.change(DOZING, AWAKE) || self.change(ASLEEP, AWAKE);
    }

    /// Whether the sleeper sleeps until it is woken, and nobody has woken it.
    pub(crate) fn is_asleep(&self) -> bool {
        self.word.load(Relaxed) == ASLEEP
    }

    /// Whether the sleeper has been asked to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.word.load(Relaxed) == STOPPED
    }

    /// Something has become dirty. Returns whether the caller must wake the sleeper now.
    #[inline]
    pub(crate) fn notify(&self) -> bool {
        self.is_asleep() && self.change(ASLEEP, AWAKE)
    }

    /// [`notify`](Waker::notify) for a thread that has made something dirty without the lock. Either the
    /// sleeper sees that when it looks, or this sees that it sleeps.
    pub(crate) fn notify_unlocked(&self) -> bool {
        // Pairs with the one in `arm`.
        fence(SeqCst);
        self.notify()
    }

    /// As [`notify_unlocked`](Waker::notify_unlocked), for what does not wait for a timeout either.
    pub(crate) fn rouse(&self) -> bool {
        // Pairs with the one in `arm`.
        fence(SeqCst);
        self.notify() || self.change(DOZING, AWAKE)
    }

    /// Asks the sleeper to end. The caller must wake it.
    pub(crate) fn stop(&self) {
        self.word.swap(STOPPED, Relaxed);
    }

    /// Back to awake, for a new sleeper. There is none now.
    pub(crate) fn reset(&self) {
        self.word.store(AWAKE, Relaxed);
    }
}

pub(crate) use thread::{WAKER, WATCHED, doze, notify, notify_unlocked, rouse, sleep, stop};

/// The background thread's waker.
mod thread {
    use super::{ASLEEP, DOZING, Waker};
    use crate::os::futex;
    use crate::sync::AtomicBool;

    /// The background thread's waker. It stays awake while there is no such thread.
    pub(crate) static WAKER: Waker = Waker::new();
    /// Whether there is such a thread, so that dirty memory is purged even when no thread allocates or frees.
    pub(crate) static WATCHED: AtomicBool = AtomicBool::new(false);

    /// Tells the background thread that something has become dirty. Call it after the critical section that
    /// made it so.
    #[inline]
    pub(crate) fn notify() {
        if WAKER.notify() {
            wake();
        }
    }

    /// [`notify`] for a thread that did not get the lock, and has made something dirty without it.
    #[cold]
    pub(crate) fn notify_unlocked() {
        if WAKER.notify_unlocked() {
            wake();
        }
    }

    /// Has the background thread look now what it has to do.
    #[cold]
    pub(crate) fn rouse() {
        if WAKER.rouse() {
            wake();
        }
    }

    /// Asks the background thread to end.
    pub(crate) fn stop() {
        WAKER.stop();
        wake();
    }

    #[cold]
    fn wake() {
        futex::wake(WAKER.word.as_ptr());
    }

    /// Sleeps after [`Waker::arm`] for at most `ms` milliseconds, and as [`notify`] does not wake it. If it
    /// has been woken already, for `least` at most.
    pub(crate) fn doze(ms: u32, least: u32) {
        if WAKER.doze() {
            futex::wait(WAKER.word.as_ptr(), DOZING, Some(ms));
        } else if WAKER.doze_all_the_same() {
            futex::wait(WAKER.word.as_ptr(), DOZING, Some(ms.min(least)));
        }
        WAKER.rise();
    }

    /// Sleeps after [`Waker::arm`] until it is woken, for at most `ms` milliseconds. Returns whether it was.
    pub(crate) fn sleep(ms: u32) -> bool {
        // In a model the time is never over, so that it finds a wake-up that is lost.
        while WAKER.is_asleep() && (futex::wait(WAKER.word.as_ptr(), ASLEEP, Some(ms)) || cfg!(loom)) {}
        let woken = !WAKER.is_asleep();
        WAKER.rise();
        woken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_who_finds_the_sleeper_asleep_wakes_it() {
        let waker = Waker::new();
        assert!(!waker.is_asleep() && !waker.notify() && !waker.notify_unlocked() && !waker.rouse());
        assert!(!waker.doze(), "it is awake");
        assert!(waker.doze_all_the_same() && !waker.doze_all_the_same() && !waker.notify() && waker.rouse());
        let wakes: [&dyn Fn() -> bool; 3] =
            [&|| waker.notify(), &|| waker.notify_unlocked(), &|| waker.rouse()];
        for wake in wakes {
            assert!(waker.arm() && waker.is_asleep() && !waker.is_stopped());
            assert!(wake() && !waker.is_asleep() && !wake());
        }
        // With a timeout only what cannot wait wakes it.
        assert!(waker.arm() && waker.doze());
        assert!(!waker.is_asleep() && !waker.notify() && !waker.notify_unlocked());
        assert!(waker.rouse() && !waker.rouse());
        // Whatever has woken it.
        for dozes in [false, true] {
            assert!(waker.arm() && (!dozes || waker.doze()));
            waker.rise();
            assert!(!waker.is_asleep() && !waker.rouse());
        }
        assert!(waker.arm());
        waker.stop();
        assert!(waker.is_stopped() && !waker.arm() && !waker.doze() && !waker.rouse());
        assert!(!waker.doze_all_the_same());
        waker.rise();
        assert!(waker.is_stopped());
        waker.reset();
        assert!(!waker.is_stopped() && waker.arm());
    }

    /// The background thread's, which no unit test has but in the child of a fork.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn the_background_thread_sleeps_until_its_timeout_or_until_it_is_stopped() {
        assert!(crate::os::child::is_so(|| {
            assert!(WAKER.arm());
            doze(1, 1);
            assert!(!WAKER.is_asleep() && WAKER.arm());
            assert!(!sleep(1) && !WAKER.is_asleep());
            for wake in [notify, notify_unlocked, rouse] {
                assert!(WAKER.arm());
                wake();
                assert!(!WAKER.is_asleep());
                // Does not sleep any more.
                assert!(sleep(u32::MAX) && WAKER.arm());
                wake();
                // It has been woken, so only for the shorter time.
                doze(u32::MAX, 1);
                assert_eq!(WAKER.word.load(Relaxed), AWAKE);
            }
            for sleeps in [|| _ = sleep(u32::MAX), || doze(u32::MAX, u32::MAX)] {
                WAKER.reset();
                assert!(WAKER.arm());
                stop();
                sleeps();
                assert!(WAKER.is_stopped());
            }
            true
        }));
    }
}
