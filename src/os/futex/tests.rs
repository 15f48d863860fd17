//! Tests of the lock.

use super::*;
use std::sync::mpsc::channel;
use std::thread;

impl Inherit for u32 {
    fn inherit(&mut self, torn: bool) {
        *self += if torn { 100 } else { 10 };
    }
}

#[test]
fn a_failed_try_does_not_release_the_lock() {
    let lock = Lock::new(1);
    let held = lock.lock();
    assert!(lock.try_lock().is_none() && lock.try_lock().is_none(), "the first try has released it");
    assert!(lock.lock_soon().is_none(), "a thread does not wait for itself");
    drop(held);
    *lock.try_lock().unwrap() += 1;
    assert_eq!(*lock.lock(), 2);
}

#[test]
fn waiting_is_limited_and_an_overdue_holder_is_not_waited_for_again() {
    static LOCK: Lock<u32> = Lock::new(0);
    let held = LOCK.lock();
    assert!(!LOCK.is_waited_for());
    thread::spawn(|| {
        assert!(LOCK.lock_soon().is_none());
        assert!(LOCK.is_waited_for());
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
fn who_is_patient_waits_for_an_overdue_holder_but_not_for_itself() {
    static LOCK: Lock<u32> = Lock::new(0);
    let held = LOCK.lock();
    assert!(LOCK.lock_patiently().is_none());
    // More than once, should this thread be kept from running for that long.
    let other = thread::spawn(|| {
        let mut locked = std::iter::repeat_with(|| LOCK.lock_patiently()).flatten();
        *locked.next().unwrap() += 1;
    });
    while LOCK.overdue.load(Ordering::Relaxed) == 0 {
        thread::yield_now();
    }
    drop(held);
    other.join().unwrap();
    assert_eq!(*LOCK.lock(), 1);
}

#[test]
fn waiters_get_the_lock_when_it_is_free() {
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
fn a_child_repairs_an_inherited_value_once() {
    let lock = Lock::new(0);
    lock.inherit();
    assert!(!lock.is_held());
    assert_eq!(*lock.lock(), 10);
    assert_eq!(*lock.try_lock().unwrap(), 10);
    // A lock that the surviving thread holds stays locked; its value is repaired afterwards.
    let held = lock.lock();
    lock.inherit();
    assert!(lock.is_held() && lock.try_lock().is_none());
    drop(held);
    assert_eq!(*lock.lock(), 20);
}

#[test]
fn a_value_that_another_thread_held_is_torn_until_repaired() {
    static LOCK: Lock<u32> = Lock::new(0);
    let (held, hold) = channel();
    let (end, ended) = channel::<()>();
    let other = thread::spawn(move || {
        let guard = LOCK.lock();
        held.send(()).unwrap();
        let _ = ended.recv();
        // In a real child this guard would not exist.
        core::mem::forget(guard);
    });
    hold.recv().unwrap();
    LOCK.inherit();
    // A child of the child, before anybody has repaired the value.
    LOCK.inherit();
    assert_eq!(*LOCK.lock_soon().unwrap(), 100);
    assert_eq!(*LOCK.lock(), 100);
    drop(end);
    other.join().unwrap();
}
