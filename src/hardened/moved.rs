//! Pages of large blocks move to other addresses: those of one that grows, where there is no room behind it,
//! and those of one that was freed. To touch fresh pages instead would cost a page fault each.

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

/// Whether a move may be tried now.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn may_try() -> bool {
    !cfg!(miri) && !os::is_confined() && !MOVES.is_on(os::now_ms())
}

/// Whether a block moves with its pages when it grows to `size` bytes at a multiple of `align`. Not where
/// there are no guard pages: then the mappings lie in rows, and are one for the system. Nor where the larger
/// one will have huge pages, into which it is copied.
#[unsafe(link_section = "hakmem_rare")]
fn can_grow(old: &Large, size: usize, align: usize) -> bool {
    let is_guarded = old.guarded.get() && may_be_guarded();
    // Where in a page it lies stays as it is.
    let is_aligned = align <= os::page_size() && old.block().addr() % align == 0;
    is_guarded
        && is_aligned
        && !old.huge.get()
        && may_try()
        // Last: who asks is counted.
        && !huge::wants_huge_copy(size)
        && !huge::wants_huge_mapping(size, false)
}

/// Whether the system will move `pages` bytes of pages at `from` to a new mapping, as far as can be told.
///
/// # Safety
///
/// The pages, and the one behind them, are mapped and ours. So is all of the new mapping.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn can_transfer(from: *mut u8, pages: usize, new: &Large) -> bool {
    // From Linux 6.17 on it adds what the mapping grows by before it takes off what is replaced.
    // SAFETY: by the caller's clause.
    unsafe { os::is_one_mapping(from, pages) && os::could_map(rest(new) - pages) }
}

/// Bytes from the first page of a mapping's block to its end.
fn rest(large: &Large) -> usize {
    large.base.get().addr() + large.len.get() - large.first_page().addr()
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
    let (at, from, pages) = (old.block(), old.first_page(), old.pages(was));
    if !can_grow(old, size, align) {
        return ptr::null_mut();
    }
    let Some(record) = mappings::map(size, align, Some(at.addr() - from.addr()), false) else {
        return ptr::null_mut();
    };
    // SAFETY: the new mapping is this call's alone, and so is the block once it is given up.
    unsafe {
        if !(*record).guarded.get() || !can_transfer(from, pages, &*record) || !old.give_up(at, function) {
            discard(record);
            return ptr::null_mut();
        }
        let to = (*record).first_page();
        if !transfer(old, from, pages, record) {
            // Relaxed, and no store: so who frees it still acquires what `hand_out` has released.
            old.state.swap(USED, Relaxed);
            return ptr::null_mut();
        }
        let (end, last) = ((*record).end(size), (*record).base.get().addr() + (*record).len.get());
        os::protect((*record).base.get().wrapping_add(end - (*record).base.get().addr()), last - end, false);
        old.count(0);
        LARGE_FREES.fetch_add(1, Relaxed);
        old.resident.store(false, Relaxed);
        if reclaim(old, from, pages) {
            keep(ptr::from_ref(old).cast_mut());
        }
        let block = (*record).block();
        // What was canary becomes contents.
        let rest = (to.addr() + pages).min(block.addr() + size).saturating_sub(block.addr() + was);
        block.wrapping_add(was).write_bytes(0, rest);
        hand_out(record, block, size, align);
        block
    }
}

/// Moves `pages` bytes of pages at `from`, of the old mapping, to where the block of a new one begins: with
/// all that is behind it, so that it stays one mapping for the system, and can move again. All of that has
/// the access then that the pages had. False if the system refuses: then only the new mapping is lost, and
/// has been given back.
///
/// # Safety
///
/// [`can_transfer`] has said so. The old block is freed, or given up, and both are the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn transfer(old: &Large, from: *mut u8, pages: usize, record: *mut Large) -> bool {
    // SAFETY: by the caller's clause.
    unsafe {
        let (base, to, most) = ((*record).base.get(), (*record).first_page(), rest(&*record));
        // First: others may have what is here, as soon as it is not mapped.
        pagemap::set(old.block(), 1, FOREIGN);
        let moved = os::remap_to(from, pages, most, to);
        MOVES.tried(moved, os::now_ms());
        if !moved {
            set_ours(old);
            // SAFETY: of the new mapping only what is before these pages is certainly still ours.
            os::discard_reserved(base, to.addr() - base.addr());
            held::release_excess(most, 0);
            (*record).block.store(ptr::null_mut(), Relaxed);
            forget(record);
        }
        moved
    }
}

/// The page map has it again.
#[unsafe(link_section = "hakmem_rare")]
fn set_ours(large: &Large) {
    let record = ptr::from_ref(large).cast_mut();
    pagemap::set_hardened(large.block().map_addr(|at| at & !(SLICE - 1)), 1, record.cast());
}

