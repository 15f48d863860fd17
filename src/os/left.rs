//! Memory that nobody needs and the system has refused to unmap. Whoever maps memory next gets it, or it goes
//! back later.
//!
//! A process may have so many mappings, and at that limit the system refuses what leaves a hole in one. What
//! was mapped a moment ago may lie in the middle of one: beside memory of its kind it becomes part of that.
//!
//! No lock is taken. Whoever changes a range has taken it out before, so that nobody waits, and where a fork
//! or a jump out of a signal handler comes between, that range alone is lost. All of it is SeqCst: it is
//! rare.

use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::{AtomicPtr, AtomicUsize};
use core::ptr;

/// A range of whole pages, which are zero.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) base: *mut u8,
    pub(super) len: usize,
    /// Whether it can be touched; else nothing of it can.
    pub(super) is_open: bool,
}

impl Range {
    fn end(self) -> *mut u8 {
        self.base.wrapping_add(self.len)
    }

    /// The last place in it, at a multiple of `align`, for `len` bytes with this access.
    fn place(self, len: usize, align: usize, is_open: bool) -> Option<*mut u8> {
        if self.is_open != is_open || self.len < len {
            return None;
        }
        let start = (self.base.addr() + (self.len - len)) & !(align - 1);
        Some(self.base.wrapping_add(start.checked_sub(self.base.addr())?))
    }

    /// Whether another range lies beside it, and is alike.
    fn is_beside(self, other: Range) -> bool {
        self.is_open == other.is_open && (self.end() == other.base || other.end() == self.base)
    }
}

/// In place of a range that somebody is about to put in, or has taken out.
const HELD: *mut u8 = ptr::without_provenance_mut(1);
/// Added to the length of a range that can be touched.
const OPEN: usize = 1;

/// Room for one range.
struct Slot {
    /// Null if there is none; or [`HELD`].
    base: AtomicPtr<u8>,
    /// Bytes, and [`OPEN`].
    len: AtomicUsize,
}

impl Slot {
    const fn new() -> Self {
        Self { base: AtomicPtr::new(ptr::null_mut()), len: AtomicUsize::new(0) }
    }

    /// Takes the range out, if there is one that is `wanted`. Then the slot is the caller's, who says what is
    /// in it from now on.
    fn hold(&self, wanted: impl Fn(Range) -> bool) -> Option<Range> {
        let base = self.base.load(SeqCst);
        let range = || {
            let len = self.len.load(SeqCst);
            Range { base, len: len & !OPEN, is_open: len & OPEN != 0 }
        };
        if base.is_null() || base == HELD || !wanted(range()) {
            return None;
        }
        self.base.compare_exchange(base, HELD, SeqCst, SeqCst).ok()?;
        // Once more: another range may begin there now.
        if !wanted(range()) {
            self.base.store(base, SeqCst);
            return None;
        }
        Some(range())
    }

    /// Puts a range in, or none if it has no bytes. The slot is the caller's until then.
    fn fill(&self, range: Range) {
        self.len.store(range.len | if range.is_open { OPEN } else { 0 }, SeqCst);
        self.base.store(if range.len == 0 { ptr::null_mut() } else { range.base }, SeqCst);
    }

    /// Puts nothing in.
    fn clear(&self) {
        self.base.store(ptr::null_mut(), SeqCst);
    }
}

/// As many ranges as a slot has room for.
struct Ranges<const N: usize> {
    slots: [Slot; N],
    /// At least as many as there are. Relaxed where it is a hint.
    count: AtomicUsize,
}

/// With what lies beside each other as one, more than a process has left at once that is worth keeping.
static LEFT: Ranges<64> = Ranges::new();

impl<const N: usize> Ranges<N> {
    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; N], count: AtomicUsize::new(0) }
    }

    /// Puts a range in. False if there is no room.
    fn insert(&self, range: Range) -> bool {
        let free = |slot: &&Slot| slot.base.compare_exchange(ptr::null_mut(), HELD, SeqCst, SeqCst).is_ok();
        let Some(slot) = self.slots.iter().find(free) else { return false };
        self.count.fetch_add(1, SeqCst);
        slot.fill(range);
        true
    }

    /// Puts a range in, as one with those beside it: what is unmapped all at once may leave no hole. False if
    /// there is no room.
    fn put(&self, mut range: Range) -> bool {
        for slot in &self.slots {
            if let Some(other) = slot.hold(|other| other.is_beside(range)) {
                slot.clear();
                self.count.fetch_sub(1, SeqCst);
                range = Range { base: range.base.min(other.base), len: range.len + other.len, ..range };
            }
        }
        self.insert(range)
    }

    /// Takes `len` bytes with this access, at a multiple of `align`, which is one of the page size. Null if
    /// there are none.
    fn take(&self, len: usize, align: usize, is_open: bool) -> *mut u8 {
        for slot in &self.slots {
            let Some(range) = slot.hold(|range| range.place(len, align, is_open).is_some()) else { continue };
            let start = range.place(len, align, is_open).unwrap_or(range.base);
            let end = start.wrapping_add(len);
            let behind = Range { base: end, len: range.end().addr() - end.addr(), ..range };
            if behind.len != 0 && !self.insert(behind) {
                slot.fill(range);
                continue;
            }
            let before = Range { len: start.addr() - range.base.addr(), ..range };
            slot.fill(before);
            if before.len == 0 {
                self.count.fetch_sub(1, SeqCst);
            }
            return start;
        }
        ptr::null_mut()
    }

    /// Takes each range out once, and puts those back that `gone` says are still there.
    fn each(&self, mut gone: impl FnMut(Range) -> bool) {
        for slot in &self.slots {
            let Some(range) = slot.hold(|_| true) else { continue };
            if gone(range) {
                slot.clear();
                self.count.fetch_sub(1, SeqCst);
            } else {
                slot.fill(range);
            }
        }
    }
}

