//! Which pages hold sampled blocks: the first question about a block that is freed while there is a profile.
//! Four instructions and a byte say for nearly all of them that they are not sampled.

use crate::sync::AtomicU8;
use crate::sync::Ordering::Relaxed;

/// log2 of the bytes that are told apart.
const PAGE_SHIFT: u32 = 12;
/// So many pages; those that lie a multiple of this apart share a count. With one sample in 512 KiB most
/// counts are above 0 when 8 GiB live: then most frees look into the table of the sampled blocks, too.
const PAGES: usize = 16 << 10;
/// A count that has come so far stays.
const FULL: u8 = u8::MAX;

/// How many sampled blocks begin in each page. Relaxed: the store's lock orders the changes, and only who was
/// given a block looks for it, which happens later. Not touched, and so not resident, without a profile.
static COUNTS: [AtomicU8; PAGES] = [const { AtomicU8::new(0) }; PAGES];

#[inline(always)]
fn count(address: usize) -> &'static AtomicU8 {
    &COUNTS[(address >> PAGE_SHIFT) % PAGES]
}

/// Whether the block at `address` may be sampled, or the profile has ended. For the thread that has it.
#[inline(always)]
pub(crate) fn may_matter(address: usize) -> bool {
    count(address).load(Relaxed) != 0
}

/// Notes a sampled block. For the holder of the store, as all that follows.
pub(super) fn add(address: usize) {
    let count = count(address);
    count.store(count.load(Relaxed).saturating_add(1), Relaxed);
}

/// Forgets a sampled block.
pub(super) fn remove(address: usize) {
    let count = count(address);
    let before = count.load(Relaxed);
    if before != FULL && before != 0 {
        count.store(before - 1, Relaxed);
    }
}

/// Begins anew, without a sampled block.
pub(super) fn clear() {
    fill(0);
}

/// Makes every block matter, so that all threads see at their next free that the profile has ended.
/// Where heaps stay `armed` for another client nobody has to: then no block matters.
pub(super) fn end(armed: bool) {
    fill(if armed { 0 } else { FULL });
}

#[unsafe(link_section = "hakmem_rare")]
fn fill(with: u8) {
    COUNTS.iter().for_each(|count| count.store(with, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_matters_while_it_holds_a_sampled_block_or_has_held_too_many() {
        // Other tests run meanwhile. What they sample lies at low addresses, with counts below 8,192; those
        // of this page and the next one are above.
        let page = 0x5000_0300_0000;
        assert_eq!((page >> PAGE_SHIFT) % PAGES, 12_288);
        add(page + 16);
        add(page + 4000);
        assert!(may_matter(page) && may_matter(page + 4095) && !may_matter(page + 4096));
        remove(page + 16);
        assert!(may_matter(page));
        remove(page + 4000);
        assert!(!may_matter(page));
        (0..300).for_each(|n| add(page + n));
        (0..300).for_each(|n| remove(page + n));
        assert!(may_matter(page));
        count(page).store(0, Relaxed);
    }
}
