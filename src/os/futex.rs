//! A lock for the rare, short sections that are shared: no allocation, no poisoning, no system call unless contended.
//!
//! No lock is held across a fork, and nobody waits for one for ever:
//!
//! * The word names the thread that holds the lock. So the child of a fork knows which locks were held by threads that it
//!   does not have ([`Lock::inherit`]); whoever takes such a lock first brings its value in order ([`Inherit`]).
//! * [`Lock::lock_soon`] gives up after some milliseconds. A thread can be interrupted by a signal handler while it holds a lock,
//!   and the handler may wait, by way of the C library's own locks, for a thread that waits here: `fork` takes them, and a
//!   thread with a `FILE` locked allocates. What cannot be had soon is done without: see each caller.

use crate::os::{process, thread};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use crossbeam_utils::Backoff;

/// Looks at a held lock before sleeping, each after twice as long a pause as the one before: about as long together as a
/// section takes.
const SPINS: u32 = 6;
/// How often a thread that cannot wait for ever sleeps at most, and for how many milliseconds each time. A holder that has lost
/// its processor to others has it back by then, unless many compete.
const NAPS: u32 = 5;
/// See [`NAPS`].
const NAP: u32 = 2;

/// Flags below the holder's [`thread::id`]: somebody may be asleep.
const WAITED_FOR: usize = 1;
/// In the child of a fork: the value has not been looked at since.
const INHERITED: usize = 2;
/// The same, and another thread was in the middle of changing it.
const TORN: usize = 4;
const FLAGS: usize = WAITED_FOR | INHERITED | TORN;

/// What a lock guards.
pub(crate) trait Inherit {
    /// In the child of a fork, before anything else is done with the value: brings in order what threads of the parent have left.
    /// Some of them may have been stopped in work that they had begun under the lock, and, if `torn`, one in the middle of
    /// changing the value. Its stores up to that point have all been done, in the order of the program.
    fn inherit(&mut self, torn: bool);
}

/// For what is in order whenever a thread stops.
impl Inherit for () {
    fn inherit(&mut self, _torn: bool) {}
}

/// A mutual-exclusion lock around a value, sleeping on a futex when it is contended.
pub(crate) struct Lock<T> {
    /// The holder, or 0, and flags.
    word: AtomicUsize,
    /// A holder for whom somebody has waited in vain: the others do not even try, until it lets go.
    overdue: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out one reference at a time.
unsafe impl<T> Sync for Lock<T> {}

/// The right to use the value, until dropped.
pub(crate) struct Guard<'a, T: Inherit> {
    lock: &'a Lock<T>,
    me: usize,
}

/// Sleeps while the word is `value`, for at most so many milliseconds. May return for no reason.
pub(crate) fn wait(word: *mut u32, value: u32, ms: Option<u32>) {
    let time = ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000) as libc::time_t,
        tv_nsec: (ms % 1000 * 1_000_000) as libc::c_long,
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel reads the word and the time; a word that is gone is only an error to it.
    super::keep_errno(|| unsafe { libc::syscall(libc::SYS_futex, word, operation, value, time) });
}

/// Wakes all that sleep on the word.
pub(crate) fn wake(word: *mut u32) {
    wake_some(word, i32::MAX);
}

fn wake_some(word: *mut u32, count: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only wakes.
    super::keep_errno(|| unsafe { libc::syscall(libc::SYS_futex, word, operation, count) });
}

/// Lets others run for a moment.
pub(crate) fn pause() {
    let mut word = 0;
    wait(&raw mut word, 0, Some(1));
}

impl<T: Inherit> Lock<T> {
    /// A free lock.
    pub(crate) const fn new(value: T) -> Self {
        Self { word: AtomicUsize::new(0), overdue: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock, as long as it takes: for calls that the program makes for their own sake. A signal handler must not.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.lock_soon() {
                return guard;
            }
            pause();
        }
    }

