//! How a block that leaves a magazine returns to its slab, and the checks that are cheap there because the
//! slab's record is in hand anyway: the block is ours, it begins at a multiple of the slab's stride, it has
//! the class that it was freed as, and it is not already free.

use crate::base::misuse;
use crate::base::misuse::Fault;
use crate::lockfree::remote_stack::Pushed;
use crate::superslab::slab::{Block, KEPT, LEFT, Owner, SHARED, Slab, VISITED};
use crate::superslab::{orphans, pagemap};
use crate::sync::Ordering::Acquire;
use crate::sync::reads;
use crate::tiny::bins::{Bins, UNMARKED};
use crate::tiny::{partial_purge, release};
use core::ptr;

/// Marks a block of `class` as free, if `address` is the start of a block of `slab` that does not look free
/// already. Otherwise returns false and changes nothing: then [`validate`] finds out why. For a block that
/// the program has just freed.
///
/// # Safety
///
/// The calling thread owns `bins`. The page map says that `address` lies in a slab of `class`, `slab` is that
/// slab's record, and the program has freed the block and does not use it any more.
#[inline(always)]
pub(crate) unsafe fn mark_free(bins: *const Bins, slab: *mut Slab, address: *mut u8, class: usize) -> bool {
    // SAFETY: the caller's clauses are the same.
    unsafe { mark_unless(Block::looks_free, bins, slab, address, class) }
}

/// [`mark_free`] for a block that may come out of a magazine, where C's blocks look free.
///
/// # Safety
///
/// As [`mark_free`].
#[inline(always)]
unsafe fn mark_unless(
    is_free: unsafe fn(*mut Block, usize) -> bool,
    bins: *const Bins,
    slab: *mut Slab,
    address: *mut u8,
    class: usize,
) -> bool {
    let block = address.cast::<Block>();
    // SAFETY: the block still counts as in use, so the slab stays and its constant fields can be read. Once
    // `address` is known to be a block's start, the freed block, of 16 bytes or more, is ours to write.
    unsafe {
        if !Slab::is_block(slab, address) {
            return false;
        }
        if class != UNMARKED {
            if is_free(block, (*bins).secret) {
                return false;
            }
            Block::set_mark(block, (*bins).secret, true);
        }
    }
    true
}

/// Checks that `address` can be a freed block of `class`, and marks it as free. Returns its slab; reports a
/// misuse and returns `None` if it must be left alone.
///
/// # Safety
///
/// `bins` are the calling thread's, and it holds their heap's lock. `address` was freed as a block of
/// `class`, and the program does not use it any more.
pub(crate) unsafe fn validate(bins: &mut Bins, address: *mut u8, class: usize) -> Option<*mut Slab> {
    if pagemap::kind_index(address) != class {
        complain(address);
        return None;
    }
    // SAFETY: the page map says that this is a slab's slice, so it has a record. The slab has a block in use
    // (this one) and stays, unless the block was freed twice: then the slice was still in the page map a
    // moment ago. A freed block of 16 bytes or more is ours to read and write.
    unsafe {
        let slab = Slab::of(address);
        let marked = mark_unless(Block::is_marked, bins, slab, address, class);
        if marked || look_closer(bins, slab, address, class) { Some(slab) } else { None }
    }
}

/// Reports a block that was freed as one of `class`, and lies where there are none.
#[cold]
#[inline(never)]
extern "C" fn complain(address: *mut u8) {
    let fault = if pagemap::kind(address) == pagemap::FOREIGN { Fault::Foreign } else { Fault::Size };
    misuse::report("free", address, fault);
}

/// [`validate`] where the quick test has failed: whether the block can be freed, and is marked now. A
/// function of its own, so that the callers of `validate` need no stack: a thread that ends frees each block
/// of its magazines.
///
/// # Safety
///
/// As [`validate`]; `slab` is the record of the slab in which `address` lies.
#[cold]
#[inline(never)]
unsafe extern "C" fn look_closer(bins: *mut Bins, slab: *mut Slab, address: *mut u8, class: usize) -> bool {
    let block = address.cast::<Block>();
    // SAFETY: the caller's clauses. The list of the slab is looked at only if that belongs to these bins.
    let fault = unsafe {
        let bins = &mut *bins;
        let is_marked = || class != UNMARKED && Block::is_marked(block, bins.secret);
        match partial_purge::block_at(slab, address) {
            None => Fault::Interior,
            Some(true) => Fault::DoubleFree,
            // The program may have copied the mark out of a block that it never wrote, and back into the same
            // place. For a slab of our own, its list of free blocks decides.
            Some(false) if is_marked() && (!is_owned_by(slab, bins.owner) || bins.holds(slab, block)) => {
                Fault::DoubleFree
            }
            Some(false) => {
                if class != UNMARKED {
                    Block::set_mark(block, bins.secret, true);
                }
                return true;
            }
        }
    };
    misuse::report("free", address, fault);
    false
}

