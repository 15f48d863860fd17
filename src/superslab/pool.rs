//! The pool: free spans of SuperSlabs, shared by all threads.
//!
//! SuperSlabs are kept in buckets by their number of free slices, and the fullest serve first, so that the
//! emptiest drain. Descriptors lie apart from the SuperSlabs, so a search touches no header page. One lock
//! guards the index over them. It is held for a few dozen instructions (longer for statistics, and in the
//! child of a fork), never across a system call, and never across a fork. A thread that does not get it soon
//! changes only the descriptors, and leaves the index to the next holder of the lock ([`span_index`]).

use crate::base::options;
use crate::lockfree::slice_sets::span_mask;
use crate::lockfree::waker;
use crate::os;
use crate::superslab::grow::{Spares, grow};
use crate::superslab::layout::{SLICE_SHIFT, SLICES};
use crate::superslab::pagemap::FOREIGN;
use crate::superslab::slab::Slab;
use crate::superslab::span::{BEHIND_FIRST, Span, usable};
use crate::superslab::span_index::lock;
use crate::superslab::{desc, pagemap, purge, span_index, thp};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicBool, AtomicUsize, compiler_fence};

/// A search for several adjacent slices looks at this many SuperSlabs of a bucket before it goes on to the
/// next bucket.
pub(super) const LOOKS: usize = 8;

/// While this is set the pool does not grow: other memory should be used first, of heaps that a fork has left
/// behind. Relaxed, like the next one: hints, on which no other memory depends.
static DEFERRED: AtomicBool = AtomicBool::new(false);
/// How many threads accept shorter spans: see [`with_shorter`].
static SHORTER: AtomicUsize = AtomicUsize::new(0);

/// Takes a span of `slices` slices for blocks of `class` and enters it in the page map: every slice for a
/// slab, the first for a run. `None` if there is no memory. Slice 0 of a SuperSlab lies behind the header and
/// serves only slabs of one slice.
pub(crate) fn take_span(slices: usize, class: u8, spares: Spares) -> Option<Span> {
    take_span_with_room(slices, class, slices, spares)
}

/// Like [`take_span`], but prefers a place with free slices behind the span: `room` slices in all.
pub(crate) fn take_span_with_room(slices: usize, class: u8, room: usize, spares: Spares) -> Option<Span> {
    let now = os::now_ms();
    let mut looks = LOOKS;
    loop {
        let span = match lock() {
            Some(mut pool) => {
                let mut find = |room| pool.take_span(slices, room, class, usable(room, class), looks, now);
                let roomy = if room > slices { find(room) } else { None };
                let span = roomy.or_else(|| find(slices));
                if span.is_some() {
                    purge::unlock(pool, now, false);
                }
                span
            }
            None => span_index::take_unlocked(slices, class, usable(slices, class)),
        };
        if span.is_some() || looks == usize::MAX || DEFERRED.load(Relaxed) {
            return span;
        }
        // If the system has no memory: one more search, of every SuperSlab. Other threads may have given
        // slices back meanwhile.
        if !grow(spares) {
            looks = usize::MAX;
        }
    }
}

/// Runs `f`, during which [`take_shorter_span`] may succeed. That holds for all threads.
pub(crate) fn with_shorter<T>(f: impl FnOnce() -> T) -> T {
    SHORTER.fetch_add(1, Relaxed);
    let result = f();
    SHORTER.fetch_sub(1, Relaxed);
    result
}

/// Takes the longest span of a half, a quarter or an eighth of `slices`, for a slab of `class` that holds
/// fewer blocks than it should. The last resort when memory is refused: see [`with_shorter`].
#[cold]
pub(crate) fn take_shorter_span(slices: usize, class: u8) -> Option<Span> {
    if SHORTER.load(Relaxed) == 0 {
        return None;
    }
    let now = os::now_ms();
    let mut parts = [2, 4, 8].into_iter().map(|part| slices / part).filter(|&slices| slices > 0);
    // Not in slice 0: a block may be longer than what the header leaves of it.
    parts.find_map(|slices| match lock() {
        Some(mut pool) => pool.take_span(slices, slices, class, BEHIND_FIRST, usize::MAX, now),
        None => span_index::take_unlocked(slices, class, BEHIND_FIRST),
    })
}

/// With `true`, requests that need another SuperSlab fail from now on; with `false`, the pool grows again.
pub(crate) fn defer_growth(yes: bool) {
    DEFERRED.store(yes, Relaxed);
}

