//! Orphans: slabs whose owner has exited while some of their blocks were in use.
//!
//! Who gets an orphan is decided by its remote word alone ([`remote_stack`](crate::lockfree::remote_stack));
//! the lists here only make orphans findable by class. So a slab in a list may already belong to the thread
//! whose free emptied it: that thread is about to unlink it.

use crate::base::list::List;
use crate::base::table::{CellTable, Table};
use crate::lockfree::ready_list::{ReadyList, nodes};
use crate::lockfree::remote_stack::Chain;
use crate::os::futex::{Inherit, Lock};
use crate::superslab::pagemap::KINDS;
use crate::superslab::slab::{Block, LEFT, Slab, VISITED};
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// Whether a thread has left orphans, or blocks of orphans have been freed, since somebody looked. Relaxed: a
/// hint.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Notes that orphans were made, or blocks of some freed.
pub(crate) fn note_change() {
    // Most calls find that it is known, and then leave the line to whoever has it.
    if !CHANGED.load(Ordering::Relaxed) {
        CHANGED.store(true, Ordering::Relaxed);
    }
}

/// Whether that was so since the last call.
pub(crate) fn take_changed() -> bool {
    CHANGED.swap(false, Ordering::Relaxed)
}

struct Lists(Table<List<Slab>, KINDS>);

// SAFETY: the slabs in the lists belong to no thread, and lists and links are used only under the lock.
unsafe impl Send for Lists {}

static LISTS: Lock<Lists> = Lock::new(Lists(Table([const { List::new() }; KINDS])));
/// How many slabs of each class are listed, so that a refill that would find none does not take the lock.
/// Changed under the lock; relaxed, because it is only a hint without it.
static COUNTS: CellTable<AtomicUsize, KINDS> = CellTable::new([const { AtomicUsize::new(0) }; KINDS]);
/// Slabs that have been emptied and are still listed: see [`release_emptied`].
static EMPTIED: ReadyList<Slab> = ReadyList::new();

impl Inherit for Lists {
    fn inherit(&mut self, torn: bool) {
        if !torn {
            return;
        }
        for (class, list) in self.0.0.iter_mut().enumerate() {
            // SAFETY: we hold the lock, and listed slabs stay. A list is whole forwards wherever a fork may
            // have stopped it.
            COUNTS[class].store(unsafe { list.mend() }, Ordering::Relaxed);
        }
    }
}

/// Makes an orphan of `slab`, `in_use` blocks of which are in use. False, and the slab is still the caller's,
/// if something was pushed to it meanwhile, or it is published, or the lock is not free soon.
///
/// # Safety
///
/// The calling thread owns `slab` and holds its heap's lock, or stands in for an owner that a fork has left
/// behind. The slab is in none of the owner's lists.
pub(crate) unsafe fn abandon(slab: *mut Slab, in_use: u32) -> bool {
    let Some(mut lists) = LISTS.lock_soon() else { return false };
    // SAFETY: the record of a slab of the caller's.
    let owner = unsafe { &(*slab).owner };
    let ours = owner.load(Ordering::Relaxed);
    // With the mark `LEFT` the address equals no heap's, not even for the thread that will use the record
    // next. A thread that has just taken the duty to publish can still follow it.
    let left = ours.map_addr(|a| a | LEFT);
    // By exchange, here and below: a visitor that has taken the slab off the ready list marks it, and relies
    // on its mark. Relaxed, here and below: statistics, which acquire what `Slab::make` has written, find its
    // release in what an exchange has stored, too.
    if ours.addr() & VISITED != 0
        || owner.compare_exchange(ours, left, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return false;
    }
    // First listed, then an orphan, because of forks: in the child a slab that is an orphan can be taken off
    // its list when it is emptied, and one that still has an owner may be listed again by whoever disowns it.
    link(&mut lists, slab);
    // SAFETY: the slab is ours until `orphan` succeeds: that exchange publishes the fields written before.
    if unsafe { (*slab).remote.orphan(in_use) } {
        return true;
    }
    unlink(&mut lists, slab);
    // If this fails, a visitor has marked it, who will say whose it is.
    let _ = owner.compare_exchange(left, ours, Ordering::Relaxed, Ordering::Relaxed);
    false
}

