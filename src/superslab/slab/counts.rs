//! How many blocks of a slab are in use, and which of its owner's lists it is in for that.

use super::{FULL, Listed, Slab};
use crate::sync::{Ordering, compiler_fence, wrote};

impl Slab {
    /// Counts a block as used.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    #[inline(always)]
    pub(crate) unsafe fn count_taken(slab: *mut Slab) {
        // SAFETY: the record of the caller's slab is valid; the field is atomic, and only the owner writes
        // it.
        let used = unsafe { &(*slab).used };
        // Relaxed, here and wherever `used` and `counted` are accessed: other threads only read them, as
        // figures.
        used.store(used.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Blocks that are neither on `free` nor above `bump`.
    ///
    /// # Safety
    ///
    /// `slab` is the record of a slab whose SuperSlab stays mapped. Unless the caller is its owner, the
    /// answer may be outdated.
    pub(crate) unsafe fn in_use(slab: *mut Slab) -> u32 {
        // SAFETY: the record is mapped; the field is atomic.
        unsafe { &(*slab).used }.load(Ordering::Relaxed) & !FULL
    }

    /// [`Slab::in_use`] without the blocks that wait on `remote`.
    ///
    /// # Safety
    ///
    /// As [`Slab::in_use`].
    pub(crate) unsafe fn in_use_beside_waiting(slab: *mut Slab) -> u32 {
        // SAFETY: the record is mapped, and these are atomics.
        unsafe {
            let uncounted = (*slab).remote.waiting().saturating_sub((*slab).counted.load(Ordering::Relaxed));
            Slab::in_use(slab).saturating_sub(uncounted)
        }
    }

    /// Notes which list the slab is in. Sets `low`, so that a free needs one comparison to learn whether the
    /// slab has to change its list: from the partial ones when few blocks are in use ([`Slab::few`]), or
    /// earlier to be looked at again ([`Slab::spare`]); from the purged ones when half as many are in use as
    /// when it was purged, or if these were more than few, an [eighth less](Slab::eighth_less); from the full
    /// ones at once; and as the current slab never.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    pub(crate) unsafe fn enlist(slab: *mut Slab, list: Listed) {
        // SAFETY: only the owner, that is the caller, accesses `list` and `low` and writes `used`.
        unsafe {
            wrote(slab);
            (*slab).list = list;
            (*slab).low = match list {
                Listed::Current => i32::MIN,
                Listed::Partial => Slab::few(slab) as i32,
                Listed::Purged => {
                    let used = Slab::in_use(slab);
                    if used <= Slab::few(slab) { (used / 2) as i32 } else { Slab::eighth_less(slab) }
                }
                Listed::None | Listed::Full | Listed::Sparse => 0,
            };
            let full = if list == Listed::Full { FULL } else { 0 };
            (*slab).used.store(Slab::in_use(slab) | full, Ordering::Relaxed);
        }
    }

    /// So many blocks are in use when an eighth of those that are now has been freed.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    unsafe fn eighth_less(slab: *mut Slab) -> i32 {
        // SAFETY: the caller's clause.
        let used = unsafe { Slab::in_use(slab) };
        (used - used.div_ceil(8)) as i32
    }

    /// Notes that purging the slab, a partial one, brought nothing. Then it [is spared](Slab::is_spared)
    /// until an eighth of the blocks in use has been freed, or it is listed elsewhere.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner, and has just [enlisted](Slab::enlist) it.
    pub(crate) unsafe fn spare(slab: *mut Slab) {
        // SAFETY: only the owner, that is the caller, accesses `low`.
        unsafe { (*slab).low = ((*slab).low + 1).max(Slab::eighth_less(slab)) }
    }

    /// Whether the slab is one that [`Slab::spare`] was told of, and is to be left alone.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner, or visits the heap in whose lists it is.
    pub(crate) unsafe fn is_spared(slab: *mut Slab) -> bool {
        // SAFETY: the caller's clause; both are read by the owner's rights.
        unsafe { (*slab).list == Listed::Partial && (*slab).low > Slab::few(slab) as i32 }
    }

    /// Notes that the slab, which is in no list, was purged, or that this brought nothing. Then it is not
    /// [due](Slab::is_due) until an eighth of the blocks in use has been freed, or it is listed. An orphan
    /// keeps that.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    pub(crate) unsafe fn not_due(slab: *mut Slab) {
        // SAFETY: only the owner, that is the caller, accesses `low`.
        unsafe { (*slab).low = Slab::eighth_less(slab) }
    }

    /// Whether [`Slab::not_due`] was not said of the slab, or is over.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    pub(crate) unsafe fn is_due(slab: *mut Slab) -> bool {
        // SAFETY: as there.
        unsafe { (*slab).low == 0 || Slab::in_use(slab) as i32 <= (*slab).low }
    }

    /// Bytes of the blocks that are not in use, and of what is left behind the last block, at most.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    pub(crate) unsafe fn free_bytes(slab: *mut Slab) -> usize {
        // SAFETY: by the caller's clause nobody else writes these fields.
        unsafe {
            let stride = (*slab).stride as usize;
            ((*slab).last as usize + 2 * stride).saturating_sub(Slab::in_use(slab) as usize * stride)
        }
    }

    /// With at most this many blocks in use nearly the whole slab lies idle: one in 32, and at least one.
    ///
    /// # Safety
    ///
    /// `slab` is the record of a live slab, and the caller is its owner or one of its blocks is in use.
    pub(crate) unsafe fn few(slab: *mut Slab) -> u32 {
        // SAFETY: by the caller's duty these fields are constant.
        unsafe { (*slab).last.div_ceil(((*slab).stride * 32).max(1)) }
    }

    /// Notes that `waiting` blocks are or were on `remote`, so that `used` does not count them any more.
    /// `rest` is how many of them are still there: `waiting`, or 0 if they have been taken off.
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    pub(crate) unsafe fn count_waiting(slab: *mut Slab, waiting: u32, rest: u32) {
        // SAFETY: only the owner, that is the caller, writes these fields. They are changed in this order so
        // that the child of a fork in between has too many blocks in use, never too few.
        unsafe {
            wrote(slab);
            let counted = (*slab).counted.load(Ordering::Relaxed);
            (*slab).counted.store(rest, Ordering::Relaxed);
            compiler_fence(Ordering::Release);
            Slab::count(slab, -(waiting.saturating_sub(counted) as i32));
        }
    }

    /// Changes the count of used blocks by `by`. Returns the new count, with the flag [`FULL`].
    ///
    /// # Safety
    ///
    /// The caller is the slab's owner.
    #[inline(always)]
    pub(crate) unsafe fn count(slab: *mut Slab, by: i32) -> u32 {
        // SAFETY: the record of the caller's slab is valid; the field is atomic.
        let used = unsafe { &(*slab).used };
        // SAFETY: only the owner writes it, so a plain read by the owner races with nothing.
        let now = unsafe { used.as_ptr().read() }.wrapping_add_signed(by);
        used.store(now, Ordering::Relaxed);
        now
    }

    /// Whether all blocks of the slab wait on its remote stack.
    ///
    /// # Safety
    ///
    /// The slab is published and not taken in yet, or has blocks in use, so that it stays.
    pub(crate) unsafe fn is_whole(slab: *mut Slab) -> bool {
        // SAFETY: the slab stays, so `stride` and `last` are constant; the stack is atomic.
        unsafe { (*slab).remote.waiting() * (*slab).stride > (*slab).last }
    }
}
