//! Where the hardened heap's large blocks lie. Each has a mapping of its own, at whose end it lies: the page
//! behind it cannot be touched, nor those before it. A freed one cannot be touched either, and its addresses
//! are not used again before others have been freed.

use crate::base::counters::{LARGE_ALLOCS, LARGE_FREES, LARGE_IN_USE};
use crate::base::misuse::Fault;
use crate::base::options::{self, Hardened};
use crate::hardened::kept::{QUARANTINE, RESIDENT, set_aside};
use crate::hardened::large::{Large, USED, filling};
use crate::hardened::records::{self, LARGE};
use crate::hardened::unmapping::{
    GUARDED, MAPPED, MOST_HOLES, UNGUARDED, give_back_aside, keep, more, unmap,
};
use crate::hardened::{fault, parts};
use crate::large::huge::{self, Mapping};
use crate::lockfree::waker;
use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, FOREIGN};
use crate::superslab::slab::Allocation;
use crate::superslab::thp;
use crate::sync::Ordering::{Relaxed, Release};
use core::ptr;

/// Freed mappings of up to so many bytes keep their pages: to map them again would cost more than to clear
/// them.
const KEEPS_PAGES: usize = 2 << 20;
/// All freed mappings together keep so many bytes of pages, or as many as the large cache may have if that is
/// less; or one in [`PART`] of those in use if that is more.
const MOST_PAGES: usize = 4 << 20;
/// See [`MOST_PAGES`].
const PART: usize = 8;

/// A block of `size` bytes, at most `isize::MAX`, at a multiple of `align`. It is zero. One that `grows` gets
/// as much address space again behind it, and begins with a page.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn alloc(size: usize, align: usize, grows: bool) -> Allocation {
    let grows = grows && align <= os::page_size();
    if !grows {
        if let Some(block) = length(size, align, false).and_then(|len| again(size, align, len)) {
            return Allocation { ptr: block, zeroed: true };
        }
    }
    let huge = huge::wants_huge_mapping(size) || grows && huge::wants_huge_copy(size);
    let Some(record) = map(size, align, grows.then_some(0), huge) else {
        // Twice the address space may be too much where once is not.
        return if grows { alloc(size, align, false) } else { Allocation::NONE };
    };
    // SAFETY: just mapped, and nobody else's.
    unsafe {
        let block = (*record).block();
        hand_out(record, block, size, align);
        Allocation { ptr: block, zeroed: true }
    }
}

/// Bytes of a mapping for a block of `size` bytes: the block, as much again if it `grows`, less than its
/// alignment before it and behind it, and a page on both sides.
#[unsafe(link_section = "hakmem_rare")]
fn length(size: usize, align: usize, grows: bool) -> Option<usize> {
    let len = size.checked_add(if grows { size } else { 0 })?;
    let len = len.checked_add(align.max(16).checked_mul(2)?)?.checked_add(3 * os::page_size())?;
    len.checked_next_multiple_of(SLICE).filter(|&len| len <= isize::MAX as usize)
}

/// A new mapping, and where in it a block of `size` bytes will lie: at its end, or so many bytes behind the
/// beginning of its second page, so that it can grow. The block's pages can be touched, are zero, and `huge`
/// if possible. `None` if there is no memory.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn map(size: usize, align: usize, start: Option<usize>, huge: bool) -> Option<*mut Large> {
    let page = os::page_size();
    let len = length(size, align, start.is_some())?;
    let base = os::map_aligned(ptr::null_mut(), len, SLICE);
    if base.is_null() {
        return None;
    }
    let block = match start {
        Some(offset) => base.wrapping_add(page + offset),
        None => place(base, len, size, align),
    };
    let record = if pagemap::prepare_direct(block) {
        records::take(LARGE, size_of::<Large>()).0.cast::<Large>()
    } else {
        ptr::null_mut()
    };
    // SAFETY: just mapped with that length; the record is ours until the page map has it. The pages before
    // the block's first and the last one hold nothing of it.
    unsafe {
        if record.is_null() {
            os::unmap(base, len);
            return None;
        }
        MAPPED.fetch_add(len, Relaxed);
        (*record).base = base;
        (*record).len = len;
        (*record).grows = start.is_some();
        (*record).block.store(block, Relaxed);
        (*record).guarded =
            parts::has(Hardened::GUARD) && GUARDED.fetch_update(Relaxed, Relaxed, more).is_ok();
        // Not while there are so many without guard pages that they have to be alike, so as to be one mapping
        // for the system.
        (*record).huge = huge && ((*record).guarded || UNGUARDED.load(Relaxed) < MOST_HOLES);
        if (*record).huge || thp::refuses() {
            os::advise_huge(base, len, (*record).huge);
        }
        if (*record).guarded {
            let before = block.map_addr(|at| at & !(page - 1));
            let end = (*record).end(size);
            os::protect(base, before.addr() - base.addr(), false);
            os::protect(ptr::without_provenance_mut(end), base.addr() + len - end, false);
        } else {
            UNGUARDED.fetch_add(1, Relaxed);
        }
    }
    Some(record)
}

/// Where in a mapping of `len` bytes a block lies: at the end, but for a page.
fn place(base: *mut u8, len: usize, size: usize, align: usize) -> *mut u8 {
    let end = base.wrapping_add(len - os::page_size());
    end.wrapping_sub(size.max(1)).map_addr(|at| at & !(align.max(16) - 1))
}

