//! The slabs that one heap owns, by class: where its blocks come from when a magazine is empty.
//!
//! Per class there is the current slab, which serves; the partial ones, which have free blocks, fullest first as far
//! as that is cheap to know; and the sparse ones, which have hardly a block in use and serve last ([`partial_purge`](super::partial_purge)). The full
//! ones are kept only so that they can be found when the thread ends.
//!
//! All that changes these lists runs under the heap's [lock](crate::lockfree::biased_lock), but for [`Bins::alloc`] and [`Bins::push_free`],
//! which do not. What a visitor runs, too, takes pointers and not references: the owner may be in those two.

use crate::base::counters::Counters;
use crate::base::list::List;
use crate::base::table::Table;
use crate::os;
use crate::superslab::orphans;
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::{Allocation, Block, Listed, NO_SLAB, Owner, Slab};
use crate::sync::Node;
use crate::tiny::{free_list, idle, release};
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// The class whose blocks have no room for the mark of a free block: the one of 8 bytes.
pub(crate) const UNMARKED: usize = 1;

/// How many nearly empty slabs of a class are worth emptying its magazine for.
const SPARSE: u8 = 4;

/// The slabs of one heap.
#[repr(C)]
pub(crate) struct Bins {
    /// [`NO_SLAB`] where there is none, so that [`Bins::alloc`] need not ask.
    pub(super) current: Table<*mut Slab, KINDS>,
    /// Who these slabs say they belong to. Null in a placeholder, which owns none.
    pub(crate) owner: *mut Owner,
    /// Mixed into the marks of free blocks, so that a program's data does not look like one.
    pub(crate) secret: usize,
    pub(super) partial: Table<List<Slab>, KINDS>,
    /// Those with something to give back first, the purged ones last.
    pub(super) sparse: Table<List<Slab>, KINDS>,
    /// Of all classes.
    pub(super) full: List<Slab>,
    /// By class: slabs that have nearly emptied since the magazine was last looked at for it.
    pub(super) emptied: Table<u8, KINDS>,
    /// See [`idle::tell`].
    pub(super) idle: i32,
    /// The classes that there has been a slab of, a bit for each.
    pub(super) present: u64,
}

pub(super) const fn no_slab() -> *mut Slab {
    (&raw const NO_SLAB).cast_mut()
}

impl Bins {
    /// No slabs.
    pub(crate) const fn new() -> Self {
        Self {
            current: Table([no_slab(); KINDS]),
            owner: ptr::null_mut(),
            secret: 0,
            partial: Table([const { List::new() }; KINDS]),
            sparse: Table([const { List::new() }; KINDS]),
            full: List::new(),
            emptied: Table([0; KINDS]),
            idle: 0,
            present: 0,
        }
    }

    /// No slabs: in a new record, or after all have been [`disown`](super::release::disown)ed.
    pub(crate) fn clear(&mut self) {
        self.current.0.fill(no_slab());
        self.partial = Table([const { List::new() }; KINDS]);
        self.sparse = Table([const { List::new() }; KINDS]);
        self.full = List::new();
        self.emptied.0.fill(0);
        self.present = 0;
        idle::tell(&mut self.idle);
    }

