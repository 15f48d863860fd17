//! Freed mappings kept for a while: bounded in bytes, in number and in age.
//!
//! What is kept is memory, not blocks: a mapping that is longer than what is asked for is cut, neighbours become one, and
//! a block that grows takes what is kept behind it. So a buffer that doubles, again and again, ends up in place and in
//! memory that is resident.

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
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize, compiler_fence};

const ENTRIES: usize = 64;
/// A mapping may be longer than what is asked for by this part before it is cut.
const SLACK: usize = 8;
/// Of the bytes of large blocks in use, this part may be kept besides, if that is more than the option says.
const KEPT_PART: usize = 2;
/// How much the limit may be widened by regret, in units of the option.
const WIDEST: usize = 4;
/// What is made longer has at least this part of the new length.
const PART: usize = 4;
/// Milliseconds until the system is asked again to unmap what it has refused to.
const AGAIN: u32 = 1000;
/// How many of those that are stacked are looked at.
const DEEP: usize = 1024;
/// How many of them the system is asked for again at a time.
const RETRIES: usize = 16;
/// The least that is cut off a mapping to make room.
const LEAST_CUT: usize = 1 << 20;

impl Mapping {
    /// The address behind it.
    fn end(&self) -> usize {
        self.block.addr() + self.len
    }

    /// What is left when at least `tail` bytes are cut off the end, if it is worth keeping. No huge page is cut in two:
    /// the system could use neither part before both are free.
    fn without(&self, tail: usize) -> Option<usize> {
        let unit = if self.huge { HUGE_PAGE } else { PAGE };
        let end = self.end().checked_sub(tail)? & !(unit - 1);
        end.checked_sub(self.block.addr()).filter(|&rest| rest >= LEAST_CUT)
    }
}

/// Gives memory that is out of the cache back to the system. What it will not unmap, because that would make a hole and one mapping too many, is kept.
fn unmap(kept: Mapping) -> os::Unmapped {
    // SAFETY: out of the cache, so ours alone.
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

/// A place for memory that is kept. In the child of a fork each of them is what it was before or after any change: see
/// [`Entry::fill`], [`Entry::clear`] and [`Entry::cut`].
struct Entry {
    block: *mut u8,
    /// 0 where nothing is kept.
    len: AtomicUsize,
    huge: bool,
    /// The system would not unmap it; its pages it has. Not to be tried again for a while.
    refused: bool,
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

    /// Writes down memory in an empty place.
    fn fill(&mut self, kept: Mapping, now: u32, refused: bool) {
        (self.block, self.huge, self.since, self.refused) = (kept.block, kept.huge, now, refused);
        compiler_fence(Release);
        self.len.store(kept.len, Relaxed);
    }

    /// Makes the place empty; what was there.
    fn clear(&mut self) -> Mapping {
        let kept = self.kept();
        self.len.store(0, Relaxed);
        compiler_fence(Release);
        kept
    }

    /// Cuts the first `len` bytes off; all of it when the rest would be too short for a block of its own.
    fn cut(&mut self, len: usize) -> Mapping {
        let kept = self.kept();
        if kept.len - len < PAGE {
            return self.clear();
        }
        // A fork in between loses the end to the child.
        self.len.store(kept.len - len, Relaxed);
        compiler_fence(Release);
        self.block = kept.block.wrapping_add(len);
        Mapping { len, ..kept }
    }

    /// Cuts the end off, to be `len` bytes long; what is cut off.
    fn shorten(&mut self, len: usize) -> Mapping {
        let kept = self.kept();
        self.len.store(len, Relaxed);
        Mapping { block: kept.block.wrapping_add(len), len: kept.len - len, ..kept }
    }
}

/// The beginning of memory that the system would not unmap when all places for it were taken: a list that goes through what it is
/// about. In the child of a fork it is whole, but for what was being put in or taken out.
struct Stacked {
    next: *mut Stacked,
    len: usize,
    huge: bool,
}

struct Cache {
    entries: Table<Entry, ENTRIES>,
    stacked: *mut Stacked,
    /// Bytes of all of them, and of those that the system has refused.
    bytes: usize,
    refused: usize,
    /// In bytes; what is dropped is dropped for want of room.
    regret: Regret,
}

// SAFETY: only used under the lock.
unsafe impl Send for Cache {}

static CACHE: Lock<Cache> = Lock::new(Cache::new());
/// Bytes in the cache, and bytes that were dropped: let a look pass by without the lock.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether anything is stacked, and when the system may be asked about it again.
static STACKED: AtomicBool = AtomicBool::new(false);
/// See [`STACKED`].
static RETRY: Pause = Pause::up_to(AGAIN);
/// See [`BYTES`].
static DROPPED: AtomicUsize = AtomicUsize::new(0);

impl Inherit for Cache {
    fn inherit(&mut self, torn: bool) {
        if torn {
            self.count();
        }
    }
}

/// The cache, locked, if it is to be had soon: a thread may hold it that a signal handler has interrupted. Without it nothing is
/// kept, and nothing that is kept is used.
fn lock() -> Option<Guard<'static, Cache>> {
    CACHE.lock_soon()
}