/// A block in a mapping of `len` bytes that was freed, if there is one.
#[unsafe(link_section = "hakmem_rare")]
fn again(size: usize, align: usize, len: usize) -> Option<*mut u8> {
    let mut kept = QUARANTINE.lock_soon()?;
    let old = if len > KEEPS_PAGES { None } else { kept.reuse(len) };
    let record = old.or_else(|| kept.reuse_aside(len))?;
    drop(kept);
    // SAFETY: it was kept, so freed, and is ours alone now. All of it is inaccessible, or else it is not
    // guarded.
    unsafe {
        let (base, len, page) = ((*record).base, (*record).len, os::page_size());
        let block = place(base, len, size, align);
        let before = block.map_addr(|at| at & !(page - 1));
        let pages = (block.addr() + size.max(1)).next_multiple_of(page) - before.addr();
        let (from, bytes) = if (*record).guarded { (before, pages) } else { (base, len) };
        if !pagemap::prepare_direct(block) || !os::protect(from, bytes, true) {
            unmap(record);
            return None;
        }
        pagemap::set((*record).block(), 1, FOREIGN);
        if (*record).resident.load(Relaxed) {
            before.write_bytes(0, pages);
        }
        if !(*record).guarded {
            UNGUARDED.fetch_add(1, Relaxed);
        }
        (*record).grows = false;
        hand_out(record, block, size, align);
        Some(block)
    }
}

/// Makes a block of `size` bytes of a mapping.
///
/// # Safety
///
/// The mapping is the caller's, and the block's pages can be touched.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn hand_out(record: *mut Large, block: *mut u8, size: usize, align: usize) {
    // SAFETY: by the caller's clause.
    unsafe {
        (*record).block.store(block, Relaxed);
        (*record).align.store(align.trailing_zeros(), Relaxed);
        (*record).size.store(size, Relaxed);
        for rest in (*record).rests(size) {
            (*rest).fill(filling(block));
        }
        (*record).counted.store(0, Relaxed);
        (*record).count((*record).pages(size));
        // Release: pairs with the acquires in `Large::hold` and `Large::size`.
        (*record).state.store(USED, Release);
    }
    LARGE_ALLOCS.fetch_add(1, Relaxed);
    pagemap::set_hardened(block.map_addr(|at| at & !(SLICE - 1)), 1, record.cast());
}

impl Large {
    /// Makes the block, which begins at `block`, the caller's instead of the program's, and looks at what is
    /// around it. False after reporting on behalf of `function` that it is freed already.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn give_up(&self, block: *mut u8, function: &str) -> bool {
        let held = self.hold(block);
        let size = self.size.load(Relaxed);
        if !held {
            fault::large(function, block, Fault::DoubleFree, size);
            return false;
        }
        if parts::has(Hardened::CANARY) {
            if let Some(fault) = self.overwritten(size) {
                fault::large(function, block, fault, size);
            }
        }
        // Were it and others like it filled, the next ones may have huge pages.
        let first = block.map_addr(|at| at & !(os::page_size() - 1));
        huge::look(Mapping { block: first, len: self.pages(size), huge: self.huge }, 0);
        true
    }

    /// Frees the block, which begins at `block`, on behalf of `function`.
    ///
    /// # Safety
    ///
    /// The program does not use the block any more.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn free(&self, block: *mut u8, function: &str) {
        if !self.give_up(block, function) {
            return;
        }
        self.count(0);
        LARGE_FREES.fetch_add(1, Relaxed);
        let this = ptr::from_ref(self).cast_mut();
        // SAFETY: held, so nobody else gives the mapping back.
        unsafe {
            if !self.guarded {
                if UNGUARDED.fetch_sub(1, Relaxed) > MOST_HOLES {
                    self.resident.store(!os::purge(self.base, self.len), Relaxed);
                    return set_aside(this);
                }
                if UNGUARDED.load(Relaxed) == MOST_HOLES / 2 {
                    give_back_aside();
                }
            }
            let options = options::get();
            let much = MOST_PAGES.min(options.large_cache).max(LARGE_IN_USE.load(Relaxed) / PART);
            // A confined process would lose them.
            let stays = self.len <= KEEPS_PAGES
                && options.large_cache != 0
                && options.purge_delay != 0
                && !os::is_confined()
                && RESIDENT.load(Relaxed) + self.len <= much
                && os::protect(self.base, self.len, false);
            self.resident.store(stays, Relaxed);
            if !stays && !os::make_inaccessible(self.base, self.len) {
                unmap(this);
                return;
            }
            if stays {
                self.freed.store(os::now_ms(), Relaxed);
            }
            keep(this);
            if stays {
                // As for slabs: first it is counted, under a lock that the background thread does not take.
                waker::notify_unlocked();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardened::large;

    /// Without the quarantine, as here, too: to map each anew would cost several times as much.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_pages_of_a_freed_block_serve_the_next_one() {
        let block = alloc(100_000, 16, false).ptr;
        // SAFETY: our own block, which is freed once.
        unsafe {
            block.write_bytes(7, 100_000);
            large::of(pagemap::hardened(block).cast(), block).unwrap().free(block, "free");
        }
        let again = alloc(100_000, 16, false);
        assert!(again.ptr == block && again.zeroed);
        // SAFETY: ours again.
        assert!(unsafe { core::slice::from_raw_parts(block, 100_000) }.iter().all(|&byte| byte == 0));
    }
}
