//! The environment, readable even before the C library has started up.

use crate::os::errno::keep_errno;
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
    // It sets `errno` where the kernel does not say.
    // SAFETY: `getauxval` takes any number.
    if keep_errno(|| unsafe { libc::getauxval(libc::AT_SECURE) }) != 0 {
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

/// So many bytes of an entry are looked at. No option with a value that is taken is as long.
const LONGEST: usize = 512;

/// In place of the last byte of a longer entry: no value with this byte is taken, but a complaint is made.
const CUT: u8 = 0xff;

/// The kernel's copy of the environment, entry by entry.
struct Entries {
    entry: [u8; LONGEST],
    /// Bytes of it so far, as far as there is room.
    len: usize,
}

impl Entries {
    fn new() -> Self {
        Self { entry: [0; LONGEST], len: 0 }
    }

    /// Takes the next byte. The entry, if it ends there.
    fn next(&mut self, byte: u8) -> Option<&[u8]> {
        if byte == 0 {
            return self.entry.get(..core::mem::take(&mut self.len));
        }
        match self.entry.get_mut(self.len) {
            Some(place) => (*place, self.len) = (byte, self.len + 1),
            None => self.entry[LONGEST - 1] = CUT,
        }
        None
    }
}

/// Reads the kernel's copy of the environment, for an allocation before the C library has set `environ`: by
/// the dynamic loader, or by a library that is initialised first (`-z initfirst`).
///
/// A function of its own because of the buffers, which should not be on the stack of [`each`]'s callers.
#[cold]
#[inline(never)]
fn from_proc(prefix: &[u8], mut f: impl FnMut(&[u8], &[u8])) {
    let Some(file) = File::read_only(c"/proc/self/environ") else { return };
    let (mut buffer, mut entries) = ([0u8; 1024], Entries::new());
    loop {
        let read = file.read(&mut buffer);
        if read.is_empty() {
            return;
        }
        for &byte in read {
            if let Some(entry) = entries.next(byte) {
                one(entry, prefix, &mut f);
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
    fn a_long_entry_is_cut_and_spoilt() {
        let mut entries = Entries::new();
        let mut seen = Vec::new();
        for length in [3, LONGEST, LONGEST + 1, 3 * LONGEST, 0, 2] {
            let bytes = std::iter::repeat_n(b'0', length).chain([0]);
            bytes.for_each(|byte| seen.extend(entries.next(byte).map(<[u8]>::to_vec)));
        }
        assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [3, LONGEST, LONGEST, LONGEST, 0, 2]);
        let is_spoilt = |entry: &Vec<u8>| entry.last() == Some(&CUT);
        assert_eq!(seen.iter().map(is_spoilt).collect::<Vec<_>>(), [false, false, true, true, false, false]);
        assert!(seen[3].starts_with(&[b'0'; LONGEST - 1]));
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
