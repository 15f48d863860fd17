//! Huge pages for direct mappings, on the same terms as for SuperSlabs ([`thp`](crate::superslab::thp)).
//!
//! The kernel is asked about a few pages of mappings without huge pages that are freed, or grow, or have
//! existed for a while. While those were touched densely, new mappings of at least 2 MiB get huge pages. Of
//! mappings with huge pages it can only say whether each part was touched: while that is so, longer ones get
//! huge pages, too. What they hold tells more ([`held`]). A few new mappings are controls, without huge
//! pages.
//!
//! All accesses to atomics here are relaxed: they are figures, on which no other memory depends.

mod held;
mod purged;
mod recent;
mod sample;
mod unasked;

use crate::base::options::{self, Thp};
pub(super) use crate::large::huge::held::{earlier_huge, holds_little, remember_huge};
pub(crate) use crate::large::huge::purged::{is_better_purged, is_sparse};
use crate::large::huge::recent::Recent;
use crate::large::huge::sample::{look_at_few, sample};
use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::thp::{Doubt, HUGE_PAGE, is_most, is_ours, said_or};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicPtr, AtomicUsize};
use core::ptr;

/// One block in this many is a control, without huge pages.
const CONTROL: usize = 16;
/// How many are made before the first of them: few, since little is known then.
const CONTROL_AT: usize = 3;
/// How many mappings later a control is looked at: the program has had some time to fill it.
const LATER: usize = 4;
/// At least this many system pages must have been looked at before mappings are found dense.
const ENOUGH: usize = 16;
/// When more than this many have been looked at, both counts are halved, so that older looks fade.
const MANY: usize = 128;
/// A mapping gets huge pages if it is at most this many times as long as the longest dense one: a program
/// with dense buffers may have a sparse table, too.
const LONGER: usize = 8;
/// The same of one that has to be zero, as sparse tables are. Of a table that doubles the last one is still
/// in use, and may have huge pages, so what is known to be dense is a quarter as long.
const LONGER_IF_CLEAR: usize = 4;
/// The most system pages of one mapping that are looked at.
const LOOKS: usize = 16;
/// The same of a part of one that is shorter than a huge page.
const SHORT_LOOKS: usize = 4;
/// The shortest mapping that is looked at: most are longer, since what is not longer is a run.
pub(super) const SHORTEST: usize = HUGE_PAGE / 2 - SLICE;
/// The same while little is known: of the smallest and the largest system pages it has enough.
const SHORTEST_CLOSE: usize = HUGE_PAGE / 2;
/// After so many close looks at what was not dense there are no more: they cost as many system calls.
const TRIES: usize = 16;

/// A direct mapping.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) block: *mut u8,
    pub(crate) len: usize,
    /// Whether huge pages have been advised.
    pub(crate) huge: bool,
    /// Whether it is kept and nobody has ever touched it, so that it is zero.
    pub(crate) clean: bool,
}

/// What has been seen of direct mappings. Races lose a count at worst.
struct Density {
    /// System pages that were looked at.
    looked: AtomicUsize,
    /// How many of these were resident.
    resident: AtomicUsize,
    /// Blocks that were likely to be dense, and got huge pages, controls included.
    made: AtomicUsize,
    /// How many there are when the next control is due, and when the last one is looked at; where that is,
    /// null until it is made.
    control_at: AtomicUsize,
    look_at: AtomicUsize,
    control: AtomicPtr<u8>,
    /// The length of the longest mapping, in bytes, that was dense, or had huge pages and was touched all
    /// over. Reduced by one that is not dense.
    longest: AtomicUsize,
    /// Close looks at mappings that were not dense.
    tries: AtomicUsize,
    /// Mappings that were cleared since one was purged, how many may be, and where that one was.
    cleared: AtomicUsize,
    may_clear: AtomicUsize,
    purged: AtomicPtr<u8>,
    /// Whether one with huge pages held little.
    doubt: Doubt,
}

/// What has been seen of mappings of at least 2 MiB. Close looks see shorter ones, too.
static SEEN: Density = Density::new();
/// What has been seen of shorter ones, which can only have huge pages together (`batch.rs`).
static SHORT: Density = Density::new();

/// What has been seen of mappings as long as this one.
fn seen(len: usize) -> &'static Density {
    if len < HUGE_PAGE { &SHORT } else { &SEEN }
}

