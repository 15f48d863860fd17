//! The cache of freed mappings: bounded in bytes, in number and in age.
//!
//! It keeps memory, not blocks: a mapping that is longer than needed is cut, neighbours are merged, and a
//! block that grows takes memory that is kept behind it. So a buffer that doubles again and again ends up
//! growing in place, in memory that is resident.

use crate::base::options;
use crate::base::pause::Pause;
use crate::base::table::Table;
use crate::large::counters::{CACHE_HITS, IN_USE};
use crate::lockfree::waker;
use crate::os;
use crate::os::futex::{Guard, Inherit, Lock};
use crate::os::{elapsed, now_ms};
use crate::superslab::decay::Regret;
use crate::superslab::layout::PAGE;
use crate::superslab::thp::{HUGE_PAGE, Mapping};
use crate::sync::Ordering::{Relaxed, Release};
use crate::sync::{AtomicBool, AtomicUsize, compiler_fence};
use core::ptr;

/// Places in the cache.
const ENTRIES: usize = 64;
/// A mapping is handed out whole if it is longer than needed by at most one part in this many; else it is
/// cut.
const SLACK: usize = 8;
/// One part in this many of the bytes of large blocks in use may be kept, if that is more than the option
/// says.
const KEPT_PART: usize = 2;
/// How much regret may widen the limit, in multiples of the option.
const WIDEST: usize = 4;
/// A mapping is made longer only if it has at least one part in this many of the new length.
const PART: usize = 4;
/// Milliseconds until the system is asked again to unmap memory that it has refused to unmap.
const AGAIN: u32 = 1000;
/// How many stacked mappings a search looks at.
const DEEP: usize = 1024;
/// How many mappings the system is asked again to unmap in one go.
const RETRIES: usize = 16;
/// The least number of bytes that is cut off a mapping to make room.
const LEAST_CUT: usize = 1 << 20;

impl Mapping {
    /// The address behind the last byte.
    fn end(&self) -> usize {
        self.block.addr() + self.len
    }

    /// The length that is left when at least `tail` bytes are cut off the end, if that is worth keeping. Huge
    /// pages are not split: the system could reuse neither part before both are free.
    fn without(&self, tail: usize) -> Option<usize> {
        let unit = if self.huge { HUGE_PAGE } else { PAGE };
        let end = self.end().checked_sub(tail)? & !(unit - 1);
        end.checked_sub(self.block.addr()).filter(|&rest| rest >= LEAST_CUT)
    }
}

/// Gives memory that is not in the cache, and that nobody uses, back to the system. The system refuses to
/// unmap where the hole would make one mapping too many: that memory is kept.
fn unmap(kept: Mapping) -> os::Unmapped {
    // SAFETY: every caller has just taken it out of the cache, or has it from the caller of `keep`: ours
    // alone, and mapped.
    let unmapped = unsafe { os::unmap(kept.block, kept.len) };
    if unmapped == os::Unmapped::Gone {
        os::PURGED.fetch_add(kept.len, Relaxed);
    } else if let Some(mut cache) = lock() {
        if !cache.add(kept, now_ms(), true) {
            cache.stack(kept);
        }
    }
    unmapped
}

/// A place for memory that is kept. In the child of a fork, it is as it was before or after any one change:
/// see [`Entry::fill`], [`Entry::clear`] and [`Entry::cut`].
struct Entry {
    block: *mut u8,
    /// 0 where nothing is kept.
    len: AtomicUsize,
    huge: bool,
    /// The system has refused to unmap it, though as a rule it has taken the pages. Not tried again for
    /// [`AGAIN`].
    refused: bool,
    /// When it was kept, in milliseconds.
    since: u32,
}

impl Entry {
    const fn empty() -> Self {
        Self { block: ptr::null_mut(), len: AtomicUsize::new(0), huge: false, refused: false, since: 0 }
    }

    fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    fn kept(&self) -> Mapping {
        Mapping { block: self.block, len: self.len(), huge: self.huge }
    }

