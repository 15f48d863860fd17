//! Fork: the child has one thread, and everything the others had.
//!
//! Before: the forking thread takes the visits' lock, so that nobody is in another thread's heap. Then it lets nobody begin
//! to give memory back any more and waits for those that are at it (`ongoing`), since what they have is in no list. Then it
//! takes the locks, in this order: the limits' hook, the large cache, the orphan lists, the pool. A visitor takes the
//! others; no other path takes one while it holds another, so the order matters only here.
//!
//! The lock-free structures are not stopped. The child sees every other thread as if it had been stopped at some
//! instruction, so each change is ordered such that a block between two places is in neither: it may be lost to the
//! child, it is never in two. Of what the other threads had, the child relies on the tops of their magazines and on the
//! records of their slabs, not on their lists: those it finds through the pool.

use super::heap::Heap;
use super::{registry, thread, visit};
use crate::background;
use crate::large;
use crate::limits;
use crate::ongoing;
use crate::options::{self, StatsFormat};
use crate::os::futex;
use crate::superslab::{LEFT, Slab, orphans, pool};
use crate::tiny::{leave, sparse};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

pub(super) extern "C" fn prepare() {
    visit::acquire();
    ongoing::acquire();
    limits::acquire();
    large::cache_acquire();
    orphans::acquire();
    pool::acquire();
    futex::set_forking(true);
}

fn release(child: bool) {
    futex::set_forking(false);
    pool::release(child);
    orphans::release(child);
    large::cache_release(child);
    limits::release(child);
    ongoing::release(child);
    visit::release(child);
}

pub(super) extern "C" fn parent() {
    release(false);
}

pub(super) extern "C" fn child() {
    release(true);
    background::after_fork();
    let mine = thread::own_heap();
    let mut others = false;
    registry::each(|heap| {
        // SAFETY: records are never unmapped.
        others |= heap != mine && unsafe { (*heap).live.load(Relaxed) };
    });
    sparse::forget();
    // SAFETY: the only thread; `mine` is its heap.
    unsafe {
        if !mine.is_null() {
            Heap::after_fork(mine);
        }
        if others {
            inherit(mine);
        }
    }
    if options::get().stats == StatsFormat::Json && options::get().stats_file.as_c_str().is_some() {
        thread::announce();
    }
}

/// Makes orphans of all slabs that other threads owned, and frees what their magazines held.
unsafe fn inherit(mine: *mut Heap) {
    let mut empty: *mut Slab = ptr::null_mut();
    orphans::forget();
    pool::each_span(|slab| {
        // SAFETY: the record of a span in use; nobody else exists. The orphan lists have a lock of their own.
        unsafe {
            if !(*slab).is_slab() {
                return;
            }
            let is_empty = match owner_of(slab, mine) {
                Whose::Nobodys => {
                    orphans::relink(slab);
                    false
                }
                Whose::Emptied => true,
                Whose::Others => !leave::disown(slab),
                Whose::Mine => false,
            };
            if is_empty {
                (*slab).next = empty;
                empty = slab;
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
    registry::each(|heap| {
        // SAFETY: as above.
        unsafe {
            if heap != mine && (*heap).live.load(Relaxed) {
                (*heap).shelf.flush();
                if !mine.is_null() {
                    Heap::inherit(heap, mine);
                }
                Heap::bias(heap).reset();
                (*heap).live.store(false, Relaxed);
                registry::recycle(heap);
            }
        }
    });
}

enum Whose {
    /// The calling thread's, or a span that was never made a slab.
    Mine,
    /// A thread's that does not exist here.
    Others,
    /// An orphan.
    Nobodys,
    /// An orphan that a thread of the parent had emptied and was about to release. Its owner is marked as gone, and it is no
    /// orphan any more; the other way to that state, giving a slab up, happens under a lock that the fork held.
    Emptied,
}

unsafe fn owner_of(slab: *mut Slab, mine: *mut Heap) -> Whose {
    // SAFETY: passed on.
    unsafe {
        let owner = (*slab).owner.load(Relaxed);
        if owner.is_null() || (!mine.is_null() && owner == Heap::owner(mine)) {
            Whose::Mine
        } else if (*slab).remote.orphan_in_use().is_some() {
            Whose::Nobodys
        } else if owner.addr() & LEFT != 0 && (*slab).remote.is_armed() {
            Whose::Emptied
        } else {
            Whose::Others
        }
    }
}
