//! The slabs that one heap owns, by class: where its blocks come from when a magazine is empty.
//!
//! Each class has a current slab, which serves allocations; partial slabs, which have free blocks, fullest
//! first as far as that is cheap to know; and sparse slabs, which have hardly a block in use and serve last
//! ([`partial_purge`](super::partial_purge)). Full slabs are listed only so that they can be found when the
//! thread ends.
//!
//! Everything that changes these lists runs under the heap's [lock](crate::lockfree::biased_lock). Only
//! [`Bins::alloc`] and [`Bins::push_free`] run without it, and they change no list. The lock says how a
//! visitor learns which slab they may be at ([`Bins::is_named`]). The functions that a visitor calls take
//! pointers, not references, because the owner may be in one of those two meanwhile.

use crate::base::counters::Counters;
use crate::base::list::List;
use crate::base::table::Table;
use crate::lockfree::ready_list::nodes;
use crate::os;
use crate::superslab::layout::SLICE_SHIFT;
use crate::superslab::orphans;
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::{Allocation, Block, Listed, NO_SLAB, Owner, Slab};
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, Node};
use crate::tiny::classes::bits;
use crate::tiny::{free_list, idle, release};
use core::ptr;

/// The class of 8-byte blocks, which have no room for the mark of a free block.
pub(crate) const UNMARKED: usize = 1;

/// A class with this many nearly empty slabs has its magazine emptied.
const SPARSE: u8 = 4;

/// The slabs of one heap.
#[repr(C)]
pub(crate) struct Bins {
    /// The slab that each class allocates from. [`NO_SLAB`] where there is none, so [`Bins::alloc`] needs no
    /// check. Written under the heap's lock.
    current: Table<AtomicPtr<Slab>, KINDS>,
    /// The `owner` field of these slabs. Null in a placeholder, which owns none.
    pub(crate) owner: *mut Owner,
    /// Mixed into the marks of free blocks, so that a program's data does not look like a mark.
    pub(crate) secret: usize,
    pub(super) partial: Table<List<Slab>, KINDS>,
    /// Slabs with something to purge come first, purged ones last.
    pub(super) sparse: Table<List<Slab>, KINDS>,
    /// Full slabs of all classes.
    pub(super) full: List<Slab>,
    /// By class: how many slabs have nearly emptied since [`Bins::take_sparse`] last reported them.
    pub(super) emptied: Table<u8, KINDS>,
    /// Idle slices that are not yet added to the count of all heaps: see [`idle::tell`].
    pub(super) untold: i32,
    /// Slices of all slabs here.
    pub(super) slices: u32,
    /// The classes that have ever had a slab, one bit each.
    pub(super) present: u64,
}

pub(super) const fn no_slab() -> *mut Slab {
    (&raw const NO_SLAB).cast_mut()
}

impl Bins {
    /// No slabs.
    pub(crate) const fn new() -> Self {
        Self {
            current: Table([const { AtomicPtr::new(no_slab()) }; KINDS]),
            owner: ptr::null_mut(),
            secret: 0,
            partial: Table([const { List::new() }; KINDS]),
            sparse: Table([const { List::new() }; KINDS]),
            full: List::new(),
            emptied: Table([0; KINDS]),
            untold: 0,
            slices: 0,
            present: 0,
        }
    }

    /// Bytes of all slabs here.
    pub(crate) fn bytes(&self) -> usize {
        (self.slices as usize) << SLICE_SHIFT
    }

    /// Forgets all slabs: for a new record, or after all have been [`disown`](super::release::disown)ed.
    pub(crate) fn clear(&mut self) {
        idle::tell(&mut self.untold);
        *self = Bins { owner: self.owner, secret: self.secret, ..Bins::new() };
    }

    /// Takes a block of the current slab of `class`: a freed one first, then untouched memory. Null if it has
    /// neither.
    ///
    /// This is the second level behind the magazines, kept short: it serves every burst longer than a
    /// magazine.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, and either holds their heap's lock or has named the class; or they
    /// are a placeholder's. `class` is less than [`KINDS`]. `counters` are those of the same heap.
    #[inline(always)]
    pub(crate) unsafe fn alloc(bins: *mut Bins, class: usize, counters: *const Counters) -> Allocation {
        // SAFETY: `class` is an index of `current`. The current slab belongs to these bins. Visitors leave it
        // alone while the class is named, so only this thread writes its owner's line. Blocks on `free` and
        // memory from `bump` on belong to nobody else. `NO_SLAB` has neither, so nothing is written to it.
        unsafe {
            let slab = (*(&raw const (*bins).current).cast::<AtomicPtr<Slab>>().add(class)).load(Relaxed);
            let block = (*slab).free;
            if !block.is_null() {
                let next = Block::next(block);
                (*slab).free = next;
                prefetch(next);
                if class != UNMARKED {
                    Block::set_mark(block, (*bins).secret, false);
                }
                Slab::count_taken(slab);
                (*counters).refill_current.add(1);
                return Allocation { ptr: block.cast(), zeroed: false };
            }
            let block = (*slab).bump;
            if block != (*slab).end {
                Slab::set_bump(slab, block.wrapping_add((*slab).stride as usize));
                let zero = (*slab).zero;
                if !zero && class != UNMARKED {
                    // An earlier slab in this place may have left a mark.
                    Block::set_mark(block.cast(), (*bins).secret, false);
                }
                Slab::count_taken(slab);
                (*counters).refill_bump.add(1);
                return Allocation { ptr: block, zeroed: zero };
            }
        }
        Allocation::NONE
    }

