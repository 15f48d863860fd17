//! What the system says about the process.

use crate::os::{calls, file, memory, raw};

/// A number that an attacker cannot guess, and that differs from process to process. Worse than that where
/// the program has restricted its system calls.
pub(crate) fn random() -> usize {
    let mut value = 0usize;
    if !calls::is_confined() {
        // SAFETY: `value` is a local variable with room for the bytes asked for.
        let n = unsafe { raw::call!(SYS_getrandom, &raw mut value, size_of::<usize>(), libc::GRND_NONBLOCK) };
        if n == Ok(size_of::<usize>()) {
            return value;
        }
    }
    let here = &raw const value;
    here.addr() ^ (calls::now_ms() as usize).rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15
}

/// The largest resident set so far as the kernel reports it, in bytes.
pub(crate) fn peak_resident() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    // SAFETY: all zeros is a valid rusage.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: `usage` is a local variable that the call writes to.
    calls::keep_errno(|| unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) });
    usage.ru_maxrss as u64 * 1024
}

/// The resident set as the kernel reports it, in bytes; 0 where it cannot be read.
pub(crate) fn resident() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    let mut text = [0u8; 128];
    let pages =
        file::File::read_only(c"/proc/self/statm").map_or(0, |file| second_number(file.read(&mut text)));
    pages * memory::page_size() as u64
}

/// The second number of a text that starts with numbers, or 0.
fn second_number(text: &[u8]) -> u64 {
    let digits = text.split(|&b| b == b' ').nth(1).unwrap_or_default();
    digits.iter().take_while(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + (b - b'0') as u64)
}

/// The process id.
pub(crate) fn process_id() -> u32 {
    // Not what an old C library remembers, which in a child of `vfork` is its parent's. Miri does not know
    // the bare call.
    // SAFETY: the call has no preconditions and cannot fail.
    #[cfg(not(miri))]
    let id = unsafe { raw::call!(SYS_getpid) }.map_or(u32::MAX, |id| id as u32);
    // SAFETY: the same.
    #[cfg(miri)]
    let id = unsafe { libc::getpid() } as u32;
    id
}

/// Another file descriptor for the same file, closed on exec and at least 100, out of the way of small
/// numbers; `fd` itself when the system has none to give.
pub(crate) fn duplicate(fd: i32) -> i32 {
    // SAFETY: touches no memory; an invalid number is an error.
    let copy = calls::keep_errno(|| unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100) });
    if copy < 0 { fd } else { copy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_of_a_text() {
        assert_eq!(second_number(b"4711 42 3 1 0 99 0\n"), 42);
        assert_eq!(second_number(b"4711 42"), 42);
        for text in [&b""[..], b"4711", b"4711 ", b"4711 x", b"4711  42", b"\n"] {
            assert_eq!(second_number(text), 0, "{text:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_kernel_knows_what_is_resident() {
        if std::env::var_os("EXPECT_PAGE_SIZE").is_some() {
            // Under an emulator with a page size of its own, the file counts pages of the host's size.
            return;
        }
        let (now, peak) = (resident(), peak_resident());
        assert!(now > 100 << 10 && now <= peak + (1 << 20), "{now} of {peak}");
    }
}
