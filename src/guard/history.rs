//! Hardened mode checks each block, so that none needs guard pages there. Of sampled ones it is kept who has
//! allocated and freed them, and what is said about such a block goes on with that.
//!
//! A table of sets of a few records each; an address says which set. There is no lock: whoever changes a
//! record's block to [`HELD`] has the record. SeqCst throughout: all of this is rare.

use crate::guard::trace::Trace;
use crate::os::{self, message};
use crate::sync::Ordering::SeqCst;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize};
use core::ptr;

/// Records in a set.
const WAYS: usize = 4;
/// A record's block while a thread writes the record: no block begins there.
const HELD: usize = 1;

/// The records; null where there are none.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());
/// How many sets there are.
static SETS: AtomicUsize = AtomicUsize::new(0);
/// How many blocks were sampled.
static SAMPLES: AtomicU64 = AtomicU64::new(0);

/// What is known of a sampled block. All zero is none.
struct Record {
    /// Where it begins.
    block: AtomicUsize,
    /// The bytes that were asked for.
    size: AtomicUsize,
    /// The number of the sample.
    number: AtomicU64,
    allocated: Trace,
    freed: Trace,
}

/// Makes room for what is known of so many blocks. False if there is no memory.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn init(blocks: usize) -> bool {
    SETS.store(blocks.div_ceil(WAYS), SeqCst);
    RECORDS.store(os::map_uncounted(bytes()).cast(), SeqCst);
    !RECORDS.load(SeqCst).is_null()
}

/// Bytes of the records.
pub(super) fn bytes() -> usize {
    (SETS.load(SeqCst) * WAYS * size_of::<Record>()).next_multiple_of(os::page_size())
}

/// How many blocks were sampled.
pub(super) fn samples() -> u64 {
    SAMPLES.load(SeqCst)
}

/// All records; none before there are any.
fn all() -> &'static [Record] {
    let records = RECORDS.load(SeqCst);
    if records.is_null() {
        return &[];
    }
    // SAFETY: mapped with so many, which consist of atomics and are zero at first; unmapped only when nobody
    // calls the library any more.
    unsafe { core::slice::from_raw_parts(records, SETS.load(SeqCst) * WAYS) }
}

/// The records that may know a block.
fn set(block: usize) -> &'static [Record] {
    // Fibonacci hashing, by Knuth.
    let hash = (block as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let sets = SETS.load(SeqCst).max(1);
    all().chunks_exact(WAYS).nth(hash as usize % sets).unwrap_or(&[])
}

/// A block was allocated. If it `is_sampled`, the calling thread is noted, in place of what was known of the
/// block, else of a freed one, else of the oldest of the set.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn allocated(block: usize, size: usize, is_sampled: bool) {
    let known = set(block).iter().find(|record| record.block.load(SeqCst) == block);
    if !is_sampled {
        // Another block than the one that is known.
        if let Some(record) = known {
            let _ = record.block.compare_exchange(block, 0, SeqCst, SeqCst);
        }
        return;
    }
    let oldest = || set(block).iter().min_by_key(|record| (record.is_in_use(), record.number.load(SeqCst)));
    let Some(record) = known.or_else(oldest) else { return };
    // Another thread that writes is as good.
    if let Some(_written) = record.hold(record.block.load(SeqCst), block) {
        record.size.store(size, SeqCst);
        record.number.store(SAMPLES.fetch_add(1, SeqCst) + 1, SeqCst);
        record.freed.clear();
        record.allocated.note();
    }
}

/// A block is about to be freed: the calling thread is noted, if the block is sampled and nobody has freed it
/// before.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn freed(block: usize) {
    let known = set(block).iter().find(|record| record.block.load(SeqCst) == block);
    if let Some(record) = known.filter(|record| record.freed.is_none()) {
        // Not if it knows another block meanwhile.
        if let Some(_written) = record.hold(block, block) {
            record.freed.note();
        }
    }
}

/// Prints who has allocated and freed the block that begins at an address, if that is known. Unless it
/// `is_start`, a block that the address lies in is told of as well, and which one that is.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn tell(address: *const u8, is_start: bool) {
    let Some((record, begin)) = about(address.addr(), is_start) else { return };
    if begin != address.addr() {
        // It may be gone, and another block lie there that was not sampled.
        let size = record.size.load(SeqCst);
        message::line(format_args!("  the last sampled block there: {begin:#x} of {size} bytes"));
    }
    record.allocated.print("allocated");
    record.freed.print("freed");
}

