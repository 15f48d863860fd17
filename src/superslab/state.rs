//! What the pool knows of its SuperSlabs: descriptors in buckets by their number of free pages, those with purgeable
//! pages in order of age, and the search for a span. All of it under the pool's lock.

use super::pagemap::{self, PAGE, PAGE_SHIFT};
use super::pool::{PAGES, Span};
use super::purge::{self, Policy};
use super::slab::Slab;
use crate::os;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Pages filled to the last block from which on huge pages are advised: 16 SuperSlabs' worth. One that then stays
/// empty wastes a sixteenth.
const HUGE_FROM: usize = 16 * PAGES;
/// Pages of slabs that have handed out every block once: memory that is surely resident. Of a run nobody knows.
pub(super) static FILLED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of memory that descriptors are made of at a time.
pub(super) const CHUNK: usize = PAGE;

/// A SuperSlab as the pool sees it. Guarded by the pool's lock, but for `base`.
pub(crate) struct Desc {
    /// Address of the SuperSlab; constant.
    pub(crate) base: *mut u8,
    /// Pages that belong to no span.
    pub(crate) free: u32,
    /// Pages that may hold something other than zeros, or be resident.
    pub(crate) dirty: u32,
    /// When the oldest of the free dirty pages became so, in milliseconds.
    pub(crate) since: u32,
    /// Pages in `free`, and those of them that are dirty: kept, because a baseline x86-64 has no instruction to count bits.
    free_pages: u8,
    /// See `free_pages`.
    pub(crate) purgeable_pages: u8,
    /// Whether huge pages have been advised.
    pub(super) huge: bool,
    /// Links of the bucket.
    bucket: Links,
    /// Links of the list of SuperSlabs with purgeable pages.
    dirt: Links,
    /// All SuperSlabs, for statistics, purging by age and fork.
    pub(crate) all_next: *mut Desc,
    all_prev: *mut Desc,
}

/// Neighbours in a list.
#[derive(Clone, Copy)]
struct Links {
    next: *mut Desc,
    prev: *mut Desc,
}

const UNLINKED: Links = Links { next: ptr::null_mut(), prev: ptr::null_mut() };

impl Desc {
    /// The next one with as many free pages.
    pub(super) fn next_of_bucket(&self) -> *mut Desc {
        self.bucket.next
    }
    /// Pages that are free and dirty.
    pub(crate) fn purgeable(&self) -> u32 {
        self.free & self.dirty
    }
}

pub(crate) struct State {
    buckets: [*mut Desc; PAGES + 1],
    /// Bit n: bucket n is not empty.
    filled: u64,
    /// First of the list of all SuperSlabs.
    pub(crate) all: *mut Desc,
    /// Descriptors without a SuperSlab.
    spare: *mut Desc,
    /// Pieces of memory that hold descriptors, of [`CHUNK`] bytes each.
    pub(super) chunks: usize,
    pub(super) superslabs: usize,
    /// Pages in spans.
    pub(crate) used_pages: usize,
    /// Free pages that are dirty.
    pub(crate) dirty_pages: usize,
    /// SuperSlabs that have some, the longest in that state first.
    oldest: *mut Desc,
    newest: *mut Desc,
    pub(crate) policy: Policy,
}

// SAFETY: only used under the lock.
unsafe impl Send for State {}

impl State {
    /// A pool without SuperSlabs.
    pub(super) const fn new() -> Self {
        Self {
            buckets: [ptr::null_mut(); PAGES + 1],
            filled: 0,
            all: ptr::null_mut(),
            spare: ptr::null_mut(),
            chunks: 0,
            superslabs: 0,
            used_pages: 0,
            dirty_pages: 0,
            oldest: ptr::null_mut(),
            newest: ptr::null_mut(),
            policy: Policy::new(),
        }
    }

    /// Whether most of what is in use is surely resident.
    pub(super) fn is_filled(&self) -> bool {
        let filled = FILLED.load(Relaxed);
        filled >= HUGE_FROM && filled * 8 >= self.used_pages * 7
    }

    /// The first SuperSlab with so many free pages: the one that came to have them last.
    pub(super) fn first_of_bucket(&self, free: usize) -> *mut Desc {
        self.buckets[free]
    }

    /// Adds the descriptors that fit into `chunk`, [`CHUNK`] bytes, to the spare ones.
    pub(super) fn supply(&mut self, chunk: *mut Desc) {
        self.chunks += 1;
        for i in 0..CHUNK / size_of::<Desc>() {
            let desc = chunk.wrapping_add(i);
            // SAFETY: zeroed memory of ours.
            unsafe { (*desc).bucket.next = self.spare };
            self.spare = desc;
        }
    }

