//! A barrier that costs one side nothing: the other side has the system make every running thread of the process execute one.
//!
//! Two sides that each write a word and then read the other's must not both miss what the other wrote, for which each
//! needs a full barrier in between. [`light`] only keeps the compiler from reordering; [`heavy`] makes up for it.

use core::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// The side that runs all the time.
#[inline(always)]
pub(crate) fn light() {
    if cfg!(miri) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The side that runs seldom. False, and no barrier, when the system has none: then it must not rely on what it reads.
#[cfg(target_os = "linux")]
pub(crate) fn heavy() -> bool {
    if cfg!(miri) {
        fence(Ordering::SeqCst);
        return true;
    }
    if is_missing() {
        return false;
    }
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER: libc::c_int = 1 << 4;
    // SAFETY: changes nothing in the process.
    let call = |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 };
    // A process has to register once, and its child may have to do so again.
    super::keep_errno(|| {
        if call(PRIVATE_EXPEDITED) {
            return true;
        }
        if !call(REGISTER) {
            // An old kernel, or a filter. Want of memory passes.
            // SAFETY: no preconditions.
            let errno = unsafe { *super::errno_location() };
            MISSING.store(errno != libc::ENOMEM, Ordering::Relaxed);
            return false;
        }
        call(PRIVATE_EXPEDITED)
    })
}

/// The system has no such barrier: known since the first attempt.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Whether it is worth trying [`heavy`] again when it has failed.
pub(crate) fn is_missing() -> bool {
    cfg!(not(target_os = "linux")) || MISSING.load(Ordering::Relaxed) || super::is_confined()
}

/// See above.
#[cfg(not(target_os = "linux"))]
pub(crate) fn heavy() -> bool {
    false
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn this_system_has_one() {
        assert!(super::heavy() && super::heavy());
    }
}