    /// Takes a block of the current slab of `class`: a freed one first, then untouched memory. Null when it has neither.
    ///
    /// This is the second level behind the magazines, kept short: it serves every burst longer than a magazine.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, or they are a placeholder's.
    #[inline(always)]
    pub(crate) unsafe fn alloc(bins: *mut Bins, class: usize, counters: *const Counters) -> Allocation {
        // SAFETY: the current slab is ours, so its owner's line is; blocks on its list are free. Of the stand-in, which
        // has nothing, nothing is written.
        unsafe {
            let slab = (&raw const (*bins).current).cast::<*mut Slab>().add(class).read();
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
                    // Left over from an earlier slab in this place.
                    Block::set_mark(block.cast(), (*bins).secret, false);
                }
                Slab::count_taken(slab);
                (*counters).refill_bump.add(1);
                return Allocation { ptr: block, zeroed: zero };
            }
        }
        Allocation::NONE
    }

    /// Makes an adopted orphan ours; it is in no list yet.
    pub(super) unsafe fn install_adopted(&mut self, adopted: orphans::Adopted) {
        let slab = adopted.slab;
        // SAFETY: passed on: adopted just now.
        unsafe {
            self.present |= 1 << (*slab).class;
            // Release: see `Slab::make`.
            (*slab).owner.store(self.owner, Release);
            (*slab).used.store(adopted.in_use, Relaxed);
            (*slab).counted.store(0, Relaxed);
            Slab::enlist(slab, Listed::None);
            free_list::prepend(slab, adopted.chain.head);
            // Only now may anybody publish it: to us.
            let chain = (*slab).remote.rearm();
            free_list::absorb(slab, chain);
        }
    }

    /// Takes in what other threads have published.
    ///
    /// # Safety
    ///
    /// As [`Bins::refill`].
    pub(crate) unsafe fn collect(&mut self, counters: &Counters) {
        // SAFETY: our own owner record; slabs on the ready list are ours.
        unsafe {
            let owner = &*self.owner;
            if owner.visited.load(Relaxed) != 0 || !owner.ready.is_empty() {
                owner.is_back(os::now_ms);
            }
            if owner.ready.is_empty() {
                return;
            }
            let mut slab = (*self.owner).ready.take_all();
            while !slab.is_null() {
                // Once rearmed the slab may be published again, so the link is read first.
                let next = <Slab as Node>::next(slab);
                counters.refill_ready.add(1);
                Bins::accept_published(self, slab);
                slab = next;
            }
        }
    }

    /// Takes in a slab that was published. True when it was released.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, or visits them and the slab is not the current one; the slab is theirs and has
    /// been taken off the ready list.
    pub(crate) unsafe fn accept_published(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: passed on.
        unsafe {
            // The chain stays until it is needed: walking through it now would fetch every block from the thread that freed
            // it, and taking it later, when the slab has no other free block, needs no walk.
            let waiting = (*slab).remote.arm();
            Slab::count_waiting(slab, waiting, waiting);
            Bins::relist(bins, slab)
        }
    }

    /// Puts a slab that has gained free blocks where it belongs. True when it was released.
    ///
    /// # Safety
    ///
    /// As [`Bins::accept_published`], but that the slab may be the current one.
    #[inline]
    pub(crate) unsafe fn relist(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: passed on: the slab is ours.
        unsafe {
            let list = (*slab).list;
            if list == Listed::Current {
                return false;
            }
            let used = Slab::in_use(slab);
            if used == 0 {
                // A slab on its way to the ready list must stay; it is settled again when it arrives.
                if !(*slab).remote.is_armed() {
                    return false;
                }
                if (*slab).remote.has_chain() {
                    // Nobody wants these blocks any more, but what others did to them, and read of the slab's record, is
                    // over only for whoever takes them: arming did not acquire anything.
                    (*slab).remote.take_chain();
                }
                if list == Listed::Sparse {
                    // Nearly empty only on its way here, as all are when everything is freed.
                    let emptied = (&raw mut (*bins).emptied).cast::<u8>().add((*slab).class as usize);
                    *emptied = (*emptied).saturating_sub(1);
                }
                Bins::unlink(bins, slab);
                release::release_slab(slab);
                return true;
            }
            // Others may have given it anything from one block to nearly all.
            let few = used <= Slab::few(slab);
            if list == Listed::Full {
                // What was announced may have been taken since, when the slab was the current one.
                if (*slab).free.is_null() && !(*slab).remote.has_chain() {
                    return false;
                }
                Bins::unlink(bins, slab);
                Bins::push(bins, slab, if few { Listed::Sparse } else { Listed::Partial });
            } else if list == Listed::Partial && few
                || list == Listed::Purged && Slab::in_use(slab) as i32 <= (*slab).low
            {
                // Of a purged one the blocks freed since may have kept most of its memory.
                Bins::unlink(bins, slab);
                Bins::push(bins, slab, Listed::Sparse);
            } else {
                return false;
            }
            if few && list != Listed::Purged {
                let emptied = (&raw mut (*bins).emptied).cast::<u8>().add((*slab).class as usize);
                *emptied = (*emptied).saturating_add(1);
            }
            false
        }
    }

    /// Whether several slabs of `class` have nearly emptied. Says so once.
    pub(crate) fn are_sparse(&mut self, class: usize) -> bool {
        let emptied = &mut self.emptied[class];
        let many = *emptied >= SPARSE;
        if many {
            *emptied = 0;
        }
        many
    }

    /// Takes a free block back onto the list of its slab. True when the slab has to be settled.
    ///
    /// # Safety
    ///
    /// The calling thread owns `slab`, and `block` is a block of it that was in use and carries its mark.
    #[inline(always)]
    #[must_use]
    pub(crate) unsafe fn push_free(slab: *mut Slab, block: *mut Block) -> bool {
        // SAFETY: passed on. In this order a fork in between leaks the block in the child and does no harm.
        unsafe {
            Block::set_next(block, (*slab).free);
            (*slab).free = block;
            Slab::count(slab, -1) as i32 <= (*slab).low
        }
    }

    /// Whether `block` is among the free blocks of `slab`, those that other threads freed included.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, and `slab` is theirs.
    #[cold]
    pub(crate) unsafe fn holds(&mut self, slab: *mut Slab, block: *mut Block) -> bool {
        // SAFETY: passed on.
        unsafe {
            let chain = (*slab).remote.take_chain();
            free_list::absorb(slab, chain);
            let mut at = (*slab).free;
            while !at.is_null() && at != block {
                at = Block::next(at);
            }
            !at.is_null()
        }
    }

    /// The list that a slab is in that says so. Not for the current one, which is in none.
    unsafe fn list_of<'a>(bins: *mut Bins, slab: *mut Slab) -> &'a mut List<Slab> {
        // SAFETY: passed on: the lists are the caller's, and only one of them is used at a time.
        unsafe {
            let class = (*slab).class as usize;
            let lists = match (*slab).list {
                Listed::Full => return &mut (*bins).full,
                Listed::Partial => &raw mut (*bins).partial,
                _ => &raw mut (*bins).sparse,
            };
            &mut *lists.cast::<List<Slab>>().add(class)
        }
    }

    /// Puts a slab into a list other than the current one's place: at the end if there is nothing left in it to give back.
    ///
    /// # Safety
    ///
    /// As [`Bins::accept_published`]; the slab is in no list.
    pub(super) unsafe fn push(bins: *mut Bins, slab: *mut Slab, list: Listed) {
        // SAFETY: passed on: ours and in no list.
        unsafe {
            Slab::enlist(slab, list);
            let to = Bins::list_of(bins, slab);
            if list == Listed::Purged {
                to.push_back(slab)
            } else {
                to.push_front(slab)
            }
            if list == Listed::Sparse {
                idle::count(&mut (*bins).idle, (*slab).pages as i32);
            }
        }
    }

    /// Takes a slab out of its list.
    ///
    /// # Safety
    ///
    /// As [`Bins::accept_published`], but that the owner may do it with the current one.
    pub(super) unsafe fn unlink(bins: *mut Bins, slab: *mut Slab) {
        // SAFETY: passed on: ours, and in the list that it says.
        unsafe {
            match (*slab).list {
                Listed::None => return,
                Listed::Current => (&raw mut (*bins).current)
                    .cast::<*mut Slab>()
                    .add((*slab).class as usize)
                    .write(no_slab()),
                list => {
                    Bins::list_of(bins, slab).remove(slab);
                    if list == Listed::Sparse {
                        idle::count(&mut (*bins).idle, -((*slab).pages as i32));
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
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) block, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = block;
}
