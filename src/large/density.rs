//! Huge pages for direct mappings, where the program writes its large blocks from end to end.
//!
//! A huge page is resident as a whole when one byte of it is touched. So first the kernel is asked, of mappings without
//! huge pages that are freed or grow, or have been there for a while, whether they had been touched densely: one page in 2 MiB, a few of them. While
//! they were, new mappings of at least 2 MiB get huge pages; but for one in 16, by which a change is noticed.

use crate::base::options;
use crate::base::options::Thp;
use crate::base::table::Table;
use crate::large::kept::{HUGE_PAGE, Kept};
use crate::os;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

/// One mapping in so many is a control, without huge pages.
const CONTROL: u32 = 16;
/// Pages that must have been looked at, and from how many on the older ones count half.
const ENOUGH: u32 = 16;
const MANY: u32 = 128;
/// So many times as long as a dense one a mapping may be: a program with dense buffers may have a sparse table, too.
const LONGER: usize = 4;
/// Pages of one mapping that are looked at, at most.
const LOOKS: usize = 16;
/// Into so many parts a mapping is divided that may be sparse. One page of each is looked at.
const FEW: usize = 8;

/// What has been seen. Races lose a count at worst.
pub(super) struct Seen {
    looked: AtomicU32,
    resident: AtomicU32,
    made: AtomicU32,
    /// The longest mapping that was dense; cut down by one that was not.
    longest: AtomicUsize,
}

static SEEN: Seen = Seen::new();

impl Seen {
    const fn new() -> Self {
        Self {
            looked: AtomicU32::new(0),
            resident: AtomicU32::new(0),
            made: AtomicU32::new(0),
            longest: AtomicUsize::new(0),
        }
    }

    /// Counts pages that were looked at in a mapping of `len` bytes, and how many of them were resident.
    fn add(&self, len: usize, looked: u32, resident: u32) {
        let longest = self.longest.load(Relaxed);
        let dense = resident * 8 >= looked * 7;
        self.longest.store(if dense { longest.max(len) } else { longest.min(len / LONGER / 2) }, Relaxed);
        let (mut l, mut r) = (self.looked.load(Relaxed) + looked, self.resident.load(Relaxed) + resident);
        if l > MANY {
            (l, r) = (l / 2, r / 2);
        }
        self.looked.store(l, Relaxed);
        self.resident.store(r.min(l), Relaxed);
    }

    /// Whether a mapping of `len` bytes is likely to be touched densely.
    fn is_dense(&self, len: usize) -> bool {
        let (looked, resident) = (self.looked.load(Relaxed), self.resident.load(Relaxed));
        looked >= ENOUGH && resident * 8 >= looked * 7 && len / LONGER <= self.longest.load(Relaxed)
    }

    /// Whether the next mapping is to have huge pages.
    fn wants(&self, len: usize) -> bool {
        self.is_dense(len) && self.made.fetch_add(1, Relaxed) % CONTROL != CONTROL - 1
    }
}

/// Mappings made of late, without huge pages. A program that frees nothing is judged by the oldest of them when it makes
/// another.
static RECENT: Table<AtomicPtr<u8>, 4> = Table([const { AtomicPtr::new(ptr::null_mut()) }; 4]);
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Remembers a new mapping; the one that has been remembered longest, to look at if it is still there.
pub(super) fn remember(block: *mut u8) -> *mut u8 {
    RECENT[NEXT.fetch_add(1, Relaxed)].swap(block, Relaxed)
}

/// The last control, to look at if it is still there, when the program has had some time to fill it; else null.
pub(super) fn control() -> *mut u8 {
    if SEEN.made.load(Relaxed) % CONTROL != CONTROL / 4 {
        return ptr::null_mut();
    }
    RECENT[NEXT.load(Relaxed).wrapping_sub(1)].load(Relaxed)
}

/// Whether a mapping of `len` bytes should have huge pages.
pub(super) fn wants_huge(len: usize) -> bool {
    match options::get().thp {
        Thp::Always => true,
        Thp::Never => false,
        Thp::Auto => len >= HUGE_PAGE && SEEN.wants(len),
    }
}

