//! Regions: 2 MiB of address space each, of whose slices of 64 KiB the slabs of the hardened heap have spans.

use crate::base::list::{Linked, Links, List};
use crate::base::options::Hardened;
use crate::hardened::parts;
use crate::hardened::records::{self, Header, REGIONS};
use crate::os::futex::{Inherit, Lock};
use crate::os::returning::Returning;
use crate::os::{self, Unmapped};
use crate::superslab::layout::{SLICE, SUPERSLAB};
use crate::superslab::pagemap;
use crate::superslab::thp;
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicUsize, compiler_fence};

/// Slices of a region.
pub(super) const SLICES: usize = SUPERSLAB / SLICE;
/// All slices of a region.
const ALL: u32 = u32::MAX;
const _: () = assert!(SLICES == u32::BITS as usize);

/// A region.
#[repr(C)]
pub(super) struct Region {
    header: Header,
    base: *mut u8,
    /// Whether it was a big span, which the system did not unmap. Then a page more is mapped.
    is_left: bool,
    /// Whether what is no block of it cannot be touched.
    pub(super) guarded: bool,
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

impl Spans {
    /// The first region of which nothing is in use, and that is as wanted.
    #[unsafe(link_section = "hakmem_rare")]
    fn free(&self, wanted: impl Fn(&Region) -> bool) -> Option<*mut Region> {
        let mut region = self.0.first();
        // SAFETY: regions in the list are valid, and used under the lock, which the caller holds.
        unsafe {
            while !region.is_null() && ((*region).free != ALL || !wanted(&*region)) {
                region = List::next(region);
            }
        }
        (!region.is_null()).then_some(region)
    }
}

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

/// Regions of which only slabs can be touched, at most. Each slab is a mapping of its own, and so is what
/// lies between two; the system allows 65,530 in a process by default.
const MOST_GUARDED: usize = 600;
/// Regions mapped.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// Regions that were big spans. Relaxed: a figure.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Bytes behind the blocks of a slab that are not used: a page, which can become a guard. None where a page
/// is as large as a slice.
pub(super) fn guard_bytes() -> usize {
    let page = os::page_size();
    if page < SLICE { page } else { 0 }
}

/// Bytes of the slices of all regions.
pub(super) fn mapped() -> usize {
    MAPPED.load(Relaxed) * SUPERSLAB
}

/// In the child of a fork.
pub(super) fn inherit() {
    SPANS.inherit();
}

/// `slices` slices in a row, at most 32, and their region. All of it is zero, and cannot be touched if the
/// region is guarded, which it is not if it `is_open`.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take(slices: usize, is_open: bool) -> Option<(*mut u8, *mut Region)> {
    find(slices, is_open).or_else(|| {
        let region = region(is_open)?;
        // SAFETY: the region is ours, until it is listed.
        let base = unsafe {
            (*region).free &= !mask(slices);
            (*region).base
        };
        // Those without guard pages last: they are for when there is nothing else.
        list(region, !is_open);
        Some((base, region))
    })
}

/// The slices of a region that was a big span, if nothing else lies there. All of them are zero, and can be
/// touched.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take_left() -> Option<*mut u8> {
    if LEFT.load(Relaxed) == 0 {
        return None;
    }
    let mut spans = SPANS.lock_soon()?;
    // SAFETY: a region that is free is ours once it is out of the list, of which we hold the lock. What is
    // still mapped of it is zero.
    unsafe {
        let region = spans.free(|region| region.is_left)?;
        spans.0.remove(region);
        drop(spans);
        let base = (*region).base;
        if (*region).guarded && !os::protect(base, SUPERSLAB, true) {
            list(region, false);
            return None;
        }
        forget(region);
        Some(base)
    }
}

/// Makes a region of a big span that the system did not unmap: else it would be lost.
///
/// # Safety
///
/// It is nobody else's, its slices can be touched, and they are zero.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn leave(base: *mut u8) {
    // SAFETY: by the caller's clause.
    unsafe {
        match describe(base, true, false) {
            Some(region) => list(region, false),
            // There is no memory for its record. Of the page behind it nobody knows then.
            None => os::discard(base, SUPERSLAB),
        }
    }
}

