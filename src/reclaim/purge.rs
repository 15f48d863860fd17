//! Giving back all that can be had.

use crate::front::heap::Heap;
use crate::front::thread;
use crate::reclaim::idle_heaps;
use crate::superslab::pool;
use crate::{large, os};
use core::sync::atomic::Ordering::Relaxed;

/// Gives back to the system what can be given back: from all threads, or from the calling one.
pub(crate) fn purge_from(all: bool) -> usize {
    let before = os::PURGED.load(Relaxed);
    let heap = thread::own_heap();
    if !heap.is_null() {
        // SAFETY: the calling thread's heap.
        unsafe { Heap::trim(heap) };
    }
    if all {
        idle_heaps::everyone();
    }
    large::drain();
    pool::purge_all();
    os::PURGED.load(Relaxed).wrapping_sub(before)
}
