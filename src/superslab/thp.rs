//! Transparent huge pages, for memory that is touched densely. A huge page is resident as a whole once one
//! byte of it is touched, so huge pages are advised only where most of the memory is resident anyway.
//!
//! * SuperSlabs: slices of slabs that have handed out every block are certainly resident. While the heap
//!   grows by such slices, the next SuperSlab gets huge pages. For other memory, the kernel is asked how much
//!   is resident of a few SuperSlabs without huge pages that have hardly a free slice.
//! * Direct mappings: the kernel is asked about a few pages of mappings without huge pages that are freed, or
//!   grow, or have existed for a while. While those were touched densely, new mappings of at least 2 MiB get
//!   huge pages. Of mappings with huge pages it can only say whether each part was touched: while that is so,
//!   longer ones get huge pages, too.
//!
//! A few new SuperSlabs and mappings are controls: they get no huge pages, so that a change in behaviour is
//! noticed.
//!
//! All accesses to atomics here are relaxed: they are figures, on which no other memory depends.

use crate::base::options::{self, Thp};
use crate::base::table::Table;
use crate::os;
use crate::superslab::layout::{SLICES, SUPERSLAB};
use crate::superslab::span_index::{self, State};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize};
use core::ptr;

/// Size and alignment of a huge page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Whether `part` is most of `whole`: at least seven eighths.
const fn is_most(part: usize, whole: usize) -> bool {
    part * 8 >= whole * 7
}

/// Huge pages are advised once this many slices have been filled to the last block: as many as 16 SuperSlabs
/// have. If the next SuperSlab then stays empty, that wastes a sixteenth.
const HUGE_FROM: usize = 16 * SLICES;
/// Slices of slabs that have handed out every block once, which are certainly resident. Runs do not count:
/// nobody knows how much of them was touched.
static FILLED: AtomicUsize = AtomicUsize::new(0);

/// Counts the slices of a slab that has just handed out its last fresh block.
pub(crate) fn filled(slices: usize) {
    FILLED.fetch_add(slices, Relaxed);
}

/// [`FILLED`] when the last SuperSlab was mapped.
static FILLED_THEN: AtomicUsize = AtomicUsize::new(0);
/// The fewest SuperSlabs of a heap that counts as growing. Small processes stay as they are; the first
/// SuperSlabs serve many classes that need few blocks each.
const GROWING_FROM: usize = 3;

/// Whether a heap of that many SuperSlabs grows densely: since the last one was mapped, when `then` slices
/// were filled, most of what one holds has been filled. If the growth then ends, the rest of one is wasted.
const fn is_growing(superslabs: usize, then: usize, filled: usize) -> bool {
    superslabs >= GROWING_FROM && is_most(filled.saturating_sub(then), SLICES)
}

/// Takes back [`filled`] for as many slices.
pub(super) fn no_more_filled(slices: usize) {
    FILLED.fetch_sub(slices, Relaxed);
}

/// Whether to use huge pages: what the option says, or what `find` finds if that is left to us.
fn said_or(find: impl FnOnce() -> bool) -> bool {
    match options::get().thp {
        Thp::Always => true,
        Thp::Never => false,
        Thp::Auto | Thp::Folios => find(),
    }
}

/// Whether it is left to us where huge pages are used.
fn is_ours() -> bool {
    matches!(options::get().thp, Thp::Auto | Thp::Folios)
}

/// Whether memory that should not have huge pages is advised against them. Then it gets no folios of other
/// sizes either.
pub(super) fn refuses() -> bool {
    options::get().thp != Thp::Folios
}

/// Whether the next SuperSlab should have huge pages.
pub(super) fn wants_huge_superslab() -> bool {
    // Spans that are mostly untouched, like those of many threads with small heaps, must not become resident.
    said_or(|| {
        let filled = FILLED.load(Relaxed);
        let then = FILLED_THEN.swap(filled, Relaxed);
        let Some((superslabs, used)) = span_index::with(|pool| (pool.superslabs, pool.used_slices)) else {
            return false;
        };
        is_growing(superslabs, then, filled)
            || filled >= HUGE_FROM && is_most(filled, used)
            || are_dense(superslabs, || span_index::with(|pool| choose(pool)).unwrap_or(NO_SAMPLES))
    })
}

/// With fewer SuperSlabs than this the kernel is not asked: if the next one stays empty, that wastes an
/// eighth.
const FROM: usize = 8;
/// One new SuperSlab in this many is a control, without huge pages.
const SUPERSLAB_CONTROL: usize = 64;
/// The kernel is asked for one new SuperSlab in this many.
const RARELY: usize = 4;
/// How many SuperSlabs the kernel is asked about at a time.
const SAMPLES: usize = 4;
/// How many SuperSlabs at the front of a bucket are considered.
const AMONG: usize = 32;
/// The most free slices of a SuperSlab that is considered: runs leave gaps into which no run fits.
const MOST_FREE: usize = 2;
/// This many SuperSlabs at the front of a bucket are passed over: they have only just become full, and may
/// not be touched yet.
const TOO_FRESH: usize = 2;

