//! Pages move onto memory that was mapped for them, which is not lost where the system refuses.

use crate::os::calls;
use crate::os::memory::{count_map, discard_uncounted, remap_to};
use crate::os::words::is_word;
use core::ptr;

/// Like [`remap_to`], after which the target was not our own any more if the system has refused: it may have
/// unmapped it, and another thread may have mapped something there since. This one marks the target, and so
/// knows it again: then it goes back, or is kept for whoever maps memory next. That costs a page fault.
///
/// # Safety
///
/// As [`remap_to`]. The target was mapped just now, and can be touched.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn remap_to_marked(p: *mut u8, old: usize, new: usize, target: *mut u8) -> bool {
    // By the clock that needs no system call.
    let time = u64::from(calls::now_ms()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mark = (time ^ target.addr() as u64) | 1;
    // SAFETY: by this function's contract the target is ours, can be touched, and is page-aligned.
    unsafe { target.cast::<u64>().write(mark) };
    // SAFETY: this function's contract has that of `remap_to`.
    if unsafe { remap_to(p, old, new, target) } {
        return true;
    }
    let bytes = mark.to_ne_bytes();
    let (low, high) = bytes.split_at(4);
    let is_half = |half: &[u8], at: usize| {
        half.try_into().is_ok_and(|half| is_word(target.addr() + at, u32::from_ne_bytes(half)) == Some(true))
    };
    // The system unmaps all of it or nothing, and nobody else maps memory with this in it.
    if is_half(low, 0) && is_half(high, 4) {
        count_map(new);
        // SAFETY: it has the mark, so it is as it was: ours, and nobody knows it.
        unsafe {
            ptr::write(target.cast::<u64>(), 0);
            discard_uncounted(target, new);
        }
    }
    false
}

/// Moves pages to where the system has room for `new` bytes, which are more than before. Unlike [`remap_to`]
/// it never has to have room for both places at once. Null, and nothing changed, when it refuses. The caller
/// accounts for the bytes held.
///
/// # Safety
///
/// `p` is a whole mapping of ours of `old` bytes; both sizes are multiples of the page size. After success
/// only the result may be used.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn remap_anywhere(p: *mut u8, old: usize, new: usize) -> *mut u8 {
    if cfg!(miri) {
        return ptr::null_mut();
    }
    calls::keep_errno(|| {
        // SAFETY: by this function's contract nobody uses the old place after success.
        let q = unsafe { libc::mremap(p.cast(), old, new, libc::MREMAP_MAYMOVE) };
        if q == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        count_map(new - old);
        q.cast()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::child::is_so;
    use crate::os::{map_uncounted, page_size, protect, resident_pages};

    /// What is several mappings to the system does not move.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_target_of_a_move_that_is_refused_is_not_lost() {
        let page = page_size();
        // SAFETY: just mapped, and used here alone.
        assert!(is_so(|| unsafe {
            let from = map_uncounted(4 * page);
            from.write(7);
            let target = map_uncounted(9 * page);
            let is_apart = protect(from.wrapping_add(page), page, false);
            let is_refused = !remap_to_marked(from, 4 * page, 9 * page, target);
            let is_gone = resident_pages(target, page).is_none();
            is_apart && is_refused && is_gone && *from == 7
        }));
        // SAFETY: just mapped, and used here alone.
        assert!(is_so(|| unsafe {
            let (from, target) = (map_uncounted(4 * page), map_uncounted(9 * page));
            from.write(7);
            remap_to_marked(from, 4 * page, 9 * page, target) && *target == 7
        }));
    }
}
