//! Mappings that were made a short time ago. They may be gone by now: they are not accessed.

use crate::base::table::CellTable;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicPtr, AtomicUsize};
use core::ptr;

/// How many are remembered.
const PLACES: usize = 4;

/// Recent mappings, with huge pages or without. A program that frees nothing is judged by the oldest of them
/// when it makes another.
pub(super) struct Recent {
    places: CellTable<AtomicPtr<u8>, PLACES>,
    next: AtomicUsize,
}

impl Recent {
    /// None yet.
    pub(super) const fn new() -> Self {
        let places = CellTable::new([const { AtomicPtr::new(ptr::null_mut()) }; PLACES]);
        Self { places, next: AtomicUsize::new(0) }
    }

    /// The last one.
    pub(super) fn newest(&self) -> *mut u8 {
        self.places[self.next.load(Relaxed).wrapping_sub(1)].load(Relaxed)
    }

    /// Forgets all of them.
    pub(super) fn clear(&self) {
        for place in 0..PLACES {
            self.places[place].store(ptr::null_mut(), Relaxed);
        }
    }

    /// The one that is forgotten next.
    pub(super) fn oldest(&self) -> *mut u8 {
        self.places[self.next.load(Relaxed)].load(Relaxed)
    }

    /// Remembers a new one in place of the oldest. Returns that.
    pub(super) fn remember(&self, block: *mut u8) -> *mut u8 {
        self.places[self.next.fetch_add(1, Relaxed)].swap(block, Relaxed)
    }
}
