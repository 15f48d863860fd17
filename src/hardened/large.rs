//! Large blocks of the hardened heap: their records, and what lies around them. Where they lie:
//! [`mappings`](super::mappings).

use crate::base::counters::LARGE_IN_USE;
use crate::base::misuse::Fault;
use crate::base::options::Hardened;
use crate::hardened::records::Header;
use crate::hardened::{fault, parts};
use crate::os;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize};
use core::cell::Cell;
use core::ptr;

/// The program has the block.
pub(super) const USED: u8 = 1;
/// It is freed.
pub(super) const HELD: u8 = 2;

/// Whether a block of `old` bytes is long, and loses so little that it stays where it is, and no longer ends
/// where its pages do. To move it would cost more than seeing at once what is written behind it is worth: who
/// makes it shorter step by step would copy all of it each time.
fn is_cut_a_little(old: usize, size: usize) -> bool {
    const LONG: usize = 1 << 20;
    old >= LONG && (old - old / 8..old).contains(&size)
}

/// The record of a large block. Cells are written when the record has a mapping anew, or by who has the
/// block: so who looks by a stale pointer has no reference to what is written.
#[repr(C)]
pub(super) struct Large {
    header: Header,
    /// The mapping, and its length.
    pub(super) base: Cell<*mut u8>,
    pub(super) len: Cell<usize>,
    /// The block. Relaxed, as the others: `state` publishes them.
    pub(super) block: AtomicPtr<u8>,
    /// log2 of the alignment asked for.
    pub(super) align: AtomicU32,
    /// Whether it lies at the beginning of its mapping, so that it can grow.
    pub(super) grows: Cell<bool>,
    /// Whether the pages around the block cannot be touched.
    pub(super) guarded: Cell<bool>,
    /// Whether huge pages have been advised.
    pub(super) huge: Cell<bool>,
    /// Bytes asked for.
    pub(super) size: AtomicUsize,
    /// Bytes of the pages that the block lies on, as they are counted.
    pub(super) counted: AtomicUsize,
    pub(super) state: AtomicU8,
    /// Whether the pages of a freed one are still there.
    pub(super) resident: AtomicBool,
    /// When it was freed, in milliseconds, if they are. Relaxed: used by who has freed it, and under the lock
    /// of the quarantine.
    pub(super) freed: AtomicU32,
    /// The next one of those that are set aside. Used under the lock of the quarantine.
    pub(super) next: Cell<*mut Large>,
}

/// The byte that fills the rest of the block's first page, and what lies between its end and the guard page,
/// which is less than its alignment.
pub(super) fn filling(block: *mut u8) -> u8 {
    parts::secret(block.addr()) as u8 | 1
}

/// The record of the block that begins at `address`, which lies in the slice of this one.
///
/// # Safety
///
/// `record` is what the page map has for the slice, of the list [`LARGE`].
pub(super) unsafe fn of<'a>(record: *mut Header, address: *mut u8) -> Option<&'a Large> {
    // SAFETY: records stay mapped, and of those of this list only atomics and cells are written while
    // somebody may look at them. Who does not have the block reads atomics only.
    let large = unsafe { &*record.cast::<Large>() };
    (large.block() == address).then_some(large)
}

impl Large {
    /// Where the block begins.
    pub(super) fn block(&self) -> *mut u8 {
        self.block.load(Relaxed)
    }

    /// Bytes asked for; `None` if the block is free.
    pub(super) fn size(&self) -> Option<usize> {
        // Acquire: pairs with the release in `hand_out`.
        (self.state.load(Acquire) == USED).then(|| self.size.load(Relaxed))
    }

    /// Bytes asked for, of a block that is free, or was when that was found out. For reports.
    pub(super) fn freed_size(&self) -> usize {
        self.size.load(Relaxed)
    }

    /// The alignment that was asked for.
    pub(super) fn align(&self) -> usize {
        1 << self.align.load(Relaxed)
    }

    /// The block's first page.
    pub(super) fn first_page(&self) -> *mut u8 {
        self.block().map_addr(|at| at & !(os::page_size() - 1))
    }

