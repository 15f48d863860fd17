//! How the background thread goes to sleep, and how it is woken.
//!
//! It sleeps without a timeout when nothing is dirty, and is rung for by whoever makes something dirty. Each side does two
//! things, in opposite order: the thread says that it sleeps, *then* looks, under the lock of what it looks at, whether
//! something is dirty; the other makes it dirty, under the same lock, *then* looks whether the thread sleeps. Whichever of
//! the two sections comes first, the second sees what was done before it: so no wake-up is lost, and one relaxed load is all
//! that the others pay.

use crate::sync::AtomicU32;
use crate::sync::Ordering::Relaxed;

/// It runs, or is about to look.
const AWAKE: u32 = 0;
/// It sleeps until it is time; only being stopped wakes it.
const DOZING: u32 = 1;
/// It sleeps until it is rung for.
const ASLEEP: u32 = 2;
/// It is to end.
const STOPPED: u32 = 3;

/// One sleeper's word. Every change but a reset is an exchange, so none undoes another. All orderings are relaxed: what
/// must be seen in time is seen by the locks (above).
pub(crate) struct Waker {
    word: AtomicU32,
}

impl Waker {
    /// Awake.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { word: AtomicU32::new(AWAKE) }
    }

    /// Awake (loom's atomics have no constant constructor).
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(AWAKE) }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Relaxed, Relaxed).is_ok()
    }

    /// The sleeper says that it sleeps. It looks once more afterwards, and then [`Self::doze`]s if it has to, or waits while
    /// [`Self::is_asleep`]. False when it has been stopped.
    pub(crate) fn arm(&self) -> bool {
        self.change(AWAKE, ASLEEP)
    }

    /// The sleeper, armed, has found something that is not due yet. False when it has been rung for, or stopped.
    pub(crate) fn doze(&self) -> bool {
        self.change(ASLEEP, DOZING)
    }

    /// The sleeper goes on, whatever woke it.
    pub(crate) fn rise(&self) {
        let _ = self.change(DOZING, AWAKE) || self.change(ASLEEP, AWAKE);
    }

    /// Whether nobody has rung.
    pub(crate) fn is_asleep(&self) -> bool {
        self.word.load(Relaxed) == ASLEEP
    }

    /// Whether the sleeper is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.word.load(Relaxed) == STOPPED
    }

    /// Something has become dirty: whether the sleeper is to be woken now, by the caller.
    #[inline]
    pub(crate) fn notify(&self) -> bool {
        self.is_asleep() && self.change(ASLEEP, AWAKE)
    }

    /// Asks the sleeper to end. It is to be woken.
    pub(crate) fn stop(&self) {
        self.word.swap(STOPPED, Relaxed);
    }

    /// As new. There is no sleeper.
    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.word.store(AWAKE, Relaxed);
    }
}

#[cfg(not(loom))]
pub(crate) use thread::{WAKER, WATCHED, notify, sleep, stop};

/// The background thread's.
#[cfg(not(loom))]
mod thread {
    use super::{ASLEEP, DOZING, Waker};
    use crate::os::futex;
    use core::sync::atomic::AtomicBool;

    /// The background thread's alarm. For good awake while there is no such thread.
    pub(crate) static WAKER: Waker = Waker::new();
    /// Whether there is such a thread, so that dirty memory is looked after without events.
    pub(crate) static WATCHED: AtomicBool = AtomicBool::new(false);

    /// Tells the background thread that something has become dirty. After the section that made it so.
    #[inline]
    pub(crate) fn notify() {
        if WAKER.notify() {
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

    /// Sleeps, armed: for at most so many milliseconds when there are any; otherwise until somebody rings.
    pub(crate) fn sleep(ms: Option<u32>) {
        match ms {
            Some(ms) => {
                if WAKER.doze() {
                    futex::wait(WAKER.word.as_ptr(), DOZING, Some(ms));
                }
            }
            None => {
                while WAKER.is_asleep() {
                    futex::wait(WAKER.word.as_ptr(), ASLEEP, None);
                }
            }
        }
        WAKER.rise();
    }
}
