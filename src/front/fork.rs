//! Fork: the child has one thread, and everything the others had.
//!
//! Nothing is done before a fork, and nothing is held across it. The C library takes locks of its own after all handlers
//! (those of stdio, of names, of the loader), while other threads that hold them wait for memory: an allocator that held its
//! locks then would wait for ever. So the child finds all other threads stopped anywhere, each after some store and before the
//! next, and everything is ordered for that:
//!
//! * Locks name their holders: those of threads that do not exist here are free, and whoever takes one first brings in
//!   order what it guards ([`crate::os::futex`]). The pool's index is made anew from its descriptors, in which pages between two
//!   owners belong to neither; the lists of orphans are whole forwards; an entry of the large cache is valid or empty.
//! * The heaps of the other threads are left behind: nobody's. Blocks of their slabs can be freed as ever. What they hold is
//!   taken over when the child would otherwise need more SuperSlabs, or asks for all that can be given back: so a child
//!   that only execs writes to nothing of theirs. Of what they had, their lists are not relied on, only the tops of their magazines
//!   and the records of their slabs.
//! * The forking thread goes on with its heap, unless somebody was visiting it.
//!
//! What another thread was handing over at that moment can be lost to the child: a span or a mapping that was being taken or
//! given back, bundles in its outbox, a slab that was about to be published. It is never with two.

use super::heap::Heap;
use super::{registry, thread, visit};
use crate::background;
use crate::large;
use crate::limits;
use crate::options::{self, StatsFormat};
use crate::os::process;
use crate::superslab::{LEFT, Slab, VISITED, orphans, pool};
use crate::tiny::leave::{self, GivenUp};
use core::ptr;
use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed},
};

/// How often heaps that were left behind are still to be looked for.
static LOOKS: AtomicU32 = AtomicU32::new(0);
/// After a fork: what arrives late, because its thread frees something while the first look is on, the next one finds.
const MOST_LOOKS: u32 = 4;

/// The C library's handler in the child.
pub(super) extern "C" fn child() {
    process::forked();
    // Only here: where the C library's own handlers have not run either, threads cannot be started safely.
    background::resume();
}

/// In the child, once; `alone` when no thread has been started there yet: see [`process::forked`].
pub(super) fn on_fork(alone: bool) {
    if !alone {
        return background::after_fork();
    }
    pool::inherit();
    orphans::inherit();
    large::inherit_cache();
    limits::inherit();
    visit::inherit();
    let mine = thread::own_heap();
    if !mine.is_null() {
        // SAFETY: the calling thread's heap.
        unsafe {
            if Heap::bias(mine).inherit() {
                // Somebody was in it: it is left behind like all others.
                thread::leave_heap();
            } else {
                registry::claim(mine);
            }
        }
    }
    LOOKS.store(MOST_LOOKS, Relaxed);
    pool::defer_growth(true);
    background::after_fork();
    if options::get().stats == StatsFormat::Json && options::get().stats_file.as_c_str().is_some() {
        thread::announce();
    }
}

/// Whether there may be heaps that a fork has left behind.
pub(super) fn has_left_heaps() -> bool {
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
pub(super) unsafe fn take_over(mine: *mut Heap) {
    pool::defer_growth(false);
    let Some(_visits) = visit::lock() else { return };
    let looks = LOOKS.load(Relaxed);
    if looks == 0 {
        return;
    }
    // SAFETY: records are never unmapped; while we hold the visits' lock we alone stand in for threads that do not exist.
    unsafe {
        let mut any = false;
        let busy = Heap::enter(mine);
        each_left(|heap| {
            any = true;
            Heap::take_over(heap, mine);
            (*heap).exit.rounds.set(0);
            // What was published arrives; it is looked at with the others.
            let mut slab = (*Heap::owner(heap)).ready.take();
            while !slab.is_null() {
                let next = <Slab as crate::sync::Node>::next(slab);
                (*slab).remote.arm();
                slab = next;
            }
        });
        (*mine).outbox.flush();
        drop(busy);
        if !any || take_over_slabs() {
            // SAFETY: as above.
            each_left(|heap| {
                if (*heap).exit.rounds.get() == 0 {
                    (*heap).bins.clear();
                    Heap::bias(heap).reset();
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
        if unsafe { registry::is_left_behind(heap) } {
            f(heap);
        }
    });
}

/// Gives up the slabs of heaps that were left behind; in a heap where some stay, the exit's rounds are not 0. False when the pool
/// cannot be looked through.
unsafe fn take_over_slabs() -> bool {
    let mut empty: *mut Slab = ptr::null_mut();
    let done = pool::each_span(|slab| {
        // SAFETY: the record of a span in use; owners are never unmapped. A slab of a heap that was left behind is ours.
        unsafe {
            if !(*slab).is_slab() {
                return;
            }
            // Acquire: pairs with the release with which an owner is written down.
            let owner = (*slab).owner.load(Acquire);
            let plain = owner.map_addr(|a| a & !(LEFT | VISITED));
            if plain.is_null() || owner.addr() & LEFT != 0 || !registry::is_left_behind(Heap::of(plain)) {
                return;
            }
            // One that a visitor was looking at stays what it is: whether it is published nobody knows.
            let given_up = if owner == plain { leave::disown(slab) } else { GivenUp::Not };
            match given_up {
                GivenUp::Orphan => {}
                GivenUp::Empty => {
                    (*slab).next = empty;
                    empty = slab;
                }
                GivenUp::Not => (*Heap::of(plain)).exit.rounds.set(1),
            }
        }
    });
    while !empty.is_null() {
        // SAFETY: without a block in use, and nobody's.
        unsafe {
            let next = (*empty).next;
            leave::release(empty);
            empty = next;
        }
    }
    done
}
