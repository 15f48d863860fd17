//! A walk over all spans in use, under the pool's lock: for statistics, what the memory of the SuperSlabs is
//! used for; in the child of a fork, whose slabs there are.

use crate::os;
use crate::os::futex::pause;
use crate::superslab::desc::Desc;
use crate::superslab::granules::{Granules, Run};
use crate::superslab::layout::{HEADER, SLICE, SLICE_SHIFT, SLICES, SUPERSLAB};
use crate::superslab::pagemap::{DIRECT, FOREIGN, HARDENED, RUN, kind_published};
use crate::superslab::slab::Slab;
use crate::superslab::slab::glimpse::Glimpse;
use crate::superslab::span_index::POOL;
use crate::superslab::{desc, span_index};
use crate::sync::Ordering::{Acquire, Relaxed};

/// What a span in use consists of.
pub(crate) struct SpanFigures {
    /// Size class, or [`RUN`].
    pub(crate) class: u8,
    /// Bytes of the span, without the header in slice 0.
    pub(crate) bytes: usize,
    /// Bytes from block to block; those of a run as a whole.
    pub(crate) stride: usize,
    /// Number of blocks that it is cut into; 1 for a run.
    pub(crate) blocks: usize,
    /// Blocks that are neither fresh nor free: the program's, or in a magazine or an outbox.
    pub(crate) used: usize,
    /// Blocks that were never handed out, or not since their memory was purged.
    pub(crate) fresh: usize,
    /// Bytes known not to be resident.
    pub(crate) untouched: usize,
}

/// What SuperSlabs hold besides spans in use, in bytes.
#[derive(Default)]
pub(crate) struct Survey {
    /// Address space of all SuperSlabs.
    pub(crate) mapped: usize,
    /// The resident part of headers.
    pub(crate) headers: usize,
    /// Free slices that may be resident, slices that change hands, and those of runs in run caches.
    pub(crate) dirty: usize,
    /// Free slices known not to be resident.
    pub(crate) clean: usize,
    /// Descriptors, which do not lie in SuperSlabs. They count as resident.
    pub(crate) descriptors: usize,
    /// The lock was not to be had.
    pub(crate) missed: bool,
}

/// After how many SuperSlabs, a fraction of a millisecond's work, those who need the pool have their turn.
const AT_ONCE: usize = if cfg!(test) { 2 } else { 128 };

/// For how many milliseconds they have it at most. Then the walk goes on to its end.
const BREAKS: u32 = 1000;

/// Calls `f` with the figures of every span in use, and returns figures of everything else. The pool is
/// locked meanwhile, with breaks if others wait and who asks is `patient`. If its lock is not free soon, or
/// within a second if `patient`, or the calling thread itself holds it, in code that a signal handler has
/// interrupted, all figures are 0, and `missed` is set; `f` may have been called for some.
pub(crate) fn survey(patient: bool, mut f: impl FnMut(&SpanFigures)) -> Survey {
    let system_page = os::page_size();
    let lock = if patient { span_index::lock_patiently } else { span_index::lock };
    let missed = Survey { missed: true, ..Survey::default() };
    let Some(mut pool) = lock() else { return missed };
    let begun = os::now_ms();
    let has_breaks = || patient && POOL.is_waited_for() && os::elapsed(begun, os::now_ms()) < BREAKS;
    let mut all = Survey { descriptors: desc::bytes_of_descriptors(), ..Survey::default() };
    // Descriptors stay, with the pool's lock or without. Whether one has a SuperSlab is looked at as it
    // comes.
    for (done, desc) in desc::all_descs().enumerate() {
        if done % AT_ONCE == AT_ONCE - 1 && has_breaks() {
            drop(pool);
            // Else this thread would mostly have the lock again before who waits is awake.
            pause();
            let Some(again) = lock() else { return missed };
            pool = again;
        }
        if desc.base().is_null() {
            continue;
        }
        let mut active = 0;
        spans(desc, |slab| {
            // SAFETY: `spans` passes the record of a span in use of `desc`, and we hold the pool's lock.
            let span = unsafe { look(slab, desc, system_page) };
            active += span.bytes;
            f(&span);
        });
        let (header, clean) = header_and_clean(clean_slices(desc) & desc.slices.get().free, system_page);
        all.mapped += SUPERSLAB;
        all.headers += header;
        all.clean += clean;
        // The rest is dirty: also slices that are being purged, in a run cache, or changing hands.
        all.dirty += (SUPERSLAB - header - clean).saturating_sub(active);
    }
    drop(pool);
    all
}

