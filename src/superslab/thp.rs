//! Huge pages, where memory is touched densely. A huge page is resident as a whole when one byte of it is touched, so they are asked for
//! only where most of the memory is resident anyway.
//!
//! * SuperSlabs: pages of slabs that have handed out every block are surely resident. Of other memory the kernel is asked how much of
//!   some SuperSlabs without huge pages, with hardly a free page, is resident.
//! * Direct mappings: the kernel is asked about a few pages of mappings without huge pages that are freed or grow, or have been there
//!   for a while. While those were touched densely, new mappings of at least 2 MiB get huge pages.
//!
//! A few new SuperSlabs and mappings are controls, without huge pages, by which a change is noticed.

use crate::base::options::{self, Thp};
use crate::base::table::Table;
use crate::os;
use crate::superslab::layout::{PAGES, SUPERSLAB};
use crate::superslab::span_index::{self, State};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};

/// Size and alignment of a huge page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// What counts as most: seven eighths.
const fn is_most(part: usize, whole: usize) -> bool {
    part * 8 >= whole * 7
}

/// Pages filled to the last block from which on huge pages are advised: 16 SuperSlabs' worth. One that then stays
/// empty wastes a sixteenth.
const HUGE_FROM: usize = 16 * PAGES;
/// Pages of slabs that have handed out every block once: memory that is surely resident. Of a run nobody knows.
static FILLED: AtomicUsize = AtomicUsize::new(0);

/// Counts the pages of a slab that has just handed out its last fresh block.
pub(crate) fn filled(pages: usize) {
    FILLED.fetch_add(pages, Relaxed);
}

/// Pages that were counted as filled are so no more.
pub(super) fn no_more_filled(pages: usize) {
    FILLED.fetch_sub(pages, Relaxed);
}

/// Whether the next SuperSlab should have huge pages.
pub(super) fn wants_huge_superslab() -> bool {
    match options::get().thp {
        Thp::Always => true,
        Thp::Never => false,
        // Spans that are mostly untouched, as those of many small threads, must not become resident.
        Thp::Auto => {
            let filled = FILLED.load(Relaxed);
            let counts = span_index::with(|pool| (pool.superslabs, pool.used_pages()));
            counts.is_some_and(|(superslabs, used)| {
                are_dense(superslabs, || span_index::with(|pool| choose(pool)).unwrap_or_default())
                    || filled >= HUGE_FROM && is_most(filled, used)
            })
        }
    }
}

/// SuperSlabs from which on huge pages are thought of: one that then stays empty wastes an eighth.
const FROM: usize = 8;
/// One new SuperSlab in so many is a control, without huge pages.
const SUPERSLAB_CONTROL: usize = 64;
/// New SuperSlabs from one look to the next.
const RARELY: usize = 4;
/// SuperSlabs that are looked at, of how many that come first among those with the same number of free pages, and how
/// many that may be: runs leave some that no run fits into.
const SAMPLES: usize = 4;
const AMONG: usize = 32;
const MOST_FREE: usize = 2;
/// The ones that became full last may not have been touched yet.
const TOO_FRESH: usize = 2;

/// New SuperSlabs that were asked for, from the time there were enough.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// What the last look said.
static DENSE: AtomicBool = AtomicBool::new(false);

/// SuperSlabs to look at.
struct Samples([*mut u8; SAMPLES]);

/// None.
impl Default for Samples {
    fn default() -> Self {
        Self([ptr::null_mut(); SAMPLES])
    }
}

/// Chooses some; under the pool's lock.
fn choose(pool: &State) -> Samples {
    let old = (0..=MOST_FREE).flat_map(|free| {
        let bucket = core::iter::successors(pool.first_of_bucket(free), |desc| desc.next_of_bucket());
        bucket.take(AMONG).skip(TOO_FRESH).filter(|desc| !desc.huge.load(Relaxed))
    });
    let mut chosen = Samples::default();
    chosen.0.iter_mut().zip(old).for_each(|(place, desc)| *place = desc.base());
    chosen
}

/// Whether most of what is in use is densely resident. Without the pool's lock.
fn are_dense(superslabs: usize, samples: impl FnOnce() -> Samples) -> bool {
    if superslabs < FROM {
        return false;
    }
    let asked = ASKED.fetch_add(1, Relaxed);
    if asked % RARELY == 0 {
        if let Some(dense) = judge(&samples()) {
            DENSE.store(dense, Relaxed);
        }
    }
    asked % SUPERSLAB_CONTROL != SUPERSLAB_CONTROL - 1 && DENSE.load(Relaxed)
}

/// Whether most of what was chosen is resident; `None` when there is nothing to judge by.
fn judge(samples: &Samples) -> Option<bool> {
    let (mut pages, mut resident) = (0, 0);
    for &base in samples.0.iter().filter(|base| !base.is_null()) {
        // SAFETY: changes nothing, and says nothing of what is not there: should it have been unmapped meanwhile.
        resident += unsafe { os::resident_pages(base, SUPERSLAB) }?;
        pages += SUPERSLAB >> os::page_size().trailing_zeros();
    }
    (pages != 0).then_some(is_most(resident, pages))
}

