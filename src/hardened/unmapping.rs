//! How mappings of the hardened heap's large blocks go back to the system, and how many there are: most are
//! kept for a while, so that their addresses are nobody's.

use crate::hardened::kept::{self, KEPT, QUARANTINE, Quarantine, RESIDENT, set_aside};
use crate::hardened::large::Large;
use crate::hardened::records;
use crate::os::futex::Guard;
use crate::os::returning::Returning;
use crate::os::{self, Unmapped};
use crate::superslab::pagemap::{self, FOREIGN};
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// Mappings with guard pages, at most: three for the system each, of the 65,530 that it allows in a process
/// by default (two, until pages of another one move there). Slabs may have 600 times 64.
const MOST_GUARDED: usize = 5461;
/// Mappings with guard pages. Relaxed: a figure.
pub(super) static GUARDED: AtomicUsize = AtomicUsize::new(0);
/// Blocks in use without. Relaxed: a figure.
pub(super) static UNGUARDED: AtomicUsize = AtomicUsize::new(0);
/// While there are more of these, a freed one of up to [`ASIDE`] bytes is set aside: blocks without guard
/// pages lie in a row, which is one mapping for the system, and each hole in it would be one more.
pub(super) const MOST_HOLES: usize = 8192;
/// Bytes of the longest mapping that is set aside for that reason.
pub(super) const ASIDE: usize = 1 << 20;
/// Bytes of address space mapped for blocks, in use or kept. Relaxed: a figure.
pub(super) static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Whether another mapping may have guard pages.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn may_be_guarded() -> bool {
    more(GUARDED.load(Relaxed)).is_some()
}

/// One more mapping with guard pages, if there may be one.
pub(super) fn more(guarded: usize) -> Option<usize> {
    (guarded < MOST_GUARDED).then_some(guarded + 1)
}

/// Gives the pages of mappings back that were freed `delay` milliseconds before `now` or earlier. Their
/// addresses stay what they are: nobody's, and of their age. Returns whether there were any.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn give_back_aged(now: u32, delay: u32) -> bool {
    let any = give_back_oldest(now, delay);
    while any && give_back_oldest(now, delay) {}
    any
}

/// Gives the pages of the oldest mapping back that has any, if it was freed `delay` milliseconds before `now`
/// or earlier. False if there is none.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn give_back_oldest(now: u32, delay: u32) -> bool {
    let take = |mut kept: Guard<'_, Quarantine>| kept.take_aged(now, delay).map(with_returning);
    let Some(((index, large), _returning)) = QUARANTINE.lock_soon().and_then(take) else { return false };
    // SAFETY: it was kept, so freed; now it is ours alone, until it is back.
    unsafe { give_back_pages(index, large) };
    true
}

/// Gives the pages of a mapping back, and puts it back where it was in the quarantine.
///
/// # Safety
///
/// It was taken out of there, and is the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn give_back_pages(index: usize, large: *mut Large) {
    // SAFETY: by the caller's clause, and what is kept is freed.
    unsafe {
        let gone = os::make_inaccessible((*large).base.get(), (*large).len.get());
        (*large).resident.store(!gone, Relaxed);
        // Not again the next time, if the system has refused.
        if gone {
            put_back(index, large);
        } else {
            unmap(large);
        }
    }
}

/// Puts a mapping back where it was in the quarantine. If others have taken its room meanwhile the oldest is
/// unmapped.
///
/// # Safety
///
/// It was taken out of there, and is the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn put_back(index: usize, large: *mut Large) {
    for index in (0..=index).rev() {
        let Some(mut kept) = QUARANTINE.lock_soon() else { break };
        if kept.put_back(index, large) {
            return;
        }
        let oldest = if index == 0 { None } else { kept.remove(0).map(with_returning) };
        drop(kept);
        let Some((oldest, _returning)) = oldest else { break };
        // SAFETY: it was kept, so freed; now it is ours alone.
        unsafe { unmap(oldest) };
    }
    // SAFETY: by the caller's clause, and what is kept is freed.
    unsafe { unmap(large) };
}

/// Keeps a freed mapping's addresses, and unmaps older ones instead.
///
/// # Safety
///
/// The caller has freed the block, and made its mapping inaccessible.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn keep(large: *mut Large) {
    loop {
        let Some(mut kept) = QUARANTINE.lock_soon() else { break };
        if kept.add(large) {
            return;
        }
        let oldest = kept.remove(0).map(with_returning);
        drop(kept);
        let Some((oldest, _returning)) = oldest else { break };
        // SAFETY: it was kept, so freed; now it is ours alone.
        unsafe { unmap(oldest) };
    }
    // SAFETY: freed, and the caller's alone.
    unsafe { unmap(large) };
}

