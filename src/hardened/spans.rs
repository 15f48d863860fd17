//! Address space for the slabs of the hardened heap: spans of slices of 64 KiB, in regions of 2 MiB, and big
//! ones of 2 MiB each.

use crate::base::list::{Linked, Links, List};
use crate::base::options::{self, Hardened, Thp};
use crate::hardened::parts;
use crate::hardened::records::{self, Header, REGIONS};
use crate::os;
use crate::os::futex::{Inherit, Lock};
use crate::superslab::layout::{SLICE, SUPERSLAB};
use crate::superslab::pagemap;
use crate::superslab::thp;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicUsize, compiler_fence};

/// Slices of a region.
const SLICES: usize = SUPERSLAB / SLICE;
/// All slices of a region.
const ALL: u32 = u32::MAX;
const _: () = assert!(SLICES == u32::BITS as usize);

/// A region.
#[repr(C)]
pub(super) struct Region {
    header: Header,
    base: *mut u8,
    /// Whether what is no block of it cannot be touched.
    guarded: bool,
    /// The free slices, a bit for each. Used under the lock, as are the links.
    free: u32,
    links: Links<Region>,
}

// SAFETY: always the same field, which serves the one list.
unsafe impl Linked for Region {
    unsafe fn links<'a>(region: *mut Self) -> &'a Links<Self> {
        // SAFETY: by the trait's contract the record is valid.
        unsafe { &(*region).links }
    }
}

/// The regions that have a free slice.
struct Spans(List<Region>);

// SAFETY: records are mapped for good, and used only under the lock.
unsafe impl Send for Spans {}

impl Inherit for Spans {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // SAFETY: we hold the lock. A list is whole forwards wherever a fork may have stopped it. What
            // has no free slice was about to be taken out, or has just been put in.
            unsafe {
                self.0.mend();
                let mut region = self.0.first();
                while !region.is_null() {
                    let next = List::next(region);
                    if (*region).free == 0 {
                        self.0.remove(region);
                    }
                    region = next;
                }
            }
        }
    }
}

static SPANS: Lock<Spans> = Lock::new(Spans(List::new()));

/// Slices in use, of all regions.
pub(super) static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Regions of which only slabs can be touched, at most. Each slab is a mapping of its own, and so is what
/// lies between two; the system allows 65,530 in a process by default.
const MOST_GUARDED: usize = 600;
/// Regions mapped.
static REGIONS_MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Slices of a big span.
pub(super) const BIG: usize = SLICES;
/// Big spans mapped. Relaxed: a figure.
static BIG_MAPPED: AtomicUsize = AtomicUsize::new(0);
/// Big spans with a guard page, at most: each is two mappings for the system, of those that regions and large
/// blocks leave over.
const MOST_BIG_GUARDED: usize = 2048;

/// Bytes behind the blocks of a slab that are not used: a page, which can become a guard. None where a page
/// is as large as a slice.
pub(super) fn guard_bytes() -> usize {
    let page = os::page_size();
    if page < SLICE { page } else { 0 }
}

/// Whether big spans are meant to have huge pages.
pub(super) fn has_huge_pages() -> bool {
    options::get().thp != Thp::Never
}

/// A big span, at a multiple of its size, behind which lies a page that cannot be touched: so huge pages fit.
/// All of it is zero. Null if there is no memory.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take_big() -> Option<*mut u8> {
    let len = SUPERSLAB + guard_bytes();
    let base = os::map_aligned(core::ptr::null_mut(), len, SUPERSLAB);
    if base.is_null() {
        return None;
    }
    // SAFETY: just mapped with that length, of which nobody uses anything yet.
    unsafe {
        if !pagemap::prepare_direct(base) {
            os::unmap(base, len);
            return None;
        }
        // All of it, though no huge page fits behind: else each would be two mappings without a guard, too.
        os::advise_huge(base, len, has_huge_pages());
        let few = BIG_MAPPED.fetch_add(1, Relaxed) < MOST_BIG_GUARDED;
        if few && len > SUPERSLAB && parts::has(Hardened::GUARD) {
            os::protect(base.wrapping_add(SUPERSLAB), guard_bytes(), false);
        }
    }
    IN_USE.fetch_add(BIG, Relaxed);
    Some(base)
}

/// A span of `slices` slices, at most 32, and its region. All of it is zero. The first `bytes` bytes can be
/// touched.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take(slices: usize, bytes: usize) -> Option<(*mut u8, *mut Region)> {
    let (base, region) = find(slices).or_else(|| {
        let region = region()?;
        // SAFETY: the region is ours, until it is listed.
        let base = unsafe {
            (*region).free &= !mask(slices);
            (*region).base
        };
        add(region);
        Some((base, region))
    })?;
    IN_USE.fetch_add(slices, Relaxed);
    // SAFETY: a region is valid while a span of it is in use, and this one is ours.
    unsafe {
        if (*region).guarded && !os::protect(base, bytes, true) {
            put_back(base, slices, region);
            return None;
        }
    }
    Some((base, region))
}

