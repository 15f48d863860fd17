//! Work that a fork waits for.
//!
//! Memory that is being given back is in no list meanwhile, and no lock is held across a system call. In the child of a
//! fork nobody would bring it back. So such work is counted, and a fork first lets nobody begin any more, and waits until
//! the count is zero; then it takes the locks.

use crate::sync::{
    AtomicU32,
    Ordering::{self, Relaxed},
};

/// Set while a fork is going on; below it the count.
const CLOSED: u32 = 1 << 31;

/// The count.
pub(crate) struct Ongoing {
    word: AtomicU32,
}

impl Ongoing {
    /// Nothing going on.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    /// Nothing going on (loom's atomics have no constant constructor).
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    /// Begins; false while it is closed.
    pub(crate) fn enter(&self) -> bool {
        let mut old = self.word.load(Relaxed);
        while old & CLOSED == 0 {
            // Acquire: pairs with the release in `open`.
            match self.word.compare_exchange_weak(old, old + 1, Ordering::Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Ends. Whether whoever closed it is to be woken.
    pub(crate) fn leave(&self) -> bool {
        let mut old = self.word.load(Relaxed);
        // Nothing is counted in the child of a fork that a signal handler made in the middle of this thread's work.
        while old & !CLOSED != 0 {
            // Release: pairs with the acquire in `left`.
            match self.word.compare_exchange_weak(old, old - 1, Ordering::Release, Relaxed) {
                Ok(_) => return old == CLOSED | 1,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Lets nobody begin from now on. One at a time.
    pub(crate) fn close(&self) {
        self.word.fetch_or(CLOSED, Relaxed);
    }

    /// How many have not ended.
    pub(crate) fn left(&self) -> u32 {
        // Acquire: pairs with the release in `leave`: what they did is done.
        self.word.load(Ordering::Acquire) & !CLOSED
    }

    /// After [`Self::close`].
    pub(crate) fn open(&self) {
        // Release: pairs with the acquire in `enter`.
        self.word.fetch_and(!CLOSED, Ordering::Release);
    }
}

#[cfg(not(loom))]
pub(crate) use work::{acquire, begin, begin_or_wait, release};

/// The process's.
#[cfg(not(loom))]
mod work {
    use super::{CLOSED, Ongoing};
    use crate::os::futex::{self, Lock};
    use core::sync::atomic::Ordering::Relaxed;

    static WORK: Ongoing = Ongoing::new();
    /// Forks, one at a time.
    static FORKS: Lock<()> = Lock::new(());
    /// How long a fork waits at most: so many times so many milliseconds. Work takes a few of them; a fork that cannot wait
    /// (in a signal handler, say, that interrupted it) leaves to the child what it is.
    const PATIENCE: (u32, u32) = (50, 20);

    /// The right to have memory in no list, until dropped. The flag says whether it is counted.
    pub(crate) struct Work(bool);

    impl Drop for Work {
        fn drop(&mut self) {
            if self.0 && WORK.leave() {
                futex::wake(WORK.word.as_ptr());
            }
        }
    }

    /// Begins, unless a fork is going on. In a handler of the forking thread it may begin, uncounted: that thread cannot fork
    /// before it is done.
    pub(crate) fn begin() -> Option<Work> {
        let counted = WORK.enter();
        // Not `then_some`, which would make the right first and drop it.
        if counted || futex::is_forking() { Some(Work(counted)) } else { None }
    }

    /// Begins, after a fork that is going on.
    pub(crate) fn begin_or_wait() -> Work {
        loop {
            if let Some(work) = begin() {
                return work;
            }
            let word = WORK.word.load(Relaxed);
            if word & CLOSED != 0 {
                futex::wait(WORK.word.as_ptr(), word, Some(PATIENCE.1));
            }
        }
    }

    /// For the time across a fork, before any lock is taken.
    pub(crate) fn acquire() {
        FORKS.acquire();
        WORK.close();
        for _ in 0..PATIENCE.0 {
            let left = WORK.left();
            if left == 0 {
                return;
            }
            futex::wait(WORK.word.as_ptr(), CLOSED | left, Some(PATIENCE.1));
        }
    }

    /// See [`acquire`].
    pub(crate) fn release(child: bool) {
        if child {
            // What is still counted is the work of threads that do not exist here.
            WORK.word.store(0, Relaxed);
            FORKS.reset_in_child();
        } else {
            WORK.open();
            futex::wake(WORK.word.as_ptr());
            FORKS.release();
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use core::sync::atomic::AtomicBool;

        #[test]
        fn a_fork_waits_for_work_and_lets_none_begin() {
            static DONE: AtomicBool = AtomicBool::new(false);
            let work = begin_or_wait();
            let fork = std::thread::spawn(|| {
                acquire();
                let done = DONE.load(Relaxed);
                let begun = begin().is_some();
                release(false);
                (done, begun)
            });
            // Others of this process may be at work, too.
            while begin().is_some() && !fork.is_finished() {
                std::thread::yield_now();
            }
            DONE.store(true, Relaxed);
            drop(work);
            assert_eq!(fork.join().unwrap(), (true, false));
            drop(begin_or_wait());
        }
    }
}
