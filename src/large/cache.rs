//! The cache of freed mappings: bounded in bytes, in number and in age.
//!
//! It keeps memory, not blocks: a mapping that is longer than needed is cut, neighbours are merged, and a
//! block that grows takes memory that is kept behind it. So a buffer that doubles again and again ends up
//! growing in place, in memory that is resident.

mod clean;
mod entry;
mod expiry;
mod queue;
mod spare;
mod take;

use crate::base::counters::LARGE_IN_USE;
use crate::base::options;
use crate::base::pause::Pause;
use crate::base::table::Table;
use crate::large::cache::entry::{AGAIN, Entry, LEAST_CUT};
use crate::large::cache::expiry::unmap_excess;
use crate::large::cache::queue::Queue;
use crate::large::huge::Mapping;
use crate::lockfree::waker;
use crate::os::futex::{Inherit, Lock};
use crate::os::returning::Returning;
use crate::os::{self, Unmapped, elapsed, now_ms};
use crate::superslab::decay::Regret;
use crate::superslab::delay::Delay;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicBool, AtomicUsize};

pub(crate) use clean::clean;
use clean::lost;
pub(super) use clean::{forget_some, keep_clean, unused};
pub(crate) use expiry::{drain, due_in, tick, tick_at};
pub(crate) use spare::spare;
pub(super) use take::{grows_fresh, take_behind, take_kept, take_part};

/// Places in the cache.
const ENTRIES: usize = 64;
/// One part in this many of the bytes of large blocks in use may be kept, if that is more than the option
/// says.
const KEPT_PART: usize = 2;
/// How much regret may widen the limit, in multiples of the option.
const WIDEST: usize = 4;

struct Cache {
    entries: Table<Entry, ENTRIES>,
    /// No place from here on has anything, so no search of what is kept goes on. As a rule this is little
    /// above the number of places in use, since the first free one is filled first.
    top: usize,
    /// What the system has refused to unmap when there was no place for it.
    queue: Queue,
    /// Bytes of everything that is kept, in a place or in the queue.
    bytes: usize,
    /// Bytes of that which the system has refused to unmap.
    refused: usize,
    /// Bytes of it that nobody has ever touched.
    clean: usize,
}

// SAFETY: the memory that the pointers lead to belongs to the cache, not to a thread, and is used only under
// the lock.
unsafe impl Send for Cache {}

/// Taken with `lock_soon`, which fails if a signal handler may have interrupted the thread that holds the
/// lock. Without the lock nothing is kept, and nothing that is kept is used.
static CACHE: Lock<Cache> = Lock::new(Cache::new());
/// In bytes. Memory that is dropped for want of room can be regretted.
static REGRET: Regret = Regret::none();
/// In bytes, too.
static DELAY: Delay = Delay::new();
/// Bytes in the cache: lets a search that would find nothing do without the lock. Relaxed, like the next one:
/// hints, and what they say is looked up again under the lock.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether there is anything that the system has refused to unmap.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// When the system may be asked again to unmap what it has refused.
static RETRY: Pause = Pause::up_to(AGAIN);

impl Inherit for Cache {
    fn inherit(&mut self, torn: bool) {
        if !torn {
            return;
        }
        // The sums anew from what is there.
        self.top = ENTRIES;
        self.lower_top();
        let queued = self.queue.inherit();
        (self.bytes, self.refused, self.clean) = (queued, queued, 0);
        for entry in &self.entries.0 {
            self.bytes += entry.len();
            self.refused += if entry.refused { entry.len() } else { 0 };
            self.clean += if entry.clean { entry.len() } else { 0 };
        }
        clean::is(self.clean);
        BYTES.store(self.bytes, Relaxed);
        REFUSED.store(self.refused != 0, Relaxed);
    }
}

/// Gives memory that is not in the cache, and that nobody uses, back to the system. False if the system
/// refuses to unmap it, because the hole would make one mapping too many: it is kept then, here or, where the
/// lock cannot be had, for any mapping.
fn unmap(kept: Mapping) -> bool {
    if kept.huge {
        // SAFETY: as below, the first page and the last one.
        unsafe { kept.split_ends() };
    }
    // SAFETY: every caller has just taken it out of the cache, or has it from the caller of `keep`: ours
    // alone, and mapped.
    if unsafe { os::unmap(kept.block, kept.len) } == Unmapped::Gone {
        if kept.clean {
            lost(kept.len);
        } else {
            os::PURGED.fetch_add(kept.len, Relaxed);
        }
        return true;
    }
    keep_refused(Mapping { clean: false, ..kept });
    false
}

