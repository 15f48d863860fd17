//! The C library's error number, which belongs to the program.

use core::cell::Cell;

/// The calling thread's `errno`. Not passed on: it does not outlive the thread.
fn cell() -> &'static Cell<i32> {
    // SAFETY: the C library returns the address of this thread's own `errno`, which no other thread uses.
    unsafe { &*libc::__errno_location().cast() }
}

/// Runs `f` and then restores `errno`.
pub(crate) fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    let errno = cell();
    let before = errno.get();
    let result = f();
    errno.set(before);
    result
}

/// `errno`, right after the call that has set it.
pub(super) fn errno() -> i32 {
    cell().get()
}

/// Sets `errno`.
pub fn set_errno(value: i32) {
    cell().set(value);
}

/// An address that no other thread has while this one lives: a multiple of 4.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) fn address() -> usize {
    cell().as_ptr().addr()
}