    /// Bytes of the pages that a freed block lies on, if they are there.
    pub(super) fn kept(&self) -> usize {
        if self.resident.load(Relaxed) { self.pages(self.freed_size()) } else { 0 }
    }

    /// From now on the program says another alignment of it, which it has.
    pub(super) fn realign(&self, align: usize) {
        self.align.store(align.trailing_zeros(), Relaxed);
    }

    /// Where the pages of a block of `size` bytes end.
    pub(super) fn end(&self, size: usize) -> usize {
        (self.block().addr() + size.max(1)).next_multiple_of(os::page_size())
    }

    /// Bytes of the pages that a block of `size` bytes lies on.
    pub(super) fn pages(&self, size: usize) -> usize {
        self.end(size) - self.first_page().addr()
    }

    /// Counts so many bytes as in use, instead of what was counted before.
    pub(super) fn count(&self, bytes: usize) {
        LARGE_IN_USE.fetch_add(bytes, Relaxed);
        LARGE_IN_USE.fetch_sub(self.counted.swap(bytes, Relaxed), Relaxed);
    }

    /// What lies in the block's pages before the block, and behind its `size` bytes.
    pub(super) fn rests(&self, size: usize) -> [*mut [u8]; 2] {
        let before = self.block().addr() & (os::page_size() - 1);
        let behind = self.block().wrapping_add(size);
        [
            ptr::slice_from_raw_parts_mut(self.block().wrapping_sub(before), before),
            ptr::slice_from_raw_parts_mut(behind, self.end(size).saturating_sub(behind.addr())),
        ]
    }

    /// Makes the block one that is freed, if it is the one that begins at `block` and is in use. Of several
    /// threads that try exactly one succeeds.
    pub(super) fn hold(&self, block: *mut u8) -> bool {
        // Acquire: pairs with the release in `hand_out`, whatever thread has allocated it.
        if self.state.compare_exchange(USED, HELD, Acquire, Relaxed).is_err() {
            return false;
        }
        let is_there = self.block() == block;
        if !is_there {
            // Somebody else has freed it, and the mapping has another block now. Relaxed, and no store: so
            // who frees that one still acquires what `hand_out` has released.
            self.state.swap(USED, Relaxed);
        }
        is_there
    }

