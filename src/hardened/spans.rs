//! Address space for the slabs of the hardened heap: spans of slices of 64 KiB, in regions of 2 MiB, and big
//! ones of 2 MiB each.

use crate::base::options::{self, Hardened, Thp};
use crate::hardened::parts;
use crate::hardened::regions::{self, Region, SLICES, guard_bytes};
use crate::os::{self, Unmapped};
use crate::superslab::layout::{SLICE, SUPERSLAB};
use crate::superslab::pagemap;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// Slices in use, of all regions and big spans.
pub(super) static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Slices of a big span.
pub(super) const BIG: usize = SLICES;
/// Big spans mapped. Relaxed: a figure.
static BIG_MAPPED: AtomicUsize = AtomicUsize::new(0);
/// Big spans with a guard page, at most: each is two mappings for the system, of those that regions and large
/// blocks leave over.
const MOST_BIG_GUARDED: usize = 2048;

/// Whether big spans are meant to have huge pages.
pub(super) fn has_huge_pages() -> bool {
    options::get().thp != Thp::Never
}

/// A big span, at a multiple of its size, behind which lies a page that cannot be touched: so huge pages fit.
/// All of it is zero. Null if there is no memory.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take_big() -> Option<*mut u8> {
    let base = regions::take_left().or_else(map_big)?;
    BIG_MAPPED.fetch_add(1, Relaxed);
    IN_USE.fetch_add(BIG, Relaxed);
    Some(base)
}

/// [`take_big`], of the system.
#[unsafe(link_section = "hakmem_rare")]
fn map_big() -> Option<*mut u8> {
    let len = SUPERSLAB + guard_bytes();
    let base = os::map_aligned(core::ptr::null_mut(), len, SUPERSLAB);
    if base.is_null() {
        return None;
    }
    // SAFETY: just mapped with that length, of which nobody uses anything yet.
    unsafe {
        if !pagemap::prepare_direct(base) {
            os::discard(base, len);
            return None;
        }
        // All of it, though no huge page fits behind: else each would be two mappings without a guard, too.
        os::advise_huge(base, len, has_huge_pages());
        let few = BIG_MAPPED.load(Relaxed) < MOST_BIG_GUARDED;
        if few && len > SUPERSLAB && parts::has(Hardened::GUARD) {
            os::protect(base.wrapping_add(SUPERSLAB), guard_bytes(), false);
        }
    }
    Some(base)
}

/// A span of `slices` slices, at most 32, and its region. All of it is zero. The first `bytes` bytes can be
/// touched.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take(slices: usize, bytes: usize) -> Option<(*mut u8, *mut Region)> {
    let (mut base, mut region) = regions::take(slices, false)?;
    // SAFETY: a region is valid while a span of it is in use, and this one is ours.
    unsafe {
        if (*region).guarded && !os::protect(base, bytes, true) {
            regions::give(base, slices, region);
            // The system may allow no more mappings, of which guard pages need several.
            (base, region) = regions::take(slices, true)?;
        }
    }
    IN_USE.fetch_add(slices, Relaxed);
    Some((base, region))
}

/// Gives a span back; a big one has no region.
///
/// # Safety
///
/// From [`take`], with the same number of slices, or from [`take_big`]. The page map says that it is foreign.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn give(base: *mut u8, slices: usize, region: *mut Region) {
    IN_USE.fetch_sub(slices, Relaxed);
    if region.is_null() {
        BIG_MAPPED.fetch_sub(1, Relaxed);
        // SAFETY: by the caller's clause, of `take_big`.
        return unsafe { unmap_big(base) };
    }
    // SAFETY: the region is valid as long as a span of it is in use, and nobody uses this one. Where the
    // system refuses another mapping it can still be touched, until it is used again.
    unsafe {
        let bytes = slices * SLICE;
        if (*region).guarded {
            if !os::make_inaccessible(base, bytes) && !os::purge(base, bytes) {
                // What is behind it could never be touched.
                base.write_bytes(0, bytes - guard_bytes());
            }
        } else if !os::purge(base, bytes) {
            // The system does not take back what the program has locked.
            base.write_bytes(0, bytes);
        }
        regions::give(base, slices, region);
    }
}

/// Unmaps a big span, or makes a region of it if the system does not: else it would be lost, with its pages.
///
/// # Safety
///
/// From [`take_big`], and nobody uses it any more.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn unmap_big(base: *mut u8) {
    let len = SUPERSLAB + guard_bytes();
    // SAFETY: by the caller's clause; what is still mapped can be touched, but for the page behind it.
    unsafe {
        match os::unmap(base, len) {
            Unmapped::Gone => return,
            Unmapped::Zeroed => {}
            Unmapped::Kept => base.write_bytes(0, SUPERSLAB),
        }
        regions::leave(base);
    }
}

/// Bytes mapped for slabs.
pub(super) fn mapped() -> usize {
    regions::mapped() + BIG_MAPPED.load(Relaxed) * (SUPERSLAB + guard_bytes())
}
