//! What stands in for the system's memory under Miri, which knows mappings only as wholes: calls with the
//! same names, arguments and results as those of the C library in `memory.rs`.
//!
//! Memory that is unmapped in part becomes uninitialised, so that Miri reports whoever still reads it, and
//! the whole mapping is gone with its last part. Memory that is given back becomes zero, by a write like any
//! other: so whoever uses it meanwhile races with that.

use crate::os::calls;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize};
use core::ffi::{c_int, c_uchar, c_void};
use core::ptr;

/// A mapping.
struct Mapping {
    taken: AtomicBool,
    /// Null where there is none.
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    /// Bytes that are still mapped.
    left: AtomicUsize,
}

impl Mapping {
    const fn none() -> Self {
        let (base, len, left) = (AtomicPtr::new(ptr::null_mut()), AtomicUsize::new(0), AtomicUsize::new(0));
        Self { taken: AtomicBool::new(false), base, len, left }
    }

    /// Whether a byte of it lies at `p`.
    fn has(&self, p: *mut u8) -> bool {
        // Acquire: pairs with the release in `mmap`. That orders what a thread did before it mapped something
        // before what any thread does after its next call here, as the kernel's lock does.
        let base = self.base.load(Acquire);
        // Acquire: pairs with the release in `mmap`. If that has taken the place for another mapping
        // meanwhile, the base has changed before.
        let len = self.len.load(Acquire);
        let is_inside = p.addr().wrapping_sub(base.addr()) < len;
        is_inside && !base.is_null() && base == self.base.load(Relaxed)
    }
}

/// More than any test has.
static MAPPINGS: [Mapping; 512] = [const { Mapping::none() }; 512];

fn mapping(p: *mut u8) -> &'static Mapping {
    MAPPINGS.iter().find(|mapping| mapping.has(p)).expect("not mapped")
}

/// Whether both addresses lie in one mapping, or in none. Two mappings are two allocations to Rust, and a
/// pointer into one of them never leads to the other, even if they are adjacent.
pub(crate) fn is_one_piece(one: *mut u8, other: *mut u8) -> bool {
    let which = |p| MAPPINGS.iter().position(|mapping| mapping.has(p));
    which(one) == which(other)
}

/// The most bytes that a mapping can have.
const MOST: usize = 1 << 30;

/// Anywhere.
///
/// # Safety
///
/// The flags ask for private, anonymous memory at no fixed place.
pub(super) unsafe fn mmap(
    _: *mut c_void,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    at: libc::off_t,
) -> *mut c_void {
    // Miri gives all of it at once, and ends where the machine has less.
    if len > MOST {
        calls::set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    // SAFETY: an anonymous mapping without MAP_FIXED never replaces memory that is mapped already.
    let p = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, at) };
    if p != libc::MAP_FAILED {
        // Acquire: pairs with the release in `munmap`, which has cleared the base before.
        let mine = MAPPINGS.iter().find(|mapping| !mapping.taken.swap(true, Acquire)).expect("a free place");
        // Release: pairs with the acquire in `has`.
        mine.len.store(len, Release);
        mine.left.store(len, Relaxed);
        // Release: pairs with the acquire in `has`.
        mine.base.store(p.cast(), Release);
    }
    p
}

/// # Safety
///
/// Nobody uses the range any more.
pub(super) unsafe fn munmap(p: *mut c_void, len: usize) -> c_int {
    let mapping = mapping(p.cast());
    assert!(mapping.has(p.cast::<u8>().wrapping_add(len - 1)), "two mappings at once");
    // SAFETY: in a mapping, and nobody uses it any more.
    unsafe { spoil(p, len) };
    // AcqRel: whoever unmaps the last part comes after all that was done in the others.
    let left = mapping.left.fetch_sub(len, AcqRel);
    assert!(left >= len, "unmapped twice");
    if left == len {
        let (base, whole) = (mapping.base.swap(ptr::null_mut(), Relaxed), mapping.len.load(Relaxed));
        // SAFETY: a whole mapping, no part of which anybody uses any more.
        assert_eq!(unsafe { libc::munmap(base.cast(), whole) }, 0);
        // Release: pairs with the acquire in `mmap`.
        mapping.taken.store(false, Release);
    }
    0
}

/// Makes memory uninitialised.
///
/// # Safety
///
/// The range is mapped, and nobody uses it any more.
unsafe fn spoil(p: *mut c_void, len: usize) {
    // SAFETY: fresh memory of that length, whose bytes are copied as they are: uninitialised.
    unsafe {
        let fresh = libc::malloc(len);
        ptr::copy_nonoverlapping(fresh.cast::<u8>(), p.cast::<u8>(), len);
        libc::free(fresh);
    }
}

/// In place (`flags` is 0), where a mapping can only shrink; or onto `target`.
///
/// # Safety
///
/// Nobody uses what is cut off, or the target's contents; after a move, the source.
pub(super) unsafe fn mremap(
    p: *mut c_void,
    old: usize,
    new: usize,
    flags: c_int,
    target: *mut u8,
) -> *mut c_void {
    if flags != 0 {
        // SAFETY: both are mapped; the caller has given up the source.
        unsafe {
            ptr::copy_nonoverlapping(p.cast::<u8>(), target, old.min(new));
            munmap(p, old);
        }
        return target.cast();
    }
    if new > old {
        calls::set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    // SAFETY: the caller uses no more than `new` bytes.
    unsafe { munmap(p.wrapping_byte_add(new), old - new) };
    p
}

/// # Safety
///
/// Nobody needs what the advice takes.
pub(super) unsafe fn madvise(p: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::MADV_DONTNEED {
        // SAFETY: mapped, and nobody needs its contents.
        unsafe { p.cast::<u8>().write_bytes(0, len) };
    }
    0
}

/// It does not say.
///
/// # Safety
///
/// None: it looks at nothing.
pub(super) unsafe fn mincore(_: *mut c_void, _: usize, _: *mut c_uchar) -> c_int {
    -1
}
