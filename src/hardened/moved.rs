//! A large block that grows takes its pages along, where there is no room behind it: to copy it would touch
//! fresh pages, and each costs a page fault.

use crate::base::counters::LARGE_FREES;
use crate::base::pause::Pause;
use crate::hardened::large::{Large, USED};
use crate::hardened::mappings::{self, hand_out};
use crate::hardened::unmapping::{discard, forget, keep, may_be_guarded};
use crate::large::huge;
use crate::os;
use crate::os::held;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, FOREIGN};
use crate::sync::Ordering::Relaxed;
use core::ptr;

/// After a move that the system has refused none is tried for a while: each may cost address space.
static MOVES: Pause = Pause::up_to(1 << 16);

/// Whether a block whose pages are `pages` bytes from `from` on moves with them when it grows to `size` bytes
/// at a multiple of `align`. Not where there are no guard pages: then the mappings lie in rows, and are one
/// for the system. Nor where the larger one will have huge pages, into which it is copied.
///
/// # Safety
///
/// Only the caller uses the block.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn can_move(old: &Large, from: *mut u8, pages: usize, size: usize, align: usize) -> bool {
    let is_guarded = old.guarded && may_be_guarded();
    // Where in a page it lies stays as it is.
    let is_aligned = align <= os::page_size() && old.block().addr() % align == 0;
    let is_refused = cfg!(miri) || os::is_confined() || MOVES.is_on(os::now_ms());
    is_guarded
        && is_aligned
        && !is_refused
        && !old.huge
        // SAFETY: the block's pages, behind which its mapping goes on.
        && unsafe { os::is_one_mapping(from, pages) }
        // Last: who asks is counted.
        && !huge::wants_huge_copy(size)
        && !huge::wants_huge_mapping(size)
}

/// Moves a block of `was` bytes, with its pages, to where it has `size` bytes, on behalf of `function`. Null,
/// and nothing has changed, if that is not possible.
///
/// # Safety
///
/// Only the caller uses the block, which is in use and smaller than `size` bytes. After success it uses the
/// result instead.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn grow(old: &Large, was: usize, size: usize, align: usize, function: &str) -> *mut u8 {
    let (page, at) = (os::page_size(), old.block());
    let (from, pages) = (at.map_addr(|at| at & !(page - 1)), old.pages(was));
    // SAFETY: by the caller's clause.
    if !unsafe { can_move(old, from, pages, size, align) } {
        return ptr::null_mut();
    }
    let Some(record) = mappings::map(size, align, Some(at.addr() - from.addr()), false) else {
        return ptr::null_mut();
    };
    // SAFETY: the new mapping is this call's alone, and so is the block once it is given up.
    unsafe {
        if !(*record).guarded || !old.give_up(at, function) {
            discard(record);
            return ptr::null_mut();
        }
        let (base, len, block) = ((*record).base, (*record).len, (*record).block());
        // All that the block may grow into: so it stays one mapping for the system, and can move again.
        let (to, most) = (base.wrapping_add(page), len - page);
        // First: others may have what is here, as soon as it is not mapped.
        pagemap::set(at, 1, FOREIGN);
        let moved = os::remap_to(from, pages, most, to);
        MOVES.tried(moved, os::now_ms());
        if !moved {
            restore(old);
            // SAFETY: of the new mapping only this page is certainly still ours.
            os::unmap(base, page);
            held::release_excess(most, 0);
            (*record).block.store(ptr::null_mut(), Relaxed);
            forget(record);
            return ptr::null_mut();
        }
        let end = (*record).end(size);
        os::protect(base.wrapping_add(end - base.addr()), base.addr() + len - end, false);
        leave(old, from, pages);
        // What was canary becomes contents.
        let rest = (to.addr() + pages).min(block.addr() + size).saturating_sub(block.addr() + was);
        block.wrapping_add(was).write_bytes(0, rest);
        hand_out(record, block, size, align);
        block
    }
}

/// The page map has it again.
#[unsafe(link_section = "hakmem_rare")]
fn set_ours(large: &Large) {
    let record = ptr::from_ref(large).cast_mut();
    pagemap::set_hardened(large.block().map_addr(|at| at & !(SLICE - 1)), 1, record.cast());
}

/// Makes a block that was given up the program's again.
#[unsafe(link_section = "hakmem_rare")]
fn restore(large: &Large) {
    set_ours(large);
    // Relaxed, and no store: so who frees it still acquires what `hand_out` has released.
    large.state.swap(USED, Relaxed);
}

/// Leaves the place of a block whose pages have moved: its addresses are kept, as those of one that is freed.
///
/// # Safety
///
/// It was given up, and of its mapping nothing is mapped where the pages were.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn leave(old: &Large, from: *mut u8, pages: usize) {
    old.count(0);
    LARGE_FREES.fetch_add(1, Relaxed);
    old.resident.store(false, Relaxed);
    let this = ptr::from_ref(old).cast_mut();
    if os::claim(from, pages) {
        set_ours(old);
        // SAFETY: by the caller's clause; all of the mapping is ours again, and nothing of it can be touched.
        return unsafe {
            os::close(old.base, old.len);
            keep(this);
        };
    }
    // Another thread has mapped something there meanwhile: only what is beside it is still ours.
    let behind = from.wrapping_add(pages);
    // SAFETY: by the caller's clause; the page map has forgotten it.
    unsafe {
        os::unmap(old.base, from.addr() - old.base.addr());
        os::unmap(behind, old.base.addr() + old.len - behind.addr());
        held::release_excess(pages, 0);
        forget(this);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardened::large;

    /// Whether `f` says so in a process in which no other thread maps anything.
    fn alone(f: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child does what `f` does, in memory of its own, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(if f() { 0 } else { 1 });
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0) == child && status == 0
        }
    }

    /// Another thread has mapped a page where the block's pages were, before their addresses were claimed.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_others_have_mapped_meanwhile_is_left_alone() {
        let block = mappings::alloc(300_000, 16, true).ptr;
        let page = os::page_size();
        // SAFETY: a block, and its record.
        let old = unsafe { large::of(pagemap::hardened(block).cast(), block) }.unwrap();
        let (base, len, pages) = (old.base, old.len, old.pages(300_000));
        assert!(old.give_up(block, "realloc"));
        // SAFETY: the block was given up; what is mapped in its place is used here alone.
        assert!(alone(|| unsafe {
            pagemap::set(block, 1, FOREIGN);
            os::unmap_uncounted(block, pages);
            let theirs = block.wrapping_add(3 * page);
            let is_mapped = os::claim(theirs, page) && os::protect(theirs, page, true);
            theirs.write_bytes(5, page);
            leave(old, block, pages);
            let nobodys = [base, block, theirs.wrapping_add(page), base.wrapping_add(len - page)];
            let is_gone = nobodys.into_iter().all(|at| os::resident_pages(at, page).is_none());
            is_mapped && *theirs == 5 && is_gone
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn only_what_is_mapped_nowhere_is_claimed() {
        let page = os::page_size();
        // SAFETY: just mapped, and used here alone.
        assert!(alone(|| unsafe {
            let base = os::map_uncounted(3 * page);
            let [middle, last] = [1, 2].map(|pages| base.wrapping_add(pages * page));
            middle.write_bytes(7, page);
            os::unmap_uncounted(base, page);
            os::unmap_uncounted(last, page);
            !os::claim(base, 3 * page) && os::claim(base, page) && os::claim(last, page) && *middle == 7
        }));
    }
}
