//! The kernel's own `clock_gettime`, which it maps into every process (the vDSO).
//!
//! The C library's is a name that others put theirs in place of (libfaketime does). Theirs may allocate, or
//! be asked for the time by an allocation that they make while they set themselves up; and a program's clock
//! that stands still is none to give memory back by.

type Clock = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// Reads a clock that every Linux has.
pub(super) fn read(clock: libc::clockid_t) -> libc::timespec {
    // SAFETY: all zeros is a valid timespec.
    let mut time: libc::timespec = unsafe { core::mem::zeroed() };
    // Neither function can fail, so `errno` stays as it is.
    // SAFETY: `time` is a local variable that the call writes to.
    unsafe { found::function()(clock, &mut time) };
    time
}

/// Under Miri there is no kernel, and in loom's models what is remembered would be one atomic more.
#[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod found {
    pub(super) fn function() -> super::Clock {
        libc::clock_gettime
    }
}

#[cfg(not(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64")))))]
mod found;
