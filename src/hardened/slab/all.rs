//! All records of slabs that were ever made: for figures, and to look for blocks of slabs that no list has.

use crate::hardened::slab::{DEAD, Slab};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, reads, wrote};
use core::cell::Cell;
use core::ptr;

/// The last record that was made, the first of those linked by `next`.
pub(in crate::hardened) static ALL: AtomicPtr<Slab> = AtomicPtr::new(ptr::null_mut());

/// Where a thread has stopped looking.
pub(in crate::hardened) type Cursor = Cell<Option<&'static Slab>>;

impl Slab {
    /// Puts a new record into the list of all.
    #[unsafe(link_section = "hakmem_rare")]
    pub(in crate::hardened) fn enlist(&self) {
        let this = ptr::from_ref(self).cast_mut();
        let mut head = ALL.load(Relaxed);
        wrote(this);
        loop {
            self.next.store(head, Relaxed);
            // Release: pairs with the acquire in `first`.
            match ALL.compare_exchange_weak(head, this, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Calls `f` with every slab that has memory. For figures: others may be at work there.
    pub(in crate::hardened) fn each(mut f: impl FnMut(&Slab)) {
        Slab::each_while(|slab| {
            f(slab);
            true
        });
    }

    /// [`each`](Slab::each), until `f` says that it is enough.
    pub(in crate::hardened) fn each_while(f: impl FnMut(&'static Slab) -> bool) {
        let mut all = usize::MAX;
        Slab::each_from(Slab::first(), &mut all, f);
    }

    /// The first record, if there is any.
    pub(in crate::hardened) fn first() -> Option<&'static Slab> {
        // Acquire: pairs with the release in `enlist`.
        // SAFETY: records stay mapped, and what `figures` refers to are atomics and values that were written
        // before the slab was listed, and never since.
        unsafe { ALL.load(Acquire).as_ref() }
    }

    /// [`each_while`](Slab::each_while) from `next` on, but for `left` records at the most, which becomes
    /// less by those that there were. Where that has ended; `None` if it came to the end.
    pub(in crate::hardened) fn each_from(
        mut next: Option<&'static Slab>,
        left: &mut usize,
        mut f: impl FnMut(&'static Slab) -> bool,
    ) -> Option<&'static Slab> {
        while let Some(at) = next {
            if *left == 0 {
                return next;
            }
            *left -= 1;
            reads(at);
            // Relaxed: for figures, and `purge` looks again.
            if at.place.load(Relaxed) != DEAD && !f(at) {
                return next;
            }
            // SAFETY: as in `first`.
            next = unsafe { at.next.load(Relaxed).as_ref() };
        }
        None
    }
}