/// Takes the place of a block again whose pages have moved, so that its addresses are nobody's. False if
/// another thread has mapped something there meanwhile: then the rest of the mapping has been given back.
///
/// # Safety
///
/// [`transfer`] has moved these pages, and the mapping is the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn reclaim(old: &Large, from: *mut u8, pages: usize) -> bool {
    if os::claim(from, pages) {
        set_ours(old);
        // SAFETY: by the caller's clause; all of the mapping is ours again, and nothing of it can be touched.
        unsafe { os::close(old.base.get(), old.len.get()) };
        return true;
    }
    // Only what is beside it is still ours.
    let behind = from.wrapping_add(pages);
    // SAFETY: by the caller's clause; the page map has forgotten it.
    unsafe {
        os::discard_reserved(old.base.get(), from.addr() - old.base.get().addr());
        os::discard_reserved(behind, old.base.get().addr() + old.len.get() - behind.addr());
        held::release_excess(pages, 0);
        forget(ptr::from_ref(old).cast_mut());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::options::{Hardened, Options};
    use crate::hardened::{blocks, child, large};

    /// Another thread has mapped a page where the block's pages were, before their addresses were claimed.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_others_have_mapped_meanwhile_is_left_alone() {
        let block = blocks::alloc(300_000, 16, true).ptr;
        let page = os::page_size();
        // SAFETY: a block, and its record.
        let old = unsafe { large::of(pagemap::hardened(block).cast(), block) }.unwrap();
        let (base, len, pages) = (old.base.get(), old.len.get(), old.pages(300_000));
        assert!(old.give_up(block, "realloc"));
        // SAFETY: the block was given up; what is mapped in its place is used here alone.
        assert!(child::is_so(|| unsafe {
            pagemap::set(block, 1, FOREIGN);
            os::discard_uncounted(block, pages);
            let theirs = block.wrapping_add(3 * page);
            let is_mapped = os::claim(theirs, page) && os::protect(theirs, page, true);
            theirs.write_bytes(5, page);
            let is_ours = reclaim(old, block, pages);
            let nobodys = [base, block, theirs.wrapping_add(page), base.wrapping_add(len - page)];
            let is_gone = nobodys.into_iter().all(|at| os::resident_pages(at, page).is_none());
            is_mapped && !is_ours && *theirs == 5 && is_gone
        }));
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn only_what_is_mapped_nowhere_is_claimed() {
        let page = os::page_size();
        // SAFETY: just mapped, and used here alone.
        assert!(child::is_so(|| unsafe {
            let base = os::map_uncounted(3 * page);
            let [middle, last] = [1, 2].map(|pages| base.wrapping_add(pages * page));
            middle.write_bytes(7, page);
            os::discard_uncounted(base, page);
            os::discard_uncounted(last, page);
            !os::claim(base, 3 * page) && os::claim(base, page) && os::claim(last, page) && *middle == 7
        }));
    }
    /// In a child: a try that was refused keeps others from trying.
    #[test]
    #[cfg_attr(miri, ignore = "does not move pages")]
    fn a_block_that_grows_moves_with_its_pages_where_it_can() {
        const WAS: usize = 300_000;
        const SIZE: usize = 3_000_000;
        assert!(child::is_so(|| {
            crate::hardened::inherit();
            crate::hardened::init(&Options::new().hardened(Hardened::ON), os::random());
            // It ends at a guard page, so at a multiple of 32 it begins, and of 64 it does not.
            let block = blocks::alloc(WAS, 16, false).ptr;
            assert_eq!(block.addr() % 64, 32);
            // SAFETY: our own block of this length.
            unsafe { block.write_bytes(7, WAS) };
            // SAFETY: the record of a block.
            let old = unsafe { large::of(pagemap::hardened(block).cast(), block) }.unwrap();
            // SAFETY: the block is in use, and only used here.
            let grow = |align| unsafe { grow(old, WAS, SIZE, align, "realloc") };
            assert!(old.guarded.get() && !old.huge.get());
            old.huge.set(true);
            assert!(grow(16).is_null(), "it is copied into huge pages");
            old.huge.set(false);
            old.guarded.set(false);
            assert!(grow(16).is_null(), "it lies in a row");
            old.guarded.set(true);
            assert!(
                grow(64).is_null() && grow(2 * os::page_size()).is_null(),
                "it would lie elsewhere in a page"
            );
            MOVES.tried(false, os::now_ms());
            assert!(!may_try() && grow(16).is_null());
            MOVES.tried(true, os::now_ms());
            assert!(may_try());

            let new = grow(32);
            assert!(!new.is_null() && new != block && !MOVES.was_refused());
            // SAFETY: our own block, of which that many bytes were asked for.
            let bytes = unsafe { core::slice::from_raw_parts(new, SIZE) };
            assert!(bytes[..WAS].iter().all(|&byte| byte == 7) && bytes[WAS..].iter().all(|&byte| byte == 0));
            // SAFETY: the same; up to its end it can be touched.
            unsafe { new.write_bytes(9, SIZE) };
            // Its old addresses are nobody's: known as freed, and without memory.
            // SAFETY: what the page map has there; and pages of ours.
            unsafe {
                assert_ne!(pagemap::kind(block), FOREIGN);
                assert!(ptr::eq(large::of(pagemap::hardened(block).cast(), block).unwrap(), old));
                assert_ne!(old.state.load(Relaxed), USED);
                // Set where test.sh emulates other page sizes: what is resident is not told by those there.
                let told = std::env::var_os("EXPECT_PAGE_SIZE").is_none();
                assert!(!told || os::resident_pages(old.first_page(), old.pages(WAS)) == Some(0));
                let record = large::of(pagemap::hardened(new).cast(), new).unwrap();
                record.free(new, "free");
            }
            true
        }));
    }
}
