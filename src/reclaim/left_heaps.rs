//! The heaps of threads that a fork has left behind: what they hold is taken over when the child needs memory.

use crate::base::list::List;
use crate::front::heap::Heap;
use crate::front::{registry, visitor};
use crate::superslab::slab::{LEFT, Slab, VISITED};
use crate::superslab::{pool, spans};
use crate::sync::Node;
use crate::tiny::release::{self, GivenUp};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// How often heaps that were left behind are still to be looked for.
static LOOKS: AtomicU32 = AtomicU32::new(0);
/// After a fork: what arrives late, because its thread frees something while the first look is on, the next one finds.
const MOST_LOOKS: u32 = 4;

/// In the child of a fork: there may be some. Until they have been looked for, the pool does not grow.
pub(crate) fn expect() {
    LOOKS.store(MOST_LOOKS, Relaxed);
    pool::defer_growth(true);
}

/// Whether there may be heaps that a fork has left behind.
pub(crate) fn exist() -> bool {
    LOOKS.load(Relaxed) != 0
}

/// Takes over what the heaps have that a fork has left behind: what their magazines hold goes home, their slabs become orphans or
/// go back to the pool, and the records can serve other threads. Other threads may be at work meanwhile.
///
/// # Safety
///
/// `mine` is the calling thread's heap.
#[cold]
#[inline(never)]
pub(crate) unsafe fn take_over(mine: *mut Heap) {
    pool::defer_growth(false);
    let Some(_visits) = visitor::lock() else { return };
    let looks = LOOKS.load(Relaxed);
    if looks == 0 {
        return;
    }
    // SAFETY: records are never unmapped; while we hold the visits' lock we alone stand in for threads that do not exist.
    unsafe {
        let mut any = false;
        let entered = Heap::enter(mine);
        each_left(|heap| {
            any = true;
            Heap::take_over(heap, mine);
            (*heap).exit.rounds.set(0);
            // What was published arrives; it is looked at with the others.
            let mut slab = (*Heap::owner(heap)).ready.take_all();
            while !slab.is_null() {
                let next = <Slab as Node>::next(slab);
                (*slab).remote.arm();
                slab = next;
            }
        });
        Heap::flush_outbox(mine);
        drop(entered);
        if !any || take_over_slabs() {
            // SAFETY: as above.
            each_left(|heap| {
                if (*heap).exit.rounds.get() == 0 {
                    (*heap).bins.clear();
                    Heap::lock(heap).reset();
                    (*heap).live.store(false, Relaxed);
                    registry::recycle(heap);
                } else {
                    any = true;
                }
            });
            LOOKS.store(if any { looks - 1 } else { 0 }, Relaxed);
        }
    }
}

/// Calls `f` with every heap that was left behind.
unsafe fn each_left(mut f: impl FnMut(*mut Heap)) {
    registry::each(|heap| {
        // SAFETY: records are never unmapped.
        if unsafe { Heap::is_left_behind(heap) } {
            f(heap);
        }
    });
}

/// Gives up the slabs of heaps that were left behind; in a heap where some stay, the exit's rounds are not 0. False when the pool
/// cannot be looked through.
unsafe fn take_over_slabs() -> bool {
    let mut empty = List::<Slab>::new();
    let done = spans::each_span(|slab| {
        // SAFETY: the record of a span in use; owners are never unmapped. A slab of a heap that was left behind is ours.
        unsafe {
            if !(*slab).is_slab() {
                return;
            }
            // Acquire: pairs with the release with which an owner is written down.
            let owner = (*slab).owner.load(Acquire);
            let plain = owner.map_addr(|a| a & !(LEFT | VISITED));
            if plain.is_null() || owner.addr() & LEFT != 0 || !Heap::is_left_behind(Heap::of(plain)) {
                return;
            }
            // One that a visitor was looking at stays what it is: whether it is published nobody knows.
            let given_up = if owner == plain { release::disown(slab) } else { GivenUp::Not };
            match given_up {
                GivenUp::Orphan => {}
                GivenUp::Empty => {
                    empty.push_front(slab);
                }
                GivenUp::Not => (*Heap::of(plain)).exit.rounds.set(1),
            }
        }
    });
    // SAFETY: ours alone.
    while let Some(slab) = unsafe { empty.pop_front() } {
        // SAFETY: without a block in use, and nobody's.
        unsafe { release::release_slab(slab) };
    }
    done
}