/// Keeps a range that is nobody's, of at least a page. False if there is no room for it: then it is lost.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn put(base: *mut u8, len: usize, is_open: bool) -> bool {
    LEFT.put(Range { base, len, is_open })
}

/// A range of `len` bytes at a multiple of `align`, which is one of the page size, that is the caller's now
/// if it is not null. It is zero.
#[inline]
pub(super) fn take(len: usize, align: usize, is_open: bool) -> *mut u8 {
    // Relaxed: a hint. There is none in nearly all processes.
    if LEFT.count.load(Relaxed) == 0 { ptr::null_mut() } else { take_rare(len, align, is_open) }
}

#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn take_rare(len: usize, align: usize, is_open: bool) -> *mut u8 {
    LEFT.take(len, align, is_open)
}

/// Calls `gone` with each range, which is the caller's meanwhile, and forgets those that it says are gone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn each(gone: impl FnMut(Range) -> bool) {
    if LEFT.count.load(Relaxed) != 0 {
        LEFT.each(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU8;
    use std::vec::Vec;

    const PAGE: usize = 1 << 16;

    fn at(page: usize) -> *mut u8 {
        ptr::without_provenance_mut(page * PAGE)
    }

    fn open(page: usize, pages: usize) -> Range {
        Range { base: at(page), len: pages * PAGE, is_open: true }
    }

    /// What is in there, in pages.
    fn all<const N: usize>(ranges: &Ranges<N>) -> Vec<(usize, usize, bool)> {
        let mut all = Vec::new();
        ranges.each(|range| {
            all.push((range.base.addr() / PAGE, range.len / PAGE, range.is_open));
            false
        });
        all.sort();
        assert_eq!(ranges.count.load(SeqCst), all.len());
        all
    }

    #[test]
    fn what_lies_beside_each_other_is_one() {
        let ranges = Ranges::<4>::new();
        for (page, pages) in [(10, 2), (14, 2), (30, 1)] {
            assert!(ranges.put(open(page, pages)));
        }
        assert!(ranges.put(Range { is_open: false, ..open(16, 2) }));
        assert_eq!(all(&ranges), [(10, 2, true), (14, 2, true), (16, 2, false), (30, 1, true)]);
        assert!(!ranges.put(open(40, 1)), "no room");
        assert!(ranges.put(open(12, 2)));
        assert_eq!(all(&ranges), [(10, 6, true), (16, 2, false), (30, 1, true)]);
    }

    #[test]
    fn what_is_taken_is_a_part() {
        let ranges = Ranges::<2>::new();
        assert!(ranges.put(open(9, 8)) && ranges.put(Range { is_open: false, ..open(40, 4) }));
        assert!(ranges.take(9 * PAGE, PAGE, true).is_null());
        assert!(ranges.take(PAGE, 32 * PAGE, true).is_null());
        // What is behind it has no room.
        assert!(ranges.take(2 * PAGE, 4 * PAGE, true).is_null());
        assert_eq!(all(&ranges), [(9, 8, true), (40, 4, false)]);
        assert_eq!(ranges.take(4 * PAGE, 4 * PAGE, false), at(40));
        assert_eq!(ranges.take(2 * PAGE, 4 * PAGE, true), at(12));
        assert_eq!(all(&ranges), [(9, 3, true), (14, 3, true)]);
        assert_eq!(ranges.take(3 * PAGE, PAGE, true), at(9));
        assert_eq!(ranges.take(3 * PAGE, PAGE, true), at(14));
        assert!(all(&ranges).is_empty() && ranges.take(1, 1, true).is_null());
        assert!(ranges.put(open(1, 1)));
        ranges.each(|_| true);
        assert!(all(&ranges).is_empty());
    }

    /// Each page is one thread's at a time, and in the end all are there.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn threads_take_what_is_theirs_alone() {
        const PAGES: usize = 64;
        let ranges = Ranges::<128>::new();
        let owned: [AtomicU8; PAGES + 1] = [const { AtomicU8::new(0) }; PAGES + 1];
        assert!(ranges.put(open(1, PAGES)));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (ranges, owned) = (&ranges, &owned);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let pages = 1 + (round * 7 + thread) % 5;
                        let base = ranges.take(pages * PAGE, PAGE, true);
                        if base.is_null() {
                            continue;
                        }
                        let of = |page: &usize| &owned[base.addr() / PAGE + page];
                        assert!((0..pages).all(|page| of(&page).fetch_add(1, SeqCst) == 0));
                        assert!((0..pages).all(|page| of(&page).fetch_sub(1, SeqCst) == 1));
                        assert!(ranges.put(Range { base, len: pages * PAGE, is_open: true }));
                    }
                });
            }
        });
        let all = all(&ranges);
        assert_eq!(all.iter().map(|&(_, pages, _)| pages).sum::<usize>(), PAGES, "{all:?}");
    }
}
