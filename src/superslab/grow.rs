//! Another SuperSlab for the pool: of memory that nobody uses any more, or from the system.

use crate::lockfree::waker;
use crate::os;
use crate::superslab::desc::CHUNK;
use crate::superslab::layout::{HEADER, SUPERSLAB};
use crate::superslab::{desc, pagemap, span_index, thp};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU64, AtomicUsize};
use core::ptr;

/// SuperSlabs mapped since the start. Relaxed, like the next one: a figure and a hint.
pub(crate) static SUPERSLABS_MAPPED: AtomicU64 = AtomicU64::new(0);
/// Where to ask the system for the next SuperSlab: beside the last one, so that mappings merge.
static HINT: AtomicUsize = AtomicUsize::new(0);

/// Memory for a SuperSlab: as much, at a multiple of its length, mapped, and nobody's.
pub(crate) struct Spare {
    pub(crate) base: *mut u8,
    /// Whether huge pages have been advised.
    pub(crate) huge: bool,
    /// Whether it is known to be zero, and hardly resident.
    pub(crate) clean: bool,
}

/// Where memory for a SuperSlab is looked for before the system is asked. What it returns is the caller's.
/// Told whether it should have huge pages.
pub(crate) type Spares = fn(bool) -> Option<Spare>;

/// Adds a SuperSlab to the pool. False if the system or a limit refuses.
pub(super) fn grow(spares: Spares) -> bool {
    let growth = thp::growth();
    let wanted = growth.wants_huge;
    let Some(Spare { base, huge, clean }) = spares(wanted).or_else(|| map_superslab(wanted)) else {
        growth.undo();
        return false;
    };
    if !pagemap::prepare(base) {
        // SAFETY: ours, mapped with this length, and nobody else knows it.
        unsafe { os::discard(base, SUPERSLAB) };
        return false;
    }
    if !clean {
        // The records of slabs are zero at first.
        // SAFETY: the front of our mapping.
        unsafe { base.write_bytes(0, HEADER) };
    }
    while !span_index::add(base, huge, !clean) {
        let chunk = os::map_uncounted(CHUNK);
        if chunk.is_null() {
            // SAFETY: ours, mapped with this length, and nobody else knows it.
            unsafe { os::discard(base, SUPERSLAB) };
            return false;
        }
        desc::supply(chunk);
    }
    if !clean {
        // It is dirty.
        waker::notify_unlocked();
    }
    true
}

/// Maps memory for a SuperSlab. `None` if the system or a limit refuses.
fn map_superslab(huge: bool) -> Option<Spare> {
    let hint = ptr::without_provenance_mut(HINT.load(Relaxed));
    let base = os::map_aligned(hint, SUPERSLAB, SUPERSLAB);
    if base.is_null() {
        return None;
    }
    HINT.store(base.addr().wrapping_sub(SUPERSLAB), Relaxed);
    // Advises against huge pages, too: where the system gives them to everybody, a process that needs a few
    // pages of many SuperSlabs would get all pages of them.
    if huge || thp::refuses() {
        // SAFETY: mapped just now with this length.
        unsafe { os::advise_huge(base, SUPERSLAB, huge) };
    }
    SUPERSLABS_MAPPED.fetch_add(1, Relaxed);
    Some(Spare { base, huge, clean: true })
}
