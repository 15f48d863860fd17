//! Memory for SuperSlabs out of what is kept of freed mappings: it is resident already, and would lie idle
//! while the heap grows beside it.

use crate::base::options::{self, Thp};
use crate::large::cache::entry::Entry;
use crate::large::cache::{CACHE, Cache, kept};
use crate::large::huge::Mapping;
use crate::os::{elapsed, now_ms};
use crate::superslab::layout::SUPERSLAB;
use crate::superslab::pool::Spare;

impl Mapping {
    /// How far from its start the last SuperSlab begins that fits in.
    fn last_superslab(&self) -> Option<usize> {
        (self.end() & !(SUPERSLAB - 1)).checked_sub(SUPERSLAB)?.checked_sub(self.block.addr())
    }
}

impl Cache {
    /// Cuts memory for a SuperSlab out of what has been kept longest. `None` if there is none, or no place
    /// for what lies behind it.
    pub(super) fn take_superslab(&mut self, now: u32, huge_only: bool) -> Option<Mapping> {
        let fits = |(_, e): &(usize, &Entry)| {
            !e.refused && (e.huge || !huge_only) && e.kept().last_superslab().is_some()
        };
        let (i, entry) = self.used().filter(fits).max_by_key(|(_, e)| elapsed(e.since, now))?;
        let (front, since) = (entry.kept().last_superslab()?, entry.since);
        let free = self.entries.0.iter().position(|e| e.len() == 0)?;
        // After a fork in between, the child has lost what is not in its place yet.
        let end = if front == 0 { self.remove(i) } else { self.with(i, |entry| entry.shorten(front)) };
        let behind = Mapping { block: end.block.wrapping_add(SUPERSLAB), len: end.len - SUPERSLAB, ..end };
        if behind.len != 0 {
            self.with(free, |entry| entry.fill(behind, since, false));
        }
        Some(Mapping { len: SUPERSLAB, ..end })
    }
}

/// Takes memory for a SuperSlab: it is the caller's alone, and its contents are unknown.
pub(crate) fn spare() -> Option<Spare> {
    if kept() < SUPERSLAB {
        return None;
    }
    let huge_only = options::get().thp == Thp::Always;
    let Mapping { block, huge, .. } = CACHE.lock_soon()?.take_superslab(now_ms(), huge_only)?;
    Some(Spare { base: block, huge })
}
