//! Which slabs are purged, some at a time.

use super::purge;
use crate::base::list::List;
use crate::os;
use crate::superslab::slab::{Listed, Slab};
use crate::sync::Ordering::Relaxed;
use crate::tiny::bins::Bins;
use crate::tiny::classes::CLASSES;
use crate::tiny::idle;
use core::ptr;

/// The most slabs that are chosen at a time.
pub(crate) const BATCH: usize = 8;
/// How many slabs of a class, those that became sparse last, are left alone: they may be on their way to
/// empty, as one slab after the other is when a program frees everything in order.
pub(super) const NEWEST: usize = 4;

/// The slabs among which [some are chosen](Chosen::from).
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Among {
    /// Sparse ones that are not purged, but for so many of each class that became sparse last.
    Sparse(usize),
    /// Partial ones, but for those that [were spared](Slab::is_spared), of this class and those below it.
    Partial(usize),
}

impl Among {
    /// All partial ones.
    pub(crate) const PARTIAL: Among = Among::Partial(CLASSES);
}

/// Some sparse or partial slabs with something to purge.
pub(crate) struct Chosen {
    slabs: [*mut Slab; BATCH],
    count: usize,
}

impl Chosen {
    /// Chooses some slabs of `bins`, but none that the owner seems to be at, as `name` is what it [has
    /// named](Bins::is_named). Those with the largest blocks come first: where one block is left, fewer of
    /// their pages hold it, and they have fewer free blocks to walk.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the heap that `bins` are part of, as a visitor, or as its owner with a
    /// null for `name`.
    pub(crate) unsafe fn from(bins: *mut Bins, name: *mut u8, among: &mut Among) -> Chosen {
        let mut chosen = Chosen { slabs: [ptr::null_mut(); BATCH], count: 0 };
        // SAFETY: the caller's clause.
        unsafe {
            match among {
                Among::Sparse(newest) => chosen.add_sparse(bins, name, *newest),
                Among::Partial(class) => {
                    while *class > 0 && !chosen.add_partial(bins, name, *class) {
                        *class -= 1;
                    }
                }
            }
        }
        chosen
    }

    /// Adds a slab. False if there is no room for it.
    fn add(&mut self, slab: *mut Slab) -> bool {
        let Some(place) = self.slabs.get_mut(self.count) else { return false };
        *place = slab;
        self.count += 1;
        true
    }

    /// Adds sparse slabs, but for the `newest` few of each class.
    ///
    /// # Safety
    ///
    /// As [`Chosen::from`].
    unsafe fn add_sparse(&mut self, bins: *mut Bins, name: *mut u8, newest: usize) {
        for class in (1..=CLASSES).rev() {
            // SAFETY: only the holder of the lock uses the lists, and slabs stay while they are listed. They
            // are not current; since they are not marked yet, `is_named` gives a hint.
            unsafe {
                let (mut slab, mut seen) = ((&(*bins).sparse)[class].first(), 0);
                // Behind these are those that are purged.
                while !slab.is_null() && (*slab).list == Listed::Sparse {
                    seen += 1;
                    if seen > newest && !Bins::is_named(slab, name) && !self.add(slab) {
                        return;
                    }
                    slab = List::<Slab>::next(slab);
                }
            }
        }
    }

    /// Adds partial slabs of a class. Those that are spared go to the end of the list, so that the next call
    /// does not come by them again. True if there may be more.
    ///
    /// # Safety
    ///
    /// As [`Chosen::from`]; `class` is at most [`CLASSES`].
    unsafe fn add_partial(&mut self, bins: *mut Bins, name: *mut u8, class: usize) -> bool {
        // SAFETY: as in `add_sparse`. The reference to the list is the only one.
        unsafe {
            let list = &mut (&mut (*bins).partial)[class];
            let (mut slab, last) = (list.first(), list.last());
            while !slab.is_null() {
                let next = if slab == last { ptr::null_mut() } else { List::<Slab>::next(slab) };
                if Slab::is_spared(slab) {
                    list.remove(slab);
                    list.push_back(slab);
                } else if !Bins::is_named(slab, name) && !self.add(slab) {
                    return true;
                }
                slab = next;
            }
        }
        false
    }

    /// The slabs that were chosen.
    pub(crate) fn slabs(&self) -> &[*mut Slab] {
        self.slabs.get(..self.count).unwrap_or_default()
    }

    /// Purges what is idle in the slabs, except in one that the owner may be at. Returns the bytes given
    /// back. `excess`: because too much lies idle, not because somebody asks for it.
    ///
    /// # Safety
    ///
    /// The caller has held the lock of the bins' heap since it chose the slabs. A visitor has marked them as
    /// `VISITED`, and `name` is what the owner has named, read after the barrier that must follow. The owner
    /// itself passes null.
    pub(crate) unsafe fn purge(&self, bins: *mut Bins, name: *mut u8, excess: bool) -> usize {
        idle::fade(os::now_ms());
        let mut bytes = 0;
        for &slab in self.slabs() {
            // SAFETY: under the lock the slab is still in the list from which it was chosen, so it is no
            // current slab; mark and name keep the owner of a visited heap away from its record.
            unsafe {
                if Bins::is_named(slab, name) {
                    continue;
                }
                let (list, before) = ((*slab).list, (*slab).purged.load(Relaxed));
                Bins::unlink(bins, slab);
                bytes += purge(slab, excess);
                if list == Listed::Partial && (*slab).purged.load(Relaxed) == before {
                    Bins::push_last(bins, slab, Listed::Partial);
                    Slab::spare(slab);
                } else {
                    Bins::push(bins, slab, Listed::Purged);
                }
            }
        }
        bytes
    }
}
