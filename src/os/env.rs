//! The environment, readable before and without the C library's own start-up.

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
        if let Some(i) = entry.iter().position(|&b| b == b'=') {
            f(&entry[..i], &entry[i + 1..]);
        }
    }
}

/// An allocation can come from the dynamic loader, before the C library has set `environ`: the kernel's copy then
/// serves. Entries longer than the buffer are passed over; ours are short.
///
/// Apart, because of the buffer: whoever calls [`each`] should not need so much stack.
#[cold]
#[inline(never)]
fn from_proc(prefix: &[u8], mut f: impl FnMut(&[u8], &[u8])) {
    super::keep_errno(|| {
        // SAFETY: a constant C string.
        let fd = unsafe { libc::open(c"/proc/self/environ".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return;
        }
        let mut buffer = [0u8; 4096];
        let mut len = 0;
        let mut skipping = false;
        loop {
            // SAFETY: the rest of the buffer is writable.
            let n = unsafe { libc::read(fd, buffer[len..].as_mut_ptr().cast(), buffer.len() - len) };
            if n <= 0 {
                break;
            }
            len += n as usize;
            let mut from = 0;
            while let Some(i) = buffer[from..len].iter().position(|&b| b == 0) {
                if !skipping {
                    one(&buffer[from..from + i], prefix, &mut f);
                }
                skipping = false;
                from += i + 1;
            }
            buffer.copy_within(from..len, 0);
            len -= from;
            if len == buffer.len() {
                skipping = true;
                len = 0;
            }
        }
        // SAFETY: ours.
        unsafe { libc::close(fd) };
    });
}
