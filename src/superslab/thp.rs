//! Transparent huge pages, for memory that is touched densely. A huge page is resident as a whole once one
//! byte of it is touched, so huge pages are advised only where most of the memory is resident anyway. Here
//! for SuperSlabs; `large/huge.rs` does it for direct mappings.
//!
//! Slices of slabs that have handed out every block, none of them longer than a page, are certainly resident.
//! While the heap grows by such slices, the next SuperSlab gets huge pages. For other memory, the kernel is
//! asked how much is resident of a few SuperSlabs without huge pages that have hardly a free slice.
//!
//! That is asked about the newest that hold at least half as much of what the heap grows by. Of those with
//! huge pages the system only says that they are resident; but what holds something other than zeros has been
//! written to ([`written`]). Where that says nothing, a few new SuperSlabs are controls: they get no huge
//! pages, so that a change in behaviour is noticed.
//!
//! All accesses to atomics here are relaxed: they are figures, on which no other memory depends.

mod doubt;
mod written;

use crate::base::options::{self, Thp};
use crate::os;
use crate::superslab::desc::DescRef;
use crate::superslab::layout::{SLICES, SUPERSLAB};
use crate::superslab::span_index::{self, State};
use crate::superslab::survey;
pub(crate) use crate::superslab::thp::doubt::Doubt;
pub(crate) use crate::superslab::thp::written::is_written;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicUsize};
use core::ptr;

/// Size and alignment of a huge page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Whether `part` is most of `whole`: at least seven eighths.
pub(crate) const fn is_most(part: usize, whole: usize) -> bool {
    part * 8 >= whole * 7
}

/// Huge pages are advised once this many slices have been filled to the last block: as many as 16 SuperSlabs
/// have. If the next SuperSlab then stays empty, that wastes a sixteenth.
const HUGE_FROM: usize = 16 * SLICES;
/// Slices of slabs that have handed out every block once.
struct Filled {
    /// Those that are certainly resident. Runs do not count: nobody knows how much of them was touched.
    short: AtomicUsize,
    /// Those of blocks longer than a page.
    long: AtomicUsize,
}

static FILLED: Filled = Filled::new();
/// The same when the pool got its last SuperSlab.
static FILLED_THEN: Filled = Filled::new();

impl Filled {
    const fn new() -> Self {
        Self { short: AtomicUsize::new(0), long: AtomicUsize::new(0) }
    }

    /// What counts slabs with blocks of this length.
    fn of(&self, stride: usize) -> &AtomicUsize {
        if is_long(stride) { &self.long } else { &self.short }
    }
}

/// Whether a block that is touched may have pages that are not. Of such a block a program may use the
/// beginning only, as of a buffer for each connection.
pub(crate) fn is_long(stride: usize) -> bool {
    stride > os::page_size()
}

/// Whether so many pages of so many that [long](is_long) blocks have are resident as where all of them are
/// full: at the ends of blocks and spans of some classes nearly a fifth is left.
pub(crate) const fn is_long_filled(resident: usize, pages: usize) -> bool {
    resident * 5 >= pages * 4
}

/// Counts the slices of a slab that has just handed out its last fresh block.
pub(crate) fn filled(slices: usize, stride: u32) {
    FILLED.of(stride as usize).fetch_add(slices, Relaxed);
}

/// The fewest SuperSlabs of a heap that counts as growing. Small processes stay as they are; the first
/// SuperSlabs serve many classes that need few blocks each.
const GROWING_FROM: usize = 3;

/// A heap that grew goes on growing while as many slices are filled from one SuperSlab to the next.
const GOES_ON: usize = SLICES * 5 / 8;
/// The fewest SuperSlabs of which one may be wasted for that.
const GOES_ON_FROM: usize = 8;
/// Whether the heap grew when the pool got its last SuperSlab.
static GREW: AtomicBool = AtomicBool::new(false);

