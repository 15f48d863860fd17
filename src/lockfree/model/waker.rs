//! How the background thread sleeps and is woken. The futex is loom's `park`; that a thread sleeps for ever shows as a
//! deadlock.

use crate::lockfree::waker::Waker;
use loom::sync::{Arc, Mutex};
use loom::thread;

struct Shared {
    alarm: Waker,
    dirty: Mutex<u32>,
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { alarm: Waker::new(), dirty: Mutex::new(0) })
}

/// The thread's loop, until it has seen `until` dirty pages or is stopped; how many it has seen.
fn sleeper(shared: &Shared, until: u32) -> u32 {
    let mut seen = 0;
    loop {
        seen += std::mem::take(&mut *shared.dirty.lock().unwrap());
        if seen == until || !shared.alarm.arm() {
            return seen;
        }
        // Armed first, looked afterwards.
        if *shared.dirty.lock().unwrap() == 0 {
            while shared.alarm.is_asleep() {
                thread::park();
            }
        }
        shared.alarm.rise();
    }
}

fn give(shared: &Shared, sleeper: &thread::Thread) {
    *shared.dirty.lock().unwrap() += 1;
    if shared.alarm.notify() {
        sleeper.unpark();
    }
}

#[test]
fn whoever_makes_something_dirty_wakes_the_sleeper() {
    loom::model(|| {
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
    loom::model(|| {
        let shared = shared();
        let other = shared.clone();
        let thread = thread::spawn(move || sleeper(&other, u32::MAX));
        let (second, handle) = (shared.clone(), thread.thread().clone());
        let giver = thread::spawn(move || give(&second, &handle));
        shared.alarm.stop();
        thread.thread().unpark();
        giver.join().unwrap();
        assert!(thread.join().unwrap() <= 1);
        assert!(shared.alarm.is_stopped());
    });
}

/// One that sleeps until it is time is not woken by something dirty, and stays stopped when it rises.
#[test]
fn a_dozing_sleeper_is_woken_by_nothing_but_its_end() {
    loom::model(|| {
        let shared = shared();
        assert!(shared.alarm.arm() && shared.alarm.doze());
        let other = shared.clone();
        let giver = thread::spawn(move || assert!(!other.alarm.notify()));
        shared.alarm.stop();
        giver.join().unwrap();
        shared.alarm.rise();
        assert!(shared.alarm.is_stopped() && !shared.alarm.arm());
    });
}