/// How often [`are_dense`] was called with enough SuperSlabs.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// The kernel's last answer.
static DENSE: AtomicBool = AtomicBool::new(false);

/// SuperSlabs to ask the kernel about; null where there are fewer.
type Samples = [*mut u8; SAMPLES];
/// No SuperSlabs.
const NO_SAMPLES: Samples = [ptr::null_mut(); SAMPLES];

/// Chooses SuperSlabs to ask about; under the pool's lock.
fn choose(pool: &State) -> Samples {
    let old = (0..=MOST_FREE).flat_map(|free| {
        pool.bucket(free).take(AMONG).skip(TOO_FRESH).filter(|desc| !desc.huge.load(Relaxed))
    });
    let mut chosen = NO_SAMPLES;
    chosen.iter_mut().zip(old).for_each(|(place, desc)| *place = desc.base());
    chosen
}

/// Whether SuperSlabs in use are densely resident. Called without the pool's lock.
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

/// Whether most of the chosen SuperSlabs is resident. `None` if there are none, or the system does not say.
fn judge(samples: &Samples) -> Option<bool> {
    let (mut pages, mut resident) = (0, 0);
    for &base in samples.iter().filter(|base| !base.is_null()) {
        // SAFETY: this only asks the system, which reports an error if the memory has been unmapped
        // meanwhile.
        resident += unsafe { os::resident_pages(base, SUPERSLAB) }?;
        pages += SUPERSLAB >> os::page_size().trailing_zeros();
    }
    (pages != 0).then_some(is_most(resident, pages))
}

/// One mapping in this many is a control, without huge pages.
const CONTROL: usize = 16;
/// At least this many system pages must have been looked at before mappings are found dense.
const ENOUGH: usize = 16;
/// When more than this many have been looked at, both counts are halved, so that older looks fade.
const MANY: usize = 128;
/// A mapping gets huge pages if it is at most this many times as long as the longest dense one: a program
/// with dense buffers may have a sparse table, too.
const LONGER: usize = 4;
/// The most system pages of one mapping that are looked at.
const LOOKS: usize = 16;
/// To find out whether a mapping is sparse, one system page of each of this many parts is looked at.
const FEW: usize = 8;

/// A direct mapping.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) block: *mut u8,
    pub(crate) len: usize,
    /// Whether huge pages have been advised.
    pub(crate) huge: bool,
}

/// What has been seen of direct mappings. Races lose a count at worst.
struct Density {
    /// System pages that were looked at.
    looked: AtomicUsize,
    /// How many of these were resident.
    resident: AtomicUsize,
    /// Mappings that were dense enough to get huge pages, controls included.
    made: AtomicUsize,
    /// The length of the longest mapping, in bytes, that was dense, or had huge pages and was touched all
    /// over. Reduced by one that is not dense.
    longest: AtomicUsize,
}

static SEEN: Density = Density::new();

impl Density {
    const fn new() -> Self {
        Self {
            looked: AtomicUsize::new(0),
            resident: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            longest: AtomicUsize::new(0),
        }
    }

    /// Counts system pages that were looked at in a mapping of `len` bytes, and how many of them were
    /// resident.
    fn add(&self, len: usize, looked: usize, resident: usize) {
        let longest = self.longest.load(Relaxed);
        let dense = is_most(resident, looked);
        self.longest.store(if dense { longest.max(len) } else { longest.min(len / LONGER / 2) }, Relaxed);
        let (mut l, mut r) = (self.looked.load(Relaxed) + looked, self.resident.load(Relaxed) + resident);
        if l > MANY {
            (l, r) = (l / 2, r / 2);
        }
        self.looked.store(l, Relaxed);
        self.resident.store(r.min(l), Relaxed);
    }

    /// [`add`](Self::add) for a mapping with huge pages. Whether they are touched densely nobody knows, only
    /// how much of the mapping is touched at all.
    fn add_huge(&self, len: usize, looked: usize, resident: usize) {
        if looked == resident {
            self.longest.fetch_max(len, Relaxed);
        }
    }

    /// Whether a mapping of `len` bytes is likely to be touched densely.
    fn is_dense(&self, len: usize) -> bool {
        let (looked, resident) = (self.looked.load(Relaxed), self.resident.load(Relaxed));
        looked >= ENOUGH && is_most(resident, looked) && len / LONGER <= self.longest.load(Relaxed)
    }

    /// Whether the next mapping, of `len` bytes, should have huge pages.
    fn wants(&self, len: usize) -> bool {
        self.is_dense(len) && self.made.fetch_add(1, Relaxed) % CONTROL != CONTROL - 1
    }
}

/// Recent mappings without huge pages. A program that frees nothing is judged by the oldest of them when it
/// makes another.
static RECENT: Table<AtomicPtr<u8>, 4> = Table([const { AtomicPtr::new(ptr::null_mut()) }; 4]);
/// The next place in [`RECENT`].
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Remembers a new mapping in place of the oldest one. Returns that, which may be gone by now.
pub(crate) fn remember(block: *mut u8) -> *mut u8 {
    RECENT[NEXT.fetch_add(1, Relaxed)].swap(block, Relaxed)
}