/// Gives a span back. `touched` says which of its slices (bit 0 the first) may be dirty.
///
/// # Safety
///
/// `slab` is the first record of a span that was taken from the pool and is the caller's alone: no block of
/// it is in use, and nobody is about to publish it. The caller does not use it after the call.
pub(crate) unsafe fn give_span(slab: *mut Slab, touched: u32) {
    let touched = touched << Slab::index(slab);
    // SAFETY: `give_as` has the same contract.
    unsafe { give_as(slab, |dirty| dirty | touched) }
}

/// [`give_span`], where `dirty` maps the slices of the SuperSlab that were dirty to those that are dirty
/// then.
///
/// # Safety
///
/// As [`give_span`].
unsafe fn give_as(slab: *mut Slab, dirty: impl Fn(u32) -> u32) {
    // SAFETY: the record of the caller's span; nobody else writes these fields.
    let (desc, slices, class) = unsafe { (Slab::desc(slab), (*slab).slices as usize, (*slab).class) };
    let mapped = if class == pagemap::RUN { 1 } else { slices };
    pagemap::set(Slab::address(slab), mapped, FOREIGN);
    // SAFETY: `filled` is the owner's, and the slab is the caller's.
    if class != pagemap::RUN && unsafe { (*slab).filled } {
        // SAFETY: the stride is constant while the span is a slab.
        thp::no_more_filled(slices, unsafe { (*slab).stride });
    }
    let mask = span_mask(Slab::index(slab), slices);
    let now = os::now_ms();
    match lock() {
        Some(mut pool) => {
            pool.give_span(desc, mask, slices, dirty, now);
            purge::unlock(pool, now, true);
        }
        None => {
            desc.give(mask, dirty);
            span_index::set_stale();
            waker::notify_unlocked();
        }
    }
}

/// Gives back a run whose contents have just moved to fresh memory. Its slices go to the system at once, if
/// options allow that. A program that does the same again gets the memory that it has moved to, which is
/// resident by then, and nothing is purged.
///
/// # Safety
///
/// As [`give_span`]; the span is a run.
pub(crate) unsafe fn give_replaced_run(slab: *mut Slab) {
    // SAFETY: the record of the caller's run; nobody else writes these fields.
    let (desc, slices) = unsafe { (Slab::desc(slab), (*slab).slices as usize) };
    // Part of a huge page is cheap to keep, and expensive to take out.
    let clean = !desc.huge.load(Relaxed) && options::get().purge_delay >= 0 && {
        // SAFETY: the slices are the caller's, who does not use them any more. They do not include the
        // header: a run never lies in slice 0.
        unsafe { os::purge(Slab::address(slab), slices << SLICE_SHIFT) }
    };
    let mask = span_mask(Slab::index(slab), slices);
    // SAFETY: `give_as` has the same contract.
    unsafe { give_as(slab, |dirty| if clean { dirty & !mask } else { dirty | mask }) };
}

/// Grows a run into free slices behind it, or gives its tail back. False, and nothing changed, if one of
/// these slices is in use, or the pool's lock is not free soon.
///
/// # Safety
///
/// `slab` is the record of a run that is in use and the caller's. The caller does not use the tail that it
/// gives back.
pub(crate) unsafe fn resize_run(slab: *mut Slab, slices: usize) -> bool {
    // SAFETY: the record of the caller's run; nobody else writes these fields.
    let (desc, before) = unsafe { (Slab::desc(slab), (*slab).slices as usize) };
    let index = Slab::index(slab);
    if slices == before {
        return true;
    }
    if index + slices > SLICES {
        return false;
    }
    let now = os::now_ms();
    let Some(mut pool) = lock() else { return false };
    let change = span_mask(index, slices) ^ span_mask(index, before);
    // SAFETY: the run is the caller's. Statistics read the field only under the pool's lock, which we hold.
    let resize = || unsafe { (*slab).slices = slices as u8 };
    // In either case the slices that change hands belong to nobody in between: see `Desc`.
    if slices > before {
        if !pool.take_these(desc, change, slices - before, now) {
            return false;
        }
        resize();
    } else {
        resize();
        // For the child of a fork in between.
        compiler_fence(Release);
        pool.give_span(desc, change, before - slices, |dirty| dirty | change, now);
    }
    purge::unlock(pool, now, true);
    true
}

/// Milliseconds until the oldest free dirty slices are due by age. `None` if there are none, or they never
/// are.
pub(crate) fn due_in(now: u32) -> Option<u32> {
    // Without the lock: as if some had become dirty just now, so that the caller looks again after the delay.
    let Some(pool) = lock() else { return u32::try_from(options::get().purge_delay).ok() };
    let since = pool.dirty().next()?.since.get();
    Some(purge::term(&pool)?.saturating_sub(os::elapsed(since, now)))
}