/// The first free span of `slices` slices, in a region that can be touched if it has to be `open`.
#[unsafe(link_section = "hakmem_rare")]
fn find(slices: usize, open: bool) -> Option<(*mut u8, *mut Region)> {
    let mut spans = SPANS.lock_soon()?;
    let mut region = spans.0.first();
    while !region.is_null() {
        // SAFETY: regions in the list are valid, and used under the lock, which we hold.
        unsafe {
            let free = if open && (*region).guarded { 0 } else { (*region).free };
            if let Some(at) = place(slices, free) {
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

/// A new region, all free, in no list, and so the caller's alone. It has no guard pages if it `is_open`.
#[unsafe(link_section = "hakmem_rare")]
fn region(is_open: bool) -> Option<*mut Region> {
    let base = os::map_aligned(core::ptr::null_mut(), SUPERSLAB, SUPERSLAB);
    if base.is_null() {
        return None;
    }
    if thp::refuses() {
        // SAFETY: just mapped with that length.
        unsafe { os::advise_huge(base, SUPERSLAB, false) };
    }
    // SAFETY: just mapped with that length, zero, and nobody else's.
    let region = if pagemap::prepare_direct(base) { unsafe { describe(base, false, is_open) } } else { None };
    if region.is_none() {
        // SAFETY: as before.
        unsafe { os::discard(base, SUPERSLAB) };
    }
    region
}

/// Makes a region of memory, without guard pages if it `is_open`. `None` if there is none for its record.
///
/// # Safety
///
/// It is mapped and nobody else's, and its slices are zero.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn describe(base: *mut u8, is_left: bool, is_open: bool) -> Option<*mut Region> {
    let record = records::take(REGIONS, size_of::<Region>()).0.cast::<Region>();
    if record.is_null() {
        return None;
    }
    let few = MAPPED.fetch_add(1, Relaxed) < MOST_GUARDED;
    LEFT.fetch_add(usize::from(is_left), Relaxed);
    // SAFETY: the record is ours; the rest by the caller's clause.
    unsafe {
        (*record).base = base;
        (*record).is_left = is_left;
        (*record).free = ALL;
        let guards = few && !is_open && parts::has(Hardened::GUARD);
        (*record).guarded = guards && os::protect(base, SUPERSLAB, false);
    }
    Some(record)
}

/// Lists a region, which has free slices, as the `first` or the last one. Without the lock these are lost
/// until one is given back.
#[unsafe(link_section = "hakmem_rare")]
fn list(region: *mut Region, first: bool) {
    // SAFETY: the region is ours, and in no list.
    unsafe {
        match SPANS.lock_soon() {
            Some(mut spans) if (*region).free != 0 && first => spans.0.push_front(region),
            Some(mut spans) if (*region).free != 0 => spans.0.push_back(region),
            // What is in no list has no free slice.
            _ => (*region).free = 0,
        }
    }
}

/// Gives slices back. A region of which nothing is in use any more is unmapped.
///
/// # Safety
///
/// From [`take`], with the same number. Nobody uses them, and they are zero once they can be touched.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn give(base: *mut u8, slices: usize, region: *mut Region) {
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
        let _returning = Returning::begin();
        drop(spans);
        unmap(region);
    }
}

/// Unmaps a region, or lists it again if the system does not. Returns how many bytes went back.
///
/// # Safety
///
/// All of it is free, and it is in no list, and so the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn unmap(region: *mut Region) -> usize {
    // SAFETY: by the caller's clause. Whatever the system did, what is still mapped is zero: it was before.
    unsafe {
        let len = SUPERSLAB + if (*region).is_left { guard_bytes() } else { 0 };
        if os::unmap((*region).base, len) != Unmapped::Gone {
            list(region, false);
            return 0;
        }
        forget(region);
        len
    }
}

/// Gives the record of a region back that is none any more.
///
/// # Safety
///
/// As [`unmap`].
#[unsafe(link_section = "hakmem_rare")]
unsafe fn forget(region: *mut Region) {
    MAPPED.fetch_sub(1, Relaxed);
    // SAFETY: by the caller's clause.
    unsafe {
        LEFT.fetch_sub(usize::from((*region).is_left), Relaxed);
        records::give(region.cast());
    }
}

/// Unmaps all regions of which nothing is in use. Returns how many bytes went back.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn purge() -> usize {
    let mut bytes = 0;
    // Each once: what the system does not unmap is the last one then.
    for _ in 0..MAPPED.load(Relaxed) {
        let Some(mut spans) = SPANS.lock_soon() else { break };
        let Some(region) = spans.free(|_| true) else { break };
        // SAFETY: it is in the list, of which we hold the lock; out of it, and free, it is ours.
        unsafe {
            spans.0.remove(region);
            let _returning = Returning::begin();
            drop(spans);
            bytes += unmap(region);
        }
    }
    bytes
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
