//! Equal memory before every run.
//!
//! On a virtual machine the price of a page fault depends on which process ran before: memory that the host
//! has backed already is cheap, other memory dear. Touching and freeing as much memory as the run needs, in
//! huge pages, makes it equal. Without that an identical copy of a program measured 16% slower.

use std::ptr::null_mut;

use super::machine::available_memory;

/// What even a small run is given.
const LEAST: usize = 64 << 20;
/// A huge page on every architecture of this project with 4 KiB pages.
const HUGE: usize = 2 << 20;

/// Touches and frees memory for a run that is expected to need `bytes`. True when that was possible.
pub fn equalise(bytes: u64) -> bool {
    let (length, enough) = length(bytes, available_memory());
    if length == 0 {
        return false;
    }
    // SAFETY: a new private mapping, touched inside its bounds and unmapped by nobody else; a failed advice
    // only makes the pages small.
    unsafe {
        let start = libc::mmap(
            null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if start == libc::MAP_FAILED {
            return false;
        }
        libc::madvise(start, length, libc::MADV_HUGEPAGE);
        for offset in (0..length).step_by(4096) {
            start.cast::<u8>().add(offset).write_volatile(1);
        }
        libc::munmap(start, length);
    }
    enough
}

/// How much is touched where so much is available, and whether that is what it takes.
fn length(bytes: u64, available: u64) -> (usize, bool) {
    let wanted = (bytes as usize).saturating_add(bytes as usize / 4).max(LEAST).next_multiple_of(HUGE);
    // Never so much that the machine runs short.
    let allowed = (available / 2) as usize / HUGE * HUGE;
    (wanted.min(allowed), wanted <= allowed)
}

#[cfg(test)]
mod tests {
    use super::{LEAST, equalise, length};

    #[test]
    fn no_more_than_half_of_what_is_available() {
        assert_eq!(length(1 << 20, 1 << 30), (LEAST, true));
        assert_eq!(length(256 << 20, 1 << 30), (320 << 20, true));
        assert_eq!(length(512 << 20, 1 << 30), (512 << 20, false));
        assert_eq!(length(u64::MAX / 4, 1 << 30), (512 << 20, false));
        assert_eq!(length(1 << 20, 1 << 20), (0, false));
    }

    #[test]
    fn says_whether_it_could() {
        assert!(equalise(1 << 20));
    }
}
