//! Tests beside other threads that have heaps.

use crate::support::{give, take};
use std::sync::mpsc::channel;
use std::thread;

/// Runs `f` while so many threads, with this one, have a heap.
pub fn among(threads: usize, f: impl FnOnce()) {
    thread::scope(|scope| {
        let others = (1..threads).map(|_| {
            let (begun, begins) = channel();
            let (end, ends) = channel::<()>();
            let other = scope.spawn(move || {
                give(take(16), 16);
                begun.send(()).unwrap();
                // Until the other end is gone, also if `f` panics.
                ends.recv().unwrap_err();
            });
            begins.recv().unwrap();
            (end, other)
        });
        let (ends, others): (Vec<_>, Vec<_>) = others.unzip();
        f();
        drop(ends);
        // To the ends of the threads, not only of these functions.
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
