//! How slabs come to a heap when it needs blocks, and leave it when it is trimmed or its thread ends.

use crate::base::counters::Counters;
use crate::base::list::List;
use crate::base::options;
use crate::large;
use crate::superslab::slab::{Allocation, BY_PAGE, CUT, FREED_FIRST, Listed, Slab};
use crate::superslab::{orphans, pool};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::wrote;
use crate::tiny::bins::{Bins, no_slab};
use crate::tiny::classes::{self, bits};
use crate::tiny::release::part_with;
use crate::tiny::{free_list, idle, partial_purge};

/// How many orphans a refill adopts before it takes a span: a thread that has ended may have left any number
/// of full ones.
const MOST_ADOPTED: usize = 16;

impl Bins {
    /// Finds memory for a class of which [`Bins::alloc`] has none, makes it the current slab, and takes a
    /// block from it. Null if there is no memory.
    ///
    /// Looks, in this order, at remote frees of the current slab, published slabs, purged memory of the
    /// current slab, partial and sparse slabs, orphans, and the pool.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins and holds their heap's lock; `owner` is set.
    #[inline(always)]
    pub(crate) unsafe fn refill(
        &mut self,
        class: u8,
        counters: &Counters,
        are_many: impl Fn() -> bool,
    ) -> Allocation {
        let c = class as usize;
        // SAFETY: all slabs in our lists are ours, and the lock keeps visitors away from them and from
        // `self`. Where there is no current slab, `NO_SLAB` has nothing to drain or revive. An adopted
        // orphan, and a span that was taken from the pool, are this thread's alone.
        unsafe {
            let current = Bins::current(self, c).load(Relaxed);
            let freed = free_list::drain(current) || {
                self.collect_for(current, counters);
                free_list::drain(current)
            };
            if freed {
                self.note_freed_by_others(current, &are_many);
            }
            if freed || partial_purge::revive(current) {
                return Bins::alloc_any(self, c, counters);
            }
            if current != no_slab() {
                debug_assert!((*current).free.is_null() && (*current).bump == (*current).end);
                self.used_up(current);
            }
            loop {
                let partial = self.partial[c].first();
                let next = if partial.is_null() { self.sparse[c].first() } else { partial };
                if next.is_null() {
                    break;
                }
                Bins::unlink(self, next);
                self.make_current(next);
                if has_block(next) {
                    counters.refill_partial.add(1);
                    return Bins::alloc_any(self, c, counters);
                }
                self.used_up(next);
            }
            if options::get().orphans {
                // Most that come after a full one may be full, too.
                if let Some(allocation) = self.adopt(class, MOST_ADOPTED, orphans::adopt, counters) {
                    return allocation;
                }
            }
            let slices = classes::slices(class);
            let Some(span) = pool::take_span(slices, class, large::spare)
                .or_else(|| pool::take_shorter_span(slices, class))
            else {
                return self.adopt_any(class, counters);
            };
            counters.refill_span.add(1);
            self.present |= 1 << class;
            self.slices += (*span.slab).slices as u32;
            Slab::make(span.slab, classes::stride(c), span.zero, self.owner);
            if are_many() {
                let rest = (*span.slab).rest;
                (*span.slab).rest = rest | FREED_FIRST | if rest & FREED_FIRST == 0 { BY_PAGE } else { 0 };
                self.note_made(span.slab);
            }
            self.make_current(span.slab);
            Bins::alloc_any(self, c, counters)
        }
    }

    /// A block of the first of `most` orphans of a class that has one: it becomes the current slab. `adopt`
    /// is how to get one.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`]; the class has no current slab.
    #[inline(always)]
    unsafe fn adopt(
        &mut self,
        class: u8,
        most: usize,
        adopt: impl Fn(u8) -> Option<orphans::Adopted>,
        counters: &Counters,
    ) -> Option<Allocation> {
        for _ in 0..most {
            let adopted = adopt(class)?;
            counters.refill_orphan.add(1);
            let slab = adopted.slab;
            // SAFETY: by the caller's clauses; the slab was adopted just now.
            unsafe {
                self.install_adopted(adopted);
                if has_block(slab) {
                    self.note_adopted(slab, counters);
                    self.make_current(slab);
                    return Some(Bins::alloc_any(self, class as usize, counters));
                }
                Bins::push(self, slab, Listed::Full);
            }
        }
        None
    }