/// Whether a heap of that many SuperSlabs grows densely: since the pool got the last one, when `then` slices
/// were filled, most of what one holds has been filled. `grew` is the answer of that time: larger heaps go on
/// with less. If the growth then ends, the rest of one is wasted.
const fn is_growing(superslabs: usize, then: usize, filled: usize, grew: bool) -> bool {
    let more = filled.saturating_sub(then);
    let goes_on = grew && superslabs >= GOES_ON_FROM && more >= GOES_ON;
    superslabs >= GROWING_FROM && (is_most(more, SLICES) || goes_on)
}

/// Takes back [`filled`] of such a slab.
pub(super) fn no_more_filled(slices: usize, stride: u32) {
    // Down to 0: a fork may have come between what is noted in the slab and what is counted.
    let less = |filled: usize| Some(filled.saturating_sub(slices));
    let _ = FILLED.of(stride as usize).fetch_update(Relaxed, Relaxed, less);
}

/// Whether to use huge pages: what the option says, or what `find` finds if that is left to us.
pub(crate) fn said_or(find: impl FnOnce() -> bool) -> bool {
    match options::get().thp {
        Thp::Always => true,
        Thp::Never => false,
        Thp::Auto | Thp::Folios => find(),
    }
}

/// Whether it is left to us where huge pages are used.
pub(crate) fn is_ours() -> bool {
    matches!(options::get().thp, Thp::Auto | Thp::Folios)
}

/// Whether memory that should not have huge pages is advised against them. Then it gets no folios of other
/// sizes either.
pub(crate) fn refuses() -> bool {
    options::get().thp != Thp::Folios
}

/// How the heap has grown since the pool got its last SuperSlab.
pub(super) struct Growth {
    /// Whether the next one should have huge pages.
    pub(super) wants_huge: bool,
    /// Before and now, what is short and what is long.
    short: (usize, usize),
    long: (usize, usize),
}

/// Looks how the heap has grown, and notes that the pool gets another SuperSlab.
pub(super) fn growth() -> Growth {
    let renew = |then: &AtomicUsize, now: &AtomicUsize| {
        let now = now.load(Relaxed);
        (then.swap(now, Relaxed), now)
    };
    let short = renew(&FILLED_THEN.short, &FILLED.short);
    let long = renew(&FILLED_THEN.long, &FILLED.long);
    let (then, filled) = short;
    // Spans that are mostly untouched, like those of many threads with small heaps, must not become resident.
    let wants_huge = said_or(|| {
        let Some((superslabs, used)) = span_index::with(|pool| (pool.superslabs, pool.used_slices)) else {
            return false;
        };
        let grows = is_growing(superslabs, then, filled, GREW.load(Relaxed));
        GREW.store(grows, Relaxed);
        if grows || filled >= HUGE_FROM && is_most(filled, used) {
            return true;
        }
        let may_grow =
            is_growing(superslabs, then.saturating_add(long.0), filled.saturating_add(long.1), false);
        let by_long = long.1.saturating_sub(long.0).min(SLICES);
        let ask =
            |choose: &dyn Fn(&State) -> Samples| span_index::with(|pool| choose(pool)).unwrap_or(NO_SAMPLES);
        if may_grow || by_long >= MANY {
            let like_these = |huge| ask(&|pool| choose_like(pool, Kind::Long, by_long.div_ceil(2), huge));
            return LONG.are_dense(superslabs, may_grow, || like_these(false), || like_these(true));
        }
        let by_runs = span_index::with(|pool| pool.newest.map_or(0, |newest| Kind::Runs.slices_of(newest)));
        let by_runs = by_runs.unwrap_or(0);
        if by_runs >= MANY {
            let like_these = |huge| ask(&|pool| choose_like(pool, Kind::Runs, by_runs.div_ceil(2), huge));
            RUNS.are_dense(superslabs, false, || like_these(false), || like_these(true))
        } else {
            ANY.are_dense(superslabs, false, || ask(&choose), || NO_SAMPLES)
        }
    });
    Growth { wants_huge, short, long }
}

impl Growth {
    /// The pool has not got one.
    pub(super) fn undo(self) {
        for (counter, (then, filled)) in [(&FILLED_THEN.short, self.short), (&FILLED_THEN.long, self.long)] {
            let _ = counter.compare_exchange(filled, then, Relaxed, Relaxed);
        }
    }
}

