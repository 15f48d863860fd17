//! What the memory of the SuperSlabs is used for, as statistics see it: one walk over all spans under the pool's lock.

use crate::os;
use crate::superslab::desc::Desc;
use crate::superslab::granules::{Granules, Run};
use crate::superslab::layout::{HEADER, PAGE, PAGE_SHIFT, PAGES, SUPERSLAB};
use crate::superslab::pagemap::RUN;
use crate::superslab::slab::{Glimpse, Slab};
use crate::superslab::{desc, span_index, spans};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// What a span in use is made of.
pub(crate) struct SpanFigures {
    /// Size class, or [`RUN`].
    pub(crate) class: u8,
    /// Its bytes, without the header in front of the first page of a SuperSlab.
    pub(crate) bytes: usize,
    /// Blocks that it was cut into; 1 for a run.
    pub(crate) blocks: usize,
    /// Blocks that are neither fresh nor free here: the program's, or in a magazine or an outbox.
    pub(crate) used: usize,
    /// Blocks that were never handed out, or not since their memory was given back.
    pub(crate) fresh: usize,
    /// Bytes known not to be resident.
    pub(crate) untouched: usize,
}

/// What SuperSlabs hold besides spans in use, in bytes.
#[derive(Default)]
pub(crate) struct Survey {
    /// Address space of all SuperSlabs.
    pub(crate) mapped: usize,
    /// Headers, as far as they are resident.
    pub(crate) headers: usize,
    /// Free pages that may be resident, and those of runs that are on their way or on a run cache.
    pub(crate) dirty: usize,
    /// Free pages known not to be resident.
    pub(crate) clean: usize,
    /// Descriptors, which lie elsewhere. All of it was written to.
    pub(crate) descriptors: usize,
}

/// Calls `f` with the figures of every span in use; what there is besides. The pool is locked meanwhile; if it cannot be, there
/// is nothing to tell.
pub(crate) fn survey(mut f: impl FnMut(&SpanFigures)) -> Survey {
    let system_page = os::page_size();
    span_index::with(|_| {
        let mut all = Survey { descriptors: desc::bytes_of_descriptors(), ..Survey::default() };
        for desc in desc::descs() {
            let mut active = 0;
            spans::spans(desc, |slab| {
                // SAFETY: the record of a span in use of that SuperSlab, and the pool is locked.
                let span = unsafe { look(slab, desc, system_page) };
                active += span.bytes;
                f(&span);
            });
            let (header, clean) = header_and_clean(clean_pages(desc) & desc.pages.get().free, system_page);
            all.mapped += SUPERSLAB;
            all.headers += header;
            all.clean += clean;
            // Also what is neither free nor a span in use: being purged, on a run cache, or between two owners.
            all.dirty += (SUPERSLAB - header - clean).saturating_sub(active);
        }
        all
    })
    .unwrap_or_default()
}

/// Pages that were all zero and not resident when they last changed hands. In huge pages all is resident when some of it is.
fn clean_pages(desc: &Desc) -> u32 {
    if desc.huge.load(Relaxed) { 0 } else { !desc.pages.get().dirty }
}

/// Resident bytes of the header, and bytes that are not resident, of a SuperSlab in which the pages of the mask `clean` are
/// free and clean. The header is the start of the first page, and larger system pages than it make more of that resident.
fn header_and_clean(clean: u32, system_page: usize) -> (usize, usize) {
    let header = if clean & 1 != 0 { HEADER.max(system_page) } else { HEADER };
    let pages = clean.count_ones() as usize * PAGE;
    (header, if clean & 1 != 0 { pages - header } else { pages })
}

/// The figures of one span. Others may be using it, or making another one of it, so they are exact only when nobody is.
///
/// # Safety
///
/// `slab` is the record of a span of `desc`, which stays mapped: the pool is locked.
unsafe fn look(slab: *mut Slab, desc: &Desc, system_page: usize) -> SpanFigures {
    // Acquire: pairs with the stores of an owner, the first of them by `make`.
    // SAFETY: an atomic of the record.
    let owned = unsafe { !(*slab).owner.load(Acquire).is_null() };
    // SAFETY: passed on.
    let seen = unsafe { Slab::glimpse(slab) };
    let (class, pages) = (seen.class, seen.pages.clamp(1, PAGES));
    let bytes = pages * PAGE - if Slab::index(slab) == 0 { HEADER } else { 0 };
    if class == RUN {
        // What the program has touched of it nobody knows.
        return SpanFigures { class, bytes, blocks: 1, used: 1, fresh: 0, untouched: 0 };
    }
    if !owned {
        return SpanFigures { class, bytes, blocks: 0, used: 0, fresh: 0, untouched: 0 };
    }
    let stride = seen.stride.max(1);
    // SAFETY: passed on; the rest is atomic.
    let fresh = unsafe { Unused::of(slab, seen) };
    SpanFigures {
        class,
        bytes,
        blocks: seen.last / stride + 1,
        // SAFETY: passed on.
        used: unsafe { used(slab) },
        fresh: fresh.bytes / stride,
        untouched: fresh.not_resident(slab, desc, pages, system_page),
    }
}