    /// [`Bins::adopt`] where there is no memory: one of the others may have some.
    ///
    /// # Safety
    ///
    /// As [`Bins::adopt`].
    #[cold]
    #[inline(never)]
    unsafe fn adopt_any(&mut self, class: u8, counters: &Counters) -> Allocation {
        if !options::get().orphans {
            return Allocation::NONE;
        }
        // SAFETY: the caller's clauses are the same.
        unsafe { self.adopt(class, usize::MAX, orphans::adopt_soon, counters) }.unwrap_or(Allocation::NONE)
    }

    /// Lists a current slab that has nothing left as full.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`]; `slab` is the current slab of its class, and not `NO_SLAB`.
    pub(super) unsafe fn used_up(&mut self, slab: *mut Slab) {
        // SAFETY: the slab is ours, and the lock is held. Once it is not the current slab any more, it is in
        // no list.
        unsafe {
            Bins::count_filled(slab);
            Bins::current(self, (*slab).class as usize).store(no_slab(), Relaxed);
            Bins::push(self, slab, Listed::Full);
        }
    }

    /// Makes an adopted orphan a slab of these bins. It is in no list afterwards.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, has entered their heap's lock, and `owner` is set. `adopted` comes
    /// from [`orphans::adopt`], and nothing has been done with it since.
    pub(super) unsafe fn install_adopted(&mut self, adopted: orphans::Adopted) {
        let slab = adopted.slab;
        // SAFETY: adopting gave us the slab and its chain; until `rearm` no other thread may publish it or
        // take it. The second chain is what was pushed since: `rearm` took it off the stack, so it is ours,
        // too.
        unsafe {
            self.present |= 1 << (*slab).class;
            self.slices += (*slab).slices as u32;
            // Release: see `Slab::make`.
            (*slab).owner.store(self.owner, Release);
            (*slab).used.store(adopted.in_use, Relaxed);
            (*slab).counted.store(0, Relaxed);
            // With what was noted of the orphan.
            let low = (*slab).low;
            Slab::enlist(slab, Listed::None);
            (*slab).low = low;
            free_list::prepend(slab, adopted.chain.head);
            // From here on other threads may publish the slab, and then find us as its owner.
            let chain = (*slab).remote.rearm();
            free_list::absorb(slab, chain);
        }
    }

    /// Makes a slab the current one of its class.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`]; `slab` belongs to these bins and is in no list, and its class has no current
    /// slab.
    pub(super) unsafe fn make_current(&mut self, slab: *mut Slab) {
        // SAFETY: the slab is ours, and the lock keeps visitors out until both fields are written.
        unsafe {
            wrote(self);
            Slab::enlist(slab, Listed::Current);
            (*slab).rest &= !CUT;
            Bins::current(self, (*slab).class as usize).store(slab, Relaxed);
        }
    }

    /// Lists the current slab of `class` among others, so that there is none.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins and holds their heap's lock; `class` is less than
    /// [`KINDS`](crate::superslab::pagemap::KINDS).
    pub(crate) unsafe fn set_aside(bins: *mut Bins, class: usize) {
        // SAFETY: the slab is ours, and the lock is held.
        unsafe {
            let slab = Bins::current(bins, class).load(Relaxed);
            if slab == no_slab() {
                return;
            }
            if Bins::has_more(slab) {
                Bins::current(bins, class).store(no_slab(), Relaxed);
                // Also one that has hardly a block in use: it is not idle.
                Bins::push(bins, slab, Listed::Partial);
            } else {
                (*bins).used_up(slab);
            }
        }
    }