/// What was taken out of the quarantine, which is locked, to go back.
pub(super) fn with_returning<T>(taken: T) -> (T, Returning) {
    (taken, Returning::begin())
}

/// Gives back what is set aside. Returns how many bytes of address space.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn give_back_aside() -> usize {
    let (all, _returning) = kept::take_aside();
    // SAFETY: freed when they were set aside; now they are ours alone.
    all.map(|large| unsafe { give_back(large) }).sum()
}

/// Gives a freed mapping back, and its record. False if the system does not unmap it: then it is set aside,
/// and lost only if the lock for that cannot be had either.
///
/// # Safety
///
/// The block is freed, and the mapping the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn unmap(large: *mut Large) -> bool {
    // SAFETY: by the caller's clause. The page map forgets it first, so that nobody finds the record.
    unsafe {
        leave_map(&*large);
        match os::unmap((*large).base.get(), (*large).len.get()) {
            Unmapped::Gone => {}
            left => {
                (*large).resident.store(left == Unmapped::Kept, Relaxed);
                set_aside(large);
                return false;
            }
        }
        forget(large);
    }
    true
}

/// The page map has the mapping no more, if it had it: it may have no room for where a block was to lie that
/// was never handed out.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn leave_map(large: &Large) {
    if pagemap::kind(large.block()) != FOREIGN {
        pagemap::set(large.block(), 1, FOREIGN);
    }
}

/// [`unmap`]. Returns how many bytes of address space went back.
///
/// # Safety
///
/// As [`unmap`].
#[unsafe(link_section = "hakmem_rare")]
unsafe fn give_back(large: *mut Large) -> usize {
    // SAFETY: by the caller's clause. The length first: once it is unmapped the record is anybody's.
    unsafe {
        let len = (*large).len.get();
        if unmap(large) { len } else { 0 }
    }
}

/// Gives a mapping back of which no block was handed out.
///
/// # Safety
///
/// It is mapped as its record says, and the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn discard(large: *mut Large) {
    // SAFETY: by the caller's clause.
    unsafe {
        if !(*large).guarded.get() {
            UNGUARDED.fetch_sub(1, Relaxed);
        }
        unmap(large);
    }
}

/// Gives the record of a mapping back that is no more.
///
/// # Safety
///
/// The page map does not have it, and it is the caller's alone.
#[unsafe(link_section = "hakmem_rare")]
pub(super) unsafe fn forget(large: *mut Large) {
    // SAFETY: by the caller's clause.
    unsafe {
        MAPPED.fetch_sub((*large).len.get(), Relaxed);
        if (*large).guarded.get() {
            GUARDED.fetch_sub(1, Relaxed);
        }
        records::give(large.cast());
    }
}

/// Bytes of address space of freed mappings that [`purge`] would give back.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn spare() -> usize {
    let aside = |kept: &Quarantine| if goes_back() { kept.aside_bytes } else { 0 };
    QUARANTINE.lock_soon().map_or(0, |kept| kept.bytes + aside(&kept))
}

/// Whether what is set aside may go back when somebody asks for all.
fn goes_back() -> bool {
    UNGUARDED.load(Relaxed) <= MOST_HOLES
}

/// Gives back what is kept of freed mappings. Returns how many bytes of address space.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn purge() -> usize {
    let take = |mut kept: Guard<'_, Quarantine>| kept.remove(0).map(with_returning);
    let bytes = each_kept(|| {
        let (large, _returning) = QUARANTINE.lock_soon().and_then(take)?;
        // SAFETY: it was kept, so freed; now it is ours alone.
        Some(unsafe { give_back(large) })
    });
    if goes_back() { bytes + give_back_aside() } else { bytes }
}

/// The sum of what `next` returns until there is nothing, but of no more than there can be when this begins:
/// what others free meanwhile has no end where they are faster.
fn each_kept(mut next: impl FnMut() -> Option<usize>) -> usize {
    (0..KEPT).map_while(|_| next()).sum()
}

/// Bytes of address space mapped for blocks, and how many of them are pages of freed ones that are kept.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn mapped() -> (usize, usize) {
    (MAPPED.load(Relaxed), RESIDENT.load(Relaxed))
}

/// In the child of a fork.
pub(super) fn inherit() {
    QUARANTINE.inherit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_ends_though_others_free_as_fast() {
        assert_eq!(each_kept(|| Some(2)), 2 * KEPT);
        let mut left = [3, 4].into_iter();
        assert_eq!(each_kept(|| left.next()), 7);
    }
}
