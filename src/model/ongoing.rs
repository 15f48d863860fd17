//! Work that a fork waits for.

use crate::ongoing::Ongoing;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A thread works; a fork that has closed and found nobody left may touch what the thread had, and what it did is seen by
/// whoever begins afterwards.
#[test]
fn a_fork_is_alone_with_what_others_had() {
    loom::model(|| {
        let shared = Arc::new((Ongoing::new(), UnsafeCell::new(0)));
        let other = shared.clone();
        let thread = thread::spawn(move || {
            let (work, memory) = &*other;
            if work.enter() {
                // SAFETY: at work, so ours; loom checks it.
                unsafe { memory.with_mut(|p| *p += 1) };
                work.leave();
            }
        });
        let (work, memory) = &*shared;
        work.close();
        while work.left() != 0 {
            thread::yield_now();
        }
        // SAFETY: nobody is at work, and nobody begins; loom checks it.
        unsafe { memory.with_mut(|p| *p += 10) };
        work.open();
        thread.join().unwrap();
        assert_eq!(work.left(), 0);
    });
}

#[test]
fn the_last_one_out_wakes_the_fork() {
    loom::model(|| {
        let work = Arc::new(Ongoing::new());
        assert!(work.enter() && work.enter());
        let other = work.clone();
        let thread = thread::spawn(move || other.leave());
        work.close();
        assert!(!work.enter());
        let last = work.leave();
        let other = thread.join().unwrap();
        // One that left before it was closed wakes nobody, and the last one always does.
        assert!(last != other, "{last} {other}");
        assert_eq!(work.left(), 0);
        assert!(!work.leave(), "nothing is counted");
        work.open();
        assert!(work.enter());
    });
}
