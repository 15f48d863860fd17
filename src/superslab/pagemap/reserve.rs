//! Memory that the page map has for sure.

use crate::os;
use crate::superslab::pagemap::{Branch, DirectLeaf, LEAF, bytes_of, prepare_direct_by};

/// Memory for all that [`prepare_direct`](super::prepare_direct) may need for one address, whichever that is:
/// for who learns the address when it is too late to go without.
pub(crate) struct Reserve {
    at: *mut u8,
    left: usize,
}

impl Reserve {
    /// `None` if there is no memory.
    pub(crate) fn new() -> Option<Self> {
        let left = LEAF + bytes_of::<Branch>() + bytes_of::<DirectLeaf>();
        let at = os::map_uncounted(left);
        if at.is_null() { None } else { Some(Self { at, left }) }
    }

    /// [`prepare_direct`](super::prepare_direct), which cannot fail.
    pub(crate) fn prepare_direct(mut self, address: *const u8) {
        let prepared = prepare_direct_by(address, &mut |len| {
            let at = self.at;
            self.at = at.wrapping_add(len);
            self.left -= len;
            at
        });
        debug_assert!(prepared);
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        if self.left != 0 {
            // SAFETY: the end of what `new` has mapped, of which no part was taken.
            unsafe { os::discard_uncounted(self.at, self.left) };
        }
    }
}
