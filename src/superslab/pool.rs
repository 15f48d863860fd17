//! The pool: free spans of SuperSlabs, shared by all threads.
//!
//! SuperSlabs are kept in buckets by their number of free pages and asked fullest first, so that empty ones drain.
//! Descriptors live apart from the SuperSlabs: searching touches no header page. One lock guards the index over them; it is held
//! for a few dozen instructions, never across a system call, and never across a fork. Who cannot have it soon does without it:
//! changes the descriptors alone, and leaves the index to whoever has the lock next ([`span_index`]).

use crate::base::options;
use crate::lockfree::page_sets::span_mask;
use crate::lockfree::waker;
use crate::os;
use crate::superslab::desc::CHUNK;
use crate::superslab::layout::{PAGE_SHIFT, PAGES, SUPERSLAB};
use crate::superslab::pagemap::FOREIGN;
use crate::superslab::slab::Slab;
use crate::superslab::span_index::{BEHIND_FIRST, Span, lock, with};
use crate::superslab::{desc, pagemap, purge, span_index, thp};
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, compiler_fence};

/// SuperSlabs of one bucket that a search for several adjacent pages looks at before it goes on to the next bucket.
pub(super) const LOOKS: usize = 8;

/// The pool does not grow: there is memory to be had that it does not know of yet.
static DEFERRED: AtomicBool = AtomicBool::new(false);
/// Threads that take shorter spans than they should.
static SHORTER: AtomicUsize = AtomicUsize::new(0);
/// SuperSlabs mapped since the start.
pub(crate) static SUPERSLABS_MAPPED: AtomicU64 = AtomicU64::new(0);
/// Where to ask the system for the next SuperSlab: beside the last one, so that mappings merge.
static HINT: AtomicUsize = AtomicUsize::new(0);

/// Takes a span of `pages` pages for blocks of `class` and enters it in the page map: every page for a slab, the first
/// for a run. `None` when there is no memory. Page 0 of a SuperSlab lies behind the header and serves only slabs of one page.
pub(crate) fn take_span(pages: usize, class: u8) -> Option<Span> {
    take_span_with_room(pages, class, pages)
}

/// Like [`take_span`], with free pages behind it, if there is such a place: `room` pages in all.
pub(crate) fn take_span_with_room(pages: usize, class: u8, room: usize) -> Option<Span> {
    let now = os::now_ms();
    let among = |pages| span_index::usable(pages, class);
    let mut looks = LOOKS;
    loop {
        match lock() {
            Some(mut pool) => {
                let roomy = if room > pages {
                    pool.take_span(pages, room, class, among(room), looks, now)
                } else {
                    None
                };
                if let Some(span) =
                    roomy.or_else(|| pool.take_span(pages, pages, class, among(pages), looks, now))
                {
                    let due = purge::is_due(&pool, now);
                    drop(pool);
                    if due {
                        purge::run_due(now);
                    }
                    return Some(span);
                }
            }
            None => {
                if let Some(span) = span_index::take_unlocked(pages, class, among(pages)) {
                    return Some(span);
                }
            }
        }
        if looks == usize::MAX || DEFERRED.load(Relaxed) {
            return None;
        }
        // When the system has none: once more, everywhere, and with what other threads have given back meanwhile.
        if !grow() {
            looks = usize::MAX;
        }
    }
}

/// Runs `f`, which [`take_shorter_span`] serves, too.
pub(crate) fn with_shorter<T>(f: impl FnOnce() -> T) -> T {
    SHORTER.fetch_add(1, Relaxed);
    let result = f();
    SHORTER.fetch_sub(1, Relaxed);
    result
}

/// Takes a span of fewer than `pages` pages, the longest there is, for a slab of `class` that holds fewer blocks than it should. Only for
/// who would get none at all: see [`with_shorter`].
#[cold]
pub(crate) fn take_shorter_span(pages: usize, class: u8) -> Option<Span> {
    if SHORTER.load(Relaxed) == 0 {
        return None;
    }
    let (mut pages, now) = (pages, os::now_ms());
    while pages > 1 {
        pages /= 2;
        // A block may be too long for what is left of the first page.
        let span = match lock() {
            Some(mut pool) => pool.take_span(pages, pages, class, BEHIND_FIRST, usize::MAX, now),
            None => span_index::take_unlocked(pages, class, BEHIND_FIRST),
        };
        if span.is_some() {
            return span;
        }
    }
    None
}

/// Lets requests that the pool cannot meet fail, or lets it grow again.
pub(crate) fn defer_growth(yes: bool) {
    DEFERRED.store(yes, Relaxed);
}

/// Gives a span back. `touched` says which of its pages (bit 0 the first) may be dirty.
///
/// # Safety
///
/// The span is the caller's, and no block of it is in use.
pub(crate) unsafe fn give_span(slab: *mut Slab, touched: u32) {
    // SAFETY: passed on.
    unsafe { give_as(slab, |dirty, index| dirty | touched << index) }
}