/// Keeps what the system has refused to unmap, which is not in the cache, and which nobody uses.
fn keep_refused(kept: Mapping) {
    if let Some(mut cache) = CACHE.lock_soon() {
        cache.add_refused(kept, now_ms());
        drop(cache);
        // It is tried again.
        waker::notify();
    } else {
        // SAFETY: out of the cache, ours alone, and still mapped.
        unsafe { os::discard(kept.block, kept.len) };
    }
}

/// The number of bytes that may be kept, apart from what regret adds, beside `in_use` bytes of large blocks.
fn allowed(in_use: usize) -> usize {
    options::get().large_cache.max(in_use / KEPT_PART)
}

/// The same, with what regret adds.
fn limit(regret: &Regret, in_use: usize, now: u32) -> usize {
    regret.fade(now);
    allowed(in_use).saturating_add(regret.slack())
}

/// Notes that this is not kept any more for want of room.
fn dropped(kept: &Mapping, now: u32) {
    REGRET.drop(if kept.clean { 0 } else { kept.len }, now);
}

/// Notes in `regret` that `len` bytes were wanted and not there.
fn missed(regret: &Regret, len: usize, now: u32) {
    regret.regret(len, options::get().large_cache.saturating_mul(WIDEST), now);
}

impl Cache {
    const fn new() -> Self {
        let entries = Table([const { Entry::empty() }; ENTRIES]);
        Self { entries, top: 0, queue: Queue::new(), bytes: 0, refused: 0, clean: 0 }
    }

    /// Keeps the sums right when `before` bytes in one place, or in the queue, have become `after`.
    fn changed(&mut self, before: usize, after: usize, refused: bool) {
        self.bytes = self.bytes - before + after;
        if refused {
            self.refused = self.refused - before + after;
            REFUSED.store(self.refused != 0, Relaxed);
        }
        BYTES.store(self.bytes, Relaxed);
    }

    /// Keeps memory that the system has refused to unmap and for which there is no place. It belongs to the
    /// cache then.
    fn push(&mut self, kept: Mapping) {
        let len = kept.len;
        self.queue.push(kept);
        self.changed(0, len, true);
    }

    /// Takes the first mapping that `fits` accepts out of the queue.
    fn pop(&mut self, fits: impl Fn(&Mapping) -> bool) -> Option<Mapping> {
        let kept = self.queue.take(fits)?;
        self.changed(kept.len, 0, true);
        Some(kept)
    }

    /// Bytes that count towards the limit: what may be resident, and can be given back.
    fn limited(&self) -> usize {
        self.bytes - self.refused - self.clean
    }

    /// The places that are not empty, with their indices.
    fn used(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.0.iter().take(self.top).enumerate().filter(|(_, e)| e.len() != 0)
    }

    /// Puts the bound of the searches right behind the last place in use, if it is not below that.
    fn lower_top(&mut self) {
        while self.top > 0 && self.entries[self.top - 1].len() == 0 {
            self.top -= 1;
        }
    }

    /// Changes an entry and keeps the sums, and the bound of the searches, right.
    fn with<T>(&mut self, index: usize, f: impl FnOnce(&mut Entry) -> T) -> T {
        let entry = &mut self.entries[index];
        let before = entry.len();
        let result = f(entry);
        let (after, refused, clean) = (entry.len(), entry.refused, entry.clean);
        self.top = self.top.max(index + 1);
        self.lower_top();
        self.changed(before, after, refused);
        if clean {
            self.clean = self.clean - before + after;
            clean::is(self.clean);
        }
        result
    }

    /// Empties an entry. Returns what was there.
    fn remove(&mut self, index: usize) -> Mapping {
        self.with(index, Entry::clear)
    }

    /// Takes `len` bytes for a block off the front of an entry, or all of it if there is hardly more.
    fn take(&mut self, index: usize, len: usize) -> Mapping {
        if self.limited() > allowed(LARGE_IN_USE.load(Relaxed)) {
            // Without regret some of it would have been dropped.
            REGRET.note_use(now_ms());
        }
        let since = self.entries[index].since;
        let taken = self.with(index, |entry| entry.cut(len));
        if !taken.clean {
            DELAY.used_again(taken.len, since, options::get().purge_delay, now_ms);
        }
        if taken.clean {
            let now = now_ms();
            // The next block may come as late after this one.
            self.entries[index].since = now;
            // The system has to provide it, as much as what is mapped anew.
            DELAY.wanted(taken.len, now);
        }
        taken
    }

