//! Orphans: slabs without an owner, blocks of which are in use. Either their owner has exited, or many
//! threads [share](super::slab::SHARED) them, and have them only for a moment.
//!
//! Who gets an orphan is decided by its remote word alone ([`remote_stack`](crate::lockfree::remote_stack));
//! the lists here only make orphans findable by class. So a slab in a list may already belong to the thread
//! whose free emptied it: that thread is about to unlink it.

use crate::base::list::List;
use crate::base::table::CellTable;
use crate::lockfree::ready_list::{ReadyList, nodes};
use crate::lockfree::remote_stack::Chain;
use crate::os::futex::{Guard, Inherit, Lock};
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

/// The orphans of a class. In a cache line of its own: where threads [share](super::slab::SHARED) slabs, each
/// of several classes may be in use all the time.
#[repr(align(64))]
struct Class {
    listed: Lock<Listed>,
    /// How many there are, so that a refill that would find none does not take the lock. Written under the
    /// lock; relaxed, because it is only a hint without it.
    count: AtomicUsize,
}

struct Listed {
    slabs: List<Slab>,
    class: u8,
}

// SAFETY: the slabs in the list belong to no thread, and list and links are used only under the lock.
unsafe impl Send for Listed {}

static ORPHANS: CellTable<Class, KINDS> = CellTable::new({
    let mut classes =
        [const { Class { listed: Lock::new(Listed::none(0)), count: AtomicUsize::new(0) } }; KINDS];
    let mut class = 1;
    while class < KINDS {
        classes[class].listed = Lock::new(Listed::none(class as u8));
        class += 1;
    }
    classes
});
/// Slabs that have been emptied and are still listed: see [`release_emptied`].
static EMPTIED: ReadyList<Slab> = ReadyList::new();

impl Inherit for Listed {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // SAFETY: we hold the lock, and listed slabs stay. A list is whole forwards wherever a fork may
            // have stopped it.
            let count = unsafe { self.slabs.mend() };
            self.set_count(count);
        }
    }
}

impl Listed {
    const fn none(class: u8) -> Self {
        Self { slabs: List::new(), class }
    }

    fn set_count(&self, count: usize) {
        ORPHANS[self.class as usize].count.store(count, Ordering::Relaxed);
    }

    /// Takes `slab` out. It must be in this list.
    fn unlink(&mut self, slab: *mut Slab) {
        // SAFETY: a listed slab is not released before it is taken out, so its record is valid. Having `self`
        // we hold the lock, under which alone the links are used.
        unsafe { self.slabs.remove(slab) };
        self.set_count(count(self.class).saturating_sub(1));
    }

    /// Puts `slab`, which is the caller's and in no list, in front.
    fn link(&mut self, slab: *mut Slab) {
        // SAFETY: the slab is the caller's, and in no list. Having `self` we hold the lock, under which alone
        // the links are used from now on.
        unsafe { self.slabs.push_front(slab) };
        self.set_count(count(self.class) + 1);
    }
}

/// The list for `slab`, whose record is valid. `None` if its lock is not free soon.
fn list_of(slab: *mut Slab) -> Option<Guard<'static, Listed>> {
    // SAFETY: the record of a slab that is listed or the caller's, so its class is constant.
    lock(unsafe { (*slab).class })
}

/// The list for `class`. `None` if its lock is not free soon.
fn lock(class: u8) -> Option<Guard<'static, Listed>> {
    ORPHANS[class as usize].listed.lock_soon()
}