/// One mapping in so many is a control, without huge pages.
const CONTROL: u32 = 16;
/// Pages that must have been looked at, and from how many on the older ones count half.
const ENOUGH: u32 = 16;
const MANY: u32 = 128;
/// So many times as long as a dense one a mapping may be: a program with dense buffers may have a sparse table, too.
const LONGER: usize = 4;
/// Pages of one mapping that are looked at, at most.
const LOOKS: usize = 16;
/// Into so many parts a mapping is divided that may be sparse. One page of each is looked at.
const FEW: usize = 8;

/// A direct mapping.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) block: *mut u8,
    pub(crate) len: usize,
    /// Whether huge pages have been advised.
    pub(crate) huge: bool,
}

/// What has been seen. Races lose a count at worst.
struct Density {
    looked: AtomicU32,
    resident: AtomicU32,
    made: AtomicU32,
    /// The longest mapping that was dense; cut down by one that was not.
    longest: AtomicUsize,
}

static SEEN: Density = Density::new();

impl Density {
    const fn new() -> Self {
        Self {
            looked: AtomicU32::new(0),
            resident: AtomicU32::new(0),
            made: AtomicU32::new(0),
            longest: AtomicUsize::new(0),
        }
    }

    /// Counts pages that were looked at in a mapping of `len` bytes, and how many of them were resident.
    fn add(&self, len: usize, looked: u32, resident: u32) {
        let longest = self.longest.load(Relaxed);
        let dense = is_most(resident as usize, looked as usize);
        self.longest.store(if dense { longest.max(len) } else { longest.min(len / LONGER / 2) }, Relaxed);
        let (mut l, mut r) = (self.looked.load(Relaxed) + looked, self.resident.load(Relaxed) + resident);
        if l > MANY {
            (l, r) = (l / 2, r / 2);
        }
        self.looked.store(l, Relaxed);
        self.resident.store(r.min(l), Relaxed);
    }

    /// Whether a mapping of `len` bytes is likely to be touched densely.
    fn is_dense(&self, len: usize) -> bool {
        let (looked, resident) = (self.looked.load(Relaxed), self.resident.load(Relaxed));
        looked >= ENOUGH
            && is_most(resident as usize, looked as usize)
            && len / LONGER <= self.longest.load(Relaxed)
    }

    /// Whether the next mapping is to have huge pages.
    fn wants(&self, len: usize) -> bool {
        self.is_dense(len) && self.made.fetch_add(1, Relaxed) % CONTROL != CONTROL - 1
    }
}

/// Mappings made of late, without huge pages. A program that frees nothing is judged by the oldest of them when it makes
/// another.
static RECENT: Table<AtomicPtr<u8>, 4> = Table([const { AtomicPtr::new(ptr::null_mut()) }; 4]);
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Remembers a new mapping; the one that has been remembered longest, to look at if it is still there.
pub(crate) fn remember(block: *mut u8) -> *mut u8 {
    RECENT[NEXT.fetch_add(1, Relaxed)].swap(block, Relaxed)
}

/// The last control, to look at if it is still there, when the program has had some time to fill it; else null.
pub(crate) fn control() -> *mut u8 {
    if SEEN.made.load(Relaxed) % CONTROL != CONTROL / 4 {
        return ptr::null_mut();
    }
    RECENT[NEXT.load(Relaxed).wrapping_sub(1)].load(Relaxed)
}

/// Whether a mapping of `len` bytes should have huge pages.
pub(crate) fn wants_huge_mapping(len: usize) -> bool {
    match options::get().thp {
        Thp::Always => true,
        Thp::Never => false,
        Thp::Auto => len >= HUGE_PAGE && SEEN.wants(len),
    }
}

/// Whether a mapping that has grown to `len` bytes should have huge pages from now on.
pub(crate) fn wants_huge_grown(len: usize) -> bool {
    options::get().thp == Thp::Auto && len >= 2 * HUGE_PAGE && SEEN.is_dense(len)
}

/// Looks at a mapping from `from` bytes on that is about to be freed or to grow, if it can tell anything.
pub(crate) fn look(mapping: Mapping, from: usize) {
    if mapping.huge || mapping.len < HUGE_PAGE || options::get().thp != Thp::Auto {
        return;
    }
    let chunk = HUGE_PAGE.max((mapping.len.saturating_sub(from)).div_ceil(LOOKS));
    if let Some((looked, resident)) = sample(mapping, from, chunk).filter(|&(looked, _)| looked != 0) {
        SEEN.add(mapping.len, looked, resident);
    }
}

/// Whether less than half of a mapping is resident, as far as a few pages tell: taking those pages from it and getting others for
/// what is touched next costs less than clearing all.
pub(crate) fn is_sparse(mapping: Mapping) -> bool {
    let few = || sample(mapping, 0, mapping.len.div_ceil(FEW));
    !mapping.huge && mapping.len >= HUGE_PAGE && few().is_some_and(|(looked, resident)| resident * 2 < looked)
}

