//! In which list of its heap a slab belongs, full, partial or sparse ([`bins`](super::bins) says what that
//! means), and how it gets there. A slab moves when it has gained free blocks: other threads have freed into
//! it and put it on the ready list, or the owner has freed into it.

use crate::base::counters::Counters;
use crate::base::list::List;
use crate::lockfree::ready_list::nodes;
use crate::os;
use crate::superslab::slab::{Listed, Slab};
use crate::superslab::thp;
use crate::sync::Ordering::Relaxed;
use crate::sync::wrote;
use crate::tiny::bins::{Bins, no_slab};
use crate::tiny::{free, idle, release};

/// A class with this many nearly empty slabs has its magazine emptied.
const SPARSE: u8 = 4;

impl Bins {
    /// Takes the slabs off the ready list that other threads have put there, and lists them. Those that are
    /// shared are given up.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn collect(&mut self, counters: &Counters) {
        // SAFETY: the caller's clauses are the same.
        unsafe { self.collect_for(no_slab(), counters) }
    }

    /// [`Bins::collect`], but `current` stays one of the current slabs.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(super) unsafe fn collect_for(&mut self, current: *mut Slab, counters: &Counters) {
        // SAFETY: `owner` is set, and owners are never unmapped; an `Owner` consists of atomics.
        let owner = unsafe { &*self.owner };
        let has_published = !owner.ready.is_empty();
        if has_published || owner.visited.load(Relaxed) != 0 {
            owner.note_return(os::now_ms);
        }
        if !has_published {
            return;
        }
        // SAFETY: slabs on our ready list stay disarmed, so that nobody else touches their links, until they
        // are accepted, or for ever.
        for slab in unsafe { nodes(owner.ready.take_all()) } {
            counters.refill_ready.add(1);
            // SAFETY: ours, off the ready list, and we hold the heap's lock.
            unsafe {
                // In the child of a fork that has stopped the last owner while it gave the slab up, it may be
                // listed as an orphan: it is lost.
                if free::is_owned_by(slab, self.owner) && !Bins::pass_on(self, slab, current) {
                    Bins::accept_published(self, slab);
                }
            }
        }
    }

    /// Takes in a slab that was published. Returns whether it was released.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the heap that these bins are part of, as its owner or as a visitor. The
    /// slab belongs to them and has been taken off the ready list. A visitor has marked it as `VISITED`, the
    /// owner does not name it as its hazard, and it is not a current slab.
    pub(crate) unsafe fn accept_published(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: by the caller's duties no other thread uses the fields of the record that are the owner's.
        unsafe {
            // The chain stays until it is needed: walking it now would fetch every block from the core that
            // freed it, and taking it later, when the slab has no other free block, needs no walk.
            let waiting = (*slab).remote.arm();
            Slab::count_waiting(slab, waiting, waiting);
            Bins::relist(bins, slab)
        }
    }

    /// Lists a slab that is in no list, nor current any more, where it belongs. Returns whether it was
    /// released.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`]. Of a slab of a visited heap also what [`Bins::accept_published`] says.
    pub(crate) unsafe fn keep(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: the caller holds the heap's lock, and the slab is in no list. If it is on its way to the
        // ready list, it is relisted again when it arrives.
        unsafe {
            Bins::push(bins, slab, Listed::Full);
            Bins::relist(bins, slab)
        }
    }

    /// [`Bins::keep`] for a slab that may have no block left, without its owner having noticed.
    ///
    /// # Safety
    ///
    /// As [`Bins::keep`].
    pub(crate) unsafe fn keep_any(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: the caller's clause is the same.
        unsafe {
            if !Bins::has_more(slab) {
                Bins::count_filled(slab);
            }
            Bins::keep(bins, slab)
        }
    }

    /// Counts a slab that has handed out every block, once.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`].
    pub(super) unsafe fn count_filled(slab: *mut Slab) {
        // SAFETY: the caller has the rights of the slab's owner, which `filled` is for.
        unsafe {
            if !core::mem::replace(&mut (*slab).filled, true) {
                thp::filled((*slab).slices as usize, (*slab).stride);
            }
        }
    }

    /// Puts a slab that has gained free blocks into the list where it belongs. Returns whether it was
    /// released.
    ///
    /// # Safety
    ///
    /// As [`Bins::accept_published`], except that the slab may never have been published, and that the owner
    /// may pass a current slab.
    #[inline]
    pub(crate) unsafe fn relist(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: the caller holds the heap's lock, so the lists are its to change, and nobody else changes
        // the slab's record.
        unsafe {
            let list = (*slab).list;
            if list == Listed::Current {
                return false;
            }
            let used = Slab::in_use(slab);
            if used == 0 {
                return Bins::release_empty(bins, slab);
            }
            // Other threads may have returned anything from one block to nearly all.
            let few = used <= Slab::few(slab);
            let to = match list {
                // The chain that was announced may have been taken since, while the slab was current.
                Listed::Full if !Bins::has_more(slab) => return false,
                Listed::Full if !few => Listed::Partial,
                Listed::Full => Listed::Sparse,
                Listed::Partial if few => Listed::Sparse,
                // The blocks freed since it was purged may hold much of its memory.
                Listed::Purged if used as i32 <= (*slab).low && few => Listed::Sparse,
                Listed::Purged if used as i32 <= (*slab).low => Listed::Partial,
                // Enough has been freed since.
                Listed::Partial if Slab::is_spared(slab) && used as i32 <= (*slab).low => Listed::Partial,
                _ => return false,
            };
            Bins::unlink(bins, slab);
            if to == Listed::Partial && (*slab).purged.load(Relaxed) != 0 {
                // What is resident serves first.
                Bins::push_last(bins, slab, to);
            } else {
                Bins::push(bins, slab, to);
            }
            if few && list != Listed::Purged {
                Bins::count_emptied(bins, slab, 1);
            }
            false
        }
    }

    /// Whether the slab may have a block to hand out.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`].
    pub(super) unsafe fn has_more(slab: *mut Slab) -> bool {
        // SAFETY: the caller has the rights of the slab's owner.
        unsafe {
            !(*slab).free.is_null()
                || (*slab).bump != (*slab).end
                || (*slab).remote.has_chain()
                || (*slab).purged.load(Relaxed) != 0
        }
    }

    /// Releases a slab without blocks in use. Returns false if it has to stay, because it is on its way to
    /// the ready list: it is relisted again when it arrives.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`].
    pub(super) unsafe fn release_empty(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: the caller holds the heap's lock, so the slab and the lists are its to change. A slab is
        // released only when it has no block in use and is armed: then no thread has a block to push to it or
        // is about to publish it.
        unsafe {
            if !(*slab).remote.is_armed() {
                return false;
            }
            if (*slab).remote.has_chain() {
                // The blocks are not needed. But `arm` did not acquire, and only the acquire in `take_chain`
                // orders what other threads did to these blocks, and read of the record, before the release
                // of the span.
                (*slab).remote.take_chain();
            }
            if (*slab).list == Listed::Sparse {
                // It was nearly empty only on its way to empty, as every slab is when everything is freed.
                Bins::count_emptied(bins, slab, -1);
            }
            Bins::unlink(bins, slab);
            (*bins).slices = (*bins).slices.saturating_sub((*slab).slices as u32);
            release::release_slab(slab);
            true
        }
    }

    /// Counts a slab that has nearly emptied, or takes that back.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`].
    pub(super) unsafe fn count_emptied(bins: *mut Bins, slab: *mut Slab, by: i8) {
        // SAFETY: only the holder of the heap's lock uses the table.
        let emptied = unsafe { &mut (&mut (*bins).emptied)[(*slab).class as usize] };
        *emptied = emptied.saturating_add_signed(by);
    }

    /// Whether several slabs of `class` have nearly emptied. Resets the count when they have, so reports them
    /// once.
    pub(crate) fn take_sparse(&mut self, class: usize) -> bool {
        let emptied = &mut self.emptied[class];
        let many = *emptied >= SPARSE;
        if many {
            *emptied = 0;
        }
        many
    }

    /// Puts a slab into a list, not into the current slab's place: a purged one at the end, any other in
    /// front.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`]; the slab is in no list, and `list` is neither `None` nor `Current`.
    pub(super) unsafe fn push(bins: *mut Bins, slab: *mut Slab, list: Listed) {
        // SAFETY: the caller holds the heap's lock; the slab is in no list, so its links are free to use, and
        // `enlist` has just written which list it is to be.
        unsafe {
            wrote(bins);
            Slab::enlist(slab, list);
            let to = Bins::list_of(bins, slab);
            if list == Listed::Purged {
                to.push_back(slab)
            } else {
                to.push_front(slab)
            }
            if list == Listed::Sparse {
                idle::count(&mut (*bins).untold, (*slab).slices as i16);
            }
        }
    }

    /// Puts a slab at the end of a list.
    ///
    /// # Safety
    ///
    /// As [`Bins::push`]; the list is not that of sparse slabs.
    pub(super) unsafe fn push_last(bins: *mut Bins, slab: *mut Slab, list: Listed) {
        // SAFETY: as in `push`.
        unsafe {
            wrote(bins);
            Slab::enlist(slab, list);
            Bins::list_of(bins, slab).push_back(slab);
        }
    }

    /// Takes a slab out of its list, or out of the current slab's place.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`].
    pub(super) unsafe fn unlink(bins: *mut Bins, slab: *mut Slab) {
        // SAFETY: the caller holds the heap's lock, and the slab is in the list of these bins that its `list`
        // field names.
        unsafe {
            wrote(bins);
            match (*slab).list {
                Listed::None => return,
                Listed::Current => Bins::current(bins, (*slab).class as usize).store(no_slab(), Relaxed),
                list => {
                    Bins::list_of(bins, slab).remove(slab);
                    if list == Listed::Sparse {
                        idle::count(&mut (*bins).untold, -((*slab).slices as i16));
                    }
                }
            }
            Slab::enlist(slab, Listed::None);
        }
    }

    /// The list that the slab's `list` field names.
    ///
    /// # Safety
    ///
    /// The caller holds the lock of the heap that these bins are part of, and drops the reference before it
    /// gets another one. The slab belongs to them, and its `list` is neither `None` nor `Current`, for which
    /// there is no list.
    unsafe fn list_of<'a>(bins: *mut Bins, slab: *mut Slab) -> &'a mut List<Slab> {
        // SAFETY: only the holder of the lock uses the lists, so the reference to one of them is the only
        // one.
        unsafe {
            let class = (*slab).class as usize;
            match (*slab).list {
                Listed::Full => &mut (*bins).full,
                Listed::Partial => &mut (&mut (*bins).partial)[class],
                _ => &mut (&mut (*bins).sparse)[class],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::heap::Heap;
    use crate::front::thread;
    use crate::tiny::classes::CLASSES;

    /// As a visitor does that begins a profile, and the owner after it.
    #[test]
    fn a_full_slab_that_is_taken_out_of_its_place_counts_as_filled() {
        let mut blocks = Vec::new();
        let fill = |heap: *mut Heap| {
            // SAFETY: `with_heap` passes a heap that the calling thread owns. It is entered whenever slabs
            // are looked at or moved, and of these slabs no block is freed meanwhile.
            unsafe {
                loop {
                    let block = Heap::refill(heap, CLASSES as u8).ptr;
                    assert!(!block.is_null());
                    blocks.push(block);
                    let _entered = Heap::enter(heap);
                    let (bins, slab) = (&raw mut (*heap).bins, Slab::of(block));
                    if Bins::current(bins, CLASSES).load(Relaxed) != slab || Bins::has_more(slab) {
                        continue;
                    }
                    assert!(!(*slab).filled);
                    for slab in Bins::withdraw(bins, true).0.into_iter().filter(|slab| !slab.is_null()) {
                        Bins::keep_any(bins, slab);
                    }
                    return (*slab).filled && (*slab).list == Listed::Full;
                }
            }
        };
        assert!(thread::with_heap(None, fill));
        // SAFETY: blocks of that class, which nobody uses any more.
        thread::with_heap(None, |heap| unsafe {
            blocks.iter().for_each(|&block| Heap::free(heap, block, CLASSES as u8));
        });
    }
}
