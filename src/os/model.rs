//! Models of what threads wait for: locks, values that are made once, the repair of a child.

use crate::base::limits;
use crate::base::once::Once;
use crate::os::futex::{Inherit, Lock};
use crate::os::process::Noticed;
use crate::os::{held, process, returning, thread as threads};
use crate::sync::loom::{beside, model, model_of_statics};
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::vec::Vec;

/// Something that one thread at a time may use. Loom checks that.
struct Plain(UnsafeCell<u32>);

// SAFETY: loom checks every access.
unsafe impl Send for Plain {}
// SAFETY: as for `Send`.
unsafe impl Sync for Plain {}

impl Plain {
    fn new() -> Plain {
        Plain(UnsafeCell::new(0))
    }
    fn add(&self) {
        // SAFETY: loom checks that no other access is concurrent.
        self.0.with_mut(|p| unsafe { *p += 1 });
    }
    fn get(&self) -> u32 {
        // SAFETY: loom checks that no write is concurrent.
        self.0.with(|p| unsafe { *p })
    }
}

impl Inherit for Plain {
    fn inherit(&mut self, torn: bool) {
        self.0.with_mut(|p| {
            // SAFETY: loom checks that no other access is concurrent.
            unsafe { *p += if torn { 100 } else { 10 } }
        });
    }
}

fn threads(count: usize, f: impl Fn(usize) + Clone + Send + 'static) -> Vec<thread::JoinHandle<()>> {
    (1..count)
        .map(|number| {
            let f = f.clone();
            thread::spawn(move || f(number))
        })
        .collect()
}