    /// Enters a SuperSlab whose pages are free, and `dirty` as far as it says. False when no descriptor is left.
    pub(crate) fn add(&mut self, base: *mut u8, huge: bool, dirty: u32) -> bool {
        let desc = self.spare;
        if desc.is_null() {
            return false;
        }
        // SAFETY: a spare descriptor.
        unsafe {
            self.spare = (*desc).bucket.next;
            desc.write(Desc {
                base,
                free: u32::MAX,
                dirty: 0,
                since: 0,
                free_pages: PAGES as u8,
                purgeable_pages: 0,
                huge,
                bucket: UNLINKED,
                dirt: UNLINKED,
                all_next: self.all,
                all_prev: ptr::null_mut(),
            });
            if !self.all.is_null() {
                (*self.all).all_prev = desc;
            }
        }
        self.all = desc;
        self.superslabs += 1;
        self.link(desc);
        // SAFETY: just entered.
        unsafe { self.change(desc, os::now_ms(), 0, |d| d.dirty = dirty) };
        true
    }

    /// Takes an entirely free SuperSlab out of the pool; its memory is the caller's to unmap.
    pub(crate) fn remove(&mut self, desc: *mut Desc) -> *mut u8 {
        // SAFETY: linked, so valid; the lists are ours under the lock.
        unsafe {
            self.change(desc, 0, 0, |d| d.dirty = 0);
            self.unlink(desc);
            let d = &mut *desc;
            if d.all_prev.is_null() {
                self.all = d.all_next;
            } else {
                (*d.all_prev).all_next = d.all_next;
            }
            if !d.all_next.is_null() {
                (*d.all_next).all_prev = d.all_prev;
            }
            self.superslabs -= 1;
            let base = d.base;
            d.bucket.next = self.spare;
            self.spare = desc;
            base
        }
    }

    /// Changes which pages of a SuperSlab are free or dirty, and everything that follows from that. `free` is by how much
    /// the number of free pages changes. Returns how many pages were free and dirty before, and how many are now.
    ///
    /// # Safety
    ///
    /// `desc` is in this pool.
    #[inline]
    pub(crate) unsafe fn change(
        &mut self,
        desc: *mut Desc,
        now: u32,
        free: isize,
        f: impl FnOnce(&mut Desc),
    ) -> (usize, usize) {
        if free != 0 {
            self.unlink(desc);
        }
        // SAFETY: passed on; under the lock nobody else uses it.
        let d = unsafe { &mut *desc };
        let before = d.purgeable_pages as usize;
        f(d);
        let after = count(d.purgeable());
        d.purgeable_pages = after as u8;
        d.free_pages = d.free_pages.wrapping_add_signed(free as i8);
        debug_assert_eq!(d.free_pages as u32, d.free.count_ones());
        self.dirty_pages = self.dirty_pages + after - before;
        if before == 0 && after != 0 {
            d.since = now;
            d.dirt = Links { next: ptr::null_mut(), prev: self.newest };
            match self.newest.is_null() {
                true => self.oldest = desc,
                // SAFETY: listed, so valid.
                false => unsafe { (*self.newest).dirt.next = desc },
            }
            self.newest = desc;
        } else if before != 0 && after == 0 {
            let Links { next, prev } = d.dirt;
            match prev.is_null() {
                true => self.oldest = next,
                // SAFETY: as above.
                false => unsafe { (*prev).dirt.next = next },
            }
            match next.is_null() {
                true => self.newest = prev,
                // SAFETY: as above.
                false => unsafe { (*next).dirt.prev = prev },
            }
        }
        if free != 0 {
            self.link(desc);
        }
        (before, after)
    }

    fn link(&mut self, desc: *mut Desc) {
        // SAFETY: a descriptor of this pool, in no bucket.
        let bucket = unsafe { (*desc).free_pages as usize };
        let head = self.buckets[bucket];
        // SAFETY: as above; `head` is in the bucket.
        unsafe {
            (*desc).bucket = Links { next: head, prev: ptr::null_mut() };
            if !head.is_null() {
                (*head).bucket.prev = desc;
            }
        }
        self.buckets[bucket] = desc;
        self.filled |= 1 << bucket;
    }

    fn unlink(&mut self, desc: *mut Desc) {
        // SAFETY: a descriptor in the bucket of its free pages.
        unsafe {
            let (Links { next, prev }, bucket) = ((*desc).bucket, (*desc).free_pages as usize);
            if !next.is_null() {
                (*next).bucket.prev = prev;
            }
            if !prev.is_null() {
                (*prev).bucket.next = next;
            } else {
                self.buckets[bucket] = next;
                if next.is_null() {
                    self.filled &= !(1 << bucket);
                }
            }
        }
    }