    /// The current slab of `class`. For the holder of the heap's lock.
    ///
    /// # Safety
    ///
    /// `bins` are part of a heap's record.
    pub(super) unsafe fn current<'a>(bins: *mut Bins, class: usize) -> &'a AtomicPtr<Slab> {
        // Relaxed wherever it is accessed: the lock orders the accesses, and in `alloc` the barriers do.
        // SAFETY: records stay mapped, and only atomics are referred to.
        unsafe { &(&(*bins).current)[class] }
    }

    /// Takes the current slabs of which hardly a block is in use out of their places, or `all`. Returns them by class,
    /// with null where there is none. Each must be [put back](Bins::put_back), or [listed](Bins::keep).
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
            Slab::enlist(slab, Listed::None);
            free_list::prepend(slab, adopted.chain.head);
            // From here on other threads may publish the slab, and then find us as its owner.
            let chain = (*slab).remote.rearm();
            free_list::absorb(slab, chain);
        }
    }

    /// Takes the slabs off the ready list that other threads have put there, and lists them.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn collect(&mut self, counters: &Counters) {
        // SAFETY: `owner` is set, and owners are never unmapped; an `Owner` consists of atomics.
        let owner = unsafe { &*self.owner };
        if owner.visited.load(Relaxed) != 0 || !owner.ready.is_empty() {
            owner.note_return(os::now_ms);
        }
        if owner.ready.is_empty() {
            return;
        }
        // SAFETY: slabs on our ready list are ours, and stay disarmed, so that nobody else touches their
        // links, until they are accepted.
        for slab in unsafe { nodes(owner.ready.take_all()) } {
            counters.refill_ready.add(1);
            // SAFETY: ours, off the ready list, and we hold the heap's lock.
            unsafe { Bins::accept_published(self, slab) };
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
                // The blocks freed since it was purged may hold most of its memory.
                Listed::Purged if used as i32 <= (*slab).low => Listed::Sparse,
                _ => return false,
            };
            Bins::unlink(bins, slab);
            Bins::push(bins, slab, to);
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
    unsafe fn count_emptied(bins: *mut Bins, slab: *mut Slab, by: i8) {
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

    /// Puts a free block onto its slab's list. Returns whether the slab has to be [relisted](Bins::relist).
    ///
    /// # Safety
    ///
    /// The calling thread owns `slab`, and either holds its heap's lock or had named the block before it
    /// found that it owns the slab. `block` is a block of the slab that was in use until now, and carries the
    /// mark of a free block.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn push_free(slab: *mut Slab, block: *mut Block) -> bool {
        // SAFETY: `free` and `used` are the owner's, and lock or name keeps visitors away; the block is free,
        // so its link is ours. In this order a fork in between leaks the block in the child, until the slab
        // is empty, and does no harm.
        unsafe {
            Block::set_next(block, (*slab).free);
            let relist = Slab::count(slab, -1) as i32 <= (*slab).low;
            // Last, since it ends the use of the slab. Release: pairs with the acquire in `is_named`.
            AtomicPtr::from_ptr(&raw mut (*slab).free).store(block, Release);
            relist
        }
    }

    /// Whether `block` is among the free blocks of `slab`, including those that other threads have pushed.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, holds their heap's lock, and `slab` belongs to them.
    #[cold]
    pub(crate) unsafe fn holds(&mut self, slab: *mut Slab, block: *mut Block) -> bool {
        // SAFETY: the slab's owner, that is this thread, may take the chain; the blocks of the list are free
        // and linked.
        unsafe {
            free_list::drain(slab);
            let mut at = (*slab).free;
            while !at.is_null() && at != block {
                at = Block::next(at);
            }
            !at.is_null()
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
            Slab::enlist(slab, list);
            let to = Bins::list_of(bins, slab);
            if list == Listed::Purged {
                to.push_back(slab)
            } else {
                to.push_front(slab)
            }
            if list == Listed::Sparse {
                idle::count(&mut (*bins).untold, (*slab).slices as i32);
            }
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

    /// Takes a slab out of its list, or out of the current slab's place.
    ///
    /// # Safety
    ///
    /// As [`Bins::relist`].
    pub(super) unsafe fn unlink(bins: *mut Bins, slab: *mut Slab) {
        // SAFETY: the caller holds the heap's lock, and the slab is in the list of these bins that its `list`
        // field names.
        unsafe {
            match (*slab).list {
                Listed::None => return,
                Listed::Current => Bins::current(bins, (*slab).class as usize).store(no_slab(), Relaxed),
                list => {
                    Bins::list_of(bins, slab).remove(slab);
                    if list == Listed::Sparse {
                        idle::count(&mut (*bins).untold, -((*slab).slices as i32));
                    }
                }
            }
            Slab::enlist(slab, Listed::None);
        }
    }
}

/// Fetches the next free block for writing.
#[inline(always)]
fn prefetch(block: *mut Block) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch does not fault, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) block, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = block;
}