fn all(count: usize, f: impl Fn(usize) + Clone + Send + 'static) {
    let others = threads(count, f.clone());
    f(0);
    others.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_lock_has_one_holder_who_sees_what_the_last_did() {
    model(None, || {
        let lock = Arc::new(Lock::new(Plain::new()));
        let had = Arc::new(AtomicU32::new(0));
        let (ours, count) = (lock.clone(), had.clone());
        all(2, move |_| {
            if let Some(guard) = ours.lock_soon() {
                guard.add();
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(lock.lock().get(), had.load(Ordering::Relaxed));
    });
}

/// Two take it twice: whoever has waited leaves a flag, and no note of a holder outlives its holding.
#[test]
fn nobody_is_overdue_who_has_unlocked() {
    model(Some(3), || {
        let lock = Arc::new(Lock::new(Plain::new()));
        let ours = lock.clone();
        all(2, move |number| {
            for _ in 0..2 - number {
                if let Some(guard) = ours.lock_soon() {
                    guard.add();
                    drop(guard);
                }
            }
        });
        assert!(lock.is_at_rest(), "the lock is free, and no holder is noted");
    });
}

#[test]
fn three_threads_have_a_lock_in_turn() {
    model(Some(2), || {
        let lock = Arc::new(Lock::new(Plain::new()));
        let ours = lock.clone();
        all(3, move |_| {
            if let Some(guard) = ours.lock_soon() {
                guard.add();
            }
        });
        assert!(lock.is_at_rest());
        lock.lock().get();
    });
}

#[test]
fn whoever_finds_a_lock_free_sees_what_its_holder_did() {
    model(None, || {
        let lock = Arc::new(Lock::new(Plain::new()));
        let ours = lock.clone();
        all(2, move |number| {
            let guard = if number == 0 { ours.lock_soon() } else { ours.try_lock() };
            if let Some(guard) = guard {
                guard.add();
            }
        });
    });
}

/// In the child of a fork the first of two threads repairs the value, and the other one sees that.
#[test]
fn an_inherited_value_is_repaired_by_one() {
    model(None, || {
        let lock = Arc::new(Lock::new(Plain::new()));
        lock.inherit();
        let ours = lock.clone();
        all(2, move |_| {
            if let Some(guard) = ours.try_lock() {
                assert_eq!(guard.get(), 10);
            }
        });
    });
}

#[test]
fn a_value_is_made_once_and_seen_whole() {
    model(None, || {
        let once = Arc::new(Once::new());
        let made = Arc::new(AtomicU32::new(0));
        let (ours, count) = (once.clone(), made.clone());
        all(2, move |_| {
            if ours.get().is_none() {
                ours.init(|| {
                    count.fetch_add(1, Ordering::Relaxed);
                    let value = Plain::new();
                    value.add();
                    value
                });
            }
            assert_eq!(ours.get().unwrap().get(), 1);
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_value_that_is_there_is_whole() {
    model(None, || {
        let once = Arc::new(Once::new());
        let ours = once.clone();
        let maker = beside(move || {
            ours.init(|| {
                let value = Plain::new();
                value.add();
                value
            });
        });
        if let Some(value) = once.get() {
            assert_eq!(value.get(), 1);
        }
        maker.join().unwrap();
    });
}

std::thread_local! {
    /// What the hooks below write to.
    static SEEN: std::cell::RefCell<Option<std::sync::Arc<Plain>>> = const { std::cell::RefCell::new(None) };
}

fn seen() -> std::sync::Arc<Plain> {
    SEEN.with_borrow(|seen| seen.clone().unwrap())
}

fn note() {
    seen().add();
}

/// Of two threads that cross the limit, one runs the hook at a time, and sees what the run before has done.
#[test]
fn the_hook_runs_in_one_thread_at_a_time() {
    model_of_statics(Some(3), || {
        SEEN.set(Some(std::sync::Arc::new(Plain::new())));
        limits::on_soft_limit(Some(|_, _| note()));
        all(2, move |_| {
            held::cross();
            limits::report_crossing();
        });
    });
}

/// A thread that is about to get a heap waits until the one that forked has repaired everything.
#[test]
fn no_thread_gets_a_heap_beside_the_repair_of_a_child() {
    model_of_statics(None, || {
        static DONE: AtomicBool = AtomicBool::new(false);
        SEEN.set(Some(std::sync::Arc::new(Plain::new())));
        process::on_fork(|noticed| {
            // Nothing is repaired where another thread is the first to notice.
            if noticed == Noticed::InTime {
                note();
                DONE.store(true, Ordering::Relaxed);
            }
        });
        process::as_in_a_child();
        assert!(threads::is_first());
        let other = thread::spawn(|| {
            let mut waits = process::look_before_heap();
            while waits {
                thread::yield_now();
                waits = process::look_before_heap();
            }
            if DONE.load(Ordering::Relaxed) {
                assert_eq!(seen().get(), 1);
            }
        });
        process::look();
        other.join().unwrap();
        process::unmap();
    });
}

/// The thread that forked does its part, and knows what another one has found out that has noticed first.
#[test]
fn who_forked_and_is_late_knows_what_was_found() {
    model_of_statics(None, || {
        SEEN.set(Some(std::sync::Arc::new(Plain::new())));
        process::on_fork(|noticed| match noticed {
            Noticed::InTime => {}
            Noticed::ByOther => note(),
            Noticed::Late => assert_eq!(seen().get(), 1),
        });
        process::as_in_a_child();
        let other = thread::spawn(process::look);
        while !process::look() {
            thread::yield_now();
        }
        other.join().unwrap();
        assert!(!process::look(), "nothing is left to do");
        process::unmap();
    });
}

/// Whoever sees the page finds in it that this is no child.
#[test]
fn the_page_is_complete_when_it_is_seen() {
    model_of_statics(None, || {
        let other = thread::spawn(|| assert!(!process::look()));
        process::on_fork(|_| panic!("no fork"));
        other.join().unwrap();
        process::unmap();
    });
}

/// Whoever does not find what another thread has taken out to give it back knows when that has been done.
#[test]
fn what_is_given_back_is_waited_for() {
    model_of_statics(Some(3), || {
        // What is held for memory that is free, as long as the lock's value is 0.
        static HELD: AtomicU32 = AtomicU32::new(1);
        let free = Arc::new(Lock::new(Plain::new()));
        let cache = free.clone();
        HELD.store(1, Ordering::Relaxed);
        let other = beside(move || {
            let taken = cache.lock();
            taken.add();
            let _returning = returning::Returning::begin();
            drop(taken);
            HELD.store(0, Ordering::Relaxed);
        });
        let seen = returning::returned();
        if free.lock().get() != 0 {
            // As in `reclaim/retry.rs`.
            let mut waits = returning::is_returning();
            while waits && returning::returned() == seen {
                thread::yield_now();
                waits = returning::is_returning();
            }
            let _ = returning::returned();
            assert_eq!(HELD.load(Ordering::Relaxed), 0);
        }
        other.join().unwrap();
    });
}