/// The blocks of a slab that are nobody's and on no list: above `bump`, or in memory that was given back.
struct Unused {
    granules: Granules,
    bump: usize,
    end: usize,
    revived: bool,
    purged: u64,
    /// Bytes in the blocks.
    bytes: usize,
}

impl Unused {
    /// # Safety
    ///
    /// As [`look`].
    unsafe fn of(slab: *mut Slab, seen: Glimpse) -> Unused {
        // SAFETY: passed on: an atomic.
        let purged = unsafe { (*slab).purged.load(Relaxed) };
        let granules = Granules::of_span(slab, seen.pages.clamp(1, PAGES));
        let (bump, end) = (seen.bump.addr(), seen.end.addr());
        // What the owner changes while we look may be half done.
        let mut bytes = end.saturating_sub(bump);
        let mut counted = 0;
        for run in Run::each(purged) {
            let (from, to) = granules.window_of(seen.start, seen.stride, seen.last, run);
            // A block that reaches from one run into the next counts once.
            bytes += to.addr().saturating_sub(from.addr().max(counted));
            counted = to.addr();
        }
        Unused { granules, bump, end, revived: seen.revived, purged, bytes }
    }

    /// Bytes of the slab's span that are known not to be resident: what was given back, and what was not resident when the
    /// slab got it and has not been handed out since.
    ///
    /// With huge pages nothing is known, but then nothing has been given back either ([`not_filled`](super::pool::not_filled)).
    fn not_resident(&self, slab: *mut Slab, desc: &Desc, pages: usize, system_page: usize) -> usize {
        let begin = self.granules.span.addr();
        let offset = |address: usize| address.saturating_sub(begin);
        let all = ((1u64 << pages) - 1) as u32;
        let (untouched, rest) = if self.revived {
            // Whole granules between `bump` and `end` were given back: see `partial_purge::purge`. Above `end` all has been used.
            let granule = 1usize << self.granules.shift;
            let (from, to) = (offset(self.bump).next_multiple_of(granule), offset(self.end) & !(granule - 1));
            (to.saturating_sub(from), pages * PAGE)
        } else {
            let whole = offset(self.bump).next_multiple_of(system_page).min(pages * PAGE);
            (above(whole, clean_pages(desc) >> Slab::index(slab) & all), whole)
        };
        let used = !(clean_pages(desc) >> Slab::index(slab)) & all;
        let purged = Run::each(self.purged).map(|run| {
            let (from, to) = self.granules.range(run);
            let (from, to) = (offset(from.addr()), offset(to.addr()));
            // From `rest` on what is clean counts already.
            let beyond = if to > rest { above(from.max(rest), used) - above(to, used) } else { 0 };
            to.min(rest).saturating_sub(from) + beyond
        });
        untouched + purged.sum::<usize>()
    }
}

/// Blocks that are not [`Unused`], nor on the slab's list, nor on its remote stack.
unsafe fn used(slab: *mut Slab) -> usize {
    // SAFETY: passed on; these fields are atomic.
    unsafe {
        let used = match (*slab).remote.orphan_in_use() {
            Some(in_use) => in_use,
            None => {
                // Of the blocks waiting on the stack, those that the owner has seen are not counted as used.
                let unseen = (*slab).remote.waiting().saturating_sub((*slab).counted.load(Relaxed));
                Slab::in_use(slab).saturating_sub(unseen)
            }
        };
        used as usize
    }
}

/// Bytes of the pages in the mask that lie `from` bytes and more above the first page's beginning.
fn above(from: usize, mask: u32) -> usize {
    let partial = from >> PAGE_SHIFT;
    let rest = if partial < PAGES { mask >> partial } else { 0 };
    if rest == 0 {
        return 0;
    }
    let bytes = rest.count_ones() as usize * PAGE;
    if rest & 1 != 0 { bytes - (from & (PAGE - 1)) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn what_lies_above_in_clean_pages() {
        for (from, clean, bytes) in [
            (0, 0b1111, 256 * KIB),
            (4 * KIB, 0b1111, 252 * KIB),
            (64 * KIB, 0b1111, 192 * KIB),
            (65 * KIB, 0b1111, 191 * KIB),
            (65 * KIB, 0b1101, 128 * KIB),
            (65 * KIB, 0b1011, 127 * KIB),
            (256 * KIB, 0b1111, 0),
            (SUPERSLAB, u32::MAX, 0),
        ] {
            assert_eq!(above(from, clean), bytes, "{from:x} {clean:b}");
        }
    }

    #[test]
    fn the_header_is_as_resident_as_the_systems_pages_make_it() {
        assert_eq!(header_and_clean(0, 4 * KIB), (4 * KIB, 0));
        assert_eq!(header_and_clean(0b110, 16 * KIB), (4 * KIB, 128 * KIB));
        assert_eq!(header_and_clean(0b11, 4 * KIB), (4 * KIB, 124 * KIB));
        assert_eq!(header_and_clean(0b11, 16 * KIB), (16 * KIB, 112 * KIB));
        assert_eq!(header_and_clean(0b1, 64 * KIB), (64 * KIB, 0));
    }
}
