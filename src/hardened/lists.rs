//! Where slabs of the hardened heap wait for a thread that takes blocks from them: a list for each class.

use crate::base::list::List;
use crate::base::options;
use crate::base::table::Table;
use crate::hardened::slab::{CURRENT, Cursor, DEAD, FULL, LISTED, LISTING, Slab};
use crate::hardened::spans;
use crate::lockfree::waker;
use crate::os::futex::{Inherit, Lock};
use crate::os::returning::Returning;
use crate::os::{self, held, thread};
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::KINDS;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::{AtomicU32, AtomicUsize, compiler_fence};

/// The slabs of one class that are listed.
struct Listed(List<Slab>);

// SAFETY: records stay mapped, and the list is used only under the lock.
unsafe impl Send for Listed {}

impl Inherit for Listed {
    fn inherit(&mut self, torn: bool) {
        if torn {
            // SAFETY: we hold the lock. A list is whole forwards wherever a fork may have stopped it.
            unsafe { self.0.mend() };
        }
    }
}

static LISTS: Table<Lock<Listed>, KINDS> = Table([const { Lock::new(Listed(List::new())) }; KINDS]);

/// Slices of listed slabs of which all blocks are free. Relaxed: a figure.
static EMPTY: AtomicUsize = AtomicUsize::new(0);
/// The fewest that this was since [`give_back_idle`] last looked: so many were not wanted meanwhile. Relaxed:
/// a figure.
static LOWEST: AtomicUsize = AtomicUsize::new(0);
/// Slices that may be empty, however few are in use: 16 MiB.
const FEW: usize = 256;
/// Of the slices in use, the part that may be empty.
const PART: usize = 8;
/// Slices that may be empty beyond that, because the program has wanted memory again soon after it was given
/// back.
static SLACK: AtomicUsize = AtomicUsize::new(0);
/// When memory was last given back, and when that was last regretted, in milliseconds.
static GIVEN: AtomicU32 = AtomicU32::new(0);
static REGRETTED: AtomicU32 = AtomicU32::new(0);
/// Soon, in milliseconds. So often the slack is halved if nothing is regretted.
const SOON: u32 = 1000;

/// For each slab that is given back, so many others may follow. They are looked for among the first ones of
/// their list, where those are that were listed last.
const AT_ONCE: usize = 2;
const LOOKS: usize = 8;

/// Notes that the program needs fresh memory for a slab.
#[unsafe(link_section = "hakmem_rare")]
fn made(slab: &Slab) {
    let now = os::now_ms();
    // Relaxed, as all here: races lose a little of the slack.
    if SLACK.load(Relaxed) < spans::IN_USE.load(Relaxed) && now.wrapping_sub(GIVEN.load(Relaxed)) < SOON {
        SLACK.fetch_add(slab.slices(), Relaxed);
        REGRETTED.store(now, Relaxed);
    }
}

/// How many slices may be empty.
fn allowance() -> usize {
    allowance_with(options::get().purge_delay)
}

/// [`allowance`], with this purge delay.
fn allowance_with(purge_delay: i64) -> usize {
    match purge_delay {
        // Nothing goes back unless asked for.
        ..0 => usize::MAX,
        // All goes back at once.
        0 => 0,
        _ => FEW.max(spans::IN_USE.load(Relaxed) / PART) + slack(),
    }
}

/// How many slices may be empty because they are wanted again soon.
fn slack() -> usize {
    let now = os::now_ms();
    if now.wrapping_sub(REGRETTED.load(Relaxed)) >= SOON {
        SLACK.store(SLACK.load(Relaxed) / 2, Relaxed);
        REGRETTED.store(now, Relaxed);
    }
    SLACK.load(Relaxed)
}

/// Whether all blocks of a slab are free.
fn is_empty(slab: &Slab) -> bool {
    // Acquire: pairs with the releases of who has freed them, since the memory may go back now.
    slab.free.load(Acquire) == slab.blocks() as i32
}

/// A slab of `class` that waits; it is the calling thread's now.
#[unsafe(link_section = "hakmem_rare")]
fn take(class: usize) -> Option<&'static Slab> {
    let mut list = LISTS[class].lock_soon()?;
    // SAFETY: we hold the lock; records stay mapped.
    let slab = unsafe { list.0.first().as_ref()? };
    forget(slab);
    slab.thread.store(thread::id(), Relaxed);
    // First, here and in `emptied`: a fork may come between, and what is `LISTED` is in the list. Relaxed, as
    // all that is done to `place` under the lock: who finds a slab listed looks again under the lock.
    slab.place.store(CURRENT, Relaxed);
    compiler_fence(Release);
    // SAFETY: we hold the lock, and this is the first one.
    unsafe { list.0.remove(core::ptr::from_ref(slab).cast_mut()) };
    Some(slab)
}