/// Looks so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// A number that differs from look to look, also at the same place, which a mapping that comes and goes may have every time: so that no
/// pattern of the program's meets one of ours.
fn scattered(place: usize, look: usize) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (place as u64 ^ look as u64).wrapping_mul(ODD);
    ((mixed ^ mixed >> 32).wrapping_mul(ODD) >> 40) as usize
}

/// Looks at one page of each whole `chunk` (in bytes) of a mapping, from `from` bytes on: how many pages that are, and how many
/// of them are resident. `None` when the system does not say.
fn sample(mapping: Mapping, from: usize, chunk: usize) -> Option<(u32, u32)> {
    let page = os::page_size();
    let chunk = chunk.next_multiple_of(page);
    let (mut looked, mut resident) = (0, 0);
    let mut at = from;
    while at + chunk <= mapping.len {
        let look = LOOKED.fetch_add(1, Relaxed);
        let place = at + scattered(mapping.block.addr() + at, look) % (chunk / page).max(1) * page;
        // SAFETY: inside the mapping, which is the caller's.
        resident += unsafe { os::resident_pages(mapping.block.wrapping_add(place), page) }? as u32;
        looked += 1;
        at += chunk;
    }
    Some((looked, resident))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_kernel_is_believed() {
        assert_eq!(judge(&Samples([ptr::null_mut(); SAMPLES])), None);
        let base = os::map_uncounted(2 * SUPERSLAB);
        let sample = |n: usize| {
            let mut chosen = [ptr::null_mut(); SAMPLES];
            chosen[..n].fill(base);
            Samples(chosen)
        };
        // SAFETY: ours. Without huge pages, whatever the system's default is.
        unsafe { os::advise_huge(base, 2 * SUPERSLAB, false) };
        assert_eq!(judge(&sample(1)), Some(false));
        for page in 0..SUPERSLAB / os::page_size() * 3 / 4 {
            // SAFETY: inside the mapping.
            unsafe { base.add(page * os::page_size()).write(1) };
        }
        assert_eq!(judge(&sample(2)), Some(false));
        // SAFETY: inside the mapping.
        unsafe { base.write_bytes(1, SUPERSLAB) };
        assert_eq!(judge(&sample(4)), Some(true));
        assert!(!are_dense(FROM - 1, || sample(1)));
        let answers: Vec<bool> = (0..SUPERSLAB_CONTROL).map(|_| are_dense(FROM, || sample(1))).collect();
        assert_eq!(answers.iter().filter(|yes| !**yes).count(), 1, "a control");
        // SAFETY: ours.
        unsafe { os::unmap_uncounted(base, 2 * SUPERSLAB) };
        // What is not there tells nothing.
        assert_eq!(judge(&sample(1)), None);
    }

    #[test]
    fn dense_is_seven_eighths_of_enough() {
        let seen = Density::new();
        assert!(!seen.is_dense(HUGE_PAGE));
        seen.add(HUGE_PAGE, ENOUGH - 1, ENOUGH - 1);
        assert!(!seen.is_dense(HUGE_PAGE) && !seen.wants(HUGE_PAGE));
        seen.add(HUGE_PAGE, 1, 1);
        assert!(seen.is_dense(HUGE_PAGE));
        seen.add(HUGE_PAGE, 8, 0);
        assert!(!seen.is_dense(HUGE_PAGE));
        for _ in 0..100 {
            seen.add(HUGE_PAGE, 16, 16);
        }
        assert!(seen.is_dense(HUGE_PAGE), "old looks fade");
        for _ in 0..3 {
            seen.add(HUGE_PAGE, 16, 0);
        }
        assert!(!seen.is_dense(HUGE_PAGE));
    }

    /// A program that touches one page in 64 of a mapping that comes and goes: looks at it are not all at such a page, or at none.
    #[test]
    fn looks_at_one_mapping_are_independent() {
        for start in (0..100).map(|i| i << 21) {
            let hits = (0..1000).filter(|&look| scattered(start, look) % 512 % 64 == 0).count();
            assert!((2..60).contains(&hits), "{hits}");
        }
    }

    #[test]
    fn one_in_sixteen_is_a_control() {
        let seen = Density::new();
        seen.add(HUGE_PAGE, ENOUGH, ENOUGH);
        assert_eq!((0..160).filter(|_| !seen.wants(HUGE_PAGE)).count(), 10);
    }

    #[test]
    fn a_mapping_of_another_order_is_not_trusted() {
        let seen = Density::new();
        seen.add(HUGE_PAGE, 64, 64);
        assert!(seen.is_dense(LONGER * HUGE_PAGE) && !seen.is_dense((LONGER + 1) * HUGE_PAGE));
        seen.add(64 * HUGE_PAGE, 16, 16);
        assert!(seen.is_dense(256 * HUGE_PAGE));
        seen.add(32 * HUGE_PAGE, 4, 1);
        assert!(seen.is_dense(16 * HUGE_PAGE) && !seen.is_dense(32 * HUGE_PAGE));
    }
}