impl Density {
    const fn new() -> Self {
        Self {
            looked: AtomicUsize::new(0),
            resident: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            control_at: AtomicUsize::new(CONTROL_AT),
            look_at: AtomicUsize::new(usize::MAX),
            control: AtomicPtr::new(ptr::null_mut()),
            longest: AtomicUsize::new(0),
            tries: AtomicUsize::new(0),
            cleared: AtomicUsize::new(0),
            may_clear: AtomicUsize::new(purged::CLEARED),
            purged: AtomicPtr::new(ptr::null_mut()),
            doubt: Doubt::new(),
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

    /// Whether too little was looked at for any mapping to get huge pages, and close looks may change that.
    fn knows_little(&self) -> bool {
        self.looked.load(Relaxed) < ENOUGH && self.tries.load(Relaxed) < TRIES
    }

    /// Counts a close look at a mapping of `len` bytes. Returns whether it is dense.
    fn add_close(&self, len: usize, looked: usize, resident: usize) -> bool {
        let dense = is_most(resident, looked);
        if dense {
            self.add(len, looked, resident);
        } else {
            self.tries.fetch_add(1, Relaxed);
        }
        dense
    }

    /// Whether a mapping of `len` bytes is at least twice as long as any that was dense.
    fn is_longest(&self, len: usize) -> bool {
        len / 2 >= self.longest.load(Relaxed)
    }

    /// Whether a mapping of `len` bytes is likely to be touched densely, if it may be that many times as long
    /// as one that was.
    fn is_dense(&self, len: usize, longer: usize) -> bool {
        let (looked, resident) = (self.looked.load(Relaxed), self.resident.load(Relaxed));
        looked >= ENOUGH && is_most(resident, looked) && len / longer <= self.longest.load(Relaxed)
    }

    /// Whether the next mapping, for that many blocks of `len` bytes, should have huge pages. If not, one
    /// block may be a control.
    fn wants(&self, len: usize, longer: usize, blocks: usize) -> bool {
        if !self.is_dense(len, longer) {
            return false;
        }
        let made = self.made.load(Relaxed);
        let is_control = made >= self.control_at.load(Relaxed);
        if is_control {
            self.control_at.store(made + CONTROL, Relaxed);
            self.look_at.store(made + LATER, Relaxed);
            self.control.store(ptr::null_mut(), Relaxed);
        }
        self.made.store(made + if is_control { 1 } else { blocks }, Relaxed);
        !is_control
    }

    /// Notes a new mapping without huge pages: the control, if there is to be one.
    fn made_without(&self, block: *mut u8) {
        if self.look_at.load(Relaxed) != usize::MAX && self.control.load(Relaxed).is_null() {
            self.control.store(block, Relaxed);
        }
    }

    /// Whether the last control is to be looked at now. Only once.
    fn is_time_to_look(&self) -> bool {
        let is_time = self.made.load(Relaxed) >= self.look_at.load(Relaxed);
        if is_time {
            self.look_at.store(usize::MAX, Relaxed);
        }
        is_time
    }
}

/// Recent mappings of at least 2 MiB without huge pages.
static RECENT: Recent = Recent::new();
/// Shorter ones.
static RECENT_SHORT: Recent = Recent::new();

/// Those as long as this one.
fn recent(len: usize) -> &'static Recent {
    if len < HUGE_PAGE { &RECENT_SHORT } else { &RECENT }
}

/// While little is known: the last mapping before the one that is about to be made. A program that makes and
/// fills one after the other has filled that; if it has not, that does not count. It may be gone by now.
pub(super) fn newest() -> *mut u8 {
    if !SEEN.knows_little() {
        return ptr::null_mut();
    }
    RECENT.newest()
}

/// Remembers a new mapping of `len` bytes in place of the oldest one. Returns that, which may be gone by now.
pub(super) fn remember(block: *mut u8, len: usize) -> *mut u8 {
    seen(len).made_without(block);
    recent(len).remember(block)
}

/// The last control among mappings as long as this one, if it is time to look at it; otherwise null. It may
/// be gone by now.
pub(super) fn control(len: usize) -> *mut u8 {
    if seen(len).is_time_to_look() { seen(len).control.load(Relaxed) } else { ptr::null_mut() }
}

/// How many times as long as one that was dense a mapping may be that has to be zero, or need not.
fn longer(clear: bool) -> usize {
    if clear { LONGER_IF_CLEAR } else { LONGER }
}

/// Whether a mapping of `len` bytes should have huge pages. `clear`: it has to be zero.
pub(crate) fn wants_huge_mapping(len: usize, clear: bool) -> bool {
    said_or(|| len >= HUGE_PAGE && SEEN.wants_or(len, longer(clear), unasked::are_given))
}

/// Whether that many blocks of `len` bytes should have huge pages together. `clear`: the first has to be
/// zero.
pub(super) fn wants_huge_batch(len: usize, clear: bool, blocks: usize) -> bool {
    match options::get().thp {
        Thp::Never => false,
        // Shorter ones have none by themselves either.
        Thp::Always if len >= HUGE_PAGE => true,
        _ => seen(len).wants(len, longer(clear), blocks),
    }
}

/// Whether a mapping that has grown to `len` bytes should have huge pages from now on.
pub(super) fn wants_huge_grown(len: usize) -> bool {
    match options::get().thp {
        Thp::Never => false,
        // What was too short for one.
        Thp::Always => len >= HUGE_PAGE,
        Thp::Auto | Thp::Folios => len >= 2 * HUGE_PAGE && SEEN.is_dense(len, LONGER),
    }
}

/// Whether a mapping of `len` bytes should have huge pages into which a shorter block is copied that grows:
/// so much of it is touched, and what doubles is filled.
pub(crate) fn wants_huge_copy(len: usize) -> bool {
    is_ours() && len >= 2 * HUGE_PAGE
}

/// Whether a mapping with huge pages is so much longer than any that was dense that it is worth a look: if it
/// is touched, longer ones may have them than before. Not at each step of one that grows by a page.
pub(super) fn is_longest(len: usize) -> bool {
    SEEN.is_longest(len)
}

/// Whether a mapping that grows from `old` bytes to `len` comes to another sixteenth, or thirty-second, of
/// its length, or two megabytes.
pub(super) fn is_step(old: usize, len: usize) -> bool {
    let step = HUGE_PAGE.max((1 << old.max(1).ilog2()) / LOOKS);
    len / step != old / step
}

/// Looks at a mapping that was made some time ago, and counts what it sees.
pub(super) fn look_back(mapping: Mapping) {
    if mapping.len >= HUGE_PAGE {
        return look(mapping, 0);
    }
    // SAFETY: this only asks the system, which reports an error if the mapping is gone.
    let resident = unsafe { os::resident_pages(mapping.block, mapping.len) };
    if let Some(resident) = resident.filter(|_| !mapping.huge && mapping.len >= SHORTEST) {
        // As many as are enough.
        let resident = resident * ENOUGH / (mapping.len / os::page_size()).max(1);
        SHORT.add(mapping.len, ENOUGH, resident);
        if !is_most(resident, ENOUGH) {
            SHORT.doubt.confirm();
        }
    }
}

/// Looks at a mapping, from `from` bytes on, and counts what it sees. Does nothing if the mapping is too
/// short, or the option decides.
pub(crate) fn look(mapping: Mapping, from: usize) {
    if look_closely(mapping, from) || mapping.len < HUGE_PAGE || !is_ours() {
        return;
    }
    let part = mapping.len.saturating_sub(from);
    let short = part < HUGE_PAGE;
    let chunk = match part.div_ceil(LOOKS) {
        _ if short => part.div_ceil(SHORT_LOOKS).max(1),
        // So that few that are filled, with zeros only, make up for the doubt.
        chunk if SEEN.doubt.is_open() && !SEEN.is_dense(mapping.len, LONGER) => chunk,
        chunk => chunk.max(HUGE_PAGE),
    };
    let Some((looked, resident)) = sample(mapping, from, chunk).filter(|&(looked, _)| looked != 0) else {
        return;
    };
    // What has grown by little may have grown before it was full: that says nothing.
    if from == 0 || !short || is_most(resident, looked) {
        let add_all = !mapping.huge || unasked::is_sparse(mapping.len, looked, resident);
        let add = if add_all { Density::add } else { Density::add_huge };
        add(&SEEN, mapping.len, looked, resident);
        if !mapping.huge && !is_most(resident, looked) {
            SEEN.doubt.confirm();
        }
    }
}

/// While little is known, looks at as many pages of one mapping as are enough to know more, and counts them
/// if they are dense: returns whether they are. So the second table of a few MiB may have huge pages. What is
/// not dense counts by its length, as always: one sparse table says nothing about other mappings.
pub(super) fn look_closely(mapping: Mapping, from: usize) -> bool {
    is_ours() && SEEN.look_closely(mapping, from)
}

impl Density {
    /// [`look_closely`].
    fn look_closely(&self, mapping: Mapping, from: usize) -> bool {
        if mapping.huge || mapping.len < SHORTEST_CLOSE || !self.knows_little() {
            return false;
        }
        // Whole system pages, so at least as many parts.
        let part = mapping.len.saturating_sub(from) / LOOKS;
        let chunk = part - part % os::page_size();
        let seen = sample(mapping, from, chunk.max(1));
        seen.is_some_and(|(looked, resident)| looked != 0 && self.add_close(mapping.len, looked, resident))
    }
}

/// Whether half of a part of a mapping is resident, or more. If it is long, judging by a few system pages.
pub(super) fn is_touched(part: Mapping) -> bool {
    if part.len > HUGE_PAGE {
        let (looked, resident) = look_at_few(part);
        return looked != 0 && resident * 2 >= looked;
    }
    // SAFETY: this only asks the system, which reports an error if the mapping is gone.
    let resident = unsafe { os::resident_pages(part.block, part.len) };
    resident.is_some_and(|resident| resident * 2 * os::page_size() >= part.len)
}

#[cfg(test)]
mod tests;