/// Records of slabs that [`take_unlisted`] looks at in one go.
const LOOKED_AT: usize = 1024;

/// A slab of `class` that is the calling thread's now: one that waits, or a new one. `None` if there is no
/// memory. `cursor` is the thread's.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take_or_make(class: usize, cursor: &Cursor) -> Option<&'static Slab> {
    let made = || Slab::make(class).inspect(|slab| made(slab));
    let unlisted = || if held::soft_applies() { None } else { take_unlisted(class, cursor) };
    take(class).or_else(made).or_else(unlisted)
}

/// A slab of `class` that has too few free blocks to be listed, so that it does not change hands for each:
/// for who cannot get another one. Looks at some slabs only, the next time at others.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn take_unlisted(class: usize, cursor: &Cursor) -> Option<&'static Slab> {
    let (mut found, mut left) = (None, LOOKED_AT);
    for start in [cursor.get(), Slab::first()] {
        let end = Slab::each_from(start, &mut left, |slab| {
            // Relaxed: hints.
            let has_some =
                slab.class() == class && slab.place.load(Relaxed) == FULL && slab.free.load(Relaxed) > 0;
            // As in `drop_used_up`. Acquire: pairs with the release in `give_up`.
            if has_some && slab.place.compare_exchange(FULL, CURRENT, Acquire, Relaxed).is_ok() {
                slab.thread.store(thread::id(), Relaxed);
                found = Some(slab);
            }
            found.is_none()
        });
        cursor.set(end);
        if end.is_some() {
            break;
        }
    }
    found
}

/// Counts a slab as empty no more, if it is counted. Under the lock of its list.
fn forget(slab: &Slab) {
    if slab.counted.load(Relaxed) {
        slab.counted.store(false, Relaxed);
        // A fork may have come between that and this.
        let less = |slices: usize| Some(slices.saturating_sub(slab.slices()));
        if let Ok(before) = EMPTY.fetch_update(Relaxed, Relaxed, less) {
            LOWEST.fetch_min(before.saturating_sub(slab.slices()), Relaxed);
        }
    }
}

/// Gives up the calling thread's current slab. False if it has enough free blocks after all, and still is.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn drop_used_up(slab: &Slab) -> bool {
    slab.note_filled();
    // Whoever frees may have been too early to list it. Acquire: the slab may have been another thread's
    // meanwhile.
    give_up(slab) < slab.enough() || slab.place.compare_exchange(FULL, CURRENT, Acquire, Relaxed).is_err()
}

/// Makes the calling thread's slab nobody's. Returns how many free blocks it had then.
fn give_up(slab: &Slab) -> i32 {
    // Release: pairs with the acquires of who finds it full, to list it or to have it again.
    slab.place.store(FULL, Release);
    slab.recount()
}

/// Gives up a current slab that may have free blocks, when its thread ends.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn drop_current(slab: &Slab) {
    let free = give_up(slab);
    if free >= slab.enough() {
        noticed(slab, free);
    }
}

/// What the free of a block calls for, after which its slab had `free` free blocks: lists the slab, or gives
/// it back.
#[inline(always)]
pub(super) fn freed(slab: &Slab, free: i32) {
    if free < slab.enough() {
        return;
    }
    // Relaxed: by `Place::let_go` this sees what those have stored who have not seen the block.
    let place = slab.place.load(Relaxed);
    if place == FULL || (place == LISTED && free == slab.blocks() as i32) {
        noticed(slab, free);
    }
}

#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn noticed(slab: &Slab, free: i32) {
    // Acquire: pairs with the release in `give_up`.
    if slab.place.compare_exchange(FULL, LISTING, Acquire, Relaxed).is_ok() {
        let Some(mut list) = LISTS[slab.class()].lock_soon() else {
            // The next free tries again. Release: passes on what the exchange has acquired.
            return slab.place.store(FULL, Release);
        };
        // SAFETY: we hold the lock, and by the exchange this slab is in no list and ours to list.
        unsafe { list.0.push_front(core::ptr::from_ref(slab).cast_mut()) };
        compiler_fence(Release);
        slab.place.store(LISTED, Relaxed);
    }
    // Who has freed the last block may have been too early to find it listed.
    if free == slab.blocks() as i32 || slab.recount() == slab.blocks() as i32 {
        emptied(slab, false);
    }
}

