//! Where the hardened heap's large blocks lie. Each has a mapping of its own, at whose end it lies: the page
//! behind it cannot be touched, nor those before it. A freed one cannot be touched either, and its addresses
//! are not used again before others have been freed.

use crate::base::counters::{LARGE_ALLOCS, LARGE_FREES, LARGE_IN_USE};
use crate::base::misuse::Fault;
use crate::base::options::Hardened;
use crate::hardened::large::{Large, USED, filling};
use crate::hardened::records::{self, LARGE};
use crate::hardened::{fault, parts};
use crate::os;
use crate::os::futex::{Inherit, Lock};
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{self, FOREIGN};
use crate::superslab::slab::Allocation;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::{Relaxed, Release};
use core::ptr;

/// Freed mappings whose addresses are not used again, at most.
const KEPT: usize = 64;
/// The same in bytes of address space, but for one mapping.
const KEPT_BYTES: usize = 256 << 20;

/// With the quarantine, so many mappings are freed after one, at least, before its addresses are used again.
const LATER: usize = 4;
/// Freed mappings of up to so many bytes keep their pages: to map them again would cost more than to clear
/// them.
const KEEPS_PAGES: usize = 2 << 20;
/// All freed mappings together keep so many bytes of pages, or if that is more one in [`PART`] of those in
/// use.
const MOST_PAGES: usize = 4 << 20;
/// See [`MOST_PAGES`].
const PART: usize = 8;

/// Mappings with guard pages, at most: two for the system each, of the 65,530 that it allows in a process by
/// default. Slabs may have 600 times 64.
const MOST_GUARDED: usize = 8192;
/// Mappings with guard pages. Relaxed: a figure.
static GUARDED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of address space mapped for blocks, in use or kept. Relaxed: a figure.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Freed mappings, the oldest first.
struct Quarantine {
    kept: [*mut Large; KEPT],
    count: usize,
    /// Bytes of address space.
    bytes: usize,
    /// Bytes of those that are resident.
    resident: usize,
}

// SAFETY: records stay mapped, and the list is used only under the lock.
unsafe impl Send for Quarantine {}

impl Inherit for Quarantine {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // What was being put in or taken out may be in two places, or in none: better to lose all than to
            // hand one out twice.
            (self.count, self.bytes, self.resident) = (0, 0, 0);
        }
    }
}

static QUARANTINE: Lock<Quarantine> =
    Lock::new(Quarantine { kept: [ptr::null_mut(); KEPT], count: 0, bytes: 0, resident: 0 });

impl Quarantine {
    /// Takes the mapping at `index` out.
    fn remove(&mut self, index: usize) -> Option<*mut Large> {
        let large = *self.kept.get(..self.count)?.get(index)?;
        self.kept.get_mut(index..self.count)?.rotate_left(1);
        self.count -= 1;
        // SAFETY: the record of a mapping that was in the list.
        let (len, resident) = unsafe { ((*large).len, (*large).resident.load(Relaxed)) };
        self.bytes -= len;
        self.resident -= if resident { len } else { 0 };
        Some(large)
    }

    /// Puts a mapping in. False if there is no room.
    fn add(&mut self, large: *mut Large) -> bool {
        // SAFETY: the caller's mapping.
        let (len, resident) = unsafe { ((*large).len, (*large).resident.load(Relaxed)) };
        if self.count > 0 && self.bytes + len > KEPT_BYTES {
            return false;
        }
        let Some(slot) = self.kept.get_mut(self.count) else { return false };
        *slot = large;
        self.count += 1;
        self.bytes += len;
        self.resident += if resident { len } else { 0 };
        true
    }

    /// Takes out the oldest mapping of `len` bytes that is resident, if enough were freed later.
    fn reuse(&mut self, len: usize) -> Option<*mut Large> {
        let later = if parts::has(Hardened::QUARANTINE) { LATER } else { 0 };
        let old = self.kept.get(..self.count.saturating_sub(later))?;
        // SAFETY: records of mappings in the list.
        let index = old
            .iter()
            .position(|&large| unsafe { (*large).len == len && (*large).resident.load(Relaxed) })?;
        self.remove(index)
    }
}

/// A block of `size` bytes, at most `isize::MAX`, at a multiple of `align`. It is zero. One that `grows` gets
/// as much address space again behind it, and begins with a page.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn alloc(size: usize, align: usize, grows: bool) -> Allocation {
    let page = os::page_size();
    let grows = grows && align <= page;
    let room = if grows { size } else { 0 };
    // The block, less than its alignment before it and behind it, and a page on both sides.
    let Some(len) = size
        .checked_add(room)
        .and_then(|len| len.checked_add(align.max(16).checked_mul(2)?)?.checked_add(3 * page))
        .and_then(|len| len.checked_next_multiple_of(SLICE))
        .filter(|&len| len <= isize::MAX as usize)
    else {
        return Allocation::NONE;
    };
    if !grows {
        if let Some(block) = again(size, align, len) {
            return Allocation { ptr: block, zeroed: true };
        }
    }
    let base = os::map_aligned(ptr::null_mut(), len, SLICE);
    if base.is_null() {
        // Twice the address space may be too much where once is not.
        return if grows { alloc(size, align, false) } else { Allocation::NONE };
    }
    let block = if grows { base.wrapping_add(page) } else { place(base, len, size, align) };
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
            return Allocation::NONE;
        }
        MAPPED.fetch_add(len, Relaxed);
        (*record).base = base;
        (*record).len = len;
        (*record).grows = grows;
        (*record).block.store(block, Relaxed);
        (*record).guarded =
            parts::has(Hardened::GUARD) && GUARDED.fetch_update(Relaxed, Relaxed, more).is_ok();
        if (*record).guarded {
            let before = block.map_addr(|at| at & !(page - 1));
            let end = (*record).end(size);
            os::protect(base, before.addr() - base.addr(), false);
            os::protect(ptr::without_provenance_mut(end), base.addr() + len - end, false);
        }
        hand_out(record, block, size, align);
    }
    Allocation { ptr: block, zeroed: true }
}

