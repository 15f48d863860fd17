//! A lock for the rare, short sections that are shared: no allocation, no poisoning, no system call unless contended.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use crossbeam_utils::Backoff;

/// Looks at a held lock before sleeping, each after twice as long a pause as the one before: about as long together as a
/// section takes.
const SPINS: u32 = 6;
const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutual-exclusion lock around a value, sleeping on a futex when it is contended.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out one reference at a time.
unsafe impl<T> Sync for Lock<T> {}

/// The right to use the value, until dropped. The flag says that the lock was held for a fork by this very thread, and
/// stays so.
pub(crate) struct Guard<'a, T>(&'a Lock<T>, bool);

/// The thread that is forking and therefore holds all locks. Handlers that the program registered with `pthread_atfork`
/// may allocate meanwhile.
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// A number that is this thread's while it lives, and never 0.
pub(crate) fn this_thread() -> usize {
    // SAFETY: no preconditions.
    unsafe { super::errno_location() }.addr()
}

/// Says that this thread holds all locks for a fork, or no longer.
pub(crate) fn set_forking(forking: bool) {
    FORKING.store(if forking { this_thread() } else { 0 }, Ordering::Relaxed);
}

/// Whether this thread holds all locks for a fork.
pub(crate) fn is_forking() -> bool {
    // Relaxed: only this thread can have stored its own name.
    FORKING.load(Ordering::Relaxed) == this_thread()
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
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only wakes.
    super::keep_errno(|| unsafe { libc::syscall(libc::SYS_futex, word, operation, i32::MAX) });
}

impl<T> Lock<T> {
    /// A free lock.
    pub(crate) const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard(self, !self.acquire())
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire: pairs with the release in `release`.
        let free = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Not `then_some`, which would make a guard first, and release with it what is another thread's.
        free.then(|| Guard(self, false))
    }

    /// Waits for the lock and keeps it until [`Lock::release`]: for the time across a fork. False when this thread holds
    /// it for that already.
    pub(crate) fn acquire(&self) -> bool {
        // Acquire: pairs with the release in `release`.
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if is_forking() {
                return false;
            }
            self.wait();
        }
        true
    }

    #[cold]
    fn wait(&self) {
        let backoff = Backoff::new();
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            backoff.spin();
        }
        // Acquire: pairs with the release in `release`. From here on we must assume that others sleep too.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            // A spurious return only goes round the loop again.
            wait(self.state.as_ptr(), CONTENDED, None);
        }
    }

    /// Releases what [`Lock::acquire`] took.
    pub(crate) fn release(&self) {
        // Release: pairs with the acquire of whoever takes the lock next.
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            super::keep_errno(|| {
                // SAFETY: only wakes.
                unsafe {
                    libc::syscall(
                        libc::SYS_futex,
                        self.state.as_ptr(),
                        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                        1,
                    )
                }
            });
        }
    }

    /// Frees the lock in the child of a fork, where whoever waited for it no longer exists.
    pub(crate) fn reset_in_child(&self) {
        self.state.store(FREE, Ordering::Relaxed);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_stays_so_when_somebody_tries() {
        let lock = Lock::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none() && lock.try_lock().is_none(), "the first try has released it");
        drop(held);
        *lock.try_lock().unwrap() += 1;
        assert_eq!(*lock.lock(), 2);
    }
}
