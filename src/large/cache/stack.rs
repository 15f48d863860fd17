//! Memory that the system refused to unmap when all places of the cache were taken: in a list linked through
//! the memory itself.

use crate::large::huge::Mapping;
use crate::sync::Ordering::Release;
use crate::sync::compiler_fence;
use core::mem::offset_of;
use core::ptr;

/// How many mappings a search looks at.
const DEEP: usize = 1024;

/// The list. In the child of a fork it is whole, except that a mapping that was being put in or taken out may
/// be missing.
pub(super) struct Stack {
    first: *mut Stacked,
}

/// Stands at the start of each mapping.
struct Stacked {
    next: *mut Stacked,
    len: usize,
    huge: bool,
}

impl Stack {
    /// An empty one.
    pub(super) const fn new() -> Self {
        Self { first: ptr::null_mut() }
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Puts a mapping in front. From then on it belongs to the list.
    pub(super) fn push(&mut self, kept: Mapping) {
        let stacked = kept.block.cast::<Stacked>();
        // SAFETY: memory of ours, still mapped and of at least 64 KiB, that nobody uses until it is taken out
        // again.
        unsafe { stacked.write(Stacked { next: self.first, len: kept.len, huge: kept.huge }) };
        compiler_fence(Release);
        self.first = stacked;
    }

    /// Takes out a mapping whose start and length `fits` accepts, of the first [`DEEP`].
    pub(super) fn take(&mut self, fits: impl Fn(*mut u8, usize) -> bool) -> Option<Mapping> {
        let mut link = &raw mut self.first;
        for _ in 0..DEEP {
            // SAFETY: either our own field or the link of a mapping in the list, which `push` has written.
            let at = unsafe { *link };
            // SAFETY: null, or the start of a mapping in the list, which `push` has written.
            let stacked = unsafe { at.as_ref() }?;
            if fits(at.cast(), stacked.len) {
                let kept = Mapping { block: at.cast(), len: stacked.len, huge: stacked.huge, clean: false };
                // SAFETY: `link` is the place that `at` was read from, and not a part of `stacked`.
                unsafe { *link = stacked.next };
                compiler_fence(Release);
                return Some(kept);
            }
            link = at.map_addr(|a| a + offset_of!(Stacked, next)).cast();
        }
        None
    }

    /// The bytes of all mappings in the list.
    pub(super) fn bytes(&self) -> usize {
        let (mut bytes, mut at) = (0, self.first);
        // SAFETY: the links lead through memory that the list owns, each start of which `push` has written.
        while let Some(stacked) = unsafe { at.as_ref() } {
            bytes += stacked.len;
            at = stacked.next;
        }
        bytes
    }
}