/// Gives a listed slab back whose blocks are all free, unless few are kept, and not `all` shall go. Returns
/// how many bytes.
#[unsafe(link_section = "hakmem_rare")]
fn emptied(slab: &Slab, all: bool) -> usize {
    let class = slab.class();
    let Some(mut list) = LISTS[class].lock_soon() else { return 0 };
    if slab.place.load(Relaxed) != LISTED || !is_empty(slab) {
        return 0;
    }
    // Several frees may notice the same slab.
    if !all && slab.counted.load(Relaxed) {
        return 0;
    }
    if !all && EMPTY.load(Relaxed) < allowance() {
        slab.counted.store(true, Relaxed);
        EMPTY.fetch_add(slab.slices(), Relaxed);
        drop(list);
        // Counted before this looks whether the background thread sleeps, which looks at the count after it
        // has said so. The count is under no lock that both take: the fence in here pairs with the one in
        // `arm`.
        waker::notify_unlocked();
        return 0;
    }
    forget(slab);
    slab.place.store(DEAD, Relaxed);
    compiler_fence(Release);
    // SAFETY: it was listed, and we hold the lock.
    unsafe { list.0.remove(core::ptr::from_ref(slab).cast_mut()) };
    let returning = Returning::begin();
    drop(list);
    let bytes = slab.slices() * SLICE;
    GIVEN.store(os::now_ms(), Relaxed);
    // SAFETY: dead by the store above, in which we were alone by the lock; its blocks are free.
    unsafe { slab.release() };
    drop(returning);
    if !all {
        shrink(class);
    }
    bytes
}

/// Gives back up to [`AT_ONCE`] slabs of a class that are counted as empty, while there are more than may be:
/// when they were counted, the program had more in use.
#[unsafe(link_section = "hakmem_rare")]
fn shrink(class: usize) {
    for _ in 0..AT_ONCE {
        if EMPTY.load(Relaxed) <= allowance() {
            return;
        }
        let Some(list) = LISTS[class].lock_soon() else { return };
        let mut slab = list.0.first();
        // SAFETY: records stay mapped, and the list is used under the lock, which we hold.
        let counted = (0..LOOKS).find_map(|_| unsafe {
            let this = slab.as_ref()?;
            slab = List::next(slab);
            this.counted.load(Relaxed).then_some(this)
        });
        drop(list);
        let Some(slab) = counted else { return };
        emptied(slab, true);
    }
}

/// Gives back as many slices as were empty all the time since this was last called, less those that the
/// program is thought to want again soon. Which slabs, nobody has noted: of those that are empty now, any.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn give_back_idle() {
    let empty = EMPTY.load(Relaxed);
    let idle = LOWEST.swap(empty, Relaxed).saturating_sub(slack());
    let (mut left, mut found) = (idle, 0);
    if idle == 0 {
        return;
    }
    Slab::each_while(|slab| {
        if slab.place.load(Relaxed) == LISTED && slab.counted.load(Relaxed) {
            found += slab.slices();
            if slab.slices() <= left {
                left -= emptied(slab, true) / SLICE;
            }
        }
        left != 0
    });
    if left == idle && found < empty {
        // Nobody has changed the count meanwhile, and there are fewer: a fork has come between a slab and its
        // count. Else there would always seem to be something to give back.
        if EMPTY.compare_exchange(empty, found, Relaxed, Relaxed).is_ok() {
            LOWEST.fetch_min(found, Relaxed);
        }
    }
}

/// Whether any slabs are counted as empty.
pub(super) fn has_empty() -> bool {
    EMPTY.load(Relaxed) != 0
}

/// Bytes of listed slabs of which all blocks are free, about.
pub(super) fn spare() -> usize {
    EMPTY.load(Relaxed) * SLICE
}

/// Gives back all slabs that have no block in use and are no thread's. Returns how many bytes.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn purge() -> usize {
    let mut bytes = 0;
    Slab::each(|slab| {
        // Relaxed: hints, which are looked at again.
        let free = slab.free.load(Relaxed);
        if slab.place.load(Relaxed) == FULL && free >= slab.enough() {
            // Who should have listed it did not get the lock.
            noticed(slab, free);
        }
        if slab.place.load(Relaxed) == LISTED && is_empty(slab) {
            bytes += emptied(slab, true);
        }
    });
    bytes
}

/// In the child of a fork.
pub(super) fn inherit() {
    LISTS.0.iter().for_each(Lock::inherit);
    // Where other threads were about to change the count it may be wrong, which `give_back_idle` notices.
    // What was idle is the parent's affair.
    LOWEST.store(0, Relaxed);
}

/// For tests that list slabs: these count on what is listed.
#[cfg(test)]
pub(super) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(all(test, loom))]
mod model;
#[cfg(test)]
mod tests;
