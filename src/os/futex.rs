//! A lock for rare, short critical sections: no allocation, no poisoning, no system call unless contended.
//!
//! No lock is held across a fork, and no thread waits for one forever:
//!
//! * The word names the thread that holds the lock. So the child of a fork can tell which locks are held by
//!   threads that it does not have ([`Lock::inherit`]). Whoever takes such a lock first repairs its value
//!   ([`Inherit`]).
//! * [`Lock::lock_soon`] gives up after some milliseconds. A signal handler can interrupt a thread that holds
//!   a lock, and then wait, by way of the C library's own locks, for a thread that waits here: `fork` takes
//!   those locks, and a thread that holds a `FILE` allocates. Each caller says what it does without the lock.

use crate::os::{elapsed, now_ms, process, raw, thread};
use crate::sync::{AtomicUsize, Ordering};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr;
use crossbeam_utils::Backoff;

/// How often to look at a held lock before sleeping: pauses double, and last a critical section together.
const SPINS: u32 = if cfg!(loom) { 1 } else { 6 };
/// How often a thread that must not wait forever sleeps at most while one thread keeps the lock, and for how
/// many milliseconds each time. A holder that was descheduled is running again by then, unless many threads
/// compete.
const NAPS: u32 = if cfg!(loom) { 1 } else { 5 };
/// How often it sleeps at most when the lock changes hands meanwhile.
const TURNS: u32 = if cfg!(loom) { 3 } else { 64 };
/// See [`NAPS`].
const NAP: u32 = 2;
/// For how many milliseconds [`Lock::lock_patiently`] tries again.
const PATIENCE: u32 = if cfg!(loom) { 0 } else { 1_000 };

/// Flags below the holder's [`thread::id`]: a thread may be asleep on this word.
const WAITED_FOR: usize = 1;
/// In the child of a fork: nobody has repaired the value yet.
const INHERITED: usize = 2;
/// The same, and another thread was changing the value when the fork stopped it.
const TORN: usize = 4;
const FLAGS: usize = WAITED_FOR | INHERITED | TORN;

/// A value that a lock guards.
pub(crate) trait Inherit {
    /// Repairs what threads of the parent have left. Called in the child of a fork before anything else is
    /// done with the value. Threads may have been stopped in work that they had begun under the lock; if
    /// `torn`, one of them was changing the value itself. Its stores up to that point have all been done, in
    /// program order.
    fn inherit(&mut self, torn: bool);
}

/// Nothing to repair.
impl Inherit for () {
    fn inherit(&mut self, _torn: bool) {}
}

/// A mutual-exclusion lock around a value. Sleeps on a futex when contended.
pub(crate) struct Lock<T> {
    /// The holder's thread id or 0, and the flags.
    word: AtomicUsize,
    /// A holder that some thread has waited for in vain, or 0. Others do not wait for it either until it
    /// unlocks.
    overdue: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only a `Guard` reaches the value, and there is one guard at a time, which hands the value from
// thread to thread.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Exclusive access to the value, until dropped.
pub(crate) struct Guard<'a, T: Inherit> {
    lock: &'a Lock<T>,
    me: usize,
}

/// Sleeps while the word is `value`, for at most `ms` milliseconds if given. May return spuriously. Whether
/// the thread was woken, or found another value, rather than at the end of its time or after a signal.
pub(crate) fn wait(word: *mut u32, value: u32, ms: Option<u32>) -> bool {
    // Not known to loom, in whose models all threads are one to the system.
    #[cfg(loom)]
    if crate::sync::loom::thread_number() != 0 {
        crate::sync::loom::pass();
        // SAFETY: a model's words stay.
        return unsafe { word.read() } != value;
    }
    let time = ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000) as _,
        tv_nsec: (ms % 1000 * 1_000_000) as libc::c_long,
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `time` is null or points at a local variable. The kernel reads the word itself and reports an
    // error if the address is not mapped.
    let done = unsafe { raw::call!(SYS_futex, word, operation, value, time) };
    matches!(done, Ok(_) | Err(libc::EAGAIN))
}