    fn end(&self) -> usize {
        self.kept().end()
    }

    /// Enters memory into an empty place.
    fn fill(&mut self, kept: Mapping, now: u32, refused: bool) {
        (self.block, self.huge, self.since, self.refused) = (kept.block, kept.huge, now, refused);
        compiler_fence(Release);
        self.len.store(kept.len, Relaxed);
    }

    /// Empties the place. Returns what was there.
    fn clear(&mut self) -> Mapping {
        let kept = self.kept();
        self.len.store(0, Relaxed);
        compiler_fence(Release);
        kept
    }

    /// Cuts off the first `len` bytes and returns them, or all if the rest would be too short for a block of
    /// its own.
    fn cut(&mut self, len: usize) -> Mapping {
        let kept = self.kept();
        if kept.len - len < PAGE {
            return self.clear();
        }
        // After a fork in between, the child has lost the end.
        self.len.store(kept.len - len, Relaxed);
        compiler_fence(Release);
        self.block = kept.block.wrapping_add(len);
        Mapping { len, ..kept }
    }

    /// Shortens the memory to `len` bytes. Returns what was cut off the end.
    fn shorten(&mut self, len: usize) -> Mapping {
        let kept = self.kept();
        self.len.store(len, Relaxed);
        Mapping { block: kept.block.wrapping_add(len), len: kept.len - len, ..kept }
    }
}

/// Stands at the start of memory that the system refused to unmap when all places were taken. Such memory is
/// *stacked*: in a list linked through the memory itself. In the child of a fork the list is whole, except
/// that a mapping that was being put in or taken out may be missing.
struct Stacked {
    next: *mut Stacked,
    len: usize,
    huge: bool,
}

struct Cache {
    entries: Table<Entry, ENTRIES>,
    stacked: *mut Stacked,
    /// Bytes of everything that is kept, stacked or not.
    bytes: usize,
    /// Bytes of that which the system has refused to unmap.
    refused: usize,
    /// In bytes. Memory that is dropped for want of room can be regretted.
    regret: Regret,
}

// SAFETY: the memory that the pointers lead to belongs to the cache, not to a thread, and is used only under
// the lock.
unsafe impl Send for Cache {}

static CACHE: Lock<Cache> = Lock::new(Cache::new());
/// Bytes in the cache: lets a search that would find nothing do without the lock. Relaxed, as all accesses to
/// these statics: they are hints, and what they say is looked up again under the lock.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether anything is stacked.
static STACKED: AtomicBool = AtomicBool::new(false);
/// When the system may be asked again to unmap what it has refused.
static RETRY: Pause = Pause::up_to(AGAIN);
/// Bytes that were dropped and can be regretted: as [`BYTES`].
static DROPPED: AtomicUsize = AtomicUsize::new(0);

impl Inherit for Cache {
    fn inherit(&mut self, torn: bool) {
        if torn {
            self.count();
        }
    }
}

/// Locks the cache. `None` if the lock is not free soon: a signal handler may have interrupted the thread
/// that holds it. Without the lock nothing is kept, and nothing that is kept is used.
fn lock() -> Option<Guard<'static, Cache>> {
    CACHE.lock_soon()
}

impl Cache {
    const fn new() -> Self {
        let entries = Table([const { Entry::empty() }; ENTRIES]);
        let stacked = ptr::null_mut();
        Self { entries, stacked, bytes: 0, refused: 0, regret: Regret::none() }
    }

    /// Computes the sums anew from what is there.
    fn count(&mut self) {
        let sum =
            |which: fn(&Entry) -> bool| self.used().filter(|(_, e)| which(e)).map(|(_, e)| e.len()).sum();
        (self.bytes, self.refused) = (sum(|_| true), sum(|e| e.refused));
        let mut at = self.stacked;
        // SAFETY: the links lead through memory that the cache owns, each start of which `stack` has written.
        while let Some(stacked) = unsafe { at.as_ref() } {
            self.refused += stacked.len;
            self.bytes += stacked.len;
            at = stacked.next;
        }
        BYTES.store(self.bytes, Relaxed);
    }