    /// Resizes the block where it is, on behalf of `realloc`. False if that is not possible, or if it should
    /// move: it `must` stay where no other memory is to be had.
    ///
    /// # Safety
    ///
    /// Only the caller uses the block, which is in use and has `old` bytes.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn resize(&self, old: usize, size: usize, must: bool) -> bool {
        if size == old {
            self.check(old, "realloc");
            return true;
        }
        let last = self.base.get().addr() + self.len.get() - os::page_size();
        let stays = must && size < old || self.grows.get() && size >= old / 2 || is_cut_a_little(old, size);
        if !stays || size > last - self.block().addr() {
            return false;
        }
        self.check(old, "realloc");
        let (from, to) = (self.end(old), self.end(size));
        // SAFETY: the caller's block, and what lies behind it in its mapping.
        unsafe {
            let pages = |from: usize| self.base.get().wrapping_add(from - self.base.get().addr());
            let guard = self.guarded.get();
            if to > from && guard && !os::protect(pages(from), to - from, true) {
                return false;
            }
            // What was canary becomes contents.
            let rest = (to.min(from)).saturating_sub(self.block().addr() + old);
            self.block().wrapping_add(old).write_bytes(0, rest);
            if to < from {
                if guard {
                    os::make_inaccessible(pages(to), from - to);
                } else {
                    os::purge(pages(to), from - to);
                }
            }
            self.size.store(size, Relaxed);
            self.count(self.pages(size));
            for rest in self.rests(size) {
                (*rest).fill(filling(self.block()));
            }
        }
        true
    }

    /// Reports, on behalf of `function`, what was written to around the block's `size` bytes, if anything was
    /// and canaries are on.
    pub(super) fn check(&self, size: usize, function: &str) {
        if parts::has(Hardened::CANARY) {
            if let Some(fault) = self.overwritten(size) {
                fault::large(function, self.block(), fault, size);
            }
        }
    }

    /// What was written to, if anything was, around the block's `size` bytes.
    fn overwritten(&self, size: usize) -> Option<Fault> {
        let filling = filling(self.block());
        // SAFETY: mapped and not protected; the caller is about to free the block.
        let [before, behind] =
            self.rests(size).map(|rest| unsafe { (*rest).iter().all(|&byte| byte == filling) });
        if behind { (!before).then_some(Fault::Underflow) } else { Some(Fault::Overflow) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a block of `size` bytes at `offset` of three pages, which are filled as they should be.
    fn with_block(offset: usize, size: usize, f: impl FnOnce(&Large, &[AtomicU8])) {
        let page = os::page_size();
        let base = os::map_uncounted(3 * page);
        // SAFETY: zero is valid for all fields; just mapped, with that length, which nobody else uses.
        unsafe {
            let large: Large = core::mem::zeroed();
            large.block.store(base.wrapping_add(offset), Relaxed);
            large.size.store(size, Relaxed);
            large.align.store(4, Relaxed);
            large.rests(size).into_iter().for_each(|rest| (*rest).fill(filling(large.block())));
            f(&large, core::slice::from_raw_parts(base.cast::<AtomicU8>(), 3 * page));
            os::discard_uncounted(base, 3 * page);
        }
    }

    #[test]
    fn a_block_lies_on_whole_pages() {
        let page = os::page_size();
        for (offset, size, pages) in
            [(0, 1, 1), (0, page, 1), (0, page + 1, 2), (page - 16, 17, 2), (16, 2 * page, 3), (page, 0, 1)]
        {
            with_block(offset, size, |large, bytes| {
                assert_eq!((large.pages(size), large.align()), (pages * page, 16), "{offset}, {size}");
                large.count(large.pages(size));
                assert_eq!(large.counted.load(Relaxed), pages * page);
                large.count(0);
                // What is not the block's is filled, and nothing else.
                let first = offset / page * page;
                for (at, byte) in bytes.iter().enumerate() {
                    let block = (offset..offset + size).contains(&at);
                    let page = (first..first + pages * page).contains(&at);
                    assert_eq!(byte.load(Relaxed) != 0, page && !block, "{offset}, {size}: {at}");
                }
            });
        }
    }

    #[test]
    fn what_is_written_around_a_block_is_seen() {
        let page = os::page_size();
        with_block(page + 64, 100, |large, bytes| {
            assert!(large.overwritten(100).is_none());
            for (at, fault) in [
                (page, Some(Fault::Underflow)),
                (page + 63, Some(Fault::Underflow)),
                (page + 64, None),
                (page + 163, None),
                (page + 164, Some(Fault::Overflow)),
                (2 * page - 1, Some(Fault::Overflow)),
                (2 * page, None),
            ] {
                let was = bytes[at].load(Relaxed);
                bytes[at].store(was ^ 0x80, Relaxed);
                assert!(large.overwritten(100) == fault, "{at}");
                bytes[at].store(was, Relaxed);
            }
        });
        // Not zero, as a string's end is, and another one for other blocks.
        let all: std::collections::BTreeSet<_> =
            (1..200).map(|n| filling(ptr::without_provenance_mut(n << 16))).collect();
        assert!(all.len() > 60 && all.iter().all(|byte| byte % 2 == 1));
    }

    #[test]
    fn a_block_is_freed_once_and_only_if_it_is_there() {
        with_block(32, 5, |large, _| {
            assert_eq!((large.size(), large.freed_size()), (None, 5));
            assert!(!large.hold(large.block()), "not in use yet");
            large.state.store(USED, Relaxed);
            assert_eq!(large.size(), Some(5));
            assert!(!large.hold(large.block().wrapping_add(16)), "another one");
            assert_eq!(large.size(), Some(5));
            assert!(large.hold(large.block()) && !large.hold(large.block()));
            assert_eq!((large.size(), large.freed_size()), (None, 5));
        });
    }
}
