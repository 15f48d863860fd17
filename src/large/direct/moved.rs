//! Mappings that grow where there is no room behind them: their pages move to another place.

use crate::base::pause::Pause;
use crate::large::huge::Mapping;
use crate::os::{self, held};
use crate::superslab::pagemap::{self, Reserve};
use crate::superslab::thp::HUGE_PAGE;
use crate::sync::AtomicBool;
use crate::sync::Ordering::Relaxed;
use core::ptr;

/// How long no mapping is moved after the system has refused to move one: at most 65,536 milliseconds.
static MOVES: Pause = Pause::up_to(1 << 16);
/// Whether it has ever refused one. Relaxed: who does not see it yet may lose address space, as the first one
/// does: see [`os::remap_to`].
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Moves the pages of a mapping that grows to `len` bytes to a new place that the page map can describe.
/// Null, and nothing changed, on failure.
///
/// # Safety
///
/// The mapping is whole, not in the page map, and the caller's alone. After success only the result may be
/// used.
pub(super) unsafe fn to_new(old: Mapping, len: usize, huge: bool) -> *mut u8 {
    // Only one of the two places counts as held, so only the difference is reserved.
    if MOVES.is_on(os::now_ms()) || !held::reserve_growth(old.len, len) {
        return ptr::null_mut();
    }
    // SAFETY: the caller's clause is the same, and where there is no target nothing has changed.
    let moved = unsafe {
        match to_target(old, len, huge) {
            Ok(target) => target,
            Err(NoTarget) => anywhere(old, len),
        }
    };
    let (from, to) = if moved.is_null() { (len, old.len) } else { (old.len, len) };
    held::release_excess(from, to);
    moved
}

/// There is no room for both places at once.
struct NoTarget;

/// Moves the pages to memory that is mapped for them first. Null when the system refuses that.
///
/// # Safety
///
/// As [`to_new`].
unsafe fn to_target(old: Mapping, len: usize, huge: bool) -> Result<*mut u8, NoTarget> {
    let target = if huge && len >= HUGE_PAGE {
        os::map_aligned_uncounted(len, HUGE_PAGE)
    } else {
        os::map_uncounted(len)
    };
    if target.is_null() {
        return Err(NoTarget);
    }
    // From Linux 6.17 on the system adds what the mapping grows by before it takes off what is replaced, and
    // where that is too much it leaves the target mapped.
    if !os::could_map(len - old.len) || !pagemap::prepare_direct(target) {
        // SAFETY: mapped just now with this length, and nobody else knows it.
        unsafe { os::discard_uncounted(target, len) };
        return Err(NoTarget);
    }
    // What is refused once may be refused again, as for a process that stays near the limit of mappings.
    let remap = if REFUSED.load(Relaxed) { os::remap_to_marked } else { os::remap_to };
    // SAFETY: the old place is the caller's, and the new one was mapped just now and may be replaced.
    let moved = unsafe {
        split(old);
        remap(old.block, old.len, len, target)
    };
    MOVES.tried(moved, os::now_ms());
    if !moved {
        REFUSED.store(true, Relaxed);
    }
    Ok(if moved { target } else { ptr::null_mut() })
}

/// Lets the system choose the place, which then takes only what the mapping grows by, and some for the page
/// map: else a process whose address space is limited, or whose memory is all accounted for, could not have a
/// block longer than half of that. There is no pause after a refusal, since what has no room may have it a
/// moment later.
///
/// # Safety
///
/// As [`to_new`].
#[cold]
unsafe fn anywhere(old: Mapping, len: usize) -> *mut u8 {
    // The page map has to describe the new place, and only afterwards it is known where that is.
    let Some(reserve) = Reserve::new() else { return ptr::null_mut() };
    // SAFETY: the mapping is the caller's.
    let moved = unsafe {
        split(old);
        os::remap_anywhere(old.block, old.len, len)
    };
    if !moved.is_null() {
        reserve.prepare_direct(moved);
    }
    moved
}

/// Splits the huge pages at the ends of a mapping that is about to move.
///
/// # Safety
///
/// The mapping is whole, and the caller's.
unsafe fn split(old: Mapping) {
    if old.huge {
        // SAFETY: the caller's clause is the same.
        unsafe { old.split_ends() };
    }
}