    /// Keeps memory that the system has refused to unmap and for which there is no place. It belongs to the
    /// cache then.
    fn stack(&mut self, kept: Mapping) {
        let stacked = kept.block.cast::<Stacked>();
        // SAFETY: memory of ours, still mapped and of at least 64 KiB, that nobody uses until it is taken out
        // again.
        unsafe { stacked.write(Stacked { next: self.stacked, len: kept.len, huge: kept.huge }) };
        compiler_fence(Release);
        self.stacked = stacked;
        STACKED.store(true, Relaxed);
        self.bytes += kept.len;
        self.refused += kept.len;
        BYTES.store(self.bytes, Relaxed);
    }

    /// Takes out a mapping that fits, of the first [`DEEP`] that are stacked.
    fn unstack(&mut self, fits: impl Fn(*mut u8, usize) -> bool) -> Option<Mapping> {
        let mut link = &raw mut self.stacked;
        for _ in 0..DEEP {
            // SAFETY: either our own field or the link of a stacked mapping, which the cache owns: see
            // `stack`.
            let at = unsafe { *link };
            // SAFETY: null, or the start of a stacked mapping, which `stack` has written.
            let Some(stacked) = (unsafe { at.as_ref() }) else { break };
            if fits(at.cast(), stacked.len) {
                let kept = Mapping { block: at.cast(), len: stacked.len, huge: stacked.huge };
                // SAFETY: `link` is the place that `at` was read from, and not a part of `stacked`.
                unsafe { *link = stacked.next };
                compiler_fence(Release);
                self.bytes -= kept.len;
                self.refused -= kept.len;
                BYTES.store(self.bytes, Relaxed);
                STACKED.store(!self.stacked.is_null(), Relaxed);
                return Some(kept);
            }
            link = at.map_addr(|a| a + core::mem::offset_of!(Stacked, next)).cast();
        }
        None
    }

    /// The places that are not empty, with their indices.
    fn used(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.0.iter().enumerate().filter(|(_, e)| e.len() != 0)
    }

    /// Changes an entry and keeps the sums right.
    fn with<T>(&mut self, index: usize, f: impl FnOnce(&mut Entry) -> T) -> T {
        let entry = &mut self.entries[index];
        let before = entry.len();
        let result = f(entry);
        self.bytes = self.bytes - before + entry.len();
        if entry.refused {
            self.refused = self.refused - before + entry.len();
        }
        BYTES.store(self.bytes, Relaxed);
        result
    }

    /// Empties an entry. Returns what was there.
    fn remove(&mut self, index: usize) -> Mapping {
        self.with(index, Entry::clear)
    }

    /// Takes `len` bytes off the front of an entry, or all of it if there is hardly more.
    fn cut(&mut self, index: usize, len: usize) -> Mapping {
        self.with(index, |entry| entry.cut(len))
    }

    /// The entry that has been kept longest, of those whose age in milliseconds `wanted` accepts.
    fn oldest(&self, now: u32, wanted: impl Fn(u32) -> bool) -> Option<usize> {
        let age = |entry: &Entry| elapsed(entry.since, now);
        let entries = self.used().filter(|(_, e)| !e.refused || age(e) >= AGAIN);
        entries.filter(|(_, e)| wanted(age(e))).max_by_key(|(_, e)| age(e)).map(|(i, _)| i)
    }

    /// The number of bytes that may be kept.
    fn limit(&mut self, now: u32) -> usize {
        let option = options::get().large_cache;
        if option == 0 {
            return 0;
        }
        self.regret.fade(now);
        option.max(IN_USE.load(Relaxed) / KEPT_PART).saturating_add(self.regret.slack())
    }