/// Part of a slab has been or is about to be purged. So the slab does not count as filled any more, and
/// advice for huge pages is withdrawn, because they would make the purged memory resident again.
///
/// # Safety
///
/// The caller is the owner of the slab, in the sense of [`Slab`].
pub(crate) unsafe fn not_filled(slab: *mut Slab) {
    // SAFETY: `filled` is the owner's. The SuperSlab has a span in use, so it stays mapped, and its
    // descriptor is its own.
    unsafe {
        if core::mem::replace(&mut (*slab).filled, false) {
            thp::no_more_filled((*slab).slices as usize, (*slab).stride);
        }
        let desc = Slab::desc(slab);
        if desc.huge.load(Relaxed) && desc.huge.swap(false, Relaxed) {
            purge::no_more_huge(Slab::base(slab));
            match lock() {
                Some(mut pool) => {
                    pool.soil(desc);
                    drop(pool);
                    waker::notify();
                }
                None => {
                    desc.soil();
                    span_index::set_stale();
                    waker::notify_unlocked();
                }
            }
        }
    }
}

/// Whether some slice of a slab may have been resident when the slab got it, or was part of a huge page
/// since.
///
/// # Safety
///
/// As [`not_filled`].
pub(crate) unsafe fn was_dirty(slab: *mut Slab) -> bool {
    // SAFETY: as in `not_filled`; `slices` is constant.
    unsafe {
        Slab::desc(slab).slices.get().dirty & span_mask(Slab::index(slab), (*slab).slices as usize) != 0
    }
}

/// Gives the memory of all descriptors back to the system. There is no SuperSlab, and nobody calls the
/// library any more.
pub(crate) fn unmap() {
    desc::unmap();
    // The index still names descriptors that are gone.
    if let Some(mut pool) = lock() {
        pool.rebuild();
    }
}

/// Bytes of free slices; 0 if the pool's lock is not free soon.
pub(crate) fn free_bytes() -> usize {
    let slices = lock().map_or(0, |pool| (pool.superslabs * SLICES).saturating_sub(pool.used_slices));
    slices << SLICE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superslab::pagemap::RUN;
    use crate::superslab::span_index::{POOL, State};

    /// Whether the index is the same after it has been rebuilt.
    fn is_exact() -> bool {
        let figures = |pool: &State| {
            let listed: Vec<usize> = (0..=SLICES).map(|free| pool.bucket(free).count()).collect();
            let kept = (pool.visits, pool.policy.looked);
            (pool.superslabs, pool.used_slices, pool.dirty_slices, listed, kept)
        };
        let mut pool = lock().unwrap();
        // So that it can be seen whether they are kept.
        pool.visits += 1;
        pool.policy.looked = os::now_ms();
        let counted = figures(&pool);
        pool.rebuild();
        counted == figures(&pool)
    }

    /// A thread that a signal handler has interrupted may hold the lock for as long as the handler runs.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn work_goes_on_without_the_lock() {
        if !os::child::is_alone() {
            return;
        }
        // With one span taken before, the spans that come and go below need no further SuperSlab.
        let first = take_span(8, RUN, |_| None).unwrap();
        let place = Slab::base(first.slab);
        assert!(is_exact());
        let held = POOL.lock();
        // The background thread is there, though it cannot do anything.
        purge::SEEN.store(0, Relaxed);
        assert!(purge::aged(|| false).is_none() && purge::SEEN.load(Relaxed) != 0);
        let (mut spans, mut taken) = (Vec::new(), 0);
        std::thread::scope(|threads| {
            let worker = threads.spawn(|| {
                (0..8)
                    .map(|i| take_span(1 + i % 3, RUN, |_| None).unwrap().slab.expose_provenance())
                    .collect()
            });
            spans = worker.join().unwrap();
            for &slab in &spans {
                let slab = core::ptr::with_exposed_provenance_mut::<Slab>(slab);
                // SAFETY: a span that the other thread has just taken for us.
                let mask = span_mask(Slab::index(slab), unsafe { (*slab).slices } as usize);
                if Slab::base(slab) == place {
                    assert_eq!(taken & mask, 0, "a slice is in two spans");
                    taken |= mask;
                }
            }
            threads.spawn(|| {
                for &slab in spans.iter().step_by(2) {
                    // SAFETY: our own span, given back once.
                    unsafe { give_span(core::ptr::with_exposed_provenance_mut(slab), 1) };
                }
            });
        });
        drop(held);
        assert!(is_exact(), "the next holder has not rebuilt the index");
        for &slab in spans.iter().skip(1).step_by(2) {
            // SAFETY: our own span, given back once.
            unsafe { give_span(core::ptr::with_exposed_provenance_mut(slab), 1) };
        }
        // SAFETY: our own span, given back once.
        unsafe { give_span(first.slab, 0) };
        assert!(is_exact());
    }
}
