//! How much of a SuperSlab with huge pages has been written to. The system only says that it is resident; but
//! a page that holds anything but zeros has been written to since it was mapped. So what is found is certain;
//! what is not found may be filled with zeros.

use crate::os;
use crate::superslab::layout::{SLICE, SUPERSLAB};
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// How many pages of a SuperSlab are looked at.
pub(super) const PAGES: usize = 16;
/// How many looks there were so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// How many of [`PAGES`] pages of a SuperSlab hold something, for all that a few words of each tell; if not
/// `exact`, fewer once they cannot be most of them any more. `None` if the system does not say, or only of a
/// quarter of them, or part of the SuperSlab is not resident: a look would make it so.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn pages_written(base: *mut u8, exact: bool) -> Option<usize> {
    // SAFETY: this only asks the system, which reports an error if the memory has been unmapped meanwhile.
    let resident = unsafe { os::resident_pages(base, SUPERSLAB) }?;
    if resident * os::page_size() != SUPERSLAB {
        return None;
    }
    let look = LOOKED.fetch_add(1, Relaxed);
    let part = (SUPERSLAB - SLICE) / PAGES;
    let (mut said, mut written) = (0, 0);
    for start in (0..PAGES).map(|i| SLICE + i * part) {
        let place = start + os::scattered(base.addr() + start, look) % part;
        // The program may have made some of them inaccessible.
        let answer = os::is_written(base.wrapping_add(place & !(os::SMALLEST_PAGE - 1)), look);
        said += answer.is_some() as usize;
        written += (answer == Some(true)) as usize;
        if !exact && said > PAGES / 4 + written {
            break;
        }
    }
    (said > PAGES / 4).then_some(written)
}

/// Whether memory of a SuperSlab's length, with huge pages, is resident as a whole and holds something: what
/// was only read may count as resident, too.
#[unsafe(link_section = "hakmem_rare")]
pub(crate) fn is_written(base: *mut u8) -> bool {
    pages_written(base, false).is_some_and(|written| written >= PAGES / 2)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(any(miri, feature = "valgrind"), ignore)]
    fn pages_that_hold_something_are_counted() {
        let base = os::map_uncounted(SUPERSLAB);
        // Without huge pages, whatever the system's default is.
        // SAFETY: our own mapping of this length.
        unsafe { os::advise_huge(base, SUPERSLAB, false) };
        let fill = |from: usize, to: usize, byte: u8| {
            // SAFETY: inside the mapping.
            unsafe { base.add(from).write_bytes(byte, to - from) };
        };
        fill(0, SUPERSLAB / 2, 1);
        // Set where test.sh emulates other page sizes: what is resident is not told by those there.
        if std::env::var_os("EXPECT_PAGE_SIZE").is_none() {
            assert_eq!(pages_written(base, true), None, "a look would make the rest resident");
        }
        fill(SUPERSLAB / 2, SUPERSLAB, 0);
        let written: Vec<_> = (0..50).map(|_| pages_written(base, true).unwrap()).collect();
        assert!(written.iter().all(|&pages| (PAGES / 2 - 1..=PAGES / 2).contains(&pages)), "{written:?}");
        fill(0, SUPERSLAB, 0);
        assert_eq!(pages_written(base, true), Some(0));
        // A word here and there.
        for at in (0..SUPERSLAB).step_by(64) {
            // SAFETY: inside the mapping.
            unsafe { base.add(at).write(1) };
        }
        let found: usize = (0..50).map(|_| pages_written(base, true).unwrap()).sum();
        assert_eq!(found, 50 * PAGES, "the first word is one of them");
        fill(0, SUPERSLAB, 1);
        assert_eq!(pages_written(base, true), Some(PAGES));
        assert_eq!(pages_written(base, false), Some(PAGES));
        fill(0, SUPERSLAB, 0);
        assert_eq!(pages_written(base, false), Some(0));
        // SAFETY: our own mapping of this length, not used any more.
        unsafe { os::discard_uncounted(base, SUPERSLAB) };
    }
}
