//! The C library's error number, which belongs to the program.

/// Runs `f` and then restores `errno`.
pub(crate) fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: returns the address of this thread's `errno`.
    let location = unsafe { errno_location() };
    // SAFETY: `location` is this thread's own `errno`, valid until the thread ends.
    let before = unsafe { *location };
    let result = f();
    // SAFETY: as for the read above: still the same thread.
    unsafe { *location = before };
    result
}

#[cfg(target_os = "android")]
pub(super) use libc::__errno as errno_location;
#[cfg(any(target_os = "linux", target_os = "emscripten"))]
pub(super) use libc::__errno_location as errno_location;

/// Sets `errno`.
pub fn set_errno(value: i32) {
    // SAFETY: this thread's own `errno`, valid until the thread ends.
    unsafe { *errno_location() = value };
}
