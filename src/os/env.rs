//! The environment, readable even before the C library has started up.

use crate::os::file::File;
use core::ffi::{CStr, c_char};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Calls `f` with name and value of every variable whose name starts with `prefix`. With none when the
/// process runs with more privileges than its caller, whose environment cannot be trusted.
pub(crate) fn each(prefix: &[u8], mut f: impl FnMut(&[u8], &[u8])) {
    if cfg!(miri) {
        return;
    }
    // SAFETY: `getauxval` takes any number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    // SAFETY: the C library's variable. This runs before the process's first allocation is served, so
    // normally before there is a second thread. A program that calls `setenv` beside this breaks every call
    // of `getenv`, too.
    let mut at = unsafe { environ };
    if at.is_null() {
        from_proc(prefix, f);
        return;
    }
    loop {
        // SAFETY: `at` points into the environment's array, and the null pointer that ends it has not been
        // reached yet.
        let entry = unsafe { *at };
        if entry.is_null() {
            return;
        }
        // SAFETY: the entries before that null pointer are C strings.
        one(unsafe { CStr::from_ptr(entry) }.to_bytes(), prefix, &mut f);
        at = at.wrapping_add(1);
    }
}

/// Calls `f` with name and value if `entry`, which is `NAME=VALUE`, starts with `prefix`.
fn one(entry: &[u8], prefix: &[u8], f: &mut impl FnMut(&[u8], &[u8])) {
    if entry.starts_with(prefix) {
        let mut parts = entry.splitn(2, |&b| b == b'=');
        if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            f(name, value);
        }
    }
}

/// Longer entries are ignored. An option with a path is shorter.
const LONGEST: usize = 512;

/// Reads the kernel's copy of the environment, for an allocation by the dynamic loader, before the C library
/// has set `environ`. Ignores entries longer than any of ours.
///
/// A function of its own because of the buffers, which should not be on the stack of [`each`]'s callers.
#[cold]
#[inline(never)]
fn from_proc(prefix: &[u8], mut f: impl FnMut(&[u8], &[u8])) {
    let Some(file) = File::read_only(c"/proc/self/environ") else { return };
    let (mut buffer, mut entry, mut len) = ([0u8; 1024], [0u8; LONGEST], 0);
    loop {
        let read = file.read(&mut buffer);
        if read.is_empty() {
            return;
        }
        for &byte in read {
            if byte == 0 {
                // An entry that was too long has no `get`.
                one(entry.get(..len).unwrap_or_default(), prefix, &mut f);
                len = 0;
            } else {
                if let Some(place) = entry.get_mut(len) {
                    *place = byte;
                }
                len = (len + 1).min(LONGEST + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_kernel_has_the_environment_that_the_process_began_with() {
        let (mut count, mut path) = (0, None);
        from_proc(b"", |name, value| {
            count += 1;
            if name == b"PATH" {
                path = Some(value.to_vec());
            }
        });
        assert!(count > 3);
        assert_eq!(path, std::env::var("PATH").ok().map(String::into_bytes));
        let mut none = true;
        from_proc(b"NO_SUCH_", |_, _| none = false);
        assert!(none);
    }

    #[test]
    fn an_entry_is_a_name_and_the_rest() {
        let mut seen = Vec::new();
        for entry in [&b"A_X=1=2"[..], b"A_Y=", b"A_Z", b"B_X=1", b""] {
            one(entry, b"A_", &mut |name, value| seen.push((name.to_vec(), value.to_vec())));
        }
        assert_eq!(seen, [(b"A_X".to_vec(), b"1=2".to_vec()), (b"A_Y".to_vec(), vec![])]);
    }
}