/// One more mapping with guard pages, if there may be one.
fn more(guarded: usize) -> Option<usize> {
    (guarded < MOST_GUARDED).then_some(guarded + 1)
}

/// Where in a mapping of `len` bytes a block lies: at the end, but for a page.
fn place(base: *mut u8, len: usize, size: usize, align: usize) -> *mut u8 {
    let end = base.wrapping_add(len - os::page_size());
    end.wrapping_sub(size.max(1)).map_addr(|at| at & !(align.max(16) - 1))
}

/// A block in a mapping of `len` bytes that was freed, if there is one.
#[unsafe(link_section = "hakmem_rare")]
fn again(size: usize, align: usize, len: usize) -> Option<*mut u8> {
    if len > KEEPS_PAGES {
        return None;
    }
    let record = QUARANTINE.lock_soon()?.reuse(len)?;
    // SAFETY: it was kept, so freed, and is ours alone now. All of it is inaccessible.
    unsafe {
        let (base, page) = ((*record).base, os::page_size());
        let block = place(base, len, size, align);
        let before = block.map_addr(|at| at & !(page - 1));
        let pages = (block.addr() + size.max(1)).next_multiple_of(page) - before.addr();
        let (from, bytes) = if (*record).guarded { (before, pages) } else { (base, len) };
        if !pagemap::prepare_direct(block) || !os::protect(from, bytes, true) {
            unmap(record);
            return None;
        }
        pagemap::set((*record).block(), 1, FOREIGN);
        before.write_bytes(0, pages);
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
    /// Frees the block, which begins at `block`, on behalf of `function`.
    ///
    /// # Safety
    ///
    /// The program does not use the block any more.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn free(&self, block: *mut u8, function: &str) {
        let held = self.hold(block);
        let size = self.size.load(Relaxed);
        if !held {
            return fault::large(function, block, Fault::DoubleFree, size);
        }
        if parts::has(Hardened::CANARY) {
            if let Some(fault) = self.overwritten(size) {
                fault::large(function, block, fault, size);
            }
        }
        self.count(0);
        LARGE_FREES.fetch_add(1, Relaxed);
        let this = ptr::from_ref(self).cast_mut();
        // SAFETY: held, so nobody else gives the mapping back.
        unsafe {
            let much = MOST_PAGES.max(LARGE_IN_USE.load(Relaxed) / PART);
            // A confined process would lose them.
            let stays = self.len <= KEEPS_PAGES
                && !os::is_confined()
                && QUARANTINE.lock_soon().is_some_and(|kept| kept.resident + self.len <= much)
                && os::protect(self.base, self.len, false);
            self.resident.store(stays, Relaxed);
            if !stays && !os::make_inaccessible(self.base, self.len) {
                return unmap(this);
            }
            keep(this);
        }
    }
}

/// Keeps a freed mapping's addresses, and unmaps older ones instead.
///
/// # Safety
///
/// The caller has freed the block, and made its mapping inaccessible.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn keep(large: *mut Large) {
    loop {
        let Some(mut kept) = QUARANTINE.lock_soon() else { break };
        if kept.add(large) {
            return;
        }
        let oldest = kept.remove(0);
        drop(kept);
        let Some(oldest) = oldest else { break };
        // SAFETY: it was kept, so freed; now it is ours alone.
        unsafe { unmap(oldest) };
    }
    // SAFETY: freed, and the caller's alone.
    unsafe { unmap(large) };
}

/// Gives a freed mapping back, and its record.
///
/// # Safety
///
/// The block is freed, and the mapping the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
unsafe fn unmap(large: *mut Large) {
    // SAFETY: by the caller's clause. The page map forgets it first, so that nobody finds the record.
    unsafe {
        pagemap::set((*large).block(), 1, FOREIGN);
        MAPPED.fetch_sub((*large).len, Relaxed);
        if (*large).guarded {
            GUARDED.fetch_sub(1, Relaxed);
        }
        os::unmap((*large).base, (*large).len);
        records::give(large.cast());
    }
}

/// Bytes of address space that are kept of freed mappings.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn spare() -> usize {
    QUARANTINE.lock_soon().map_or(0, |kept| kept.bytes)
}

/// Gives back what is kept of freed mappings. Returns how many bytes of address space.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn purge() -> usize {
    let mut bytes = 0;
    while let Some(large) = QUARANTINE.lock_soon().and_then(|mut kept| kept.remove(0)) {
        // SAFETY: it was kept, so freed; now it is ours alone.
        unsafe {
            bytes += (*large).len;
            unmap(large);
        }
    }
    bytes
}

/// Bytes of address space mapped for blocks, and how many of them are pages of freed ones that are kept.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn mapped() -> (usize, usize) {
    (MAPPED.load(Relaxed), QUARANTINE.lock_soon().map_or(0, |kept| kept.resident))
}

/// In the child of a fork.
pub(super) fn inherit() {
    QUARANTINE.inherit();
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