impl Cache {
    const fn new() -> Self {
        let entries = Table([const { Entry::empty() }; ENTRIES]);
        let stacked = ptr::null_mut();
        Self { entries, stacked, bytes: 0, refused: 0, regret: Regret::none() }
    }

    /// Adds up what is there.
    fn count(&mut self) {
        let sum =
            |which: fn(&Entry) -> bool| self.used().filter(|(_, e)| which(e)).map(|(_, e)| e.len()).sum();
        (self.bytes, self.refused) = (sum(|_| true), sum(|e| e.refused));
        let mut at = self.stacked;
        // SAFETY: see `stack`.
        while let Some(stacked) = unsafe { at.as_ref() } {
            self.refused += stacked.len;
            self.bytes += stacked.len;
            at = stacked.next;
        }
        BYTES.store(self.bytes, Relaxed);
    }

    /// Keeps memory that the system would not unmap, and for which there is no place.
    fn stack(&mut self, kept: Mapping) {
        let stacked = kept.block.cast::<Stacked>();
        // SAFETY: memory of ours, of at least a page of the map, that nobody uses until it is taken out again.
        unsafe { stacked.write(Stacked { next: self.stacked, len: kept.len, huge: kept.huge }) };
        compiler_fence(Release);
        self.stacked = stacked;
        STACKED.store(true, Relaxed);
        self.bytes += kept.len;
        self.refused += kept.len;
        BYTES.store(self.bytes, Relaxed);
    }