    /// Notes that `len` bytes were wanted and not there.
    fn regret(&mut self, len: usize, now: u32) {
        self.regret.regret(len, options::get().large_cache.saturating_mul(WIDEST), now);
        DROPPED.store(self.regret.dropped(), Relaxed);
    }

    /// Notes that `len` bytes are dropped for want of room.
    fn drop_for_room(&mut self, len: usize, now: u32) {
        self.regret.drop(len, now);
        DROPPED.store(self.regret.dropped(), Relaxed);
    }

    /// Enters memory, merged with its neighbours. False if there is no place. `refused` says that the system
    /// has refused to unmap it.
    fn add(&mut self, mut kept: Mapping, now: u32, refused: bool) -> bool {
        // Under Miri mappings are allocations, and two of them cannot be merged even if they are adjacent.
        for i in (0..ENTRIES).filter(|_| !cfg!(miri)) {
            let other = &self.entries[i];
            let beside = other.end() == kept.block.addr() || kept.end() == other.block.addr();
            if other.len() != 0 && other.huge == kept.huge && other.refused == refused && beside {
                let other = self.remove(i);
                kept.block = if other.block < kept.block { other.block } else { kept.block };
                kept.len += other.len;
            }
        }
        let Some(free) = self.entries.0.iter().position(|e| e.len() == 0) else { return false };
        self.with(free, |entry| entry.fill(kept, now, refused));
        true
    }

    /// Takes out something that has to go so that `len` bytes can be kept. `None` if there is room.
    fn make_room(&mut self, len: usize, limit: usize, now: u32) -> Option<Mapping> {
        let excess = (self.bytes - self.refused + len).saturating_sub(limit);
        if excess == 0 && self.used().count() < ENTRIES {
            return None;
        }
        let i = self.oldest(now, |_| true)?;
        let out = match self.entries[i].kept().without(excess.max(LEAST_CUT)) {
            Some(rest) if excess != 0 && !cfg!(miri) => self.with(i, |entry| entry.shorten(rest)),
            _ => self.remove(i),
        };
        self.drop_for_room(out.len, now);
        Some(out)
    }
}

/// The number of bytes that are kept.
pub(crate) fn kept() -> usize {
    BYTES.load(Relaxed)
}

/// Takes memory of at least `len` bytes at a multiple of `align`. Its contents are unknown.
pub(super) fn take_kept(len: usize, align: usize) -> Option<Mapping> {
    let regret = DROPPED.load(Relaxed) != 0;
    if BYTES.load(Relaxed) < len && !regret {
        return None;
    }
    let now = if regret { now_ms() } else { 0 };
    let mut cache = lock()?;
    let fits = |e: &Entry| e.len() >= len && e.block.addr() & (align - 1) == 0;
    let Some((best, _)) = cache.used().filter(|(_, e)| fits(e)).min_by_key(|(_, e)| e.len()) else {
        if let Some(mut kept) = cache.unstack(|block, l| l >= len && block.addr() & (align - 1) == 0) {
            if kept.len - len >= PAGE {
                cache.stack(Mapping { block: kept.block.wrapping_add(len), len: kept.len - len, ..kept });
                kept.len = len;
            }
            CACHE_HITS.fetch_add(1, Relaxed);
            return Some(kept);
        }
        if regret {
            cache.regret(len, now);
        }
        return None;
    };
    let whole = cache.entries[best].len() - len <= len / SLACK;
    let kept = if whole { cache.remove(best) } else { cache.cut(best, len) };
    drop(cache);
    CACHE_HITS.fetch_add(1, Relaxed);
    Some(kept)
}

/// Takes the longest memory that is kept, if it is shorter than `len` bytes but a good part of it: to be made
/// longer.
pub(super) fn take_part(len: usize) -> Option<Mapping> {
    if BYTES.load(Relaxed) < len / PART || cfg!(miri) {
        return None;
    }
    let mut cache = lock()?;
    let (longest, entry) = cache.used().max_by_key(|(_, e)| e.len())?;
    let good = entry.len() >= len / PART && entry.len() < len;
    good.then(|| cache.remove(longest))
}