/// Wakes all threads that sleep on the word.
pub(crate) fn wake(word: *mut u32) {
    wake_some(word, i32::MAX);
}

/// Wakes at most `count` threads that sleep on the word.
fn wake_some(word: *mut u32, count: i32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a key only and accesses no memory of ours.
    let _ = unsafe { raw::call!(SYS_futex, word, operation, count) };
}

/// Sleeps for a millisecond, so that other threads can run.
pub(crate) fn pause() {
    let mut word = 0;
    wait(&raw mut word, 0, Some(1));
}

impl<T: Inherit> Lock<T> {
    /// A free lock.
    pub(crate) const fn new(value: T) -> Self {
        Self { word: AtomicUsize::new(0), overdue: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock, however long it takes: for calls that the program makes on purpose. Not for signal
    /// handlers.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.lock_soon() {
                return guard;
            }
            pause();
        }
    }

    /// Sets the value without the lock, of which a model could have only so many.
    ///
    /// # Safety
    ///
    /// No other thread uses the lock.
    #[cfg(all(test, loom))]
    pub(crate) unsafe fn set(&self, value: T) {
        // SAFETY: the caller's clause.
        unsafe { *self.value.get() = value };
    }

    /// Waits for the lock for a limited time. Does not wait at all when this thread itself holds the lock, in
    /// code that a signal handler has interrupted.
    #[inline]
    pub(crate) fn lock_soon(&self) -> Option<Guard<'_, T>> {
        let me = thread::id();
        // Acquire: pairs with the releases in `Guard::drop` and `unlock_flagged`.
        let free = self.word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Not `then_some`: that would build the guard in any case, and dropping it would release another
        // thread's lock.
        (free || self.wait(me)).then(|| Guard { lock: self, me })
    }

    /// Waits for the lock for about a second: for calls that the program makes on purpose, perhaps in a
    /// signal handler. Like [`lock_soon`](Lock::lock_soon), does not wait for the calling thread itself.
    pub(crate) fn lock_patiently(&self) -> Option<Guard<'_, T>> {
        let begun = now_ms();
        loop {
            if let Some(guard) = self.lock_soon() {
                return Some(guard);
            }
            let is_ours = self.word.load(Ordering::Relaxed) & !FLAGS == thread::id();
            if is_ours || elapsed(begun, now_ms()) >= PATIENCE {
                return None;
            }
            pause();
        }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let me = thread::id();
        self.try_take(self.word.load(Ordering::Relaxed), me).then(|| Guard { lock: self, me })
    }

    /// Takes the lock if `word` says that it is free and is still current.
    fn try_take(&self, word: usize, me: usize) -> bool {
        // Acquire: pairs with the releases in `Guard::drop` and `unlock_flagged`.
        if word & !FLAGS != 0
            || self.word.compare_exchange(word, me, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        if word & INHERITED != 0 {
            // SAFETY: the exchange above took the lock, so this thread alone has access to the value.
            unsafe { (*self.value.get()).inherit(word & TORN != 0) };
        }
        true
    }

    /// Waits for a lock that was not free. False after [`NAPS`] sleeps in vain for one holder, or [`TURNS`]
    /// in all.
    #[cold]
    #[inline(never)]
    fn wait(&self, me: usize) -> bool {
        let backoff = Backoff::new();
        let (mut spins, mut napped, mut slept) = (0, 0, 0);
        let mut last = 0;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            let holder = word & !FLAGS;
            if holder == 0 {
                if self.try_take(word, me) {
                    if slept != 0 {
                        // Others may be asleep, too, and unlocking wakes only one of us.
                        self.word.fetch_or(WAITED_FOR, Ordering::Relaxed);
                    }
                    return true;
                }
                continue;
            }
            // In the child of a fork the holder may not exist.
            if process::look() {
                continue;
            }
            if holder == me {
                return false;
            }
            if spins < SPINS {
                spins += 1;
                #[cfg(loom)]
                crate::sync::loom::pass();
                backoff.spin();
                continue;
            }
            if self.overdue.load(Ordering::Relaxed) == holder {
                return false;
            }
            if holder != last {
                (last, napped) = (holder, 0);
            }
            if napped == NAPS {
                self.overdue.store(holder, Ordering::Relaxed);
                // Release: pairs with the acquire in `unlock_flagged`, which the flag makes the holder call:
                // so what was stored above does not outlive this holding.
                let asleep = word | WAITED_FOR;
                if self.word.compare_exchange(word, asleep, Ordering::Release, Ordering::Relaxed).is_ok() {
                    return false;
                }
                self.overdue.store(0, Ordering::Relaxed);
                napped = 0;
                continue;
            }
            if slept == TURNS {
                return false;
            }
            if let Some(woken) = self.sleep(word) {
                slept += 1;
                // Who was woken has seen the holder unlock: it may have lost to another, or to the same one
                // again.
                napped = if woken { 0 } else { napped + 1 };
            }
        }
    }

    /// Sleeps until the lock is unlocked, for [`NAP`] milliseconds at most, and says which it was. `None`, at
    /// once, if its word is not `word` any more.
    fn sleep(&self, word: usize) -> Option<bool> {
        let asleep = word | WAITED_FOR;
        // Relaxed: this takes nothing; `try_take` acquires.
        let flagged = word == asleep
            || self.word.compare_exchange(word, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // The kernel compares the lower half, which comes first in memory. Two holders may share it. Then we
        // sleep although the holder has changed, but no longer than the nap. To Miri it is a race.
        if cfg!(miri) {
            return flagged.then(pause).map(|()| true);
        }
        flagged.then(|| wait(self.word.as_ptr().cast(), asleep as u32, Some(NAP)))
    }

    /// If the lock is held, sleeps until it is unlocked, or for [`NAP`] milliseconds at most.
    pub(crate) fn nap(&self) {
        // In the child of a fork the holder may not exist.
        process::look();
        let word = self.word.load(Ordering::Relaxed);
        if word & !FLAGS != 0 {
            self.sleep(word);
        }
    }

    #[cold]
    #[inline(never)]
    fn unlock_flagged(&self) {
        // Release: pairs with the acquire in `lock_soon` and `try_take`, as in `Guard::drop`. Acquire: pairs
        // with the release in `wait`, so that the store below comes after the one there.
        let before = self.word.fetch_and(INHERITED | TORN, Ordering::AcqRel);
        self.overdue.store(0, Ordering::Relaxed);
        if before & WAITED_FOR != 0 {
            wake_some(self.word.as_ptr().cast(), 1);
        }
    }

    /// Frees the lock from threads that do not exist here. Called in the child of a fork by the thread that
    /// forked, while it is the only one. What this thread holds itself, in code that a signal handler has
    /// interrupted, it keeps.
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

    /// Whether the lock is free, and says nothing of any holder.
    #[cfg(all(test, loom))]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0 && self.overdue.load(Ordering::Relaxed) == 0
    }

    /// Whether a thread may be asleep until the holder, the caller, unlocks.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WAITED_FOR != 0
    }

    /// Whether a thread holds the lock.
    pub(crate) fn is_held(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !FLAGS != 0
    }
}

impl<T: Inherit> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so nobody else has a reference to the value; `self` is borrowed
        // as long as the result.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: Inherit> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, so nobody else has a reference to the value; `self` is borrowed
        // exclusively as long as the result.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: Inherit> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        let word = &self.lock.word;
        // Release: pairs with the acquire in `lock_soon` and `try_take`, by which the next holder sees the
        // value as we leave it.
        if word.compare_exchange(self.me, 0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.lock.unlock_flagged();
        }
    }
}

#[cfg(test)]
mod tests;