/// [`give_span`]; `dirty` says which pages of the SuperSlab are dirty then, of those that were and the index of the span.
unsafe fn give_as(slab: *mut Slab, dirty: impl Fn(u32, usize) -> u32) {
    // SAFETY: the caller's span.
    let (desc, pages, class) = unsafe { (Slab::desc(slab), (*slab).pages as usize, (*slab).class) };
    let index = Slab::index(slab);
    let base = Slab::base(slab);
    let mapped = if class == pagemap::RUN { 1 } else { pages };
    pagemap::set(base.wrapping_add(index << PAGE_SHIFT), mapped, FOREIGN);
    // SAFETY: as above.
    if class != pagemap::RUN && unsafe { (*slab).filled } {
        thp::no_more_filled(pages);
    }
    let mask = span_mask(index, pages);
    let now = os::now_ms();
    let Some(mut pool) = lock() else {
        span_index::give_unlocked(desc, mask, |before| dirty(before, index));
        waker::notify();
        return;
    };
    pool.give_span(desc, mask, pages, |before| dirty(before, index), now);
    let due = purge::is_due(&pool, now);
    drop(pool);
    waker::notify();
    if due {
        purge::run_due(now);
    }
}

/// Gives a run back whose contents have just moved to fresh memory: its pages go to the system, where that is allowed. A program
/// that does the same again finds the other memory, which is resident by then, and nothing is purged.
///
/// # Safety
///
/// As [`give_span`].
pub(crate) unsafe fn give_replaced_run(slab: *mut Slab) {
    // SAFETY: the caller's span.
    let (desc, pages) = unsafe { (Slab::desc(slab), (*slab).pages as usize) };
    // Part of a huge page is cheap to keep and dear to take out.
    let clean = !desc.huge.load(Relaxed) && options::get().purge_delay >= 0 && {
        // SAFETY: the caller's; a run never lies in page 0, which holds the header.
        unsafe { os::purge(address(slab), pages << PAGE_SHIFT) }
    };
    let change = |dirty, index| {
        let mask = span_mask(index, pages);
        if clean { dirty & !mask } else { dirty | mask }
    };
    // SAFETY: passed on.
    unsafe { give_as(slab, change) };
}

/// Grows a run into free pages behind it, or gives its tail back. False, and nothing changed, when a page is in use, or when that
/// cannot be known soon.
///
/// # Safety
///
/// `slab` is the record of a run, in use and the caller's.
pub(crate) unsafe fn resize_run(slab: *mut Slab, pages: usize) -> bool {
    // SAFETY: passed on.
    let (desc, before) = unsafe { (Slab::desc(slab), (*slab).pages as usize) };
    let index = Slab::index(slab);
    if pages == before {
        return true;
    }
    if index + pages > PAGES {
        return false;
    }
    let now = os::now_ms();
    let Some(mut pool) = lock() else { return false };
    let change = span_mask(index, pages) ^ span_mask(index, before);
    // In either case the pages that change hands are nobody's in between: see `Desc`.
    if pages > before {
        if !pool.take_these(desc, change, pages - before, now) {
            return false;
        }
        // SAFETY: passed on.
        unsafe { (*slab).pages = pages as u8 };
    } else {
        // SAFETY: passed on.
        unsafe { (*slab).pages = pages as u8 };
        compiler_fence(Release);
        pool.give_span(desc, change, before - pages, |dirty| dirty | change, now);
    }
    let due = purge::is_due(&pool, now);
    drop(pool);
    waker::notify();
    if due {
        purge::run_due(now);
    }
    true
}

/// Where the first page of the span of `slab` begins.
pub(crate) fn address(slab: *mut Slab) -> *mut u8 {
    Slab::base(slab).wrapping_add(Slab::index(slab) << PAGE_SHIFT)
}

/// Gives every free page back to the system.
pub(crate) fn purge_all() {
    purge::everything();
}

/// Gives back the pages that have been free and dirty for the purge delay, whatever the allowance, until `stop` says so.
pub(crate) fn purge_aged(stop: impl Fn() -> bool) -> purge::Aged {
    purge::aged(stop)
}

/// Milliseconds until the oldest free dirty pages have been so for `delay`; nothing when there are none.
pub(crate) fn due_in(now: u32, delay: u32) -> Option<u32> {
    // Who cannot look comes back later.
    let since = lock().map_or(Some(now), |pool| pool.oldest_since());
    since.map(|since| delay.saturating_sub(os::elapsed(since, now)))
}

/// A part of a slab is about to be given back: what is left of it is not surely resident, and must not be made so.
///
/// # Safety
///
/// The slab is the caller's.
pub(crate) unsafe fn not_filled(slab: *mut Slab) {
    // SAFETY: passed on. A SuperSlab with a span in use has a descriptor.
    unsafe {
        if core::mem::replace(&mut (*slab).filled, false) {
            thp::no_more_filled((*slab).pages as usize);
        }
        let desc = Slab::desc(slab);
        if desc.huge.load(Relaxed) && desc.huge.swap(false, Relaxed) {
            os::advise_huge(Slab::base(slab), SUPERSLAB, false);
        }
    }
}

