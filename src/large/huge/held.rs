//! What mappings with huge pages hold. The system only says that they are resident; but a page that holds
//! anything but zeros has been written to since it was mapped. So what is found is certain; what is not found
//! may be filled with zeros.

use crate::large::huge::recent::Recent;
use crate::large::huge::{CONTROL, Density, LOOKS, Mapping, seen};
use crate::os;
use crate::superslab::thp::{is_most, is_ours};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicPtr, AtomicUsize};
use core::ptr;

/// Recent mappings with huge pages for one block each.
static RECENT_HUGE: Recent = Recent::new();
/// The last of those for several.
static LAST_BATCH: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// How many looks there were so far.
static LOOKED: AtomicUsize = AtomicUsize::new(0);

/// Before another one is made, or another batch: one to [look into](holds_little) that was made some time
/// ago, which may be gone by now.
pub(in crate::large) fn earlier_huge(is_batch: bool) -> *mut u8 {
    if is_batch { LAST_BATCH.load(Relaxed) } else { RECENT_HUGE.oldest() }
}

/// Remembers a new mapping with huge pages, or the first block of a batch.
pub(in crate::large) fn remember_huge(block: *mut u8, is_batch: bool) {
    if is_batch {
        LAST_BATCH.store(block, Relaxed);
    } else {
        RECENT_HUGE.remember(block);
    }
}

/// Looks at what a mapping with huge pages holds. If it is most of it, no control is needed yet, and longer
/// ones may have huge pages. If it is little, returns true: mappings as long as this should have none until
/// others are seen to be dense. But only once, until there is one with more: they may be filled with zeros.
pub(in crate::large) fn holds_little(mapping: Mapping) -> bool {
    let may_tell = mapping.huge && is_ours();
    let held = if may_tell { sample(mapping) } else { None };
    held.is_some_and(|(looked, written)| seen(mapping.len).add_written(mapping.len, looked, written))
}

impl Density {
    /// [`holds_little`].
    pub(super) fn add_written(&self, len: usize, looked: usize, written: usize) -> bool {
        let most = is_most(written, looked);
        if most {
            self.control_at.store(self.made.load(Relaxed) + CONTROL, Relaxed);
            self.doubted.store(false, Relaxed);
        }
        let little = !most && written * 8 < looked * 3 && !self.doubted.swap(true, Relaxed);
        if most || little {
            self.add(len, looked, written);
        }
        little
    }
}

/// Looks at a page of each of some parts of a mapping: how many were looked at, and how many of them hold
/// something. `None` if the system does not say.
#[unsafe(link_section = "hakmem_rare")]
fn sample(mapping: Mapping) -> Option<(usize, usize)> {
    let look = LOOKED.fetch_add(1, Relaxed);
    let part = mapping.len / LOOKS;
    let (mut said, mut written) = (0, 0);
    for start in (0..LOOKS).map(|i| i * part) {
        let place = start + os::scattered(mapping.block.addr() + start, look) % part.max(1);
        let page = mapping.block.wrapping_add(place & !(os::page_size() - 1));
        // A look would make it resident.
        // SAFETY: this only asks the system, which reports an error if the mapping is gone.
        let resident = unsafe { os::resident_pages(page, os::page_size()) }? == 1;
        // The program may have made some of them inaccessible.
        let answer = if resident { os::is_written(page, look) } else { Some(false) };
        said += answer.is_some() as usize;
        written += (answer == Some(true)) as usize;
    }
    (said > LOOKS / 2).then_some((LOOKS, written))
}
