//! What any thread may read of a slab record at any time.

use super::Slab;
use crate::superslab::layout::SLICES;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// What statistics read of a record, with or without the pool's lock. A thread that did not get the lock in
/// time may be making another slab of it meanwhile: then each value is right for the one slab or the other.
/// `slices` is 1 to 32, and `stride` not 0, whatever the record says.
#[derive(Clone, Copy)]
pub(crate) struct Glimpse {
    pub(crate) class: u8,
    pub(crate) lead: u8,
    pub(crate) slices: usize,
    pub(crate) stride: usize,
    pub(crate) last: usize,
    pub(crate) start: *mut u8,
    pub(crate) bump: *mut u8,
    pub(crate) end: *mut u8,
    pub(crate) revived: bool,
}

impl Slab {
    /// Reads the fields that any thread may read at any time.
    ///
    /// # Safety
    ///
    /// `slab` is the record of a slice of a SuperSlab that stays mapped meanwhile.
    pub(crate) unsafe fn glimpse(slab: *mut Slab) -> Glimpse {
        // Relaxed: figures, each right by itself.
        // SAFETY: the record is mapped. `claim`, `make`, `set_bump` and `set_revived` write these fields
        // atomically, and `pool::resize_run` writes `slices` under the pool's lock.
        unsafe {
            let slices = AtomicU8::from_ptr(&raw mut (*slab).slices).load(Ordering::Relaxed) as usize;
            let stride = AtomicU32::from_ptr(&raw mut (*slab).stride).load(Ordering::Relaxed) as usize;
            Glimpse {
                class: AtomicU8::from_ptr(&raw mut (*slab).class).load(Ordering::Relaxed),
                lead: AtomicU8::from_ptr(&raw mut (*slab).lead).load(Ordering::Relaxed),
                slices: slices.clamp(1, SLICES),
                stride: stride.max(1),
                last: AtomicU32::from_ptr(&raw mut (*slab).last).load(Ordering::Relaxed) as usize,
                start: AtomicPtr::from_ptr(&raw mut (*slab).start).load(Ordering::Relaxed),
                bump: AtomicPtr::from_ptr(&raw mut (*slab).bump).load(Ordering::Relaxed),
                end: AtomicPtr::from_ptr(&raw mut (*slab).end).load(Ordering::Relaxed),
                revived: AtomicBool::from_ptr(&raw mut (*slab).revived).load(Ordering::Relaxed),
            }
        }
    }
}
