//! An asymmetric barrier: one side pays nothing, and the other has the system execute a barrier in every
//! running thread of the process (`membarrier`).
//!
//! Two threads each write a word and then read the other's. At least one of them must see what the other
//! wrote, which takes a full barrier between write and read on both sides. [`light`] only stops the compiler
//! from reordering them; [`heavy`] makes up for the missing barrier.

use crate::os::{calls, raw};
use crate::sync::{AtomicBool, Ordering, compiler_fence, fence};

/// The frequent side's barrier. Pairs with [`heavy`].
#[inline(always)]
#[cfg_attr(loom, allow(dead_code))]
pub(crate) fn light() {
    if cfg!(miri) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The rare side's barrier. Pairs with [`light`]. False when the system has no such barrier: the caller must
/// not rely on what it reads then.
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
    // SAFETY: `membarrier` accesses no memory of the process.
    let call = |command: libc::c_int| unsafe { raw::call!(SYS_membarrier, command, 0, 0) };
    // A process has to register once. Its child may have to do so again.
    if call(PRIVATE_EXPEDITED).is_ok() {
        return true;
    }
    if let Err(error) = call(REGISTER) {
        // An old kernel, or a filter; but a lack of memory is temporary.
        MISSING.store(error != libc::ENOMEM, Ordering::Relaxed);
        return false;
    }
    call(PRIVATE_EXPEDITED).is_ok()
}

/// Whether the system is known to lack the barrier.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Whether trying [`heavy`] again is useless after it has failed.
pub(crate) fn is_missing() -> bool {
    MISSING.load(Ordering::Relaxed) || calls::is_confined()
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_there_where_the_system_has_one() {
        // SAFETY: asks which commands there are, as bits.
        let commands = unsafe { libc::syscall(libc::SYS_membarrier, 0, 0, 0) };
        let is_there = commands > 0 && commands & 0b11000 == 0b11000;
        assert!(super::heavy() == is_there && super::heavy() == is_there, "{commands:#x}");
        assert_eq!(super::is_missing(), !is_there);
    }
}
