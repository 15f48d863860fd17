//! Mappings out of which several blocks are cut, so that huge pages hold more of them: a block of less than
//! 2 MiB has none by itself, and the end of a longer one has none.
//!
//! The first block gets the front of such a batch, and the cache the rest, out of which it serves the next
//! ones.

use crate::base::counters::LARGE_IN_USE;
use crate::base::options;
use crate::large::cache;
use crate::large::huge::{Mapping, SHORTEST};
use crate::os;
use crate::superslab::thp::HUGE_PAGE;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;
use core::ptr;

/// A batch has at most one part in this many of the bytes of large blocks in use. If no more blocks come, a
/// part of one huge page is wasted, until the cache gives the rest back.
const PART: usize = 4;
/// The most blocks that a batch holds. Huge pages do not tell how much of them is touched: when blocks are
/// not filled any more, so many may be resident as a whole before that is noticed, beside those up to the
/// next control.
const MOST: usize = 8;
/// The longest block: of longer ones hardly any part has no huge pages.
const LONGEST_BLOCK: usize = 2 * HUGE_PAGE;
/// A block that has no more small pages than this, in bytes, is better alone.
const FEW: usize = HUGE_PAGE / 8;

/// For so many blocks there is no batch because memory was seen to be locked as soon as it was mapped.
/// Relaxed: a hint.
static LOCKED: AtomicUsize = AtomicUsize::new(0);
/// How many these are at first.
const PASSED_OVER: usize = 256;

/// How long a batch for blocks of `len` bytes should be, where there are `in_use` bytes of large blocks.
/// `None` if each is better alone.
fn length(len: usize, in_use: usize) -> Option<usize> {
    if !(SHORTEST..LONGEST_BLOCK).contains(&len) || len % HUGE_PAGE <= FEW {
        return None;
    }
    // So many that the least part of them lies in small pages, behind the last huge page.
    let totals = (2..=MOST.min(in_use / PART / len)).rev().map(|blocks| blocks * len);
    totals.filter(|&total| total >= HUGE_PAGE).min_by_key(|&total| total % HUGE_PAGE * len / total.max(1))
}

/// The same, as things are. `None` also where too much of earlier batches is unused.
pub(super) fn length_for(len: usize) -> Option<usize> {
    let options = options::get();
    if options.purge_delay == 0 || options.large_cache == 0 {
        return None;
    }
    let total = length(len, LARGE_IN_USE.load(Relaxed))?;
    let locked = LOCKED.load(Relaxed);
    if locked != 0 {
        LOCKED.store(locked - 1, Relaxed);
        return None;
    }
    if cache::unused() > total / 2 {
        cache::forget_some();
        return None;
    }
    Some(total)
}