/// The first free span of `slices` slices.
#[unsafe(link_section = "hakmem_rare")]
fn find(slices: usize) -> Option<(*mut u8, *mut Region)> {
    let mut spans = SPANS.lock_soon()?;
    let mut region = spans.0.first();
    while !region.is_null() {
        // SAFETY: regions in the list are valid, and used under the lock, which we hold.
        unsafe {
            if let Some(at) = place(slices, (*region).free) {
                (*region).free &= !(mask(slices) << at);
                compiler_fence(Release);
                let base = (*region).base;
                if (*region).free == 0 {
                    spans.0.remove(region);
                }
                return Some((base.wrapping_add(at * SLICE), region));
            }
            region = List::next(region);
        }
    }
    None
}

/// So many bits.
fn mask(slices: usize) -> u32 {
    ALL >> (SLICES - slices.clamp(1, SLICES))
}

/// Where in `free` there are so many bits in a row.
fn place(slices: usize, free: u32) -> Option<usize> {
    let mut starts = free;
    for shift in 1..slices {
        starts &= free >> shift;
    }
    (starts != 0).then_some(starts.trailing_zeros() as usize)
}

/// A new region, all free, in no list, and so the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
fn region() -> Option<*mut Region> {
    let base = os::map_aligned(core::ptr::null_mut(), SUPERSLAB, SUPERSLAB);
    if base.is_null() {
        return None;
    }
    let record = if pagemap::prepare_direct(base) {
        records::take(REGIONS, size_of::<Region>()).0.cast::<Region>()
    } else {
        core::ptr::null_mut()
    };
    // SAFETY: just mapped with that length; the record is ours.
    unsafe {
        if record.is_null() {
            os::unmap(base, SUPERSLAB);
            return None;
        }
        if thp::refuses() {
            os::advise_huge(base, SUPERSLAB, false);
        }
        (*record).base = base;
        (*record).free = ALL;
        let few = REGIONS_MAPPED.fetch_add(1, Relaxed) < MOST_GUARDED;
        (*record).guarded = few && parts::has(Hardened::GUARD) && os::protect(base, SUPERSLAB, false);
    }
    Some(record)
}

/// Lists a new region, which has free slices. Without the lock these are lost until one is given back.
#[unsafe(link_section = "hakmem_rare")]
fn add(region: *mut Region) {
    // SAFETY: the region is ours, and in no list.
    unsafe {
        match SPANS.lock_soon() {
            Some(mut spans) if (*region).free != 0 => spans.0.push_front(region),
            // What is in no list has no free slice.
            _ => (*region).free = 0,
        }
    }
}

/// Gives a span back, of which nothing was used since it was last free, or given back to the system.
///
/// # Safety
///
/// As [`give`]; it has a region.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn put_back(base: *mut u8, slices: usize, region: *mut Region) {
    IN_USE.fetch_sub(slices, Relaxed);
    // Without the lock it is lost.
    let Some(mut spans) = SPANS.lock_soon() else { return };
    // SAFETY: the region is valid as long as a span of it is in use; the rest is under the lock.
    unsafe {
        let at = (base.addr() - (*region).base.addr()) / SLICE;
        // In this order: a fork may come between, and what has a free slice is in the list.
        if (*region).free == 0 {
            spans.0.push_front(region);
        }
        compiler_fence(Release);
        (*region).free |= mask(slices) << at;
        // One is kept.
        let only = spans.0.first() == region && List::next(region).is_null();
        if (*region).free != ALL || only {
            return;
        }
        spans.0.remove(region);
        drop(spans);
        REGIONS_MAPPED.fetch_sub(1, Relaxed);
        os::unmap((*region).base, SUPERSLAB);
        records::give(region.cast());
    }
}

/// Gives a span back; a big one has no region.
///
/// # Safety
///
/// From [`take`], with the same number of slices, or from [`take_big`]. The page map says that it is foreign.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn give(base: *mut u8, slices: usize, region: *mut Region) {
    if region.is_null() {
        IN_USE.fetch_sub(slices, Relaxed);
        BIG_MAPPED.fetch_sub(1, Relaxed);
        // SAFETY: by the caller's clause, of `take_big`.
        unsafe { os::unmap(base, SUPERSLAB + guard_bytes()) };
        return;
    }
    // SAFETY: the region is valid as long as a span of it is in use, and nobody uses this one. Where the
    // system refuses another mapping it can still be touched, until it is used again.
    unsafe {
        let bytes = slices * SLICE;
        if (*region).guarded {
            if !os::make_inaccessible(base, bytes) && !os::purge(base, bytes) {
                // Some of it may be inaccessible, and what is not may not be zero: it is lost.
                IN_USE.fetch_sub(slices, Relaxed);
                return;
            }
        } else if !os::purge(base, bytes) {
            // The system does not take back what the program has locked.
            base.write_bytes(0, bytes);
        }
        put_back(base, slices, region);
    }
}

/// Bytes mapped for regions.
pub(super) fn mapped() -> usize {
    REGIONS_MAPPED.load(Relaxed) * SUPERSLAB + BIG_MAPPED.load(Relaxed) * (SUPERSLAB + guard_bytes())
}

/// In the child of a fork.
pub(super) fn inherit() {
    SPANS.inherit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(place(1, 0), None);
        assert_eq!(place(1, 0b1000), Some(3));
        assert_eq!(place(2, 0b1011_0101), Some(4));
        assert_eq!(place(8, 0xff00_0000), Some(24));
        assert_eq!(place(32, ALL), Some(0));
        assert_eq!(place(32, ALL - 1), None);
        assert_eq!((mask(1), mask(8), mask(32)), (1, 255, ALL));
    }
}
