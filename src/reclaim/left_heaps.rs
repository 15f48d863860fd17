//! The heaps of threads that a fork has left behind: the child takes over what they hold when it needs
//! memory.

use crate::base::list::List;
use crate::front::heap::Heap;
use crate::front::{registry, visitor};
use crate::hardened;
use crate::lockfree::ready_list::nodes;
use crate::superslab::pagemap::RUN;
use crate::superslab::slab::{LEFT, Slab, VISITED};
use crate::superslab::{pool, survey};
use crate::sync::AtomicU32;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::tiny::release::{self, GivenUp};

/// How often heaps that were left behind must still be looked for. Relaxed: changed under the visitors' lock,
/// or by a child while it has one thread; read without the lock it is a hint.
static LOOKS: AtomicU32 = AtomicU32::new(0);
/// How often after a fork. A slab that becomes published during the first look, because another thread frees
/// one of its blocks, is found by the next.
const MOST_LOOKS: u32 = 4;

/// In the child of a fork: there may be such heaps. The pool does not grow before they have been looked for.
pub(crate) fn expect() {
    LOOKS.store(MOST_LOOKS, Relaxed);
    pool::defer_growth(true);
}

/// Whether there may be heaps that a fork has left behind.
pub(crate) fn exist() -> bool {
    LOOKS.load(Relaxed) != 0
}

/// Takes over what the heaps hold that a fork has left behind. Blocks in their magazines return to their
/// slabs, their slabs become orphans or go back to the pool, and other threads can use the records. Threads
/// of the child may be working meanwhile.
///
/// # Safety
///
/// `mine` is the calling thread's heap.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(crate) unsafe fn take_over(mine: *mut Heap) {
    pool::defer_growth(false);
    let Some(_visits) = visitor::lock() else { return };
    let looks = LOOKS.load(Relaxed);
    if looks == 0 {
        return;
    }
    let mut any = false;
    // SAFETY: by this function's contract `mine` is the calling thread's heap.
    let entered = unsafe { Heap::enter(mine) };
    each_left(|heap| {
        any = true;
        // SAFETY: the heap's thread does not exist, and the visitors' lock makes us the only one to stand in
        // for it; `mine` has been entered.
        unsafe {
            Heap::take_over(heap, mine);
            (*heap).exit.rounds.set(0);
        }
    });
    // SAFETY: `mine` is the calling thread's heap, and entered.
    unsafe { Heap::flush_outbox(mine) };
    // Only now: blocks that one of these heaps had of another's slabs are back, and have published them.
    each_left(|heap| {
        // SAFETY: as above. A slab that we take off the ready list is disarmed, so it stays until it is
        // armed, after its link has been read.
        unsafe {
            // Only takes the slabs off the list: they are found with the others below.
            for slab in nodes((*Heap::owner(heap)).ready.take_all()) {
                (*slab).remote.arm();
            }
        }
    });
    drop(entered);
    // SAFETY: the visitors' lock is held, and what was published to these heaps has been taken off their
    // lists.
    if !any || unsafe { take_over_slabs() } {
        each_left(|heap| {
            // SAFETY: we alone stand in for the heap's thread. A heap without slabs and cached
            // blocks holds nothing any more, so any thread may have the record.
            unsafe {
                if (*heap).exit.rounds.get() == 0 {
                    (*heap).bins.clear();
                    if hardened::is_on() {
                        Heap::hardened(heap).forget();
                    }
                    Heap::lock(heap).reset();
                    (*heap).live.store(false, Relaxed);
                    registry::recycle_left(heap);
                } else {
                    any = true;
                }
            }
        });
        LOOKS.store(if any { looks - 1 } else { 0 }, Relaxed);
    }
}

/// Calls `f` with every heap that a fork has left behind.
fn each_left(mut f: impl FnMut(*mut Heap)) {
    registry::each(|heap| {
        // SAFETY: a heap record, which is never unmapped; the fields are atomic.
        if unsafe { Heap::is_left_behind(heap) } {
            f(heap);
        }
    });
}

/// Gives up the slabs of heaps that were left behind. Where some of a heap's slabs remain, its exit's rounds
/// are not 0 afterwards. False when the pool's lock was not available: nothing has been done then.
///
/// # Safety
///
/// The caller holds the visitors' lock, so that it alone stands in for the threads of these heaps.
unsafe fn take_over_slabs() -> bool {
    let mut empty = List::<Slab>::new();
    let done = survey::each_span(|slab| {
        // SAFETY: the record of a span in use, which stays while the pool is locked.
        if unsafe { Slab::glimpse(slab) }.class == RUN {
            return;
        }
        // Acquire: pairs with the release with which an owner is stored.
        // SAFETY: an atomic of that record.
        let owner = unsafe { &(*slab).owner }.load(Acquire);
        let plain = owner.map_addr(|a| a & !(LEFT | VISITED));
        // SAFETY: an owner that is not null is part of a heap's record, which is never unmapped.
        if plain.is_null() || owner.addr() & LEFT != 0 || !unsafe { Heap::is_left_behind(Heap::of(plain)) } {
            return;
        }
        // One that a visitor was working on stays as it is: nobody can tell whether it is published.
        // SAFETY: the slab's owner is left behind, and by this function's contract the caller alone stands in
        // for it.
        let given_up = if owner == plain { unsafe { release::disown(slab) } } else { GivenUp::Not };
        match given_up {
            GivenUp::Orphan => {}
            GivenUp::Empty => {
                // SAFETY: `disown` has answered that the slab is still ours, so its links are.
                unsafe { empty.push_front(slab) };
            }
            // SAFETY: a cell of a heap that was left behind, for whose thread the caller stands in.
            GivenUp::Not => unsafe { (*Heap::of(plain)).exit.rounds.set(1) },
        }
    });
    // Only now: this takes the pool's lock.
    // SAFETY: ours, and so are its members: in no list of a heap that counts.
    while let Some(slab) = unsafe { empty.pop_front() } {
        // SAFETY: ours, in no list, and without a block in use.
        unsafe { release::release_slab(slab) };
    }
    done
}