    /// [`Bins::set_aside`] for every class.
    ///
    /// # Safety
    ///
    /// As [`Bins::set_aside`].
    pub(crate) unsafe fn set_all_aside(bins: *mut Bins) {
        // SAFETY: the slabs are ours, and the lock is held.
        // What hardly a block is in use of is listed as that, or released: nobody may need it soon.
        unsafe {
            for slab in Bins::withdraw(bins, false).0.into_iter().filter(|slab| !slab.is_null()) {
                Bins::keep(bins, slab);
            }
            bits((*bins).present).for_each(|class| Bins::set_aside(bins, class));
        }
    }

    /// Gives back the slabs that have no block in use, current ones too, and lists the current ones that have
    /// hardly one.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn trim(&mut self, counters: &Counters) {
        // SAFETY: the current slabs are ours, and the lock is held.
        unsafe {
            self.collect(counters);
            for slab in Bins::withdraw(self, false).0.into_iter().filter(|slab| !slab.is_null()) {
                // What others have freed, and is not counted yet.
                free_list::drain(slab);
                Bins::keep(self, slab);
            }
        }
    }

    /// Gives up all slabs, for a thread that ends: empty ones go back to the pool, the others become orphans.
    /// Nobody waits for a slab that another thread is about to publish, or long for a lock: such slabs stay,
    /// and the result is false. With `note` it [is noted](orphans::note_change) that there are more orphans:
    /// not by who has adopted them for a moment.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn abandon(&mut self, counters: &Counters, note: bool) -> bool {
        // SAFETY: these have the same contract as this function.
        let all = unsafe {
            // Most slabs that are being published arrive between the two calls.
            self.abandon_listed(note) || {
                self.collect(counters);
                self.abandon_listed(note)
            }
        };
        idle::tell(&mut self.untold);
        all
    }

    /// Gives up the slabs that can be given up now, and with `note` [says so](orphans::note_change). False if
    /// some stay.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    unsafe fn abandon_listed(&mut self, note: bool) -> bool {
        let mut staying = List::<Slab>::new();
        // SAFETY: the lists and the slabs in them are ours, and the lock is held. Each slab is out of its
        // list before it is given up; one that is still ours after that goes to `staying`, which is local,
        // and then back into a list.
        unsafe {
            let mut give_up_all = |bins: &mut Bins, first: fn(&mut Bins, usize) -> *mut Slab, class| loop {
                let slab = first(bins, class);
                if slab.is_null() || slab == no_slab() {
                    return;
                }
                Bins::unlink(bins, slab);
                if !part_with(&mut bins.slices, slab, note) {
                    staying.push_front(slab);
                }
            };
            // Those that have something come last, and so are the first that are adopted.
            give_up_all(self, |bins, _| bins.full.first(), 0);
            for class in bits(self.present) {
                give_up_all(self, |bins, class| Bins::current(bins, class).load(Relaxed), class);
                give_up_all(self, |bins, class| bins.partial[class].first(), class);
                give_up_all(self, |bins, class| bins.sparse[class].first(), class);
            }
            self.present = 0;
            while let Some(slab) = staying.pop_front() {
                self.present |= 1 << (*slab).class;
                Bins::keep(self, slab);
            }
            self.present == 0
        }
    }
}

/// Whether the slab has a block to hand out. Takes in what other threads have pushed to it, before untouched
/// memory, or makes purged memory usable again, if it has nothing else.
///
/// # Safety
///
/// The calling thread owns the slab and holds its heap's lock, or it is `NO_SLAB`.
#[inline(always)]
unsafe fn has_block(slab: *mut Slab) -> bool {
    // SAFETY: the owner may read these fields, and take the chain. `NO_SLAB` has nothing to drain or revive.
    unsafe {
        !(*slab).free.is_null()
            || free_list::drain(slab)
            || (*slab).bump != (*slab).end
            || partial_purge::revive(slab)
    }
}

#[cfg(test)]
mod tests;
