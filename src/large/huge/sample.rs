//! Looks at single system pages of a mapping.

use crate::large::huge::Mapping;
use crate::os;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// To find out whether a mapping is sparse, one system page of each of this many parts is looked at.
pub(super) const FEW: usize = 8;
/// How many looks there were so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// Looks at one system page of each whole `chunk` (in bytes) of a mapping, from `from` bytes on. Returns how
/// many pages were looked at, and how many of them are resident. `None` if the system does not say.
pub(super) fn sample(mapping: Mapping, from: usize, chunk: usize) -> Option<(usize, usize)> {
    let page = os::page_size();
    let chunk = chunk.next_multiple_of(page);
    let (mut looked, mut resident) = (0, 0);
    let mut at = from;
    while at + chunk <= mapping.len {
        let look = LOOKED.fetch_add(1, Relaxed);
        let place = at + os::scattered(mapping.block.addr() + at, look) % (chunk / page).max(1) * page;
        // SAFETY: this only asks the system, which reports an error if the mapping is gone.
        resident += unsafe { os::resident_pages(mapping.block.wrapping_add(place), page) }?;
        looked += 1;
        at += chunk;
    }
    Some((looked, resident))
}

/// Looks at a few system pages of a mapping; twice where half of them are resident, or more, but not all.
/// That may be an accident: of 2 MiB with 16 pages touched, half of the looks meet one in 1 of 15,000 cases,
/// and whoever has cleared all of it does so again whenever it comes back. Returns how many pages were looked
/// at, none if the system does not say, and how many of them are resident.
pub(super) fn look_at_few(mapping: Mapping) -> (usize, usize) {
    let look = |parts| sample(mapping, 0, mapping.len.div_ceil(parts)).unwrap_or_default();
    let (looked, resident) = look(FEW);
    if resident * 2 < looked || resident == looked {
        return (looked, resident);
    }
    let (more, found) = look(2 * FEW);
    (looked + more, resident + found)
}
