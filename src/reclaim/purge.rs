//! Giving back everything that is possible.

use crate::front::heap::Heap;
use crate::front::thread;
use crate::reclaim::idle_heaps;
use crate::superslab::purge;
use crate::sync::Ordering::Relaxed;
use crate::{hardened, large, os};

/// Gives back to the system what the calling thread's heap and the shared caches hold, and with `all` what
/// other heaps hold, too. Returns how many bytes.
pub(crate) fn purge_from(all: bool) -> usize {
    let before = os::PURGED.load(Relaxed);
    let heap = thread::own_heap();
    if !heap.is_null() {
        // SAFETY: `own_heap` returns the calling thread's heap.
        unsafe { Heap::trim(heap) };
    }
    if all {
        idle_heaps::everyone();
    }
    large::drain();
    purge::everything();
    let purged = if hardened::is_on() { hardened::purge() } else { 0 };
    os::give_back_left();
    os::PURGED.load(Relaxed).wrapping_sub(before).max(purged)
}
