//! The environment, readable before and without the C library's own start-up.

use crate::os::file::File;
use core::ffi::{CStr, c_char};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Calls `f` with every `NAME=VALUE` whose name starts with `prefix`. Nothing for a process that runs with more rights
/// than its caller: its environment is not to be trusted.
pub(crate) fn each(prefix: &[u8], mut f: impl FnMut(&[u8], &[u8])) {
    if cfg!(miri) {
        return;
    }
    // SAFETY: no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    // SAFETY: the C library's own variable; we only read it, before the program can change it.
    let mut at = unsafe { environ };
    if at.is_null() {
        from_proc(prefix, f);
        return;
    }
    loop {
        // SAFETY: the array ends with a null pointer.
        let entry = unsafe { *at };
        if entry.is_null() {
            return;
        }
        // SAFETY: entries are C strings.
        one(unsafe { CStr::from_ptr(entry) }.to_bytes(), prefix, &mut f);
        at = at.wrapping_add(1);
    }
}

/// `entry` is `NAME=VALUE`.
fn one(entry: &[u8], prefix: &[u8], f: &mut impl FnMut(&[u8], &[u8])) {
    if entry.starts_with(prefix) {
        let mut parts = entry.splitn(2, |&b| b == b'=');
        if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            f(name, value);
        }
    }
}

/// The longest entry that is looked at: an option with a path has less.
const LONGEST: usize = 512;

/// An allocation can come from the dynamic loader, before the C library has set `environ`: the kernel's copy then
/// serves. Entries longer than ours can be are passed over.
///
/// Apart, because of the buffers: whoever calls [`each`] should not need so much stack.
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
                // One that did not fit has no end.
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