/// The last control, once the program has had some time to fill it; otherwise null. It may be gone by now.
pub(crate) fn control() -> *mut u8 {
    if SEEN.made.load(Relaxed) % CONTROL != CONTROL / 4 {
        return ptr::null_mut();
    }
    RECENT[NEXT.load(Relaxed).wrapping_sub(1)].load(Relaxed)
}

/// Whether a mapping of `len` bytes should have huge pages.
pub(crate) fn wants_huge_mapping(len: usize) -> bool {
    said_or(|| len >= HUGE_PAGE && SEEN.wants(len))
}

/// Whether a mapping that has grown to `len` bytes should have huge pages from now on.
pub(crate) fn wants_huge_grown(len: usize) -> bool {
    is_ours() && len >= 2 * HUGE_PAGE && SEEN.is_dense(len)
}

/// Looks at a mapping, from `from` bytes on, and counts what it sees. Does nothing if the mapping is too
/// short, or the option decides.
pub(crate) fn look(mapping: Mapping, from: usize) {
    if mapping.len < HUGE_PAGE || !is_ours() {
        return;
    }
    let chunk = HUGE_PAGE.max(mapping.len.saturating_sub(from).div_ceil(LOOKS));
    if let Some((looked, resident)) = sample(mapping, from, chunk).filter(|&(looked, _)| looked != 0) {
        let add = if mapping.huge { Density::add_huge } else { Density::add };
        add(&SEEN, mapping.len, looked, resident);
    }
}

/// Whether less than half of a mapping is resident, judging by a few system pages. Purging such a mapping,
/// and faulting in what is touched next, costs less than clearing all of it.
pub(crate) fn is_sparse(mapping: Mapping) -> bool {
    let few = || sample(mapping, 0, mapping.len.div_ceil(FEW));
    !mapping.huge && mapping.len >= HUGE_PAGE && few().is_some_and(|(looked, resident)| resident * 2 < looked)
}

/// How many looks there were so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// A hash of place and look. It differs from look to look, even at the same place, where a mapping that comes
/// and goes may lie every time. So the places that are looked at follow no pattern that could coincide with
/// one of the program.
fn scattered(place: usize, look: usize) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (place as u64 ^ look as u64).wrapping_mul(ODD);
    ((mixed ^ mixed >> 32).wrapping_mul(ODD) >> 40) as usize
}

/// Looks at one system page of each whole `chunk` (in bytes) of a mapping, from `from` bytes on. Returns how
/// many pages were looked at, and how many of them are resident. `None` if the system does not say.
fn sample(mapping: Mapping, from: usize, chunk: usize) -> Option<(usize, usize)> {
    let page = os::page_size();
    let chunk = chunk.next_multiple_of(page);
    let (mut looked, mut resident) = (0, 0);
    let mut at = from;
    while at + chunk <= mapping.len {
        let look = LOOKED.fetch_add(1, Relaxed);
        let place = at + scattered(mapping.block.addr() + at, look) % (chunk / page).max(1) * page;
        // SAFETY: this only asks the system, which reports an error if the mapping is gone.
        resident += unsafe { os::resident_pages(mapping.block.wrapping_add(place), page) }?;
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
        assert_eq!(judge(&NO_SAMPLES), None);
        let base = os::map_uncounted(2 * SUPERSLAB);
        let sample = |n: usize| {
            let mut chosen = NO_SAMPLES;
            chosen[..n].fill(base);
            chosen
        };
        // Without huge pages, whatever the system's default is.
        // SAFETY: our own mapping of this length.
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
        // SAFETY: our own mapping of this length, not used any more.
        unsafe { os::unmap_uncounted(base, 2 * SUPERSLAB) };
        // The system does not say anything about memory that is not mapped.
        assert_eq!(judge(&sample(1)), None);
    }

    #[test]
    fn a_heap_grows_by_what_is_filled() {
        assert!(is_growing(GROWING_FROM, 40, 40 + SLICES));
        assert!(!is_growing(GROWING_FROM - 1, 40, 40 + SLICES), "small");
        assert!(!is_growing(100, 40, 40 + SLICES / 2), "spans that are hardly touched");
        assert!(!is_growing(100, 40, 8), "slabs were given back");
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

    /// A program touches one page in 64 of a mapping that comes and goes. The looks must not all hit such a
    /// page, nor all miss.
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
        // Unless one with huge pages was touched all over.
        seen.add_huge(4 * HUGE_PAGE, 4, 3);
        assert!(!seen.is_dense(16 * HUGE_PAGE));
        seen.add_huge(4 * HUGE_PAGE, 4, 4);
        assert!(seen.is_dense(16 * HUGE_PAGE) && !seen.is_dense(20 * HUGE_PAGE));
        seen.add(64 * HUGE_PAGE, 16, 16);
        assert!(seen.is_dense(256 * HUGE_PAGE));
        seen.add(32 * HUGE_PAGE, 4, 1);
        assert!(seen.is_dense(16 * HUGE_PAGE) && !seen.is_dense(32 * HUGE_PAGE));
    }
}
