//! Memory of a freed mapping.

use crate::superslab::layout::PAGE;

/// Size and alignment of a huge page.
pub(super) const HUGE_PAGE: usize = 2 << 20;
/// The least that is cut off a mapping to make room.
pub(super) const LEAST_CUT: usize = 1 << 20;

/// Memory that is kept.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Where it begins.
    pub(super) block: *mut u8,
    /// Its bytes: a multiple of the system's page.
    pub(super) len: usize,
    /// Whether huge pages have been advised.
    pub(super) huge: bool,
}

impl Kept {
    /// The address behind it.
    pub(super) fn end(&self) -> usize {
        self.block.addr() + self.len
    }

    /// What is left when at least `tail` bytes are cut off the end, if it is worth keeping. No huge page is cut in two:
    /// the system could use neither part before both are free.
    pub(super) fn without(&self, tail: usize) -> Option<usize> {
        let unit = if self.huge { HUGE_PAGE } else { PAGE };
        let end = self.end().checked_sub(tail)? & !(unit - 1);
        end.checked_sub(self.block.addr()).filter(|&rest| rest >= LEAST_CUT)
    }
}
