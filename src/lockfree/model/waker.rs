//! How the background thread sleeps and is woken. Loom's `park` stands for the futex. A thread that would
//! sleep forever shows as a deadlock.

use crate::lockfree::waker::Waker;
use crate::sync::loom::model;
use loom::sync::{Arc, Mutex};
use loom::thread;

struct Shared {
    waker: Waker,
    dirty: Mutex<u32>,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { waker: Waker::new(), dirty: Mutex::new(0) })
}

/// The background thread's loop, until it has seen `until` dirty slices or is stopped. Returns how many it
/// has seen.
fn sleeper(shared: &Shared, until: u32) -> u32 {
    let mut seen = 0;
    loop {
        seen += std::mem::take(&mut *shared.dirty.lock().unwrap());
        if seen == until || !shared.waker.arm() {
            return seen;
        }
        // First arm, then look.
        if *shared.dirty.lock().unwrap() == 0 {
            while shared.waker.is_asleep() {
                thread::park();
            }
        }
        shared.waker.rise();
    }
}

fn give(shared: &Shared, sleeper: &thread::Thread) {
    *shared.dirty.lock().unwrap() += 1;
    if shared.waker.notify() {
        sleeper.unpark();
    }
}

#[test]
fn whoever_makes_something_dirty_wakes_the_sleeper() {
    model(None, || {
        let shared = shared();
        let other = shared.clone();
        let thread = thread::spawn(move || sleeper(&other, 2));
        give(&shared, thread.thread());
        give(&shared, thread.thread());
        assert_eq!(thread.join().unwrap(), 2);
    });
}

#[test]
fn a_sleeper_that_is_stopped_ends_whatever_else_happens() {
    model(Some(3), || {
        let shared = shared();
        let other = shared.clone();
        let thread = thread::spawn(move || sleeper(&other, u32::MAX));
        let (second, handle) = (shared.clone(), thread.thread().clone());
        let giver = thread::spawn(move || give(&second, &handle));
        shared.waker.stop();
        thread.thread().unpark();
        giver.join().unwrap();
        assert!(thread.join().unwrap() <= 1);
        assert!(shared.waker.is_stopped());
    });
}

/// A sleeper with a timeout is not woken by something dirty, and stays stopped when it rises.
#[test]
fn a_dozing_sleeper_is_woken_by_nothing_but_its_end() {
    model(None, || {
        let shared = shared();
        assert!(shared.waker.arm() && shared.waker.doze());
        let other = shared.clone();
        let giver = thread::spawn(move || assert!(!other.waker.notify()));
        shared.waker.stop();
        giver.join().unwrap();
        shared.waker.rise();
        assert!(shared.waker.is_stopped() && !shared.waker.arm());
    });
}