/// Takes at least `len` bytes of memory that begins at `end`, the end of a block that grows. Returns how many
/// bytes.
pub(super) fn take_behind(end: *mut u8, len: usize, huge: bool) -> Option<usize> {
    if BYTES.load(Relaxed) < len {
        return None;
    }
    let mut cache = lock()?;
    let i = cache.used().find(|(_, e)| e.block == end && e.len() >= len && e.huge == huge)?.0;
    Some(cache.cut(i, len).len)
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
    loop {
        let Some(mut cache) = lock() else { break };
        let limit = cache.limit(now);
        if kept.len > limit {
            cache.drop_for_room(kept.len, now);
            break;
        }
        if let Some(out) = cache.make_room(kept.len, limit, now) {
            drop(cache);
            unmap(out);
            continue;
        }
        // Fails only if all places hold memory that the system has refused to unmap.
        if cache.add(kept, now, false) {
            drop(cache);
            waker::notify();
            return tick_at(now);
        }
        break;
    }
    unmap(kept);
}

/// Unmaps what has been kept longer than the purge delay.
pub(crate) fn tick() {
    if BYTES.load(Relaxed) > 0 {
        tick_at(now_ms());
    }
}

/// [`tick`], at `now`.
pub(crate) fn tick_at(now: u32) {
    let delay = options::get().purge_delay;
    if delay >= 0 && BYTES.load(Relaxed) > 0 {
        unmap_while(now, |age| age as i64 >= delay);
        if STACKED.load(Relaxed) && !RETRY.is_on(now) {
            RETRY.tried(unmap_refused(RETRIES) != 0, now);
        }
    }
}

/// Unmaps everything that is kept. Returns how many bytes. Regrets are forgotten: whoever asks for this knows
/// better.
pub(crate) fn drain() -> usize {
    if let Some(cache) = lock() {
        cache.regret.forget();
        DROPPED.store(0, Relaxed);
    }
    unmap_while(now_ms(), |_| true) + unmap_refused(usize::MAX)
}

/// Tries again to unmap what the system has refused to unmap: at most `most` mappings, until it refuses one.
/// Returns how many bytes.
fn unmap_refused(most: usize) -> usize {
    let mut bytes = 0;
    for _ in 0..most {
        let Some(mut cache) = lock() else { break };
        let refused = cache.used().find(|(_, e)| e.refused).map(|(i, _)| i);
        let Some(kept) = refused.map(|i| cache.remove(i)).or_else(|| cache.unstack(|_, _| true)) else {
            break;
        };
        drop(cache);
        if unmap(kept) != os::Unmapped::Gone {
            break;
        }
        bytes += kept.len;
    }
    bytes
}

/// Unmaps what has been kept for an age that `wanted` accepts. Returns how many bytes.
fn unmap_while(now: u32, wanted: impl Fn(u32) -> bool) -> usize {
    let mut bytes = 0;
    loop {
        let Some(mut cache) = lock() else { return bytes };
        let Some(i) = cache.oldest(now, &wanted) else { return bytes };
        let kept = cache.remove(i);
        drop(cache);
        if unmap(kept) != os::Unmapped::Kept {
            bytes += kept.len;
        }
    }
}

/// Milliseconds until the first of the kept mappings has been kept for `delay`. `None` if nothing is kept.
pub(crate) fn due_in(now: u32, delay: u32) -> Option<u32> {
    let Some(cache) = lock() else { return Some(delay) };
    let due = |entry: &Entry| {
        if entry.refused { delay.max(AGAIN) } else { delay }.saturating_sub(elapsed(entry.since, now))
    };
    cache.used().map(|(_, entry)| due(entry)).min()
}

/// In the child of a fork: see [`Lock::inherit`].
pub(crate) fn inherit() {
    CACHE.inherit();
}

#[cfg(test)]
mod tests;
