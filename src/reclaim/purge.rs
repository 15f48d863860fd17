//! Giving back everything that is possible.

use crate::front::heap::Heap;
use crate::front::thread;
use crate::reclaim::idle_heaps;
use crate::superslab::purge;
use crate::sync::Ordering::Relaxed;
use crate::{hardened, large, os};

/// How far a purge goes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    /// What the calling thread's heap and the shared caches hold.
    Mine,
    /// What other heaps hold, too.
    All,
    /// Free pages of slabs in use besides. They stay mapped, so that no limit and no other block has them.
    Pages,
}

/// Gives back to the system what can be given back. Returns how many bytes.
pub(crate) fn purge_from(extent: Extent) -> usize {
    let pages = extent == Extent::Pages;
    let before = os::PURGED.load(Relaxed);
    let heap = thread::own_heap();
    if !heap.is_null() {
        // SAFETY: `own_heap` returns the calling thread's heap.
        unsafe { Heap::trim(heap, pages) };
    }
    if extent != Extent::Mine {
        idle_heaps::everyone(pages);
    }
    large::drain(pages);
    purge::everything();
    let purged = if hardened::is_on() { hardened::purge() } else { 0 };
    os::give_back_left();
    os::PURGED.load(Relaxed).wrapping_sub(before).max(purged)
}
