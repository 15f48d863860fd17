//! What a visitor does to current slabs: takes them from their places, puts them back, and sees which one the
//! owner is at.

use super::{Bins, no_slab};
use crate::base::table::Table;
use crate::superslab::layout::SLICE_SHIFT;
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::{Listed, Slab};
use crate::sync::AtomicPtr;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::tiny::classes::bits;
use core::ptr;

impl Bins {
    /// Takes the current slabs of which hardly a block is in use out of their places, or `all`. Returns them
    /// by class, with null where there is none. Each must be [put back](Bins::put_back), or
    /// [listed](Bins::keep).
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the heap that these bins are part of, as its owner or as a visitor.
    pub(crate) unsafe fn withdraw(bins: *mut Bins, all: bool) -> Table<*mut Slab, KINDS> {
        let mut withdrawn = Table([ptr::null_mut(); KINDS]);
        // SAFETY: the slabs are those of the bins. While the owner may be taking blocks of them and putting
        // some back, only constants and atomics are read.
        unsafe {
            for class in bits((*bins).present) {
                let current = Bins::current(bins, class);
                let slab = current.load(Relaxed);
                if slab != no_slab() && (all || Slab::in_use_beside_waiting(slab) <= Slab::few(slab)) {
                    current.store(no_slab(), Relaxed);
                    withdrawn[class] = slab;
                }
            }
        }
        withdrawn
    }

    /// Puts a slab that was [withdrawn](Bins::withdraw) back into its place, as it was.
    ///
    /// # Safety
    ///
    /// As [`Bins::withdraw`], with the same bins.
    pub(crate) unsafe fn put_back(bins: *mut Bins, slab: *mut Slab) {
        // SAFETY: the slab belongs to the bins, so its class is constant.
        unsafe { Bins::current(bins, (*slab).class as usize) }.store(slab, Relaxed);
    }

    /// Whether the owner may be at work on `slab` outside its heap's lock, if `name` is what it has named
    /// last.
    ///
    /// It is not, although it has named a block of the slab, if that block is on top of the slab's list and
    /// no [`Bins::relist`] is due: that is the last that [`Bins::push_free`] does.
    ///
    /// # Safety
    ///
    /// The caller visits the slab's heap. Before the barrier after which it read `name` it has marked the
    /// slab as `VISITED`, and taken it out of its place if it was current.
    pub(crate) unsafe fn is_named(slab: *mut Slab, name: *mut u8) -> bool {
        // SAFETY: only the holder of the lock writes `list` and `low`, and the other fields are constants and
        // atomics, but for `free`. If a block is named, the owner is not in `alloc` with the slab, nor will
        // it be, since the slab is not current any more: it writes `free` only in `push_free`, atomically.
        unsafe {
            if name.addr() < KINDS {
                return (*slab).list == Listed::Current && (*slab).class as usize == name.addr();
            }
            let offset = name.addr().wrapping_sub(Slab::address(slab).addr());
            // Acquire: pairs with the release in `push_free`.
            let put = || AtomicPtr::from_ptr(&raw mut (*slab).free).load(Acquire).cast() == name;
            offset < ((*slab).slices as usize) << SLICE_SHIFT
                && !(put() && (*slab).used.load(Relaxed) as i32 > (*slab).low)
        }
    }
}
