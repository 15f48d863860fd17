//! The memory of a slab that was never handed out.

use super::Slab;
use crate::os::SMALLEST_PAGE;
use crate::sync::{AtomicPtr, Ordering};

impl Slab {
    /// Whether the next block that was never handed out touches a page that those before it do not: a system
    /// page, where these are as small as anywhere.
    ///
    /// # Safety
    ///
    /// The calling thread owns the slab.
    #[inline(always)]
    pub(crate) unsafe fn begins_page(slab: *mut Slab) -> bool {
        // SAFETY: `bump` is the owner's, and `stride` is constant.
        let (before, stride) = unsafe { ((*slab).bump.addr().wrapping_sub(1), (*slab).stride as usize) };
        before ^ before.wrapping_add(stride) >= SMALLEST_PAGE
    }

    /// Sets where memory that has not been handed out begins.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner. Memory from `bump` to `end` consists of whole blocks that belong to
    /// nobody.
    #[inline(always)]
    pub(crate) unsafe fn set_bump(slab: *mut Slab, bump: *mut u8) {
        // SAFETY: only the owner writes the field, and so may read it plainly. Atomic and relaxed, because
        // statistics read it meanwhile, as a figure.
        unsafe { AtomicPtr::from_ptr(&raw mut (*slab).bump) }.store(bump, Ordering::Relaxed);
    }
}
