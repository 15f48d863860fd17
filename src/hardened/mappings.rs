//! Where the hardened heap's large blocks lie. Each has a mapping of its own, at whose end it lies: the page
//! behind it cannot be touched, nor those before it.

use crate::base::counters::LARGE_ALLOCS;
use crate::base::misuse::Fault;
use crate::base::options::Hardened;
use crate::base::pause::Pause;
use crate::hardened::large::{Large, USED, filling};
use crate::hardened::records::{self, LARGE};
use crate::hardened::unmapping::{GUARDED, MAPPED, MOST_HOLES, UNGUARDED, discard, more};
use crate::hardened::{fault, parts};
use crate::large::huge::{self, Mapping};
use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap;
use crate::superslab::thp::{self, HUGE_PAGE};
use crate::sync::Ordering::{Relaxed, Release};
use core::ptr;

/// Bytes of a mapping for a block of `size` bytes: the block, as much again if it `grows`, less than its
/// alignment, and a page on both sides. One that is to be `huge` begins and ends such that whole huge pages
/// fit into it, with one slice behind it.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn length(size: usize, align: usize, grows: bool, huge: bool) -> Option<usize> {
    let len = size.checked_add(if grows { size } else { 0 })?;
    let len = len.checked_add(align.max(16))?.checked_add(3 * os::page_size())?;
    let len = if huge {
        let before = if grows { HUGE_PAGE } else { 0 };
        len.checked_add(before)?.checked_next_multiple_of(HUGE_PAGE)?.checked_add(SLICE)?
    } else {
        len.checked_next_multiple_of(SLICE)?
    };
    Some(len).filter(|&len| len <= isize::MAX as usize)
}

/// Where in a mapping of `len` bytes a block lies: at the end, but for a page, or for a slice if it is
/// `huge`.
pub(super) fn place(base: *mut u8, len: usize, huge: bool, size: usize, align: usize) -> *mut u8 {
    let end = base.wrapping_add(len - if huge { SLICE } else { os::page_size() });
    end.wrapping_sub(size.max(1)).map_addr(|at| at & !(align.max(16) - 1))
}

/// Where a block lies that begins with a page, in a mapping at `base`, so that it can grow.
fn first(base: *mut u8, huge: bool) -> *mut u8 {
    base.wrapping_add(if huge { HUGE_PAGE } else { os::page_size() })
}

/// After guard pages that the system has refused there are none for a while: it may allow no more mappings,
/// of which they need several, and not even take back what was mapped for them.
static REFUSED: Pause = Pause::up_to(1 << 10);

/// A new mapping, and where in it a block of `size` bytes will lie: at its end, or so many bytes behind the
/// beginning of a page, so that it can grow. The block's pages can be touched, are zero, and `huge` if
/// possible. `None` if there is no memory.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn map(size: usize, align: usize, start: Option<usize>, huge: bool) -> Option<*mut Large> {
    // Not while there are so many without guard pages that they have to be alike, so as to be one mapping
    // for the system.
    let is_guarded = parts::has(Hardened::GUARD) && !cfg!(miri);
    if is_guarded && !REFUSED.is_on(os::now_ms()) && GUARDED.fetch_update(Relaxed, Relaxed, more).is_ok() {
        if let Some(record) = map_so(size, align, start, huge, true) {
            return Some(record);
        }
    }
    map_so(size, align, start, huge && UNGUARDED.load(Relaxed) < MOST_HOLES, false)
}

/// [`map`], with guard pages or without. Those with guard pages are counted.
#[unsafe(link_section = "hakmem_rare")]
fn map_so(size: usize, align: usize, start: Option<usize>, huge: bool, guarded: bool) -> Option<*mut Large> {
    let page = os::page_size();
    let unit = if huge { HUGE_PAGE } else { SLICE };
    // First the record: what the system does not take back is kept by that.
    let record = records::take(LARGE, size_of::<Large>()).0.cast::<Large>();
    let len = length(size, align, start.is_some(), huge).filter(|_| !record.is_null());
    // Where the program has all memory locked, what can be touched is memory.
    let base = len.map_or(ptr::null_mut(), |len| {
        if guarded { os::reserve_aligned(len, unit) } else { os::map_aligned(ptr::null_mut(), len, unit) }
    });
    let Some(len) = len.filter(|_| !base.is_null()) else {
        GUARDED.fetch_sub(usize::from(guarded), Relaxed);
        if !record.is_null() {
            // SAFETY: the record is ours.
            unsafe { records::give(record.cast()) };
        }
        return None;
    };
    let block = match start {
        Some(offset) => first(base, huge).wrapping_add(offset),
        None => place(base, len, huge, size, align),
    };
    // SAFETY: just mapped with that length, and nobody else's; so is the record, until the page map has it.
    unsafe {
        MAPPED.fetch_add(len, Relaxed);
        UNGUARDED.fetch_add(usize::from(!guarded), Relaxed);
        (*record).base.set(base);
        (*record).len.set(len);
        (*record).grows.set(start.is_some());
        (*record).block.store(block, Relaxed);
        (*record).guarded.set(guarded);
        (*record).huge.set(huge);
        if huge || thp::refuses() {
            os::advise_huge(base, len, huge);
        }
        let pages = block.map_addr(|at| at & !(page - 1));
        let bytes = (block.addr() + size.max(1)).next_multiple_of(page) - pages.addr();
        let is_open = !guarded || os::protect(pages, bytes, true);
        if guarded {
            REFUSED.tried(is_open, os::now_ms());
        }
        if !is_open || !pagemap::prepare_direct(block) {
            discard(record);
            return None;
        }
    }
    Some(record)
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
    /// The pages of a block of `size` bytes, which is where this one is.
    pub(super) fn mapping(&self, size: usize) -> Mapping {
        Mapping { block: self.first_page(), len: self.pages(size), huge: self.huge.get(), clean: false }
    }

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
        self.check(size, function);
        // Were it and others like it filled, the next ones may have huge pages.
        huge::look(self.mapping(size), 0);
        true
    }
}