/// Sends a block to its slab for a thread that has no heap, so that the slab is not its own. Reports misuse
/// instead if it is no block, or is marked as free. `secret` is that of the marks.
///
/// # Safety
///
/// `address` was freed as a block of `class`, a size class, and the program does not use it any more. The
/// calling thread has no heap.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn send_without_heap(secret: usize, address: *mut u8, class: usize) {
    if pagemap::kind_index(address) != class {
        return complain(address);
    }
    let block = address.cast::<Block>();
    // SAFETY: as in `validate`: the slice has a record, which the block keeps. Once the block is known to be
    // one that is not free it is ours, and on its way to the slab it still counts as in use.
    let fault = unsafe {
        let slab = Slab::of(address);
        match partial_purge::block_at(slab, address) {
            None => Fault::Interior,
            Some(true) => Fault::DoubleFree,
            Some(false) if class != UNMARKED && Block::is_marked(block, secret) => Fault::DoubleFree,
            Some(false) => {
                if class != UNMARKED {
                    Block::set_mark(block, secret, true);
                }
                // The owner may be due for a visit, which takes a heap: the next thread that sends it
                // something will see that.
                push_remote(slab, block, block, 1);
                return;
            }
        }
    };
    misuse::report("free", address, fault);
}

/// Whether `slab` belongs to `owner`.
///
/// # Safety
///
/// `slab` is the record of a slab that has a block in use, or that the calling thread owns.
#[inline(always)]
pub(crate) unsafe fn is_owned_by(slab: *mut Slab, owner: *mut Owner) -> bool {
    // Only this thread stores its own owner, and a visitor that puts it back, so the answer is not stale.
    // Acquire: pairs with the release with which the visitor puts it back.
    // SAFETY: by the caller's duty the record stays; the field is atomic.
    unsafe { (*slab).owner.load(Acquire) == owner }
}

/// Whether `slab` belongs to `owner`, who does not [share](SHARED) it.
///
/// # Safety
///
/// As [`is_owned_by`]; `owner` is the calling thread's.
#[inline(always)]
pub(crate) unsafe fn is_kept_by(slab: *mut Slab, owner: *mut Owner) -> bool {
    // SAFETY: the caller's clauses; of a slab of its own the thread may read `rest`.
    unsafe { is_owned_by(slab, owner) && (*slab).rest & (SHARED | KEPT) != SHARED }
}

/// The outcome of [`push_remote`].
pub(crate) struct Sent {
    /// Whether the push published the slab.
    pub(crate) published: bool,
    /// Whether the slab had no owner.
    pub(crate) to_orphan: bool,
    /// The slab's owner if so many of its slabs have emptied that it should be visited; otherwise null.
    pub(crate) visit: *mut Owner,
}