/// With fewer SuperSlabs than this the kernel is not asked: if the next one stays empty, that wastes an
/// eighth. It is from [`GROWING_FROM`] on if the heap grows like one of which the kernel says so.
const FROM: usize = 8;
/// If so many slices of slabs of long blocks are filled from one SuperSlab to the next, or the last one has
/// so many in runs, those are what the kernel is asked about.
const MANY: usize = SLICES / 4;
/// One new SuperSlab in this many is a control, without huge pages.
const SUPERSLAB_CONTROL: usize = 64;
/// The same of those that long blocks fill: each time that the heap has doubled, so that at most half of it
/// comes to be resident in vain. From tables that are filled a program may go on to buffers that are not.
fn long_control(superslabs: usize) -> usize {
    (superslabs / 2).clamp(FROM, SUPERSLAB_CONTROL)
}
/// The kernel is asked for one new SuperSlab in this many.
const RARELY: usize = 4;
/// How many SuperSlabs the kernel is asked about at a time.
const SAMPLES: usize = 4;
/// How many SuperSlabs at the front of a bucket are considered.
const AMONG: usize = 32;
/// The most free slices of a SuperSlab that is considered: runs leave gaps into which no run fits. With one
/// more that are clean, one of runs is not dense by itself.
const MOST_FREE: usize = 4;
/// The same if it is chosen for its runs: those of one length may leave so many.
const MOST_FREE_BESIDE_RUNS: usize = SLICES / 2;
/// How many SuperSlabs at the front of a bucket are considered that has more than [`MOST_FREE`].
const AMONG_FEW: usize = 8;
/// This many SuperSlabs at the front of a bucket are passed over: they have only just become full, and may
/// not be touched yet.
const TOO_FRESH: usize = 2;

/// What the kernel has said.
struct Answers {
    /// How often somebody had to know.
    asked: AtomicUsize,
    /// The last answer.
    dense: AtomicBool,
    /// Whether so many resident pages of so many are dense.
    enough: fn(usize, usize) -> bool,
    /// How many since the last control, or since one with huge pages was seen to be written to.
    uncontrolled: AtomicUsize,
    /// Whether one held little.
    doubt: Doubt,
    /// One new SuperSlab in this many is a control, in a heap of so many.
    control: fn(usize) -> usize,
}

/// Of SuperSlabs with slabs of long blocks.
static LONG: Answers = Answers::new(is_long_filled, long_control);
/// Of SuperSlabs with runs.
static RUNS: Answers = Answers::new(is_most, long_control);
/// Of any.
static ANY: Answers = Answers::new(is_most, |_| SUPERSLAB_CONTROL);

/// SuperSlabs to ask the kernel about; null where there are fewer.
type Samples = [*mut u8; SAMPLES];
/// No SuperSlabs.
const NO_SAMPLES: Samples = [ptr::null_mut(); SAMPLES];

/// Whether what is resident of a SuperSlab, or what one with huge pages holds, tells how much of it is
/// touched.
fn tells(desc: DescRef, huge: bool) -> bool {
    desc.huge.load(Relaxed) == huge && !desc.reused.load(Relaxed)
}

/// Chooses SuperSlabs to ask about; under the pool's lock.
fn choose(pool: &State) -> Samples {
    let old = (0..=MOST_FREE)
        .flat_map(|free| pool.bucket(free).take(AMONG).skip(TOO_FRESH).filter(|desc| tells(desc, false)));
    let mut chosen = NO_SAMPLES;
    chosen.iter_mut().zip(old).for_each(|(place, desc)| *place = desc.base());
    chosen
}

/// What a heap grows by of which a program may use a part only.
#[derive(Clone, Copy)]
enum Kind {
    /// Slabs of long blocks.
    Long,
    Runs,
}

impl Kind {
    /// How many slices of a SuperSlab it has. Under the pool's lock.
    fn slices_of(self, desc: DescRef) -> usize {
        let slices = survey::slices_of(desc, is_long);
        match self {
            Kind::Long => slices.slabs,
            Kind::Runs => slices.runs,
        }
    }

