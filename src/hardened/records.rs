//! Memory for the records of the hardened heap. It lies apart from all blocks, between pages that cannot be
//! touched, and is never unmapped: who has an old pointer may still look at an old record.

use crate::base::table::Table;
use crate::os::futex::{Inherit, Lock};
use crate::os::{self, Unmapped};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicPtr, AtomicU8, AtomicUsize, compiler_fence};
use core::ptr;

/// Bytes that are mapped at a time.
const CHUNK: usize = 1 << 20;
/// Lists of free records: one for each size class, and those below.
const LISTS: usize = 128;
/// The list of records of regions.
pub(super) const REGIONS: usize = 61;
/// The list of records of large blocks.
pub(super) const LARGE: usize = 62;
/// The lists of records of big slabs are so much behind those of others.
pub(super) const BIG: usize = 64;

/// Records lie at multiples of so many bytes.
pub(super) const ALIGN: usize = 64;

/// What every record begins with.
#[repr(C)]
pub(super) struct Header {
    /// The list it belongs to, so what it is.
    list: AtomicU8,
    /// Link of that list. Used under the lock.
    next: AtomicPtr<Header>,
}

impl Header {
    /// The list that a record belongs to: a size class, that and [`BIG`], [`REGIONS`] or [`LARGE`].
    #[inline(always)]
    pub(super) fn list(&self) -> usize {
        self.list.load(Relaxed) as usize
    }
}

struct Records {
    at: *mut u8,
    end: *mut u8,
    free: Table<*mut Header, LISTS>,
}

// SAFETY: the pointers are to memory that is mapped for good, and used only under the lock.
unsafe impl Send for Records {}

impl Inherit for Records {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // A list loses at most one record, for each change of one is one store. But of the chunk one end
            // may be the new one's: what is left of both is lost.
            (self.at, self.end) = (ptr::null_mut(), ptr::null_mut());
        }
    }
}

static RECORDS: Lock<Records> =
    Lock::new(Records { at: ptr::null_mut(), end: ptr::null_mut(), free: Table([ptr::null_mut(); LISTS]) });

/// A chunk that was not needed after all, for whoever needs one next; or null. Relaxed: nobody has written to
/// it.
static SPARE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Bytes mapped for records.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Bytes mapped for records, and how many of them have been used.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn bytes() -> (usize, usize) {
    let mapped = MAPPED.load(Relaxed);
    let spare = if SPARE.load(Relaxed).is_null() { 0 } else { CHUNK };
    let unused = spare + RECORDS.lock_soon().map_or(0, |records| records.end.addr() - records.at.addr());
    (mapped, mapped - unused.min(mapped))
}

/// A record of `bytes` bytes for `list`, and whether it is new. It is zero then; else it is as it was given
/// back. Null if there is no memory.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take(list: usize, bytes: usize) -> (*mut Header, bool) {
    let bytes = bytes.next_multiple_of(ALIGN);
    let mut fresh = ptr::null_mut::<u8>();
    loop {
        let Some(mut records) = RECORDS.lock_soon() else {
            give_chunk(fresh);
            return (alone(list, bytes), true);
        };
        let first = records.free[list];
        if !first.is_null() {
            // SAFETY: records stay mapped, and the link is used under the lock that we hold.
            records.free[list] = unsafe { (*first).next.load(Relaxed) };
            drop(records);
            give_chunk(fresh);
            return (first, false);
        }
        if records.end.addr() - records.at.addr() < bytes {
            if fresh.is_null() {
                drop(records);
                // Without the lock: nothing is held during a system call.
                fresh = chunk();
                if fresh.is_null() {
                    break;
                }
                continue;
            }
            let page = os::page_size();
            (records.at, records.end) = (fresh.wrapping_add(page), fresh.wrapping_add(CHUNK - page));
            fresh = ptr::null_mut();
            continue;
        }
        let record = records.at.cast::<Header>();
        records.at = records.at.wrapping_add(bytes);
        drop(records);
        give_chunk(fresh);
        // SAFETY: `bytes` bytes of a chunk, which nobody else has; all zero is valid.
        unsafe { (*record).list.store(list as u8, Relaxed) };
        return (record, true);
    }
    give_chunk(fresh);
    (ptr::null_mut(), false)
}

/// A record in a mapping of its own, where the lock cannot be had: it may be this thread that holds it, in
/// code that a signal handler has interrupted.
#[unsafe(link_section = "hakmem_rare")]
fn alone(list: usize, bytes: usize) -> *mut Header {
    let len = bytes.next_multiple_of(os::page_size());
    let record = os::map_uncounted(len).cast::<Header>();
    if !record.is_null() {
        MAPPED.fetch_add(len, Relaxed);
        // SAFETY: just mapped, with room for a record; all zero is valid.
        unsafe { (*record).list.store(list as u8, Relaxed) };
    }
    record
}

/// Gives a record back.
///
/// # Safety
///
/// It comes from [`take`], and nobody uses it any more, but for stale looks at its atomics.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn give(record: *mut Header) {
    // Lost if the lock cannot be had.
    if let Some(mut records) = RECORDS.lock_soon() {
        // SAFETY: mapped for good; ours until it is in the list.
        let list = unsafe { (*record).list() };
        // SAFETY: ours until it is in the list.
        unsafe { (*record).next.store(records.free[list], Relaxed) };
        // A fork may come between.
        compiler_fence(Release);
        records.free[list] = record;
    }
}

/// A new chunk, between pages that cannot be touched.
#[unsafe(link_section = "hakmem_rare")]
fn chunk() -> *mut u8 {
    let spare = SPARE.swap(ptr::null_mut(), Relaxed);
    if !spare.is_null() {
        return spare;
    }
    let chunk = os::map_uncounted(CHUNK);
    if !chunk.is_null() {
        MAPPED.fetch_add(CHUNK, Relaxed);
        let page = os::page_size();
        // SAFETY: just mapped, with that length; the two pages are never used.
        unsafe {
            os::advise_huge(chunk, CHUNK, false);
            os::protect(chunk, page, false);
            os::protect(chunk.wrapping_add(CHUNK - page), page, false);
        }
    }
    chunk
}

/// Keeps a chunk that is not needed after all for who needs the next one, or unmaps it, unless it is null.
#[unsafe(link_section = "hakmem_rare")]
fn give_chunk(chunk: *mut u8) {
    if chunk.is_null() || SPARE.compare_exchange(ptr::null_mut(), chunk, Relaxed, Relaxed).is_ok() {
        return;
    }
    // It consists of several mappings, for its first and its last page cannot be touched: of those the system
    // refuses none.
    // SAFETY: from `chunk`, and nobody has used it.
    if unsafe { os::unmap_uncounted(chunk, CHUNK) } == Unmapped::Gone {
        MAPPED.fetch_sub(CHUNK, Relaxed);
    }
}

/// In the child of a fork.
pub(super) fn inherit() {
    RECORDS.inherit();
}