/// Whether a mapping that has grown to `len` bytes should have huge pages from now on.
pub(super) fn wants_huge_grown(len: usize) -> bool {
    options::get().thp == Thp::Auto && len >= 2 * HUGE_PAGE && SEEN.is_dense(len)
}

/// Looks at a mapping from `from` bytes on that is about to be freed or to grow, if it can tell anything.
pub(super) fn look(mapping: Kept, from: usize) {
    if mapping.huge || mapping.len < HUGE_PAGE || options::get().thp != Thp::Auto {
        return;
    }
    let chunk = HUGE_PAGE.max((mapping.len.saturating_sub(from)).div_ceil(LOOKS));
    if let Some((looked, resident)) = sample(mapping, from, chunk).filter(|&(looked, _)| looked != 0) {
        SEEN.add(mapping.len, looked, resident);
    }
}

/// Whether less than half of a mapping is resident, as far as a few pages tell: taking those pages from it and getting others for
/// what is touched next costs less than clearing all.
pub(super) fn is_sparse(mapping: Kept) -> bool {
    let few = || sample(mapping, 0, mapping.len.div_ceil(FEW));
    !mapping.huge && mapping.len >= HUGE_PAGE && few().is_some_and(|(looked, resident)| resident * 2 < looked)
}

/// Looks so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// A number that differs from look to look, also at the same place, which a mapping that comes and goes may have every time: so that no
/// pattern of the program's meets one of ours.
fn scattered(place: usize, look: usize) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (place as u64 ^ look as u64).wrapping_mul(ODD);
    ((mixed ^ mixed >> 32).wrapping_mul(ODD) >> 40) as usize
}

/// Looks at one page of each whole `chunk` (in bytes) of a mapping, from `from` bytes on: how many pages that are, and how many
/// of them are resident. `None` when the system does not say.
fn sample(mapping: Kept, from: usize, chunk: usize) -> Option<(u32, u32)> {
    let page = os::page_size();
    let chunk = chunk.next_multiple_of(page);
    let (mut looked, mut resident) = (0, 0);
    let mut at = from;
    while at + chunk <= mapping.len {
        let look = LOOKED.fetch_add(1, Relaxed);
        let place = at + scattered(mapping.block.addr() + at, look) % (chunk / page).max(1) * page;
        // SAFETY: inside the mapping, which is the caller's.
        resident += unsafe { os::resident_pages(mapping.block.wrapping_add(place), page) }? as u32;
        looked += 1;
        at += chunk;
    }
    Some((looked, resident))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_is_seven_eighths_of_enough() {
        let seen = Seen::new();
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

    /// A program that touches one page in 64 of a mapping that comes and goes: looks at it are not all at such a page, or at none.
    #[test]
    fn looks_at_one_mapping_are_independent() {
        for start in (0..100).map(|i| i << 21) {
            let hits = (0..1000).filter(|&look| scattered(start, look) % 512 % 64 == 0).count();
            assert!((2..60).contains(&hits), "{hits}");
        }
    }

    #[test]
    fn one_in_sixteen_is_a_control() {
        let seen = Seen::new();
        seen.add(HUGE_PAGE, ENOUGH, ENOUGH);
        assert_eq!((0..160).filter(|_| !seen.wants(HUGE_PAGE)).count(), 10);
    }

    #[test]
    fn a_mapping_of_another_order_is_not_trusted() {
        let seen = Seen::new();
        seen.add(HUGE_PAGE, 64, 64);
        assert!(seen.is_dense(LONGER * HUGE_PAGE) && !seen.is_dense((LONGER + 1) * HUGE_PAGE));
        seen.add(64 * HUGE_PAGE, 16, 16);
        assert!(seen.is_dense(256 * HUGE_PAGE));
        seen.add(32 * HUGE_PAGE, 4, 1);
        assert!(seen.is_dense(16 * HUGE_PAGE) && !seen.is_dense(32 * HUGE_PAGE));
    }
}
