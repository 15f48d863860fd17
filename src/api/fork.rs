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

use crate::api::report;
use crate::base::limits;
use crate::front::heap::Heap;
use crate::front::{thread, visitor};
use crate::large;
use crate::os::process;
use crate::reclaim::{background, left_heaps};
use crate::superslab::{orphans, span_index};

/// The C library's handler in the child.
pub(crate) extern "C" fn child() {
    process::forked();
    // Only here: where the C library's own handlers have not run either, threads cannot be started safely.
    background::resume();
}

/// In the child, once; `alone` when no thread has been started there yet: see [`process::forked`].
pub(crate) fn on_fork(alone: bool) {
    if !alone {
        return background::after_fork();
    }
    span_index::inherit();
    orphans::inherit();
    large::inherit_cache();
    limits::inherit();
    visitor::inherit();
    let mine = thread::own_heap();
    if !mine.is_null() {
        // SAFETY: the calling thread's heap.
        unsafe {
            if Heap::lock(mine).inherit() {
                // Somebody was in it: it is left behind like all others.
                thread::leave_heap();
            } else {
                Heap::claim(mine);
            }
        }
    }
    left_heaps::expect();
    background::after_fork();
    report::begin_child();
}
