//! What mappings with huge pages hold. The system only says that they are resident; but a page that holds
//! anything but zeros has been written to since it was mapped. So what is found is certain; what is not found
//! may be filled with zeros.

use crate::large::huge::recent::Recent;
use crate::large::huge::{CONTROL, Density, LOOKS, Mapping, recent, seen};
use crate::os;
use crate::superslab::thp::{is_most, is_ours};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicPtr, AtomicUsize};
use core::ptr;

/// Recent mappings with huge pages for one block each.
static RECENT_HUGE: Recent = Recent::new();
/// The last of those for several.
static LAST_BATCH: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// What fewer pages say is nothing.
const ENOUGH_SAID: usize = LOOKS / 4;
/// How many looks there were so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// Before another one is made, or another batch: one to [look into](holds_little) that was made some time
/// ago, which may be gone by now.
pub(in crate::large) fn earlier_huge(is_batch: bool) -> *mut u8 {
    if is_batch { LAST_BATCH.load(Relaxed) } else { RECENT_HUGE.oldest() }
}

/// Remembers a new mapping with huge pages, or the first block of a batch.
pub(in crate::large) fn remember_huge(block: *mut u8, is_batch: bool) {
    if is_batch {
        LAST_BATCH.store(block, Relaxed);
    } else {
        RECENT_HUGE.remember(block);
    }
}

/// Looks at what a mapping with huge pages holds. If it is most of it, no control is needed yet, and longer
/// ones may have huge pages. If it is little, and there is cause for [doubt](crate::superslab::thp::Doubt),
/// returns true: mappings as long as this should have none until others are seen to be dense.
pub(in crate::large) fn holds_little(mapping: Mapping) -> bool {
    if !mapping.huge || !is_ours() {
        return false;
    }
    let seen = seen(mapping.len);
    let held = sample(mapping, seen.doubt.may_be_raised());
    let little = held.is_some_and(|(looked, written)| seen.add_written(mapping.len, looked, written));
    if little {
        // What was made before says nothing of what the program makes now.
        recent(mapping.len).clear();
    }
    little
}

impl Density {
    /// [`holds_little`].
    pub(super) fn add_written(&self, len: usize, looked: usize, written: usize) -> bool {
        if is_most(written, looked) {
            self.add(len, looked, written);
            self.control_at.store(self.made.load(Relaxed) + CONTROL, Relaxed);
            self.doubt.dispel();
            return false;
        }
        let little = written * 8 < looked * 3 && self.doubt.raise();
        if little {
            self.add(len, LOOKS, written);
        }
        little
    }
}

/// Looks at a page of each of some parts of a mapping: how many were looked at, and how many of them hold
/// something; if not `exact`, fewer once they cannot be most of them any more. What is not resident, and so
/// may be about to be filled, says nothing, nor does what the program has made inaccessible. `None` if less
/// than a quarter says anything, or the system does not say.
#[unsafe(link_section = "hakmem_rare")]
fn sample(mapping: Mapping, exact: bool) -> Option<(usize, usize)> {
    let look = LOOKED.fetch_add(1, Relaxed);
    let part = mapping.len / LOOKS;
    let (mut said, mut written) = (0, 0);
    for start in (0..LOOKS).map(|i| i * part) {
        let place = start + os::scattered(mapping.block.addr() + start, look) % part.max(1);
        let page = mapping.block.wrapping_add(place & !(os::page_size() - 1));
        // A look would make it resident.
        // SAFETY: this only asks the system, which reports an error if the mapping is gone.
        let resident = unsafe { os::resident_pages(page, os::page_size()) }? == 1;
        let answer = if resident { os::is_written(page, look) } else { None };
        said += answer.is_some() as usize;
        written += (answer == Some(true)) as usize;
        if !exact && said > ENOUGH_SAID + written {
            break;
        }
    }
    (said >= ENOUGH_SAID).then_some((said, written))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::superslab::thp::HUGE_PAGE;

    #[test]
    fn what_is_written_is_dense_and_what_is_not_is_doubted() {
        let seen = Density::new();
        seen.add(HUGE_PAGE, LOOKS, LOOKS);
        let is_dense = || seen.is_dense(2 * HUGE_PAGE, 1);
        assert!(!is_dense());
        assert!(!seen.add_written(2 * HUGE_PAGE, LOOKS, LOOKS * 3 / 8) && !is_dense(), "that says nothing");
        assert!(!seen.add_written(2 * HUGE_PAGE, LOOKS, LOOKS - 2) && is_dense());
        seen.made.store(40, Relaxed);
        assert!(!seen.add_written(2 * HUGE_PAGE, LOOKS, LOOKS) && is_dense());
        assert_eq!(seen.control_at.load(Relaxed), 40 + CONTROL, "no control is needed yet");
        assert!(seen.add_written(2 * HUGE_PAGE, LOOKS, 5) && !is_dense());
        seen.add(2 * HUGE_PAGE, 100, 100);
        assert!(!seen.add_written(2 * HUGE_PAGE, LOOKS, 0) && is_dense(), "zeros");
        assert!(!seen.add_written(2 * HUGE_PAGE, LOOKS, LOOKS));
        assert!(seen.add_written(2 * HUGE_PAGE, LOOKS, 0) && !is_dense());
    }

    #[test]
    #[cfg_attr(any(miri, feature = "valgrind"), ignore)]
    fn a_mapping_is_looked_into() {
        let block = os::map_uncounted(HUGE_PAGE);
        // SAFETY: our own mapping of this length.
        unsafe { os::advise_huge(block, HUGE_PAGE, false) };
        let fill = |to: usize, byte: u8| {
            // SAFETY: inside the mapping.
            unsafe { block.write_bytes(byte, to) };
        };
        let mapping = Mapping { block, len: HUGE_PAGE, huge: true, clean: false };
        // Set where test.sh emulates other page sizes: what is resident is not told by those there.
        if std::env::var_os("EXPECT_PAGE_SIZE").is_none() {
            assert_eq!(sample(mapping, true), None, "it may be about to be filled");
            // SAFETY: this only asks the system.
            assert_eq!(unsafe { os::resident_pages(block, HUGE_PAGE) }, Some(0), "a look made it resident");
            fill(HUGE_PAGE / 2, 1);
            assert_eq!(sample(mapping, true), Some((LOOKS / 2, LOOKS / 2)));
        }
        fill(HUGE_PAGE, 0);
        assert_eq!(sample(mapping, true), Some((LOOKS, 0)));
        assert_eq!(sample(mapping, false), Some((ENOUGH_SAID + 1, 0)));
        fill(HUGE_PAGE / 2, 1);
        assert_eq!(sample(mapping, true), Some((LOOKS, LOOKS / 2)));
        // SAFETY: our own mapping of this length, not used any more.
        unsafe { os::discard_uncounted(block, HUGE_PAGE) };
    }
}
