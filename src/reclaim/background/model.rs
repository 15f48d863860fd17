//! Models of the background thread: its start and its end, and how it is woken.

use super::{OFF, ON, PASSES, STATE, run, start, stop};
use crate::base::options::{self, Options};
use crate::lockfree::waker::{self, WAKER};
use crate::os::futex::Lock;
use crate::sync::Ordering::Relaxed;
use crate::sync::loom::{aside, model_of_statics as model, not_joined, second};
use crate::sync::{AtomicU32, Ordering};
use loom::thread;

/// Nothing goes back unless asked for: so the thread does nothing but wait for its end.
fn begin() {
    aside(|| options::init(&Options::new().purge_delay_ms(-1), |_| ()));
}

fn state() -> u32 {
    STATE.load(Ordering::Acquire)
}

/// One thread starts it while another one ends it. Whatever comes first: it runs or does not, and who has
/// ended has been joined.
#[test]
fn it_is_started_or_ended() {
    model(Some(1), || {
        begin();
        let other = thread::spawn(|| assert_eq!(start(), 0));
        second(stop);
        other.join().unwrap();
        assert!(state() == OFF || state() == ON);
        assert_eq!(not_joined(), usize::from(state() == ON));
        stop();
        assert_eq!((state(), not_joined()), (OFF, 0));
    });
}

/// Two threads end it: both return when it has ended, and one of them has joined it.
#[test]
fn it_is_joined_once() {
    model(Some(2), || {
        begin();
        assert_eq!(start(), 0);
        // Whoever returns finds all done that the thread did.
        let end = || {
            stop();
            assert_ne!(PASSES.load(Relaxed), 0);
        };
        let other = thread::spawn(end);
        second(end);
        other.join().unwrap();
        assert_eq!((state(), not_joined()), (OFF, 0));
    });
}

/// Two threads start it, one of them without waiting: there is one, which its end finds.
#[test]
fn there_is_one_of_it() {
    model(Some(2), || {
        begin();
        super::WANTED.store(true, Relaxed);
        let other = thread::spawn(|| assert_eq!(run(false), 0));
        assert_eq!(start(), 0);
        assert_eq!((state(), not_joined()), (ON, 1));
        other.join().unwrap();
        stop();
        assert_eq!((state(), not_joined()), (OFF, 0));
    });
}

/// The one that starts it again finds what the end of the last one has left.
#[test]
fn it_starts_again_after_its_end() {
    model(Some(2), || {
        begin();
        assert_eq!(start(), 0);
        let other = thread::spawn(stop);
        assert_eq!(start(), 0);
        other.join().unwrap();
        stop();
        assert_eq!((state(), not_joined()), (OFF, 0));
    });
}

/// What is dirty, under the lock that guards it.
static DIRTY: Lock<()> = Lock::new(());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The thread's loop, with its sleep as it ships, until something is dirty.
fn sleeper() {
    while WAKER.arm() {
        // First arm, then look, under the lock. Who does not get that sleeps with a timeout.
        let seen = DIRTY.lock_soon().map(|_| COUNT.load(Relaxed));
        if seen == Some(1) {
            return WAKER.rise();
        }
        if seen.is_some() {
            waker::sleep(u32::MAX);
        } else {
            WAKER.rise();
            thread::yield_now();
        }
    }
}

#[test]
fn it_is_woken_by_what_becomes_dirty() {
    model(Some(3), || {
        let sleeper = thread::spawn(sleeper);
        if let Some(guard) = DIRTY.lock_soon() {
            COUNT.store(1, Relaxed);
            drop(guard);
            waker::notify();
        } else {
            COUNT.store(1, Relaxed);
            waker::notify_unlocked();
        }
        sleeper.join().unwrap();
    });
}

/// Something becomes dirty without the lock, and the sleeper is told by `tell`.
fn is_woken_by(tell: fn()) {
    model(Some(3), move || {
        let sleeper = thread::spawn(sleeper);
        COUNT.store(1, Relaxed);
        tell();
        sleeper.join().unwrap();
    });
}

/// So it is where the lock was not free soon, and the change was made without it.
#[test]
fn it_is_woken_by_what_becomes_dirty_without_the_lock() {
    is_woken_by(waker::notify_unlocked);
}

/// So it is by the end of a thread, whatever it waits for.
#[test]
fn it_is_roused() {
    is_woken_by(waker::rouse);
}
