//! Looks at single system pages of a mapping.

use crate::large::huge::Mapping;
use crate::os;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// How many looks there were so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// A hash of place and look. It differs from look to look, even at the same place, where a mapping that comes
/// and goes may lie every time. So the places that are looked at follow no pattern that could coincide with
/// one of the program.
pub(super) fn scattered(place: usize, look: usize) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (place as u64 ^ look as u64).wrapping_mul(ODD);
    ((mixed ^ mixed >> 32).wrapping_mul(ODD) >> 40) as usize
}

/// Looks at one system page of each whole `chunk` (in bytes) of a mapping, from `from` bytes on. Returns how
/// many pages were looked at, and how many of them are resident. `None` if the system does not say.
pub(super) fn sample(mapping: Mapping, from: usize, chunk: usize) -> Option<(usize, usize)> {
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