    /// Halves an entry, if there is a place for the second half and that has at least `len` bytes at a
    /// multiple of `align`. Returns where it is.
    fn halve(&mut self, index: usize, len: usize, align: usize) -> Option<usize> {
        let entry = &self.entries[index];
        let (kept, since, refused) = (entry.kept(), entry.since, entry.refused);
        let half = kept.without(kept.len / 2)?;
        let free = self.entries.0.iter().position(|e| e.len() == 0)?;
        if kept.len - half < len || (kept.block.addr() + half) & (align - 1) != 0 {
            return None;
        }
        let second = self.with(index, |entry| entry.shorten(half));
        self.with(free, |entry| entry.fill(second, since, refused));
        Some(free)
    }

    /// The entry that has been kept longest, of those that `may_go` accepts, if that is `least` milliseconds
    /// or more.
    fn oldest(&self, now: u32, least: u32, may_go: impl Fn(&Entry) -> bool) -> Option<usize> {
        let age = |entry: &Entry| elapsed(entry.since, now);
        let due = self.used().filter(|(_, e)| age(e) >= e.term(least) && may_go(e));
        due.max_by_key(|(_, e)| age(e)).map(|(i, _)| i)
    }

    /// Enters memory, merged with its neighbours. False if there is no place. `refused` says that the system
    /// has refused to unmap it.
    fn add(&mut self, mut kept: Mapping, now: u32, refused: bool) -> bool {
        // It is as old as its longest part: else a short block that comes and goes would keep what is beside
        // it for ever.
        let (mut since, mut longest) = (now, kept.len);
        for i in 0..self.top {
            let other = &self.entries[i];
            let alike = other.huge == kept.huge && other.refused == refused && other.clean == kept.clean;
            if alike && other.len() != 0 && other.kept().is_beside(&kept) {
                if other.len() > longest && !refused {
                    (since, longest) = (other.since, other.len());
                }
                let other = self.remove(i);
                kept.block = kept.block.min(other.block);
                kept.len += other.len;
            }
        }
        let Some(free) = self.entries.0.iter().position(|e| e.len() == 0) else { return false };
        self.with(free, |entry| entry.fill(kept, since, refused));
        true
    }

    /// Enters memory that the system has refused to unmap: in a place, or else in the queue.
    fn add_refused(&mut self, kept: Mapping, now: u32) {
        if !self.add(kept, now, true) {
            self.push(kept);
        }
    }

    /// Takes out something that has to go so that `len` bytes can be kept. `None` if there is room.
    fn make_room(&mut self, len: usize, limit: usize, now: u32) -> Option<Mapping> {
        let excess = (self.limited() + len).saturating_sub(limit);
        if excess == 0 && (len == 0 || self.used().count() < ENTRIES) {
            return None;
        }
        // What is clean does not count towards the limit, so only its place may be of use.
        let i = self.oldest(now, 0, |entry| excess == 0 || !entry.clean)?;
        Some(match self.entries[i].kept().without(excess.max(LEAST_CUT)) {
            Some(rest) if excess != 0 => self.with(i, |entry| entry.shorten(rest)),
            _ => self.remove(i),
        })
    }
}

/// The number of bytes that are kept.
pub(crate) fn kept() -> usize {
    BYTES.load(Relaxed)
}

/// Keeps memory, as far as the limit allows. Makes room by dropping the oldest, and unmaps what is too old.
///
/// # Safety
///
/// A mapping of ours, or a part of one in whole system pages, of at least 64 KiB. It is the caller's alone,
/// which does not use it any more.
pub(super) unsafe fn keep(kept: Mapping) {
    // With the cache switched off, neither the time nor the lock is needed.
    if options::get().large_cache == 0 {
        unmap(kept);
        return;
    }
    let now = now_ms();
    while let Some(mut cache) = CACHE.lock_soon() {
        // As before it was freed, so that a program that replaces its largest blocks gets them back.
        let limit = limit(&REGRET, LARGE_IN_USE.load(Relaxed).saturating_add(kept.len), now);
        if kept.len > limit {
            drop(cache);
            dropped(&kept, now);
            unmap_excess(now);
            break;
        }
        if let Some(out) = cache.make_room(kept.len, limit, now) {
            let _returning = Returning::begin();
            dropped(&out, now);
            drop(cache);
            unmap(out);
            continue;
        }
        // Fails only if all places hold memory that the system has refused to unmap.
        if !cache.add(kept, now, false) {
            break;
        }
        drop(cache);
        waker::notify();
        return tick_at(now);
    }
    unmap(kept);
}

/// In the child of a fork: see [`Lock::inherit`].
pub(crate) fn inherit() {
    CACHE.inherit();
}

#[cfg(test)]
mod tests;
