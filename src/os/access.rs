//! Mappings that nobody may touch for a while.

use crate::os::memory::{PURGED, count_map, in_pages, try_unmap};
use crate::os::{calls, left};
use crate::sync::Ordering::Relaxed;

/// Makes a range accessible, or not. False when the system refuses, as it does where the process is at its
/// limit of mappings. Where the program has restricted its system calls, the range is mapped anew, and zero.
///
/// # Safety
///
/// The range is mapped, ours and page-aligned, and nobody uses it, or needs what is there.
pub(crate) unsafe fn protect(p: *mut u8, len: usize, accessible: bool) -> bool {
    debug_assert!(in_pages(p.addr(), len));
    if cfg!(miri) {
        return false;
    }
    let access = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    if calls::is_confined() {
        // SAFETY: by this function's contract the range is ours, and nobody needs what this replaces.
        return unsafe { replace(p, len, access, 0) };
    }
    // SAFETY: by this function's contract the range is ours, and nobody uses what becomes inaccessible.
    calls::keep_errno(|| unsafe { libc::mprotect(p.cast(), len, access) } == 0)
}

/// Maps other pages in place of a range. False when the system refuses.
///
/// # Safety
///
/// The range is mapped, ours and page-aligned, and nobody needs what is there.
unsafe fn replace(p: *mut u8, len: usize, access: i32, flags: i32) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | flags;
    // SAFETY: by this function's contract the range is ours, and nobody uses what this replaces.
    calls::keep_errno(|| unsafe { libc::mmap(p.cast(), len, access, flags, -1, 0) } != libc::MAP_FAILED)
}

/// Gives the pages of a range back to the system, and makes the range inaccessible. It stays mapped, so that
/// its addresses are nobody else's. False when the system refuses.
///
/// # Safety
///
/// The range is mapped, ours and page-aligned, and nobody uses it any more.
pub(crate) unsafe fn make_inaccessible(p: *mut u8, len: usize) -> bool {
    // SAFETY: this function's contract is the same.
    let done = unsafe { close(p, len) };
    if done {
        PURGED.fetch_add(len, Relaxed);
    }
    done
}

/// Like [`make_inaccessible`], for a range that has no pages: nothing is counted as given back.
///
/// # Safety
///
/// As [`make_inaccessible`].
pub(crate) unsafe fn close(p: *mut u8, len: usize) -> bool {
    debug_assert!(in_pages(p.addr(), len));
    if cfg!(miri) {
        return false;
    }
    // SAFETY: by this function's contract the range is ours, and nobody uses what this replaces.
    unsafe { replace(p, len, libc::PROT_NONE, libc::MAP_NORESERVE) }
}

/// Maps inaccessible memory where nothing is mapped, and counts it. False, and nothing is changed, if
/// something is: then it is somebody else's.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn claim(p: *mut u8, len: usize) -> bool {
    debug_assert!(in_pages(p.addr(), len));
    if cfg!(miri) {
        return false;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the flag says that nothing is replaced.
    let q = calls::keep_errno(|| unsafe { libc::mmap(p.cast(), len, libc::PROT_NONE, flags, -1, 0) });
    if q == p.cast() {
        count_map(len);
        return true;
    }
    if q != libc::MAP_FAILED {
        // Kernels before 4.17 do not know the flag, and take the address for a wish.
        // SAFETY: just mapped, with that length; no other code has the address.
        if !unsafe { try_unmap(q.cast(), len) } {
            count_map(len);
            left::put(q.cast(), len, false);
        }
    }
    false
}
