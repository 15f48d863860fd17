//! The signals by which the kernel refuses a write: SIGPIPE where nobody reads, SIGXFSZ where the process may
//! not make the file longer. Either ends a program that does not expect it; and one that never writes itself,
//! or is not yet in `main`, has no reason to.

use crate::os::{calls, raw};

const SIGNALS: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);

/// Writes by `f`, which returns false if it was refused, so that the thread gets neither signal for it.
///
/// A process that has confined itself may not make the calls for this, and gets them.
pub(super) fn without_signals(f: impl FnOnce() -> bool) -> bool {
    if cfg!(miri) || calls::is_confined() {
        return f();
    }
    // By the bare calls, whose sets have 64 bits: the C library's function that waits is a cancellation
    // point.
    let (signals, mut mask, mut before) = (SIGNALS, 0u64, 0u64);
    // SAFETY: all three are local variables of the size that is passed.
    let blocked = unsafe {
        raw::call!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const signals, &raw mut mask, size_of::<u64>())
    };
    if blocked.is_err() {
        return f();
    }
    // SAFETY: the set is a local variable of the size that is passed.
    let known = unsafe { raw::call!(SYS_rt_sigpending, &raw mut before, size_of::<u64>()) }.is_ok();
    let done = f();
    // One that was pending is the program's. There is at most one of each: they do not queue.
    let ours = if known { SIGNALS & !before } else { 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the sets are local variables of the size that is passed, as is the time; nothing is written.
    unsafe {
        let (none, size) = (core::ptr::null::<libc::siginfo_t>(), size_of::<u64>());
        while !done && raw::call!(SYS_rt_sigtimedwait, &raw const ours, none, &raw const now, size).is_ok() {}
        let old = core::ptr::null::<u64>();
        let _ = raw::call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, old, size);
    }
    done
}
