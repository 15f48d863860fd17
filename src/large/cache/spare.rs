//! Memory for SuperSlabs out of what is kept of freed mappings: mostly it is resident already, and would lie
//! idle while the heap grows beside it.

use crate::base::options::{self, Thp};
use crate::large::cache::entry::Entry;
use crate::large::cache::{CACHE, Cache, kept};
use crate::large::huge::Mapping;
use crate::os::{self, elapsed, now_ms};
use crate::superslab::grow::{Spare, Wanted};
use crate::superslab::layout::{SLICE, SUPERSLAB};
use crate::superslab::thp;

impl Mapping {
    /// How far from its start the last SuperSlab begins that fits in and leaves nothing too short for a
    /// block.
    fn last_superslab(&self) -> Option<usize> {
        let is_of_use = |rest: usize| rest == 0 || rest >= SLICE;
        let last = self.end() & !(SUPERSLAB - 1);
        [last, last.saturating_sub(SUPERSLAB)].into_iter().find_map(|end| {
            let front = end.checked_sub(SUPERSLAB)?.checked_sub(self.block.addr())?;
            (is_of_use(front) && is_of_use(self.end() - end)).then_some(front)
        })
    }
}

/// Which memory becomes a SuperSlab.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Pages {
    /// None with huge pages, which one slab would make resident as a whole, unless they are.
    Small,
    /// Preferably with huge pages.
    Any,
    /// With huge pages.
    Huge,
}

impl Pages {
    /// Which, under this option, for a SuperSlab that should have huge pages, or not.
    pub(super) fn wanted(thp: Thp, huge: bool) -> Self {
        match thp {
            Thp::Always => Self::Huge,
            _ if huge => Self::Any,
            _ => Self::Small,
        }
    }
}

impl Cache {
    /// The place of what [`take_superslab`](Self::take_superslab) takes it out of.
    fn place_of_superslab(&self, now: u32, pages: Pages) -> Option<(usize, &Entry)> {
        let is_right = |huge| pages == Pages::Any || huge == (pages == Pages::Huge);
        let fits = |(_, e): &(usize, &Entry)| {
            !e.refused && !e.clean && is_right(e.huge) && e.kept().last_superslab().is_some()
        };
        let order = |(_, e): &(usize, &Entry)| (e.huge, !e.follows, elapsed(e.since, now));
        self.used().filter(fits).max_by_key(order)
    }

    /// Where the SuperSlab would begin that [`take_superslab`](Self::take_superslab) takes.
    fn next_superslab(&self, now: u32, pages: Pages) -> Option<*mut u8> {
        let kept = self.place_of_superslab(now, pages)?.1.kept();
        Some(kept.block.wrapping_add(kept.last_superslab()?))
    }

    /// Cuts memory for a SuperSlab out of what has been kept longest, but last out of what a block may grow
    /// into. `None` if there is none, or no place for what lies behind it.
    pub(super) fn take_superslab(&mut self, now: u32, pages: Pages) -> Option<Mapping> {
        let (i, entry) = self.place_of_superslab(now, pages)?;
        let (kept, since) = (entry.kept(), entry.since);
        let front = kept.last_superslab()?;
        let behind = kept.len - front - SUPERSLAB;
        let place = match (front, behind) {
            (0, _) | (_, 0) => i,
            _ => self.entries.0.iter().position(|e| e.len() == 0)?,
        };
        // After a fork in between, the child has lost what is not in its place yet.
        let end = if front == 0 { self.remove(i) } else { self.with(i, |entry| entry.shorten(front)) };
        if behind != 0 {
            let behind = Mapping { block: end.block.wrapping_add(SUPERSLAB), len: behind, ..end };
            self.with(place, |entry| entry.fill(behind, since, false));
        }
        Some(Mapping { len: SUPERSLAB, ..end })
    }

    /// Cuts memory for a SuperSlab out of what the system has refused to unmap.
    pub(super) fn take_refused_superslab(&mut self, now: u32) -> Option<Mapping> {
        let has_one = |kept: &Mapping| kept.last_superslab().is_some();
        let place = self.used().find(|(_, e)| e.refused && has_one(&e.kept())).map(|(i, _)| i);
        // After a fork in between, the child has lost all of it.
        let kept = place.map(|i| self.remove(i)).or_else(|| self.pop(has_one))?;
        let front = kept.last_superslab()?;
        let part = |from: usize, len| Mapping { block: kept.block.wrapping_add(from), len, ..kept };
        let end = front + SUPERSLAB;
        for rest in [part(0, front), part(end, kept.len - end)] {
            if rest.len != 0 {
                self.add_refused(rest, now);
            }
        }
        Some(part(front, SUPERSLAB))
    }
}

/// Takes memory for a SuperSlab: it is the caller's alone.
pub(crate) fn spare(wanted: Wanted) -> Option<Spare> {
    if kept() < SUPERSLAB {
        return None;
    }
    if wanted == Wanted::Any {
        // The pages are gone as a rule, but nobody has noted whether.
        let taken = CACHE.lock_soon()?.take_refused_superslab(now_ms())?;
        return Some(Spare { base: taken.block, huge: taken.huge, clean: false });
    }
    let options = options::get();
    let pages = Pages::wanted(options.thp, wanted == Wanted::Huge);
    let now = now_ms();
    let mut cache = CACHE.lock_soon()?;
    let Some(Mapping { block, huge, .. }) = cache.take_superslab(now, pages) else {
        let next = if pages == Pages::Small { cache.next_superslab(now, Pages::Huge) } else { None };
        drop(cache);
        return take_resident(next?, now);
    };
    drop(cache);
    // What was hardly touched would count as resident, and be cleared for `calloc`.
    // SAFETY: out of the cache, so ours alone, and in whole system pages.
    let clean = options.purge_delay >= 0 && is_sparse(block) && unsafe { os::purge(block, SUPERSLAB) };
    Some(Spare { base: block, huge, clean })
}

/// Takes memory with huge pages for a SuperSlab that should have none, if all of it is resident and holds
/// something: that costs nothing more, and it would lie idle beside the heap. It was `next` a moment ago.
fn take_resident(next: *mut u8, now: u32) -> Option<Spare> {
    if !thp::is_written(next) {
        return None;
    }
    let mut cache = CACHE.lock_soon()?;
    let is_next = cache.next_superslab(now, Pages::Huge) == Some(next);
    let taken = if is_next { cache.take_superslab(now, Pages::Huge) } else { None }?;
    Some(Spare { base: taken.block, huge: true, clean: false })
}

/// Whether the system says that less than half of a SuperSlab's length is resident.
fn is_sparse(block: *mut u8) -> bool {
    // SAFETY: this only asks the system.
    let resident = unsafe { os::resident_pages(block, SUPERSLAB) };
    resident.is_some_and(|resident| resident * 2 * os::page_size() < SUPERSLAB)
}
