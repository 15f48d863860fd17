//! Fork: the child has one thread, and everything that the other threads had.
//!
//! Nothing is done before a fork, and no lock is held across it. The C library takes locks of its own after
//! all handlers have run (those of stdio, of names, of the loader), and threads that hold one of them may be
//! waiting for memory: an allocator that held its locks then would deadlock. So in the child all other
//! threads seem to have stopped anywhere, each after some store and before the next. Everything is ordered
//! for that:
//!
//! * Locks name their holders. Those of threads that do not exist in the child are free, and whoever takes
//!   one first repairs what it guards ([`crate::os::futex`]). The pool's index is rebuilt from its
//!   descriptors, in which slices on their way from one owner to another belong to neither; the lists of
//!   orphans are intact when read forwards; an entry of the large cache is valid or empty.
//! * The heaps of the other threads are left behind and belong to nobody. Blocks of their slabs can be freed
//!   as always. What they hold is taken over when the child would otherwise need more SuperSlabs, or when it
//!   asks for all that can be given back: so a child that only execs does not write to their memory. Of such
//!   a heap only the tops of the magazines and the records of the slabs are relied on, not the lists.
//! * The forking thread goes on with its heap, unless somebody was visiting that.
//!
//! What another thread was handing over at that moment can be lost to the child: a span or a mapping that was
//! being taken or given back, bundles in its outbox, a slab that was about to be published, free records of
//! heaps that it was looking through. It never ends up in two places.

use crate::api::{asked, profile, report};
use crate::base::limits;
use crate::front::heap::Heap;
use crate::front::{registry, thread, visitor};
use crate::guard;
use crate::hardened;
use crate::large;
use crate::os::process::Noticed;
use crate::os::{self, process};
use crate::reclaim::{background, left_heaps};
use crate::sampling;
use crate::superslab::{orphans, span_index};

/// The handler that the C library calls in the child.
pub(crate) extern "C" fn child() {
    process::forked(true);
    // Only here: in a child made without the C library's handlers, threads cannot be started safely.
    background::ready();
}

/// Repairs the allocator in the child, if the thread that forked is the first to notice. If another one is,
/// see [`process::forked`], nothing is repaired, and nobody visits any more if the fork has stopped a
/// visitor: so what a heap says of one is that.
pub(crate) fn on_fork(noticed: Noticed) {
    if guard::is_on() {
        guard::forked();
    }
    match noticed {
        Noticed::InTime => {}
        Noticed::ByOther => {
            visitor::look_who_was_stopped();
            return background::after_fork();
        }
        Noticed::Late => {
            let mine = thread::own_heap();
            // SAFETY: the calling thread owns the heap, and nobody visits.
            if visitor::was_stopped() && !mine.is_null() && unsafe { Heap::lock(mine).inherit() } {
                thread::leave_heap();
            }
            return;
        }
    }
    span_index::inherit();
    orphans::inherit();
    large::inherit_cache();
    if hardened::is_on() {
        hardened::inherit();
    }
    if guard::is_on() {
        guard::inherit();
    }
    limits::inherit();
    sampling::reseed();
    profile::inherit();
    asked::inherit();
    #[cfg(feature = "profile")]
    crate::stacks::modules::inherit();
    os::inherit_calls();
    let visited = visitor::inherit();
    thread::forget_key_users();
    let mine = thread::own_heap();
    let mut own = registry::claim_of(os::thread::id(), mine.is_null());
    if !mine.is_null() {
        // SAFETY: the calling thread owns the heap, and is the only thread of this process.
        unsafe {
            if Heap::lock(mine).inherit() {
                // A visitor was in it, and may have been in the middle of something: it is left behind like
                // all others.
                thread::leave_heap();
            } else {
                own = 1;
                Heap::claim(mine);
                Heap::reseed(mine);
                if hardened::is_on() {
                    Heap::hardened(mine).reseed();
                }
            }
        }
    }
    registry::left_behind(own);
    if visited {
        registry::inherit();
    }
    left_heaps::expect();
    background::after_fork();
    report::announce();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::{child, generation};
    use crate::superslab::orphans;

    /// In the child of a fork, which has no other thread.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_heap_that_was_borrowed_when_a_handler_forked_stays_its_borrowers() {
        // Before the fork, since another thread may be initialising: the child would wait for it.
        thread::with_heap(None, |_| ());
        let _alone = orphans::ALONE.lock();
        assert!(child::is_so(|| {
            thread::forget_key_users();
            let first = thread::lasting_heap();
            thread::leave_heap();
            // SAFETY: it was this thread's, which has none now.
            unsafe { registry::release_heap(first) };
            let live = registry::live();
            let stays = thread::with_heap_to_free(|heap| {
                assert_eq!(registry::live(), live, "it counts as nobody's");
                // What a handler does that has interrupted this.
                generation::next();
                on_fork(Noticed::InTime);
                assert_eq!(registry::live(), 0);
                let own = thread::lasting_heap();
                // SAFETY: this thread's heap; a record.
                unsafe {
                    left_heaps::take_over(own);
                    Heap::is_somebodys(heap)
                }
            });
            assert_eq!(registry::live(), 1);
            assert!(stays);
            // Else two threads have it next.
            registry::acquire() != registry::acquire()
        }));
    }
}
