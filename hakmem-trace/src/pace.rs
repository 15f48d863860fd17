//! Threads that stay together as they did when they were recorded.
//!
//! A recording does not say why a thread waited. Let loose, a producer would run far ahead of its consumer
//! and the heap would grow as it never did. So the recording is cut into spans of [`SPAN`] operations of all
//! threads, and nobody begins with a span before the one before the last is done by all. Within two spans the
//! threads run as they like, except that nobody ends an object before it has been made.
//!
//! That cannot lock up. Of all operations not yet done look at the first in the order of the recording. All
//! before it are done, so its thread has been started (by the thread of the operation just before), the spans
//! before it have been left (right behind each thread's last operation in them), and its object has been
//! made. Nothing keeps it waiting.

use std::sync::atomic::{AtomicU32, Ordering};

/// Operations in a span.
pub(crate) const SPAN: usize = 1024;

/// For every span the number of threads that are not done with it.
pub(crate) struct Pace<'a>(pub(crate) &'a [AtomicU32]);

impl Pace<'_> {
    /// Waits until the thread may begin with `span`.
    ///
    /// Two counters are enough: whoever had a part in span - 2, and someone had, waited for span - 4 and span
    /// - 5, and so on back to the start.
    pub(crate) fn enter(&self, span: u32) {
        for back in [2, 3] {
            if let Some(span) = span.checked_sub(back) {
                self.wait(&self.0[span as usize]);
            }
        }
    }

    fn wait(&self, threads: &AtomicU32) {
        loop {
            // Acquire: pairs with the Release in `leave`; what those threads freed may be made again.
            match threads.load(Ordering::Acquire) {
                0 => return,
                count => futex(threads, libc::FUTEX_WAIT, count),
            }
        }
    }

    /// The thread has no more to do in `span`.
    pub(crate) fn leave(&self, span: u32) {
        let threads = &self.0[span as usize];
        // Release: pairs with the Acquire in `wait`; AcqRel because the last one speaks for all.
        if threads.fetch_sub(1, Ordering::AcqRel) == 1 {
            futex(threads, libc::FUTEX_WAKE, i32::MAX as u32);
        }
    }
}

/// Waits while `word` is `value`, or wakes so many waiters.
pub(crate) fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: a live word, no time limit. Every reason to return (changed, interrupted) is found out by
    // looking again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, none)
    };
}