    /// Takes out one that fits, of the first [`DEEP`] that are stacked.
    fn unstack(&mut self, fits: impl Fn(*mut u8, usize) -> bool) -> Option<Mapping> {
        let mut link = &raw mut self.stacked;
        for _ in 0..DEEP {
            // SAFETY: a link of the list, whose members nobody else uses: see `stack`.
            let at = unsafe { *link };
            // SAFETY: as above.
            let Some(stacked) = (unsafe { at.as_ref() }) else { break };
            if fits(at.cast(), stacked.len) {
                let kept = Mapping { block: at.cast(), len: stacked.len, huge: stacked.huge };
                // SAFETY: as above.
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

    fn used(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.0.iter().enumerate().filter(|(_, e)| e.len() != 0)
    }

    /// Changes an entry.
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

    fn remove(&mut self, index: usize) -> Mapping {
        self.with(index, Entry::clear)
    }

    /// Takes `len` bytes off the front of an entry, or all of it if hardly more is there.
    fn cut(&mut self, index: usize, len: usize) -> Mapping {
        self.with(index, |entry| entry.cut(len))
    }

    /// The entry kept longest, of those that `wanted` accepts by age.
    fn oldest(&self, now: u32, wanted: impl Fn(u32) -> bool) -> Option<usize> {
        let age = |entry: &Entry| elapsed(entry.since, now);
        let entries = self.used().filter(|(_, e)| !e.refused || age(e) >= AGAIN);
        entries.filter(|(_, e)| wanted(age(e))).max_by_key(|(_, e)| age(e)).map(|(i, _)| i)
    }

    /// Bytes that may be kept.
    fn limit(&mut self, now: u32) -> usize {
        let option = options::get().large_cache;
        if option == 0 {
            return 0;
        }
        self.regret.fade(now);
        option.max(IN_USE.load(Relaxed) / KEPT_PART).saturating_add(self.regret.slack())
    }

    /// Memory was wanted that was not there.
    fn regret(&mut self, len: usize, now: u32) {
        self.regret.regret(len, options::get().large_cache.saturating_mul(WIDEST), now);
        DROPPED.store(self.regret.dropped(), Relaxed);
    }

    /// Counts what is dropped.
    fn drop_for_room(&mut self, len: usize, now: u32) {
        self.regret.drop(len, now);
        DROPPED.store(self.regret.dropped(), Relaxed);
    }

    /// Enters memory, made one with what lies beside it. False when there is no place. `refused` says that the system would not
    /// unmap it.
    fn add(&mut self, mut kept: Mapping, now: u32, refused: bool) -> bool {
        // Miri's mappings are allocations, which do not become one by lying side by side.
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

    /// Takes out what has to go so that `len` bytes can be kept; nothing when there is room.
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

/// Bytes that are kept.
pub(crate) fn kept() -> usize {
    BYTES.load(Relaxed)
}

/// Memory of at least `len` bytes at a multiple of `align`. What it holds is not known.
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

/// The longest memory there is, if it is a good part of `len` bytes: to be made longer.
pub(super) fn take_part(len: usize) -> Option<Mapping> {
    if BYTES.load(Relaxed) < len / PART || cfg!(miri) {
        return None;
    }
    let mut cache = lock()?;
    let (longest, entry) = cache.used().max_by_key(|(_, e)| e.len())?;
    let good = entry.len() >= len / PART && entry.len() < len;
    good.then(|| cache.remove(longest))
}

/// At least `len` bytes that begin at `end`, where a block ends that wants to grow; how many.
pub(super) fn take_behind(end: *mut u8, len: usize, huge: bool) -> Option<usize> {
    if BYTES.load(Relaxed) < len {
        return None;
    }
    let mut cache = lock()?;
    let i = cache.used().find(|(_, e)| e.block == end && e.len() >= len && e.huge == huge)?.0;
    Some(cache.cut(i, len).len)
}

/// Keeps memory, as far as the limit allows. Makes room by dropping the oldest, and lets go what is too old.
///
/// # Safety
///
/// A mapping of ours, or part of one, that nobody uses.
pub(super) unsafe fn keep(kept: Mapping) {
    // The usual answer of those that keep nothing needs neither the time nor the lock.
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
        // There is no place where all hold what the system would not unmap.
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

/// See [`tick`].
pub(crate) fn tick_at(now: u32) {
    let delay = options::get().purge_delay;
    if delay >= 0 && BYTES.load(Relaxed) > 0 {
        unmap_while(now, |age| age as i64 >= delay);
        if STACKED.load(Relaxed) && !RETRY.is_on(now) {
            RETRY.tried(unmap_refused(RETRIES) != 0, now);
        }
    }
}

/// Unmaps everything that is kept; how many bytes. Regrets are forgotten: who asks for this knows better.
pub(crate) fn drain() -> usize {
    if let Some(cache) = lock() {
        cache.regret.forget();
        DROPPED.store(0, Relaxed);
    }
    unmap_while(now_ms(), |_| true) + unmap_refused(usize::MAX)
}

/// Tries again to unmap what the system has refused to, at most so many, until it refuses one. How many bytes.
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

/// Milliseconds until what has been kept longest has been so for `delay`; nothing when nothing is kept.
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