    /// The fullest SuperSlab with `pages` adjacent free pages, and where they begin.
    pub(super) fn find(&self, pages: usize, slab: bool, looks: usize) -> Option<(*mut Desc, usize)> {
        let usable = if pages == 1 && slab { u32::MAX } else { u32::MAX - 1 };
        let mut buckets = self.filled & (u64::MAX << pages);
        while buckets != 0 {
            let mut desc = self.buckets[buckets.trailing_zeros() as usize];
            let mut looks = looks;
            while !desc.is_null() && looks > 0 {
                // SAFETY: in a bucket, so valid.
                let d = unsafe { &*desc };
                // Pages that are resident already come first.
                let dirty = runs(d.purgeable() & usable, pages);
                let any = if dirty != 0 { dirty } else { runs(d.free & usable, pages) };
                if any != 0 {
                    return Some((desc, any.trailing_zeros() as usize));
                }
                desc = d.bucket.next;
                looks -= 1;
            }
            buckets &= buckets - 1;
        }
        None
    }

    pub(super) fn carve(&mut self, desc: *mut Desc, index: usize, pages: usize, class: u8, now: u32) -> Span {
        let mask = span_mask(index, pages);
        // SAFETY: found in a bucket.
        let (base, dirty) = unsafe { ((*desc).base, (*desc).dirty) };
        let zero = dirty & mask == 0;
        self.used_pages += pages;
        self.policy.used(self.used_pages);
        // SAFETY: as above.
        let (before, after) = unsafe { self.change(desc, now, -(pages as isize), |d| d.free &= !mask) };
        let reused = before - after;
        if reused > 0 && self.dirty_pages + reused > purge::allowed_always(self) {
            self.policy.worth_it(now);
        }
        if reused < pages {
            self.policy.fresh(pages - reused);
        }
        // SAFETY: the span has just become ours.
        let slab = unsafe { Slab::claim(base, index, pages, class, desc) };
        let mapped = if class == pagemap::RUN { 1 } else { pages };
        pagemap::set(base.wrapping_add(index << PAGE_SHIFT), mapped, class);
        Span { slab, zero }
    }

    /// SuperSlabs with purgeable pages, the longest in that state first, while `f` says so. `f` may change the one it gets.
    pub(crate) fn each_dirty(&mut self, mut f: impl FnMut(&mut State, *mut Desc) -> bool) {
        let mut desc = self.oldest;
        while !desc.is_null() {
            // SAFETY: listed, so valid; read before `f` may remove it.
            let next = unsafe { (*desc).dirt.next };
            if !f(self, desc) {
                return;
            }
            desc = next;
        }
    }

    /// When pages became purgeable that are so for the longest time; nothing when none are.
    pub(super) fn oldest_since(&self) -> Option<u32> {
        // SAFETY: null or listed, so valid.
        unsafe { self.oldest.as_ref() }.map(|desc| desc.since)
    }

    /// Withdraws the advice for huge pages from a SuperSlab that is purged in part. Says whether there was any.
    pub(crate) fn withdraw_huge(&mut self, desc: *mut Desc) -> bool {
        // SAFETY: a descriptor of this pool.
        unsafe { core::mem::replace(&mut (*desc).huge, false) }
    }
}

/// The number of bits set. Most masks here have few or none.
fn count(mask: u32) -> usize {
    if mask == 0 { 0 } else { mask.count_ones() as usize }
}

/// Bit i of the result: the `pages` bits of `mask` from i on are all set.
fn runs(mask: u32, pages: usize) -> u32 {
    let mut result = mask;
    let mut have = 1;
    while have < pages && result != 0 {
        let step = have.min(pages - have);
        result &= result >> step;
        have += step;
    }
    result
}

/// The bits of the pages of a span.
pub(super) fn span_mask(index: usize, pages: usize) -> u32 {
    (((1u64 << pages) - 1) << index) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superslab::pool::MAX_SPAN;

    #[test]
    fn runs_are_found_exactly() {
        for pages in 1..=MAX_SPAN {
            for mask in
                [0u32, 1, 0xffff_ffff, 0xfffe_fffe, 0x0ff0_0ff0, 0x8000_0001, 0xf0f0_f0f0, 0x7fff_8001]
            {
                let expected = (0..=32 - pages)
                    .filter(|&i| (i..i + pages).all(|b| mask & (1 << b) != 0))
                    .fold(0u32, |m, i| m | 1 << i);
                assert_eq!(runs(mask, pages), expected, "{mask:x} {pages}");
            }
        }
    }
}