/// Pushes a chain of `count` blocks to a slab that belongs to another thread or to nobody.
///
/// # Safety
///
/// As [`crate::lockfree::remote_stack::RemoteStack::push`]; the blocks still count as in use.
pub(crate) unsafe fn push_remote(slab: *mut Slab, head: *mut Block, tail: *mut Block, count: u32) -> Sent {
    // SAFETY: before the push the blocks of the chain keep the slab. After it the slab may be released at any
    // time, except by `Publish`, which keeps it until it is published, and `Emptied`, which makes it ours. So
    // nothing of the record is read after the push in other cases.
    unsafe {
        // Acquire: pairs with the release in `Slab::make` and `Bins::install_adopted`. The owner may have
        // only just adopted the slab.
        let owner = (*slab).owner.load(Acquire);
        reads(&raw const (*slab).start);
        let (stride, last, slices) = ((*slab).stride, (*slab).last, (*slab).slices);
        let (outcome, waiting) = (*slab).remote.push(head, tail, count);
        match outcome {
            Pushed::Queued => {}
            Pushed::Publish => Slab::publish(slab),
            Pushed::Emptied => orphans::claimed(slab, |slab| release::release_slab(slab)),
        }
        // If the owner has left since it was read, this and what follows are only wrong figures.
        let to_orphan = owner.addr() & LEFT != 0;
        let mut sent = Sent { published: outcome == Pushed::Publish, to_orphan, visit: ptr::null_mut() };
        // Do all blocks of the slab wait now?
        if outcome != Pushed::Emptied && !to_orphan && waiting * stride > last {
            let owner = owner.map_addr(|a| a & !VISITED);
            // Owners are never unmapped.
            if (*owner).count_emptied(slices as usize) {
                sent.visit = owner;
            }
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superslab::slab::FULL;
    use crate::sync::Node;
    use crate::sync::Ordering::Relaxed;
    use crate::tiny::bins::tests::with_slab;

    #[test]
    fn a_block_is_marked_as_free_once_and_only_where_it_begins() {
        for class in [UNMARKED, 8] {
            with_slab(class, 1, false, |bins, slab, counters| {
                // SAFETY: bins, slab and blocks are this thread's alone.
                unsafe {
                    let [block, other] = [(); 2].map(|()| Bins::alloc(bins, class, counters).ptr);
                    let words = block.cast::<[usize; 2]>();
                    *words = [5, 6];
                    assert!(is_owned_by(slab, (*bins).owner) && !is_owned_by(slab, ptr::null_mut()));
                    assert!(!mark_free(bins, slab, block.wrapping_add(4), class));
                    assert!(!mark_free(bins, slab, block.wrapping_sub((*slab).stride as usize), class));
                    assert!(*words == [5, 6] && mark_free(bins, slab, block, class));
                    if class == UNMARKED {
                        assert!(*words == [5, 6] && mark_free(bins, slab, block, class));
                    } else {
                        assert!(Block::is_marked(block.cast(), (*bins).secret) && (*words)[0] == 5);
                        assert!(!mark_free(bins, slab, block, class));
                        Block::half_mark_once(other.cast(), (*bins).secret);
                        assert!(!mark_free(bins, slab, other, class), "as it is in a magazine");
                        assert!(mark_unless(Block::is_marked, bins, slab, other, class));
                    }
                }
            });
        }
    }

    /// Pushes the blocks from number `from` to before `to`; the owner that should be visited.
    ///
    /// # Safety
    ///
    /// The slab is the calling thread's, and these blocks are in use.
    unsafe fn push(slab: *mut Slab, from: usize, to: usize) -> *mut Owner {
        // SAFETY: the caller's clauses.
        unsafe {
            let block = |n: usize| (*slab).start.wrapping_add(n * (*slab).stride as usize).cast::<Block>();
            (from + 1..to).for_each(|n| Block::set_next(block(n - 1), block(n)));
            push_remote(slab, block(from), block(to - 1), (to - from) as u32).visit
        }
    }

    #[test]
    fn an_owner_is_visited_once_all_blocks_of_enough_slabs_wait() {
        with_slab(8, 3, false, |bins, slab, counters| {
            // SAFETY: bins, slab and blocks are this thread's alone.
            unsafe {
                while !Bins::alloc(bins, 8, counters).ptr.is_null() {}
                let all = Slab::in_use(slab) as usize;
                let owner = (*bins).owner;
                let idle = |slices| (*owner).idle.store(slices, Relaxed);
                // One slice more is enough, with the three of this one.
                for (before, visit) in [(128 - 4, ptr::null_mut()), (128 - 3, owner)] {
                    idle(before);
                    assert!(push(slab, 0, all - 1).is_null());
                    assert_eq!((*owner).idle.load(Relaxed), before, "one block is missing");
                    assert_eq!(push(slab, all - 1, all), visit);
                    assert_eq!((*owner).idle.load(Relaxed), if visit.is_null() { before + 3 } else { 0 });
                    (*slab).remote.take_chain();
                }
                // Visited already, and so marked.
                idle(127);
                (*slab).owner.store(owner.map_addr(|a| a | VISITED), Relaxed);
                assert_eq!(push(slab, 0, all), owner);
                (*slab).remote.take_chain();
                // Nobody's: of an orphan the count is of the blocks in use.
                idle(127);
                (*slab).owner.store(owner.map_addr(|a| a | LEFT), Relaxed);
                (*slab).remote.rearm();
                assert!((*slab).remote.orphan(all as u32 + 1));
                assert!(push(slab, 0, all).is_null());
                assert_eq!(((*owner).idle.load(Relaxed), (*slab).remote.orphan_in_use()), (127, Some(1)));
                assert!((*slab).used.load(Relaxed) & FULL == 0);
            }
        });
    }
}