/// Maps a batch of `total` bytes whose front becomes a block of `len` bytes, and gives the rest to the cache.
/// `None` if the system or a limit refuses. The page map does not know the block yet.
pub(super) fn alloc(len: usize, total: usize) -> Option<Mapping> {
    let batch = os::map_aligned(ptr::null_mut(), total, HUGE_PAGE);
    if batch.is_null() {
        return None;
    }
    // SAFETY: this only asks the system, about a page of a mapping of ours.
    if unsafe { os::resident_pages(batch, os::page_size()) } == Some(1) {
        // Memory is locked, and so resident at once: a block needs no page faults, and others may not come.
        LOCKED.store(PASSED_OVER, Relaxed);
        // SAFETY: mapped just now with this length, and nobody else knows it.
        unsafe { os::discard(batch, total) };
        return None;
    }
    // SAFETY: a whole mapping of ours.
    unsafe { os::advise_huge(batch, total, true) };
    let block = Mapping { block: batch, len, huge: true, clean: true };
    // SAFETY: the end of what was mapped just now, which nobody else knows; as long as the block at least.
    unsafe { cache::keep_clean(Mapping { block: batch.wrapping_add(len), len: total - len, ..block }) };
    Some(block)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::large::child;

    const MIB: usize = 1 << 20;
    const PAGE: usize = 1 << 16;

    #[test]
    fn a_batch_holds_whole_blocks_and_as_many_as_the_blocks_in_use_say() {
        assert_eq!(
            [8 * MIB - 1, 8 * MIB, 12 * MIB].map(|in_use| length(MIB, in_use)),
            [None, Some(2 * MIB), Some(2 * MIB)]
        );
        assert_eq!(length(MIB, usize::MAX), Some(MOST * MIB));
        let len = MIB + PAGE;
        assert_eq!((length(len, 8 * MIB), length(len, 12 * MIB)), (None, Some(2 * len)));
        assert_eq!((length(3 * MIB, 16 * MIB), length(3 * MIB, 24 * MIB)), (None, Some(6 * MIB)));
        // Too short, or with hardly any small pages.
        for alone in [SHORTEST - PAGE, HUGE_PAGE, HUGE_PAGE + FEW, LONGEST_BLOCK, LONGEST_BLOCK + MIB] {
            assert_eq!(length(alone, 1 << 40), None, "{alone}");
        }
        assert_eq!(FEW, 256 << 10);
        let lens = (SHORTEST..LONGEST_BLOCK).step_by(PAGE).filter(|len| len % HUGE_PAGE > FEW);
        for (len, most) in lens.flat_map(|len| (3..=MOST).map(move |most| (len, most))) {
            let total = length(len, most * PART * len).unwrap();
            assert!(total % len == 0 && total >= HUGE_PAGE && (2..=most).contains(&(total / len)), "{len}");
            let small = |total: usize| (total % HUGE_PAGE) as f64 / total as f64;
            let fewer = (2..=most).filter(|n| n * len >= HUGE_PAGE).map(|n| small(n * len));
            assert!(fewer.into_iter().all(|other| small(total) <= other + 1e-5), "{len}, {most}");
        }
    }

    /// In a child: other tests use the cache as well.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn the_next_blocks_lie_behind_the_first() {
        assert!(child::is_so(|| {
            cache::drain(true);
            let len = MIB + PAGE;
            let first = alloc(len, 3 * len).unwrap();
            assert!((first.len, first.huge, first.clean) == (len, true, true));
            assert_eq!(
                (first.block.addr() % HUGE_PAGE, cache::kept(), cache::clean()),
                (0, 2 * len, 2 * len)
            );
            for i in 1..3 {
                let next = cache::take_kept(len, 1, false).unwrap();
                assert!(next.block == first.block.wrapping_add(i * len) && next.len == len && next.clean);
            }
            assert!(cache::take_kept(len, 1, false).is_none() && cache::clean() == 0);
            // None of an address space that is too small.
            alloc(len, len << 40).is_none() && cache::kept() == 0
        }));
    }

    /// What was lost is forgotten, so that a batch is tried again.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn without_use_there_are_no_more_for_a_while() {
        assert!(child::is_so(|| {
            cache::drain(true);
            LARGE_IN_USE.store(80 * MIB, Relaxed);
            // What other tests have lost.
            (0..1000).for_each(|_| cache::forget_some());
            let total = length_for(MIB).unwrap();
            assert_eq!(total, 8 * MIB);
            LOCKED.store(2, Relaxed);
            let locked = [(); 3].map(|()| (length_for(MIB), LOCKED.load(Relaxed)));
            assert_eq!(locked, [(None, 1), (None, 0), (Some(total), 0)]);
            alloc(MIB, 5 * MIB).unwrap();
            assert_eq!((cache::unused(), length_for(MIB)), (4 * MIB, Some(total)), "a half is allowed");
            cache::take_kept(4 * MIB, 1, false).unwrap();
            alloc(MIB, total).unwrap();
            assert_eq!((cache::unused(), length_for(MIB)), (7 * MIB, None), "it is not used up");
            cache::drain(true);
            assert_eq!((cache::clean(), length_for(MIB)), (0, None), "it is lost");
            let again = (0..100).find(|_| length_for(MIB).is_some());
            again.is_some_and(|tries| (5..20).contains(&tries))
        }));
    }
}