/// Calls `f` with the figures of the span in which each block lies, or with `None` where no block can lie any
/// more; not for blocks in mappings of their own. The pool is locked meanwhile; nothing is done if its lock
/// is not free soon.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn each_slab_of<T>(
    blocks: impl Iterator<Item = (T, *mut u8)>,
    mut f: impl FnMut(T, Option<SpanFigures>),
) {
    let system_page = os::page_size();
    span_index::with(|_| {
        for (which, block) in blocks {
            match kind_published(block) {
                // The hardened heap has no records of that kind, and says nothing about what a block pins.
                DIRECT | HARDENED => {}
                FOREIGN => f(which, None),
                _ => {
                    // SAFETY: the page map says that this is a span's slice, and a SuperSlab's spans are out
                    // of it, under the pool's lock, before that is unmapped: so the records stay while we
                    // hold the lock.
                    let span = unsafe {
                        let slab = Slab::of(block);
                        look(slab, Slab::desc(slab), system_page)
                    };
                    f(which, Some(span));
                }
            }
        }
    });
}

/// Calls `f` with the record of every span in use, with the pool locked. False, and nothing is done, if the
/// lock is not free soon.
pub(crate) fn each_span(mut f: impl FnMut(*mut Slab)) -> bool {
    span_index::with(|_| desc::descs().for_each(|desc| spans(desc, &mut f))).is_some()
}

/// What [`slices_of`] counts.
pub(super) struct SlicesOf {
    pub(super) slabs: usize,
    pub(super) runs: usize,
}

/// How many slices the slabs of a SuperSlab have whose stride is one of `strides`, and how many its runs. The
/// caller holds the pool's lock.
pub(super) fn slices_of(desc: &Desc, strides: fn(usize) -> bool) -> SlicesOf {
    let mut slices = SlicesOf { slabs: 0, runs: 0 };
    spans(desc, |slab| {
        // SAFETY: `spans` passes records of a SuperSlab that stays mapped while the lock is held.
        let seen = unsafe { Slab::glimpse(slab) };
        if seen.class == RUN {
            slices.runs += seen.slices;
        } else if strides(seen.stride) {
            slices.slabs += seen.slices;
        }
    });
    slices
}

/// Calls `f` with the record of every span in use of a SuperSlab. The caller holds the pool's lock.
fn spans(d: &Desc, mut f: impl FnMut(*mut Slab)) {
    // In this order: a SuperSlab that is hidden as a whole may have been unmapped, and one that is not hidden
    // any more because it has been removed has no address.
    if d.is_hidden() {
        return;
    }
    let (base, free) = (d.base(), d.slices.get().free);
    if base.is_null() {
        return;
    }
    let mut index = 0;
    while index < SLICES {
        if free & (1 << index) != 0 || kind_published(base.wrapping_add(index << SLICE_SHIFT)) == FOREIGN {
            index += 1;
            continue;
        }
        let slab = Slab::at(base, index);
        // SAFETY: a SuperSlab is hidden, under the pool's lock, before it is unmapped. This one was not, so
        // it stays mapped while the lock is held.
        let seen = unsafe { Slab::glimpse(slab) };
        // While a span is being given back, some of its slices may be out of the page map already.
        if seen.lead == 0 {
            f(slab);
            index += seen.slices;
        } else {
            index += 1;
        }
    }
}

/// A mask of the slices that were zero and not resident when they last changed hands. None in huge pages,
/// which are resident as a whole once something in them was used.
fn clean_slices(desc: &Desc) -> u32 {
    let sets = desc.slices.get();
    let untouched = sets.free == u32::MAX && sets.dirty == 0;
    if desc.huge.load(Relaxed) && !untouched { 0 } else { !sets.dirty }
}

/// Resident bytes of the header, and bytes that are not resident, of a SuperSlab in which the slices of the
/// mask `clean` are free and clean. The header is the start of slice 0; where system pages are larger than
/// it, more of that slice is resident.
fn header_and_clean(clean: u32, system_page: usize) -> (usize, usize) {
    let header = if clean & 1 != 0 { HEADER.max(system_page) } else { HEADER };
    let slices = clean.count_ones() as usize * SLICE;
    (header, if clean & 1 != 0 { slices - header } else { slices })
}

/// The figures of one span. Other threads may be using it, or making another span of it, so they are exact
/// only if nobody is.
///
/// # Safety
///
/// `slab` is the record of a span in the SuperSlab of `desc`, which stays mapped: the caller holds the pool's
/// lock.
pub(super) unsafe fn look(slab: *mut Slab, desc: &Desc, system_page: usize) -> SpanFigures {
    // Acquire: pairs with the releases that store an owner, the first of them in `Slab::make`.
    // SAFETY: the record stays mapped; the field is atomic.
    let owned = unsafe { !(*slab).owner.load(Acquire).is_null() };
    // SAFETY: the record stays mapped.
    let seen = unsafe { Slab::glimpse(slab) };
    let (class, slices, stride) = (seen.class, seen.slices, seen.stride);
    let bytes = slices * SLICE - if Slab::index(slab) == 0 { HEADER } else { 0 };
    if class == RUN {
        // Nobody knows how much of a run the program has touched.
        return SpanFigures { class, bytes, stride: bytes, blocks: 1, used: 1, fresh: 0, untouched: 0 };
    }
    if !owned {
        return SpanFigures { class, bytes, stride, blocks: 0, used: 0, fresh: 0, untouched: 0 };
    }
    // SAFETY: the record stays mapped.
    let fresh = unsafe { Unused::of(slab, seen) };
    SpanFigures {
        class,
        bytes,
        stride,
        blocks: seen.last / stride + 1,
        // SAFETY: the record stays mapped.
        used: unsafe { used(slab) },
        fresh: fresh.bytes / stride,
        untouched: fresh.not_resident(slab, desc, slices, system_page),
    }
}