/// Makes an orphan of `slab`, `in_use` blocks of which are in use. False, and the slab is still the caller's,
/// if something was pushed to it meanwhile, or it is published, or the lock is not free soon.
///
/// # Safety
///
/// The calling thread owns `slab` and holds its heap's lock, or stands in for an owner that a fork has left
/// behind. The slab is in none of the owner's lists.
#[inline(never)]
pub(crate) unsafe fn abandon(slab: *mut Slab, in_use: u32) -> bool {
    let Some(mut list) = list_of(slab) else { return false };
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
    // its list when it is emptied, and one that still has an owner must not be.
    list.link(slab);
    // SAFETY: the slab is ours until `orphan` succeeds: that exchange publishes the fields written before.
    if unsafe { (*slab).remote.orphan(in_use) } {
        return true;
    }
    list.unlink(slab);
    // If this fails, a visitor has marked it, who will say whose it is.
    let _ = owner.compare_exchange(left, ours, Ordering::Relaxed, Ordering::Relaxed);
    false
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

/// Adopts an orphan of `class`. `None` if there is none, or somebody else is about to add or take one.
#[inline]
pub(crate) fn adopt(class: u8) -> Option<Adopted> {
    if count(class) == 0 || is_busy(class) { None } else { adopt_soon(class) }
}

/// [`adopt`] for who has nowhere else to look. `None` if there is none, or the lock is not free soon.
#[inline]
pub(crate) fn adopt_soon(class: u8) -> Option<Adopted> {
    if count(class) == 0 {
        return None;
    }
    let mut list = lock(class)?;
    let first = list.slabs.first();
    // SAFETY: the slab is listed, and the lock is ours.
    adopt_from(&mut list, first, |slab| unsafe { List::<Slab>::next(slab) })
}

/// Whether somebody has the list of `class`, who may be asleep: whoever can do without does not wait.
pub(crate) fn is_busy(class: u8) -> bool {
    ORPHANS[class as usize].listed.is_held()
}

/// About how many orphans of `class` there are.
pub(crate) fn count(class: u8) -> usize {
    ORPHANS[class as usize].count.load(Ordering::Relaxed)
}

/// [`adopt`] for who looks at all of them: from the other end than where those are put that are abandoned.
/// So this and [`abandon`], as often as there are orphans, reach each of them once, and leave them in the
/// order in which they were.
pub(crate) fn adopt_last(class: u8) -> Option<Adopted> {
    let mut list = lock(class)?;
    let last = list.slabs.last();
    // SAFETY: the slab is listed, and the lock is ours.
    adopt_from(&mut list, last, |slab| unsafe { List::<Slab>::previous(slab) })
}

/// Adopts the first of the listed slabs from `slab` on, null for none, that has not been emptied. `next`
/// gives the one after a listed one.
#[inline]
fn adopt_from(
    list: &mut Listed,
    mut slab: *mut Slab,
    next: impl Fn(*mut Slab) -> *mut Slab,
) -> Option<Adopted> {
    while !slab.is_null() {
        // SAFETY: a listed slab is unlinked, under the lock that the caller holds, before it is released: so
        // its record is valid.
        if let Some((chain, in_use)) = unsafe { (*slab).remote.adopt() } {
            list.unlink(slab);
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

/// Takes the slabs that have been emptied off their lists and calls `release` with each. Of those of which
/// the lock is not free soon, a later call will do that.
pub(crate) fn release_emptied(release: impl Fn(*mut Slab)) {
    if EMPTIED.is_empty() {
        return;
    }
    // SAFETY: taken off `EMPTIED`, so ours until they are released or put back.
    for slab in unsafe { nodes(EMPTIED.take_all()) } {
        if let Some(mut list) = list_of(slab) {
            list.unlink(slab);
            drop(list);
            release(slab);
        } else {
            // SAFETY: as above; nobody else uses the link.
            unsafe { EMPTIED.push(slab) };
        }
    }
}

/// For tests that rely on the lock, which run one after the other.
#[cfg(test)]
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Holds all locks until the result is dropped.
#[cfg(test)]
pub(crate) fn hold() -> impl Sized {
    ORPHANS.iter().map(|class| class.listed.lock()).collect::<std::vec::Vec<_>>()
}

/// Forgets all orphans: each execution of a model begins without.
#[cfg(all(test, loom))]
pub(crate) fn clear() {
    for (class, orphans) in ORPHANS.iter().enumerate() {
        // SAFETY: no thread of the model has begun.
        unsafe { orphans.listed.set(Listed::none(class as u8)) };
    }
}

/// In the child of a fork: see [`Lock::inherit`].
pub(crate) fn inherit() {
    for orphans in ORPHANS.iter() {
        // What is not written to, parent and child go on sharing.
        if orphans.listed.is_held() || orphans.count.load(Ordering::Relaxed) != 0 {
            orphans.listed.inherit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{self, child};
    use crate::superslab::desc::Desc;
    use crate::superslab::layout::SUPERSLAB;
    use crate::superslab::slab::Owner;
    use core::ptr;
    use std::thread;

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn who_can_do_without_an_orphan_does_not_wait_for_the_list() {
        const CLASS: u8 = 5;
        assert!(child::is_so(|| {
            let base = os::map_aligned(ptr::null_mut(), SUPERSLAB, SUPERSLAB);
            assert!(!base.is_null());
            // SAFETY: the place for a SuperSlab was just mapped, and nobody else knows it. The owner is never
            // followed.
            let slab = unsafe {
                let slab = Slab::claim(Desc::stand_in(base), 8, 1, CLASS);
                Slab::make(slab, 96, false, ptr::without_provenance_mut::<Owner>(4096));
                assert!(abandon(slab, 1));
                slab
            };
            let lock = &ORPHANS[CLASS as usize].listed;
            let held = lock.lock();
            // Another thread, since none waits for itself. Who has waited in vain leaves a mark.
            let waits = |adopt: fn(u8) -> Option<Adopted>| {
                let adopts = thread::scope(|scope| scope.spawn(|| adopt(CLASS).is_some()).join().unwrap());
                assert!(!adopts && count(CLASS) != 0);
                lock.is_waited_for()
            };
            assert_eq!([adopt, adopt_soon].map(waits), [false, true]);
            drop(held);
            let adopted = adopt(CLASS).unwrap();
            adopted.slab == slab && adopted.in_use == 1
        }));
    }
    /// In a child: other tests leave orphans, too.
    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_change_is_told_once_and_a_torn_list_is_counted_anew() {
        assert!(child::is_so(|| {
            take_changed();
            assert!(!take_changed());
            note_change();
            note_change();
            assert!(take_changed() && !take_changed());

            const CLASS: u8 = 6;
            let Class { listed, count } = &ORPHANS[CLASS as usize];
            let before = super::count(CLASS);
            count.store(before + 7, Ordering::Relaxed);
            listed.lock().inherit(false);
            assert_eq!(super::count(CLASS), before + 7);
            listed.lock().inherit(true);
            super::count(CLASS) == before
        }));
    }
}
