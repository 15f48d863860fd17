//! Heap records of threads that have ended, for new threads.
//!
//! A stack with a counter around the pointer. Records are never unmapped, and their link is atomic. So
//! reading the link of a record that another thread has just popped is harmless, and the counter makes the
//! exchange that follows fail.

use crate::sync::{AtomicPtr, Node, Ordering};
use core::ptr;

/// Alignment of records, which leaves the low bits of their addresses to the counter.
pub(crate) const RECORD_ALIGN: usize = 4096;
/// The bits of the address: user addresses have 47 or 48 bits, so the counter gets 12 bits below and 16
/// above.
const ADDRESS: usize = ((1 << 48) - 1) & !(RECORD_ALIGN - 1);

/// The record that is on top where this is the word; null where there is none.
fn top<N>(word: *mut N) -> *mut N {
    word.map_addr(|a| a & ADDRESS)
}

/// The word that follows `word` when `node`, or null, comes to be on top: the counter is one step further.
/// The carry from its low bits skips the address and goes to the high ones.
fn step<N>(word: *mut N, node: *mut N) -> *mut N {
    let low = (word.addr() & (RECORD_ALIGN - 1)) + 1;
    let high = (word.addr() >> 48).wrapping_add(low >> 12);
    node.map_addr(|a| a | (low & (RECORD_ALIGN - 1)) | high << 48)
}

/// A stack of free records.
pub(crate) struct RecordStack<N> {
    /// A pointer to the top record, with a counter of changes around its address.
    word: AtomicPtr<N>,
}

// SAFETY: what threads share is one atomic word. A record that `pop` returns is the popper's alone until it
// pushes it, and by the contract of `push` any thread may have it next.
unsafe impl<N> Sync for RecordStack<N> {}
// SAFETY: as for `Sync`: the stack holds addresses only, and records may change threads.
unsafe impl<N> Send for RecordStack<N> {}

impl<N: Node> RecordStack<N> {
    /// An empty stack.
    pub(crate) const fn new() -> Self {
        Self { word: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Forgets all records, which are about to be unmapped.
    ///
    /// # Safety
    ///
    /// No thread pushes or pops meanwhile.
    pub(crate) unsafe fn clear(&self) {
        self.word.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Makes `node` available.
    ///
    /// # Safety
    ///
    /// `node` is aligned to [`RECORD_ALIGN`], below 2^48, never unmapped, the caller's alone, and fit to be
    /// used by any other thread next. Its link is atomic.
    pub(crate) unsafe fn push(&self, node: *mut N) {
        // Release: pairs with the acquire in `pop`, which reads the link and hands the record out.
        let _ = self.word.fetch_update(Ordering::Release, Ordering::Relaxed, |old| {
            // SAFETY: by this function's contract `node` is valid and ours alone until the exchange succeeds.
            // A `pop` that still has its address from earlier reads the link atomically.
            unsafe { N::set_next(node, top(old)) };
            Some(step(old, node))
        });
    }

    /// Takes a record that is the caller's alone from now on; null when there is none.
    ///
    /// # Safety
    ///
    /// No record that was ever pushed has been unmapped.
    pub(crate) unsafe fn pop(&self) -> *mut N {
        let below = |old: *mut N| {
            let node = top(old);
            // SAFETY: the record is mapped by this function's contract, and its link is atomic. A link read
            // from a record that is not on top any more is not used, because the counter makes the exchange
            // fail.
            (!node.is_null()).then(|| step(old, unsafe { N::next(node) }))
        };
        // Acquire where it fails, and for the first load: pairs with the release in `push`, because the link
        // is read before the exchange. Relaxed where it succeeds: the exchange finds the same word, counter
        // included, that was read with acquire.
        let popped = self.word.fetch_update(Ordering::Relaxed, Ordering::Acquire, below);
        popped.map_or(ptr::null_mut(), top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_counts_around_the_address() {
        let at = |a: usize| ptr::without_provenance_mut::<u64>(a);
        let counter = |word: *mut u64| (word.addr() >> 48) << 12 | word.addr() & 0xfff;
        for node in [0, 0x1000, 0x7fff_ffff_f000, 0xffff_ffff_f000] {
            for count in [0, 1, 0xffe, 0xfff, 0x1000, 0x1001, 0x5a_5fff, 0xfff_effe, 0xfff_efff] {
                let word = at((count >> 12) << 48 | 0x2345_6789_a000 | count & 0xfff);
                let next = step(word, at(node));
                assert_eq!((top(next).addr(), counter(next)), (node, count + 1));
            }
            let last = step(at(usize::MAX), at(node));
            assert_eq!((top(last).addr(), counter(last)), (node, 0), "then it begins anew");
        }
    }

    #[test]
    fn what_is_cleared_has_nothing() {
        struct Record(AtomicPtr<Record>);
        // SAFETY: the link is one word, and atomic.
        unsafe impl Node for Record {
            unsafe fn next(node: *mut Self) -> *mut Self {
                // SAFETY: the caller's clause.
                unsafe { (*node).0.load(Ordering::Relaxed) }
            }
            unsafe fn set_next(node: *mut Self, next: *mut Self) {
                // SAFETY: the caller's clause.
                unsafe { (*node).0.store(next, Ordering::Relaxed) }
            }
        }
        let mut memory = std::vec![0u8; 4 * RECORD_ALIGN];
        let all = memory.as_mut_ptr();
        let all = all.wrapping_add(all.addr().wrapping_neg() % RECORD_ALIGN);
        let records: [*mut Record; 3] = core::array::from_fn(|n| all.wrapping_add(n * RECORD_ALIGN).cast());
        let stack = RecordStack::<Record>::new();
        // SAFETY: the records are this thread's, and stay; a null is a link.
        unsafe {
            assert!(stack.pop().is_null());
            records.iter().for_each(|&record| stack.push(record));
            assert_eq!([stack.pop(), stack.pop()], [records[2], records[1]]);
            stack.push(records[2]);
            assert_eq!([stack.pop(), stack.pop(), stack.pop()], [records[2], records[0], ptr::null_mut()]);
            stack.push(records[1]);
            stack.clear();
            assert!(stack.pop().is_null());
        }
    }
}