/// Takes `slab` off its list. It must be listed here.
fn unlink(lists: &mut Lists, slab: *mut Slab) {
    // SAFETY: a listed slab is not released before it is taken off, so its record is valid and its class
    // constant. Having `lists` we hold the lock, under which alone the links are used.
    unsafe {
        let class = (*slab).class as usize;
        lists.0[class].remove(slab);
        COUNTS[class].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Puts `slab`, which is the caller's and in no list, in front of its class's list.
fn link(lists: &mut Lists, slab: *mut Slab) {
    // SAFETY: the slab is the caller's, and in no list. Having `lists` we hold the lock, under which alone
    // the links are used from now on.
    unsafe {
        let class = (*slab).class as usize;
        lists.0[class].push_front(slab);
        COUNTS[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// An adopted slab.
pub(crate) struct Adopted {
    /// The slab. Its owner is not set yet, and it is not armed.
    pub(crate) slab: *mut Slab,
    /// Blocks that were freed while it had no owner.
    pub(crate) chain: Chain<Block>,
    /// Blocks in use.
    pub(crate) in_use: u32,
}

/// Adopts an orphan of `class`. `None` if there is none, or the lock is not free soon.
#[inline]
pub(crate) fn adopt(class: u8) -> Option<Adopted> {
    if COUNTS[class as usize].load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut lists = LISTS.lock_soon()?;
    let first = lists.0[class as usize].first();
    // SAFETY: the slab is listed, and the lock is ours.
    adopt_from(&mut lists, first, |slab| unsafe { List::<Slab>::next(slab) })
}

/// About how many orphans of `class` there are.
pub(crate) fn count(class: u8) -> usize {
    COUNTS[class as usize].load(Ordering::Relaxed)
}

/// [`adopt`] for who looks at all of them: from the other end than where those are put that are abandoned.
/// So this and [`abandon`], as often as there are orphans, reach each of them once, and leave them in the
/// order in which they were.
pub(crate) fn adopt_last(class: u8) -> Option<Adopted> {
    let mut lists = LISTS.lock_soon()?;
    let last = lists.0[class as usize].last();
    // SAFETY: the slab is listed, and the lock is ours.
    adopt_from(&mut lists, last, |slab| unsafe { List::<Slab>::previous(slab) })
}

/// Adopts the first of the listed slabs from `slab` on, null for none, that has not been emptied. `next`
/// gives the one after a listed one.
#[inline]
fn adopt_from(
    lists: &mut Lists,
    mut slab: *mut Slab,
    next: impl Fn(*mut Slab) -> *mut Slab,
) -> Option<Adopted> {
    while !slab.is_null() {
        // SAFETY: a listed slab is unlinked, under the lock that the caller holds, before it is released: so
        // its record is valid.
        if let Some((chain, in_use)) = unsafe { (*slab).remote.adopt() } {
            unlink(lists, slab);
            return Some(Adopted { slab, chain, in_use });
        }
        slab = next(slab);
    }
    None
}

/// Takes a slab that the caller has emptied off its list and calls `release` with it: see
/// [`release_emptied`].
///
/// # Safety
///
/// A push by the caller has answered [`Pushed::Emptied`](crate::lockfree::remote_stack::Pushed::Emptied), and
/// this is the only call for it.
pub(crate) unsafe fn claimed(slab: *mut Slab, release: impl Fn(*mut Slab)) {
    // SAFETY: the push made the slab ours. As an orphan it was in no ready list, so its ready link is ours,
    // too.
    unsafe { EMPTIED.push(slab) };
    release_emptied(release);
}

/// Takes the slabs that have been emptied off their lists and calls `release` with each. If the lock is not
/// free soon, a later call will do that.
pub(crate) fn release_emptied(release: impl Fn(*mut Slab)) {
    if EMPTIED.is_empty() {
        return;
    }
    let Some(mut lists) = LISTS.lock_soon() else { return };
    let emptied = EMPTIED.take_all();
    // SAFETY: taken off `EMPTIED`, so ours; none is released before its turn in the second loop.
    let emptied = || unsafe { nodes(emptied) };
    emptied().for_each(|slab| unlink(&mut lists, slab));
    drop(lists);
    emptied().for_each(release);
}

/// For tests that rely on the lock, which run one after the other.
#[cfg(test)]
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Holds the lock until the result is dropped.
#[cfg(test)]
pub(crate) fn hold() -> impl Drop {
    LISTS.lock()
}

/// Forgets all orphans: each execution of a model begins without.
#[cfg(all(test, loom))]
pub(crate) fn clear() {
    LISTS.lock().0 = Table([const { List::new() }; KINDS]);
}

/// In the child of a fork: see [`Lock::inherit`].
pub(crate) fn inherit() {
    LISTS.inherit();
}
