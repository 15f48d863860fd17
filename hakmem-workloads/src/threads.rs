//! Threads without anything of std's, which allocates for its own: these allocate what their job does and
//! nothing else.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, process, ptr, thread};

use crate::mapped::Mapped;

/// Bytes of a thread's stack: what is not touched costs nothing.
const STACK: usize = 256 << 10;

/// What every thread does.
pub trait Job: Sync {
    /// The whole life of one thread; `number` is another one for each, from 0.
    fn work(&self, number: usize);
}

/// What the threads are started with.
struct Shared<'a, J> {
    job: &'a J,
    next: AtomicUsize,
}

extern "C" fn run<J: Job>(shared: *mut c_void) -> *mut c_void {
    // SAFETY: `with_threads` passes it, and keeps it until every thread has ended.
    let shared = unsafe { &*shared.cast::<Shared<J>>() };
    // Relaxed: only the numbers matter.
    shared.job.work(shared.next.fetch_add(1, Ordering::Relaxed));
    ptr::null_mut()
}

/// Ends the program when it is dropped by a panic: the threads use what unwinding would take from under them.
struct NoUnwinding;

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}

/// Runs `job` on `count` threads at once and `meanwhile` here; returns when all have ended. Ends the program
/// when the system refuses a thread: the others may wait for it for ever.
pub fn with_threads<J: Job, R>(count: usize, job: &J, meanwhile: impl FnOnce() -> R) -> R {
    let shared = Shared { job, next: AtomicUsize::new(0) };
    let mut handles = Mapped::<libc::pthread_t>::new(count);
    let _all_or_nothing = NoUnwinding;
    for (started, handle) in handles.iter_mut().enumerate() {
        // SAFETY: a live attribute object, set up before it is used; what is shared outlives the threads.
        let failed = unsafe {
            let mut attributes = MaybeUninit::uninit();
            libc::pthread_attr_init(attributes.as_mut_ptr());
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
            let shared = (&raw const shared).cast_mut().cast();
            libc::pthread_create(handle, attributes.as_ptr(), run::<J>, shared)
        };
        if failed != 0 {
            let why = io::Error::from_raw_os_error(failed);
            panic!("only {started} of {count} threads could be started: {why}");
        }
    }
    let result = meanwhile();
    for handle in handles.iter() {
        // SAFETY: started above, joined once.
        unsafe { libc::pthread_join(*handle, ptr::null_mut()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn every_thread_works_once_and_at_the_same_time_as_the_others() {
        struct Meet(Barrier, AtomicUsize);
        impl Job for Meet {
            fn work(&self, number: usize) {
                self.0.wait();
                self.1.fetch_add(1 << (8 * number), Ordering::Relaxed);
            }
        }
        let meet = Meet(Barrier::new(4), AtomicUsize::new(0));
        assert_eq!(
            with_threads(3, &meet, || {
                meet.0.wait();
                7
            }),
            7
        );
        assert_eq!(meet.1.into_inner(), 0x01_01_01);
    }
}