    /// Waits for the lock, but not for long: not at all when this very thread holds it, in code that a signal handler has
    /// interrupted.
    #[inline]
    pub(crate) fn lock_soon(&self) -> Option<Guard<'_, T>> {
        let me = thread::id();
        // Acquire: pairs with the release in `unlock`.
        let free = self.word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Not `then_some`, which would make a guard first, and release with it what is another thread's.
        (free || self.wait(me, NAPS)).then(|| Guard { lock: self, me })
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let me = thread::id();
        self.try_take(self.word.load(Ordering::Relaxed), me).then(|| Guard { lock: self, me })
    }

    /// Takes the lock if `word` says that it is free, and still is what it is.
    fn try_take(&self, word: usize, me: usize) -> bool {
        // Acquire: pairs with the release in `unlock`.
        if word & !FLAGS != 0
            || self.word.compare_exchange(word, me, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        if word & INHERITED != 0 {
            // SAFETY: we hold the lock.
            unsafe { (*self.value.get()).inherit(word & TORN != 0) };
        }
        true
    }

    /// Waits for a lock that was not free. False after so many naps in vain.
    #[cold]
    #[inline(never)]
    fn wait(&self, me: usize, naps: u32) -> bool {
        let backoff = Backoff::new();
        let (mut spins, mut napped) = (0, 0);
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let holder = word & !FLAGS;
            if holder == 0 {
                if self.try_take(word, me) {
                    if napped != 0 {
                        // Others may be asleep, too: whoever lets go wakes one of us only.
                        self.word.fetch_or(WAITED_FOR, Ordering::Relaxed);
                    }
                    return true;
                }
                continue;
            }
            // In a child the holder may not exist.
            if process::look() {
                continue;
            }
            if holder == me {
                return false;
            }
            if spins < SPINS {
                spins += 1;
                backoff.spin();
                continue;
            }
            if self.overdue.load(Ordering::Relaxed) == holder {
                return false;
            }
            if napped == naps {
                self.overdue.store(holder, Ordering::Relaxed);
                return false;
            }
            let asleep = word | WAITED_FOR;
            // Acquire is not needed: nothing is taken.
            if word == asleep
                || self.word.compare_exchange(word, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                napped += 1;
                // The lower half, which the kernel compares, comes first in memory. Two holders may have it in common: then
                // one of them is taken for the other, and we wake up too late, but within the nap.
                wait(self.word.as_ptr().cast(), asleep as u32, Some(NAP));
            }
        }
    }

    fn unlock(&self, me: usize) {
        // Release: pairs with the acquire of whoever takes the lock next.
        if self.word.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.unlock_flagged();
        }
    }

    #[cold]
    #[inline(never)]
    fn unlock_flagged(&self) {
        self.overdue.store(0, Ordering::Relaxed);
        // Release: as in `unlock`.
        let before = self.word.fetch_and(INHERITED | TORN, Ordering::Release);
        if before & WAITED_FOR != 0 {
            wake_some(self.word.as_ptr().cast(), 1);
        }
    }

    /// In the child of a fork, by the thread that forked: frees the lock from threads that do not exist here. What this thread
    /// holds, in code that a signal handler has interrupted, it keeps.
    pub(crate) fn inherit(&self) {
        let word = self.word.load(Ordering::Relaxed);
        let (holder, me) = (word & !FLAGS, thread::id());
        let mut now = word & (INHERITED | TORN) | INHERITED;
        if holder == me {
            now |= me;
        } else if holder != 0 {
            now |= TORN;
        }
        self.word.store(now, Ordering::Relaxed);
        self.overdue.store(0, Ordering::Relaxed);
    }

    /// Whether a thread holds the lock.
    pub(crate) fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !FLAGS != 0
    }
}

impl<T: Inherit> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: Inherit> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: Inherit> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.unlock(self.me);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    impl Inherit for u32 {
        fn inherit(&mut self, torn: bool) {
            *self += if torn { 100 } else { 10 };
        }
    }

    #[test]
    fn a_held_lock_stays_so_when_somebody_tries() {
        let lock = Lock::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none() && lock.try_lock().is_none(), "the first try has released it");
        assert!(lock.lock_soon().is_none(), "nobody waits for himself");
        drop(held);
        *lock.try_lock().unwrap() += 1;
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn waiting_ends_and_what_is_overdue_is_not_waited_for_again() {
        static LOCK: Lock<u32> = Lock::new(0);
        let held = LOCK.lock();
        thread::spawn(|| {
            assert!(LOCK.lock_soon().is_none());
            assert_ne!(LOCK.overdue.load(Ordering::Relaxed), 0);
            assert!(LOCK.lock_soon().is_none());
        })
        .join()
        .unwrap();
        drop(held);
        assert_eq!(LOCK.overdue.load(Ordering::Relaxed), 0);
        assert_eq!(LOCK.word.load(Ordering::Relaxed), 0);
        thread::spawn(|| *LOCK.lock_soon().unwrap() += 1).join().unwrap();
    }

    #[test]
    fn who_waits_gets_it_when_it_is_free() {
        static LOCK: Lock<u32> = Lock::new(0);
        let (rounds, threads) = if cfg!(miri) { (10, 2) } else { (100_000, 4) };
        let all: Vec<_> = (0..threads)
            .map(|_| {
                thread::spawn(move || {
                    for _ in 0..rounds {
                        *LOCK.lock() += 1;
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*LOCK.lock(), rounds * threads);
    }

    #[test]
    fn a_child_looks_at_what_it_inherits_once() {
        let lock = Lock::new(0);
        lock.inherit();
        assert!(!lock.is_held());
        assert_eq!(*lock.lock(), 10);
        assert_eq!(*lock.try_lock().unwrap(), 10);
        // What the surviving thread holds it keeps, and looks at it afterwards.
        let held = lock.lock();
        lock.inherit();
        assert!(lock.is_held() && lock.try_lock().is_none());
        drop(held);
        assert_eq!(*lock.lock(), 20);
    }

    #[test]
    fn what_another_thread_held_is_torn_until_somebody_has_looked() {
        static LOCK: Lock<u32> = Lock::new(0);
        let (held, hold) = channel();
        let (end, ended) = channel::<()>();
        let other = thread::spawn(move || {
            let guard = LOCK.lock();
            held.send(()).unwrap();
            let _ = ended.recv();
            // There it would not exist.
            core::mem::forget(guard);
        });
        hold.recv().unwrap();
        LOCK.inherit();
        // A child of the child, before anybody has looked.
        LOCK.inherit();
        assert_eq!(*LOCK.lock_soon().unwrap(), 100);
        assert_eq!(*LOCK.lock(), 100);
        drop(end);
        other.join().unwrap();
    }
}