/// Adds a SuperSlab to the pool. False when the system or a limit refuses.
fn grow() -> bool {
    let base = map_superslab();
    if base.is_null() {
        return false;
    }
    let huge = thp::wants_huge_superslab();
    // SAFETY: just mapped. Against huge pages too: where the system gives them to everybody, a process that needs a few
    // pages of many SuperSlabs would get all of them.
    unsafe { os::advise_huge(base, SUPERSLAB, huge) };
    while !with(|pool| pool.add(base, huge)).unwrap_or_else(|| span_index::add_unlocked(base, huge)) {
        let chunk = os::map_uncounted(CHUNK);
        if chunk.is_null() {
            // SAFETY: known to nobody.
            unsafe { os::unmap(base, SUPERSLAB) };
            return false;
        }
        desc::supply(chunk);
    }
    true
}

fn map_superslab() -> *mut u8 {
    let hint = HINT.load(Relaxed);
    let mut base = ptr::null_mut::<u8>();
    if hint != 0 {
        base = os::map_at(ptr::without_provenance_mut(hint), SUPERSLAB);
        if !base.is_null() && base.addr() & (SUPERSLAB - 1) != 0 {
            // SAFETY: just mapped, known to nobody.
            unsafe { os::unmap(base, SUPERSLAB) };
            base = ptr::null_mut();
        }
    }
    if base.is_null() {
        base = os::map_aligned(SUPERSLAB, SUPERSLAB);
    }
    if base.is_null() {
        return base;
    }
    HINT.store(base.addr().wrapping_sub(SUPERSLAB), Relaxed);
    if !pagemap::prepare(base) {
        // SAFETY: as above.
        unsafe { os::unmap(base, SUPERSLAB) };
        return ptr::null_mut();
    }
    SUPERSLABS_MAPPED.fetch_add(1, Relaxed);
    base
}

/// Gives the memory of all descriptors back to the system, when there is no SuperSlab and nobody comes any more.
pub(crate) fn unmap() {
    desc::unmap();
    // The index still names descriptors that are gone.
    if let Some(mut pool) = lock() {
        pool.rebuild();
    }
}

/// Bytes of free pages, as far as that is known.
pub(crate) fn free_bytes() -> usize {
    let pages = lock().map_or(0, |pool| (pool.superslabs * PAGES).saturating_sub(pool.used_pages()));
    pages << PAGE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superslab::pagemap::RUN;
    use crate::superslab::span_index::{POOL, State};

    /// What the pool has counted is what it counts when it begins anew.
    fn is_exact() -> bool {
        let figures = |pool: &State| {
            let listed: Vec<usize> = (0..=PAGES).map(|free| pool.listed(free)).collect();
            (pool.superslabs, pool.used_pages(), pool.dirty_pages, listed)
        };
        let mut pool = lock().unwrap();
        let counted = figures(&pool);
        pool.rebuild();
        counted == figures(&pool)
    }

    /// A thread that a signal handler has interrupted may hold the lock for as long as the handler runs.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn work_goes_on_without_the_lock() {
        // Spans that come and go meanwhile need no further SuperSlab.
        let first = take_span(8, RUN).unwrap();
        let place = Slab::base(first.slab);
        assert!(is_exact());
        let held = POOL.lock();
        let (mut spans, mut taken) = (Vec::new(), 0);
        std::thread::scope(|threads| {
            let worker = threads.spawn(|| {
                (0..8).map(|i| take_span(1 + i % 3, RUN).unwrap().slab.expose_provenance()).collect()
            });
            spans = worker.join().unwrap();
            for &slab in &spans {
                let slab = core::ptr::with_exposed_provenance_mut::<Slab>(slab);
                // SAFETY: just taken.
                let mask = span_mask(Slab::index(slab), unsafe { (*slab).pages } as usize);
                if Slab::base(slab) == place {
                    assert_eq!(taken & mask, 0, "a page is in two spans");
                    taken |= mask;
                }
            }
            threads.spawn(|| {
                for &slab in spans.iter().step_by(2) {
                    // SAFETY: ours.
                    unsafe { give_span(core::ptr::with_exposed_provenance_mut(slab), 1) };
                }
            });
        });
        drop(held);
        assert!(is_exact(), "the next holder has not brought the index in order");
        for &slab in spans.iter().skip(1).step_by(2) {
            // SAFETY: ours.
            unsafe { give_span(core::ptr::with_exposed_provenance_mut(slab), 1) };
        }
        // SAFETY: ours.
        unsafe { give_span(first.slab, 0) };
        assert!(is_exact());
    }
}
