//! The slabs that one heap owns, by class: where its blocks come from when a magazine is empty.
//!
//! Per class there is the current slab, which serves; the partial ones, which have free blocks, fullest first as far
//! as that is cheap to know; and the sparse ones, which have hardly a block in use and serve last ([`sparse`]). The full
//! ones are kept only so that they can be found when the thread ends.
//!
//! All that changes these lists runs under the heap's [lock](crate::front::bias), but for [`Bins::take`] and [`Bins::put`],
//! which do not. What a visitor runs, too, takes pointers and not references: the owner may be in those two.

use super::classes;
use super::{leave, sparse};
use crate::options;
use crate::os;
use crate::stats::Counters;
use crate::superslab::pagemap::KINDS;
use crate::superslab::remote::Chain;
use crate::superslab::{Block, Fresh, List, NO_SLAB, Owner, Slab, orphans, pool};
use crate::sync::Node;
use crate::table::Table;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// The class whose blocks have no room for the mark of a free block: the one of 8 bytes.
pub(crate) const UNMARKED: usize = 1;

/// How many nearly empty slabs of a class are worth emptying its magazine for.
const SPARSE: u8 = 4;

/// The slabs of one heap.
#[repr(C)]
pub(crate) struct Bins {
    /// [`NO_SLAB`] where there is none, so that [`Bins::take`] need not ask.
    pub(super) current: Table<*mut Slab, KINDS>,
    /// Who these slabs say they belong to. Null in a placeholder, which owns none.
    pub(crate) owner: *mut Owner,
    /// Mixed into the marks of free blocks, so that a program's data does not look like one.
    pub(crate) secret: usize,
    pub(super) partial: Table<*mut Slab, KINDS>,
    /// Rings: those with something to give back first, the purged ones last.
    pub(super) sparse: Table<*mut Slab, KINDS>,
    /// Of all classes.
    pub(super) full: *mut Slab,
    /// By class: slabs that have nearly emptied since the magazine was last looked at for it.
    pub(super) emptied: Table<u8, KINDS>,
    /// See [`sparse::tell`].
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
            partial: Table([ptr::null_mut(); KINDS]),
            sparse: Table([ptr::null_mut(); KINDS]),
            full: ptr::null_mut(),
            emptied: Table([0; KINDS]),
            idle: 0,
            present: 0,
        }
    }

    /// Takes a block of the current slab of `class`: a freed one first, then untouched memory. Null when it has neither.
    ///
    /// This is the second level behind the magazines, kept short: it serves every burst longer than a magazine.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, or they are a placeholder's.
    #[inline(always)]
    pub(crate) unsafe fn take(bins: *mut Bins, class: usize, counters: *const Counters) -> Fresh {
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
                return Fresh { block: block.cast(), zero: false };
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
                return Fresh { block, zero };
            }
        }
        Fresh::NONE
    }

    /// The current slab has nothing left: finds another one, and takes a block from it. Null when there is no memory.
    ///
    /// # Safety
    ///
    /// The calling thread owns these bins, and `owner` is set.
    pub(crate) unsafe fn refill(&mut self, class: u8, counters: &Counters) -> Fresh {
        let c = class as usize;
        // SAFETY: all slabs in our lists are ours; `owner` is set.
        unsafe {
            let current = self.current[c];
            if self.drain(current) {
                return Bins::take(self, c, counters);
            }
            self.collect(counters);
            if self.drain(current) || sparse::revive(current) {
                return Bins::take(self, c, counters);
            }
            if current != no_slab() {
                self.used_up(current);
            }
            loop {
                let next = if self.partial[c].is_null() { self.sparse[c] } else { self.partial[c] };
                if next.is_null() {
                    break;
                }
                Bins::unlink(self, next);
                self.make_current(next);
                if !(*next).free.is_null()
                    || (*next).bump != (*next).end
                    || self.drain(next)
                    || sparse::revive(next)
                {
                    counters.refill_partial.add(1);
                    return Bins::take(self, c, counters);
                }
                self.used_up(next);
            }
            if options::get().orphans {
                while let Some(adopted) = orphans::adopt(class) {
                    counters.refill_orphan.add(1);
                    let slab = adopted.slab;
                    self.welcome(adopted);
                    if !(*slab).free.is_null() || (*slab).bump != (*slab).end || sparse::revive(slab) {
                        self.make_current(slab);
                        return Bins::take(self, c, counters);
                    }
                    Bins::push(self, slab, List::Full);
                }
            }
            let pages = classes::pages(class);
            let Some(span) = pool::take(pages, class).or_else(|| pool::take_shorter(pages, class)) else {
                return Fresh::NONE;
            };
            counters.refill_span.add(1);
            // A refill that went as far as here is rare, and a sign of life: time to look at what is kept for reuse.
            crate::large::tick();
            self.present |= 1 << class;
            Slab::make(span.slab, classes::stride(c), span.zero, self.owner);
            self.make_current(span.slab);
            Bins::take(self, c, counters)
        }
    }

    /// Makes an adopted orphan ours; it is in no list yet.
    pub(super) unsafe fn welcome(&mut self, adopted: orphans::Adopted) {
        let slab = adopted.slab;
        // SAFETY: passed on: adopted just now.
        unsafe {
            self.present |= 1 << (*slab).class;
            // Release: see `Slab::make`.
            (*slab).owner.store(self.owner, Release);
            (*slab).used.store(adopted.in_use, Relaxed);
            (*slab).counted.store(0, Relaxed);
            Slab::enlist(slab, List::None);
            prepend(slab, adopted.chain.head);
            // Only now may anybody publish it: to us.
            let chain = (*slab).remote.rearm();
            Bins::absorb(slab, chain);
        }
    }

    /// Takes the chain that other threads have pushed to `slab`, which has no free blocks. False when there is none.
    unsafe fn drain(&mut self, slab: *mut Slab) -> bool {
        // SAFETY: passed on: the slab is ours, or the stand-in, to which nobody pushes.
        unsafe {
            if !(*slab).remote.has_chain() {
                return false;
            }
            let chain = (*slab).remote.take();
            Bins::absorb(slab, chain);
            true
        }
    }

    /// The current slab has nothing left.
    unsafe fn used_up(&mut self, slab: *mut Slab) {
        // SAFETY: passed on: ours.
        unsafe {
            if !(*slab).filled {
                pool::filled((*slab).pages as usize);
                (*slab).filled = true;
            }
            self.current[(*slab).class as usize] = no_slab();
            Bins::push(self, slab, List::Full);
        }
    }

    pub(super) unsafe fn make_current(&mut self, slab: *mut Slab) {
        // SAFETY: passed on: ours and in no list.
        unsafe {
            Slab::enlist(slab, List::Current);
            self.current[(*slab).class as usize] = slab;
        }
    }

    /// Adds a drained chain to the free blocks of `slab`.
    pub(super) unsafe fn absorb(slab: *mut Slab, chain: Chain<Block>) {
        // SAFETY: passed on: the slab is ours, and so is the chain.
        unsafe {
            if (*slab).free.is_null() {
                (*slab).free = chain.head;
            } else {
                prepend(slab, chain.head);
            }
            Slab::count_waiting(slab, chain.count, 0);
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
            let mut slab = (*self.owner).ready.take();
            while !slab.is_null() {
                // Once rearmed the slab may be published again, so the link is read first.
                let next = <Slab as Node>::next(slab);
                counters.refill_ready.add(1);
                Bins::arrive(self, slab);
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
    pub(crate) unsafe fn arrive(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: passed on.
        unsafe {
            // The chain stays until it is needed: walking through it now would fetch every block from the thread that freed
            // it, and taking it later, when the slab has no other free block, needs no walk.
            let waiting = (*slab).remote.arm();
            Slab::count_waiting(slab, waiting, waiting);
            Bins::settle(bins, slab)
        }
    }

    /// Puts a slab that has gained free blocks where it belongs. True when it was released.
    ///
    /// # Safety
    ///
    /// As [`Bins::arrive`], but that the slab may be the current one.
    #[inline]
    pub(crate) unsafe fn settle(bins: *mut Bins, slab: *mut Slab) -> bool {
        // SAFETY: passed on: the slab is ours.
        unsafe {
            let list = (*slab).list;
            if list == List::Current {
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
                    (*slab).remote.take();
                }
                if list == List::Sparse {
                    // Nearly empty only on its way here, as all are when everything is freed.
                    let emptied = (&raw mut (*bins).emptied).cast::<u8>().add((*slab).class as usize);
                    *emptied = (*emptied).saturating_sub(1);
                }
                Bins::unlink(bins, slab);
                leave::release(slab);
                return true;
            }
            // Others may have given it anything from one block to nearly all.
            let few = used <= Slab::few(slab);
            if list == List::Full {
                // What was announced may have been taken since, when the slab was the current one.
                if (*slab).free.is_null() && !(*slab).remote.has_chain() {
                    return false;
                }
                Bins::unlink(bins, slab);
                Bins::push(bins, slab, if few { List::Sparse } else { List::Partial });
            } else if list == List::Partial && few
                || list == List::Purged && Slab::in_use(slab) as i32 <= (*slab).low
            {
                // Of a purged one the blocks freed since may have kept most of its memory.
                Bins::unlink(bins, slab);
                Bins::push(bins, slab, List::Sparse);
            } else {
                return false;
            }
            if few && list != List::Purged {
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
    pub(crate) unsafe fn put(slab: *mut Slab, block: *mut Block) -> bool {
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
            let chain = (*slab).remote.take();
            Bins::absorb(slab, chain);
            let mut at = (*slab).free;
            while !at.is_null() && at != block {
                at = Block::next(at);
            }
            !at.is_null()
        }
    }

    /// Where the list begins that `slab` is in.
    unsafe fn head(bins: *mut Bins, slab: *mut Slab) -> *mut *mut Slab {
        // SAFETY: passed on: a slab has a class. Only places are computed.
        unsafe {
            let class = (*slab).class as usize;
            match (*slab).list {
                List::Full => &raw mut (*bins).full,
                List::Partial => (&raw mut (*bins).partial).cast::<*mut Slab>().add(class),
                List::Sparse | List::Purged => (&raw mut (*bins).sparse).cast::<*mut Slab>().add(class),
                List::None | List::Current => (&raw mut (*bins).current).cast::<*mut Slab>().add(class),
            }
        }
    }

    /// Puts a slab into a list other than the current one's place.
    ///
    /// # Safety
    ///
    /// As [`Bins::arrive`]; the slab is in no list.
    pub(super) unsafe fn push(bins: *mut Bins, slab: *mut Slab, list: List) {
        // SAFETY: passed on: ours and in no list.
        unsafe {
            Slab::enlist(slab, list);
            let at = Bins::head(bins, slab);
            let head = *at;
            (*slab).prev = ptr::null_mut();
            (*slab).next = head;
            if matches!(list, List::Sparse | List::Purged) {
                sparse::link(bins, at, slab, list);
                return;
            }
            if !head.is_null() {
                (*head).prev = slab;
            }
            *at = slab;
        }
    }

    /// Takes a slab out of its list.
    ///
    /// # Safety
    ///
    /// As [`Bins::arrive`], but that the owner may do it with the current one.
    pub(super) unsafe fn unlink(bins: *mut Bins, slab: *mut Slab) {
        // SAFETY: passed on: ours, and in the list that it says.
        unsafe {
            let at = Bins::head(bins, slab);
            match (*slab).list {
                List::None => return,
                List::Current => *at = no_slab(),
                List::Sparse | List::Purged => sparse::unlink(bins, at, slab),
                List::Partial | List::Full => {
                    let (next, prev) = ((*slab).next, (*slab).prev);
                    if prev.is_null() {
                        *at = next;
                    } else {
                        (*prev).next = next;
                    }
                    if !next.is_null() {
                        (*next).prev = prev;
                    }
                }
            }
            Slab::enlist(slab, List::None);
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

/// Puts a chain in front of a slab's free blocks; how many blocks it had.
pub(super) unsafe fn prepend(slab: *mut Slab, chain: *mut Block) -> u32 {
    if chain.is_null() {
        return 0;
    }
    let mut count = 1;
    let mut tail = chain;
    // SAFETY: passed on: the chain and the slab are the caller's.
    unsafe {
        loop {
            let next = Block::next(tail);
            if next.is_null() {
                break;
            }
            tail = next;
            count += 1;
        }
        Block::set_next(tail, (*slab).free);
        (*slab).free = chain;
    }
    count
}