/// The blocks of a slab that belong to nobody and are on no list: above `bump`, or in purged memory.
struct Unused {
    granules: Granules,
    seen: Glimpse,
    purged: u64,
    /// Bytes of these blocks.
    bytes: usize,
}

impl Unused {
    /// The unused blocks of a slab whose record looked like `seen`.
    ///
    /// # Safety
    ///
    /// As [`look`].
    unsafe fn of(slab: *mut Slab, seen: Glimpse) -> Unused {
        // SAFETY: the record stays mapped; the field is atomic.
        let purged = unsafe { (*slab).purged.load(Relaxed) };
        let granules = Granules::of_seen(slab, seen);
        // Saturating, here and below: the owner may be in the middle of a change.
        let mut bytes = seen.end.addr().saturating_sub(seen.bump.addr());
        let mut counted = 0;
        for run in Run::each(purged) {
            let (from, to) = granules.window(run);
            // A block that reaches from one run into the next counts once.
            bytes += to.addr().saturating_sub(from.addr().max(counted));
            counted = to.addr();
        }
        Unused { granules, seen, purged, bytes }
    }

    /// Bytes of the slab's span that are known not to be resident: those that were purged, and those that
    /// were not resident when the slab was made and have not been handed out since.
    ///
    /// With huge pages nothing is known, but then nothing has been purged either
    /// ([`not_filled`](super::pool::not_filled)).
    fn not_resident(&self, slab: *mut Slab, desc: &Desc, slices: usize, system_page: usize) -> usize {
        let begin = self.granules.span.addr();
        let offset = |address: *mut u8| address.addr().saturating_sub(begin);
        let all = ((1u64 << slices) - 1) as u32;
        let (untouched, rest) = if self.seen.revived {
            // Whole granules between `bump` and `end` were purged: see `partial_purge::purge`. Above `end`
            // all has been used.
            let granule = 1usize << self.granules.shift;
            let from = offset(self.seen.bump).next_multiple_of(granule);
            let to = offset(self.seen.end) & !(granule - 1);
            (to.saturating_sub(from), slices * SLICE)
        } else {
            let whole = offset(self.seen.bump).next_multiple_of(system_page.max(1)).min(slices * SLICE);
            (above(whole, clean_slices(desc) >> Slab::index(slab) & all), whole)
        };
        let used = !(clean_slices(desc) >> Slab::index(slab)) & all;
        let purged = Run::each(self.purged).map(|run| {
            let (from, to) = self.granules.range(run);
            let (from, to) = (offset(from), offset(to));
            // From `rest` on, clean slices are counted already.
            let beyond = if to > rest { above(from.max(rest), used) - above(to, used) } else { 0 };
            to.min(rest).saturating_sub(from) + beyond
        });
        untouched + purged.sum::<usize>()
    }
}

/// The number of blocks that are not [`Unused`], nor on the slab's list, nor on its remote stack.
///
/// # Safety
///
/// As [`look`].
unsafe fn used(slab: *mut Slab) -> usize {
    // SAFETY: the record stays mapped; these fields are atomic.
    unsafe {
        let used = match (*slab).remote.orphan_in_use() {
            Some(in_use) => in_use,
            None => {
                // `used` counts the blocks on the stack that the owner has not seen yet; it does not count
                // the others.
                let unseen = (*slab).remote.waiting().saturating_sub((*slab).counted.load(Relaxed));
                Slab::in_use(slab).saturating_sub(unseen)
            }
        };
        used as usize
    }
}

/// Bytes of the slices in `mask`, as far as they lie `from` bytes or more behind the beginning of the first
/// slice.
fn above(from: usize, mask: u32) -> usize {
    let partial = from >> SLICE_SHIFT;
    let rest = if partial < SLICES { mask >> partial } else { 0 };
    if rest == 0 {
        return 0;
    }
    let bytes = rest.count_ones() as usize * SLICE;
    if rest & 1 != 0 { bytes - (from & (SLICE - 1)) } else { bytes }
}

#[cfg(test)]
mod tests;