    /// How many SuperSlabs with so many free slices are considered.
    fn among(self, free: usize) -> usize {
        match self {
            _ if free <= MOST_FREE => AMONG,
            Kind::Runs if free <= MOST_FREE_BESIDE_RUNS => AMONG_FEW,
            _ => 0,
        }
    }
}

/// Chooses the newest, with huge pages or without, but for the one that has only just become full, with at
/// least so many slices of that kind: what was made before, or of other blocks, says nothing of those that
/// the heap grows by. Under the pool's lock.
fn choose_like(pool: &State, kind: Kind, least: usize, huge: bool) -> Samples {
    let mut newest: Option<DescRef> = None;
    for desc in (0..SLICES).flat_map(|free| pool.bucket(free).take(kind.among(free))) {
        let is_newer = newest.is_none_or(|newest| desc.age() < newest.age());
        let is_old_enough = desc.age() > 0;
        if is_newer && is_old_enough && tells(desc, huge) && kind.slices_of(desc) >= least {
            newest = Some(desc);
        }
    }
    let mut chosen = NO_SAMPLES;
    chosen[0] = newest.map_or(ptr::null_mut(), |desc| desc.base());
    chosen
}

impl Answers {
    const fn new(enough: fn(usize, usize) -> bool, control: fn(usize) -> usize) -> Self {
        Self {
            asked: AtomicUsize::new(0),
            dense: AtomicBool::new(false),
            enough,
            uncontrolled: AtomicUsize::new(0),
            doubt: Doubt::new(),
            control,
        }
    }

    /// Whether SuperSlabs in use are densely resident. `may_grow`: the heap grows, if they are. `samples` are
    /// some without huge pages, `huge` one with them. Called without the pool's lock.
    fn are_dense(
        &self,
        superslabs: usize,
        may_grow: bool,
        samples: impl FnOnce() -> Samples,
        huge: impl FnOnce() -> Samples,
    ) -> bool {
        if superslabs < FROM {
            // Of few what was said before says nothing.
            return may_grow && self.judge(&samples()) == Some(true);
        }
        let asked = self.asked.fetch_add(1, Relaxed);
        if asked % RARELY == 0 {
            if let Some(dense) = self.judge(&samples()) {
                self.dense.store(dense, Relaxed);
                if !dense {
                    self.doubt.confirm();
                }
            }
        }
        if self.dense.load(Relaxed) && asked % (superslabs / FROM).clamp(1, RARELY) == 0 {
            self.look_into(huge()[0]);
        }
        if self.uncontrolled.fetch_add(1, Relaxed) + 1 >= (self.control)(superslabs) {
            self.uncontrolled.store(0, Relaxed);
            return false;
        }
        self.dense.load(Relaxed)
    }

    /// Looks at what a SuperSlab with huge pages holds. If most of its pages hold something, no control is
    /// needed yet. If few do, the next ones have no huge pages, and the first of them is asked about, if
    /// there is cause for [doubt](Doubt).
    fn look_into(&self, huge: *mut u8) {
        let may_doubt = self.doubt.may_be_raised();
        let written = if huge.is_null() { None } else { written::pages_written(huge, may_doubt) };
        match written {
            Some(written) if (self.enough)(written, written::PAGES) => {
                self.uncontrolled.store(0, Relaxed);
                self.doubt.dispel();
            }
            Some(written) if written < written::PAGES * 3 / 8 && self.doubt.raise() => {
                self.dense.store(false, Relaxed);
                // So that it is asked about the next time but one, when it is not the newest any more.
                self.asked.store(RARELY - 1, Relaxed);
            }
            _ => {}
        }
    }

    /// Whether the chosen SuperSlabs are resident. `None` if there are none, or the system does not say.
    fn judge(&self, samples: &Samples) -> Option<bool> {
        let (mut pages, mut resident) = (0, 0);
        for &base in samples.iter().filter(|base| !base.is_null()) {
            // SAFETY: this only asks the system, which reports an error if the memory has been unmapped
            // meanwhile.
            resident += unsafe { os::resident_pages(base, SUPERSLAB) }?;
            pages += SUPERSLAB >> os::page_size().trailing_zeros();
        }
        (pages != 0).then_some((self.enough)(resident, pages))
    }
}

#[cfg(test)]
mod tests;
