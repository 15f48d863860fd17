//! Huge pages where nobody has asked for them: the system may give them to all memory (`enabled` is
//! `always`). There a very long mapping of which nothing is known has them, as it would with any other
//! allocator: a program that makes its few arrays first and fills them then would otherwise keep small pages
//! for as long as it runs.

use crate::large::huge::{Density, ENOUGH};
use crate::os;
use crate::superslab::thp::{HUGE_PAGE, is_most};
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// Mappings of at least so many bytes. If one is touched in a few places only, that costs as many huge pages:
/// what is as long as this and hardly used is rare.
pub(super) const LONG: usize = 16 * HUGE_PAGE;

/// How often [`are_given`] looks in vain: there may be no huge page at hand.
const TRIES: usize = 3;
const GIVEN: usize = usize::MAX;

/// Looks in vain so far, or [`GIVEN`]. Relaxed: a figure, on which no other memory depends.
static FOUND: AtomicUsize = AtomicUsize::new(0);

/// Whether the system gives huge pages to memory without advice. Not known where system calls are few.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn are_given() -> bool {
    let found = FOUND.load(Relaxed);
    if found >= TRIES || os::is_confined() {
        return found == GIVEN;
    }
    let given = look();
    FOUND.store(if given { GIVEN } else { found + 1 }, Relaxed);
    given
}

/// Whether a mapping of `len` bytes that got huge pages for this reason is hardly used, if so many of those
/// that were `looked` at are `resident`: other mappings then get none. Less than half of them, since what
/// doubles when it is full has more.
pub(super) fn is_sparse(len: usize, looked: usize, resident: usize) -> bool {
    FOUND.load(Relaxed) == GIVEN && len >= LONG && 2 * resident < looked
}

/// Touches some memory, and sees whether more becomes resident. The setting itself is in a file, and files
/// are not ours to open in other people's processes.
#[unsafe(link_section = "hakmem_rare")]
fn look() -> bool {
    let block = os::map_aligned_uncounted(HUGE_PAGE, HUGE_PAGE);
    if block.is_null() {
        return false;
    }
    // SAFETY: mapped just now with that length, and nobody else's.
    unsafe {
        block.write_volatile(1);
        let resident = os::resident_pages(block, HUGE_PAGE);
        os::discard_uncounted(block, HUGE_PAGE);
        resident == Some(HUGE_PAGE / os::page_size())
    }
}

impl Density {
    /// Whether a mapping of `len` bytes should have huge pages: as [`wants`](Self::wants) says, or because it
    /// is a very long one, what was seen so far was not sparse, and it is the system's choice.
    pub(super) fn wants_or(&self, len: usize, longer: usize, are_given: impl FnOnce() -> bool) -> bool {
        let (looked, resident) = (self.looked.load(Relaxed), self.resident.load(Relaxed));
        let sparse = looked >= ENOUGH && !is_most(resident, looked);
        if self.is_dense(len, longer) {
            self.wants(len, longer, 1)
        } else {
            !sparse && len >= LONG && are_given()
        }
    }
}