/// The record of the block that begins at an address, and where it begins. Unless the address `is_start`, it
/// may lie anywhere in the block.
///
/// What is known of a block outlives it: other blocks may lie there since, of another size, sampled or not.
/// So if a block is known to begin there, no record of another one is meant, and else the last one is.
#[unsafe(link_section = "hakmem_rare")]
fn about(address: usize, is_start: bool) -> Option<(&'static Record, usize)> {
    let begins = all().iter().map(|record| (record, record.block.load(SeqCst)));
    let found = begins.filter(|&(record, begin)| {
        let at = address.wrapping_sub(begin);
        begin > HELD && (at == 0 || (!is_start && at < record.size.load(SeqCst)))
    });
    found.max_by_key(|(record, _)| record.number.load(SeqCst))
}

/// In the child of a fork, by its only thread: what other threads were writing is not known.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn inherit() {
    for record in all() {
        let _ = record.block.compare_exchange(HELD, 0, SeqCst, SeqCst);
    }
}

/// Gives all memory back, when no other thread can be here.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn unmap() {
    let records = RECORDS.swap(ptr::null_mut(), SeqCst);
    if !records.is_null() {
        // SAFETY: the mapping that `init` has made, which nobody uses any more.
        unsafe { os::discard_uncounted(records.cast(), bytes()) };
    }
}

/// A record that the calling thread has: it knows `block` when this is dropped.
struct Written<'a>(&'a Record, usize);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.0.block.store(self.1, SeqCst);
    }
}

impl Record {
    /// Whether its block is in use.
    fn is_in_use(&self) -> bool {
        self.block.load(SeqCst) != 0 && self.freed.is_none()
    }

    /// Holds the record that knows the block `was`, to write what is known of `block`. Not if another thread
    /// does, or has.
    fn hold(&self, was: usize, block: usize) -> Option<Written<'_>> {
        let held = was != HELD && self.block.compare_exchange(was, HELD, SeqCst, SeqCst).is_ok();
        held.then(|| Written(self, block))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Whether both traces of a block are known; `None` if nothing is.
    fn is_freed(block: usize) -> Option<bool> {
        let record = all().iter().find(|record| record.block.load(SeqCst) == block)?;
        assert!(!record.allocated.is_none());
        Some(!record.freed.is_none())
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_is_sampled_is_known_until_others_take_its_place() {
        assert!(init(6));
        assert_eq!(all().len(), 8);
        allocated(0x1000, 10, false);
        assert_eq!(is_freed(0x1000), None, "not sampled");
        allocated(0x1000, 10, true);
        assert_eq!(is_freed(0x1000), Some(false));
        // Found, and then taken by another.
        let record = set(0x1000).iter().find(|record| record.block.load(SeqCst) == 0x1000).unwrap();
        assert!(record.hold(0x2000, 0x2000).is_none() && record.block.load(SeqCst) == 0x1000);
        freed(0x1008);
        assert_eq!(is_freed(0x1000), Some(false), "another address");
        freed(0x1000);
        assert_eq!(is_freed(0x1000), Some(true));
        allocated(0x1000, 10, false);
        assert_eq!(is_freed(0x1000), None, "another block");

        // A large block, and a small one where it was.
        let told = |address, is_start| about(address, is_start).map(|(_, begin)| begin);
        allocated(0x10_0000, 0x8000, true);
        assert_eq!([told(0x10_0000, true), told(0x10_7fff, false)], [Some(0x10_0000); 2]);
        assert_eq!([told(0x10_8000, false), told(0x10_0040, true)], [None; 2]);
        freed(0x10_0000);
        let small = 0x10_0040;
        allocated(small, 48, true);
        assert_eq!([told(small, true), told(small + 1, false)], [Some(small); 2]);
        assert_eq!([told(small + 48, true), told(small + 48, false)], [None, Some(0x10_0000)]);

        allocated(small, 48, false);

        // All of one set: the first that was freed makes room, then the oldest.
        let first = ptr::from_ref(&set(0x1000)[0]);
        let same: Vec<usize> =
            (1..1000).map(|n| n * 0x1000).filter(|&n| ptr::from_ref(&set(n)[0]) == first).collect();
        for &block in &same[..4] {
            allocated(block, 10, true);
        }
        freed(same[2]);
        allocated(same[4], 10, true);
        let known = |blocks: &[usize]| blocks.iter().map(|&block| is_freed(block)).collect::<Vec<_>>();
        let used = Some(false);
        assert_eq!(known(&same[..5]), [used, used, None, used, used]);
        allocated(same[5], 10, true);
        assert_eq!(known(&same[..6]), [None, used, None, used, used, used]);

        // What another thread was writing when the process was forked.
        let writing = set(same[5]).iter().find(|record| record.block.load(SeqCst) == same[5]).unwrap();
        core::mem::forget(writing.hold(same[5], same[5]).unwrap());
        freed(same[5]);
        inherit();
        assert_eq!(known(&same[3..6]), [used, used, None]);
        unmap();
        assert_eq!((is_freed(same[3]), set(0x1000).len()), (None, 0));
    }
}
