//! Freed mappings kept for a while: bounded in bytes, in number and in age.
//!
//! What is kept is memory, not blocks: a mapping that is longer than what is asked for is cut, neighbours become one, and
//! a block that grows takes what is kept behind it. So a buffer that doubles, again and again, ends up in place and in
//! memory that is resident.

use super::IN_USE;
use super::dense::HUGE;
use crate::alarm;
use crate::ongoing;
use crate::options;
use crate::os::{self, futex::Lock, now_ms};
use crate::superslab::pagemap::PAGE;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const ENTRIES: usize = 64;
/// A mapping may be longer than what is asked for by this part before it is cut.
const SLACK: usize = 8;
/// Of the bytes of large blocks in use, this part may be kept besides, if that is more than the option says.
const KEPT_PART: usize = 2;
/// How much the limit may be widened by regret, in units of the option.
const WIDEST: usize = 4;
/// What is made longer has at least this part of the new length.
const PART: usize = 4;
/// How long dropping a mapping can be regretted, and how long half of the regret lasts, in milliseconds.
const REGRET: u32 = 1000;
/// The least that is cut off a mapping to make room.
const LEAST_CUT: usize = 1 << 20;

/// Memory that is kept.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    /// Where it begins.
    pub(super) block: *mut u8,
    /// Its bytes: a multiple of the system's page.
    pub(super) len: usize,
    /// Whether huge pages have been advised.
    pub(super) huge: bool,
}

impl Kept {
    fn end(&self) -> usize {
        self.block.addr() + self.len
    }

    /// Cuts the first `len` bytes off; all of it when the rest would be too short for a block of its own.
    fn cut(&mut self, len: usize) -> Kept {
        let len = if self.len - len < PAGE { self.len } else { len };
        let front = Kept { len, ..*self };
        self.block = self.block.wrapping_add(len);
        self.len -= len;
        front
    }

    /// What is left when at least `tail` bytes are cut off the end, if it is worth keeping. No huge page is cut in two:
    /// the system could use neither part before both are free.
    fn without(&self, tail: usize) -> Option<usize> {
        let unit = if self.huge { HUGE } else { PAGE };
        let end = self.end().checked_sub(tail)? & !(unit - 1);
        end.checked_sub(self.block.addr()).filter(|&rest| rest >= LEAST_CUT)
    }

    /// Gives it back to the system.
    fn unmap(self) {
        // SAFETY: out of the cache, so ours alone.
        unsafe { os::unmap(self.block, self.len) };
        os::PURGED.fetch_add(self.len, Relaxed);
    }
}

#[derive(Clone, Copy)]
struct Entry {
    kept: Kept,
    since: u32,
}

const EMPTY: Entry = Entry { kept: Kept { block: ptr::null_mut(), len: 0, huge: false }, since: 0 };

struct Cache {
    /// The first `count` are in use.
    entries: [Entry; ENTRIES],
    count: usize,
    bytes: usize,
    /// What the limit is widened by, and when that was last halved.
    slack: usize,
    halved: u32,
    /// Bytes dropped for want of room, and when that was last done.
    dropped: usize,
    when: u32,
}

// SAFETY: only used under the lock.
unsafe impl Send for Cache {}

static CACHE: Lock<Cache> = Lock::new(Cache::new());
/// Bytes in the cache, and bytes that were dropped: let a look pass by without the lock.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// See [`BYTES`].
static DROPPED: AtomicUsize = AtomicUsize::new(0);

impl Cache {
    const fn new() -> Self {
        let entries = [EMPTY; ENTRIES];
        Self { entries, count: 0, bytes: 0, slack: 0, halved: 0, dropped: 0, when: 0 }
    }

    fn set_bytes(&mut self, bytes: usize) {
        self.bytes = bytes;
        BYTES.store(bytes, Relaxed);
    }

    fn set_dropped(&mut self, bytes: usize) {
        self.dropped = bytes;
        DROPPED.store(bytes, Relaxed);
    }

    fn used(&self) -> &[Entry] {
        &self.entries[..self.count]
    }

    fn remove(&mut self, index: usize) -> Kept {
        let entry = self.entries[index];
        self.count -= 1;
        self.entries[index] = self.entries[self.count];
        self.set_bytes(self.bytes - entry.kept.len);
        entry.kept
    }

    /// Takes `len` bytes off the front of an entry, or all of it if hardly more is there.
    fn cut(&mut self, index: usize, len: usize) -> Kept {
        let front = self.entries[index].kept.cut(len);
        self.set_bytes(self.bytes - front.len);
        if self.entries[index].kept.len == 0 {
            self.count -= 1;
            self.entries[index] = self.entries[self.count];
        }
        front
    }

    /// The entry kept longest, of those that `wanted` accepts by age.
    fn oldest(&self, now: u32, wanted: impl Fn(u32) -> bool) -> Option<usize> {
        let age = |entry: &Entry| now.wrapping_sub(entry.since);
        let entries = self.used().iter().enumerate();
        entries.filter(|(_, e)| wanted(age(e))).max_by_key(|(_, e)| age(e)).map(|(i, _)| i)
    }

    /// Bytes that may be kept.
    fn limit(&mut self, now: u32) -> usize {
        let option = options::get().large_cache;
        if option == 0 {
            return 0;
        }
        if now.wrapping_sub(self.halved) >= REGRET {
            self.halved = now;
            self.slack /= 2;
        }
        option.max(IN_USE.load(Relaxed) / KEPT_PART).saturating_add(self.slack)
    }

    /// Memory was wanted that was not there: if as much was dropped just before, more should have been kept.
    fn regret(&mut self, len: usize, now: u32) {
        let widest = options::get().large_cache.saturating_mul(WIDEST);
        if now.wrapping_sub(self.when) < REGRET {
            self.slack = (self.slack + len.min(self.dropped)).min(widest);
            self.halved = now;
        }
        let rest = self.dropped.saturating_sub(len);
        self.set_dropped(rest);
    }

    /// Counts what is dropped.
    fn drop_for_room(&mut self, len: usize, now: u32) {
        let fresh = if now.wrapping_sub(self.when) < REGRET { self.dropped } else { 0 };
        self.set_dropped(fresh + len);
        self.when = now;
    }

    /// Enters memory, made one with what lies beside it. False when there is no place.
    fn add(&mut self, mut kept: Kept, now: u32) -> bool {
        let bytes = self.bytes + kept.len;
        let mut i = 0;
        // Miri's mappings are allocations, which do not become one by lying side by side.
        while i < self.count && !cfg!(miri) {
            let other = self.entries[i].kept;
            if other.huge == kept.huge
                && (other.end() == kept.block.addr() || kept.end() == other.block.addr())
            {
                kept.block = if other.block < kept.block { other.block } else { kept.block };
                kept.len += other.len;
                self.remove(i);
            } else {
                i += 1;
            }
        }
        if self.count == ENTRIES {
            return false;
        }
        self.entries[self.count] = Entry { kept, since: now };
        self.count += 1;
        self.set_bytes(bytes);
        true
    }

    /// Takes out what has to go so that `len` bytes can be kept; null when there is room.
    fn make_room(&mut self, len: usize, limit: usize, now: u32) -> Option<Kept> {
        let excess = (self.bytes + len).saturating_sub(limit);
        if excess == 0 && self.count < ENTRIES {
            return None;
        }
        let i = self.oldest(now, |_| true)?;
        let entry = &mut self.entries[i].kept;
        let out = match entry.without(excess.max(LEAST_CUT)) {
            Some(rest) if excess != 0 && !cfg!(miri) => {
                let out = Kept { block: entry.block.wrapping_add(rest), len: entry.len - rest, ..*entry };
                entry.len = rest;
                self.set_bytes(self.bytes - out.len);
                out
            }
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
pub(super) fn take(len: usize, align: usize) -> Option<Kept> {
    let regret = DROPPED.load(Relaxed) != 0;
    if BYTES.load(Relaxed) < len && !regret {
        return None;
    }
    let now = if regret { now_ms() } else { 0 };
    let mut cache = CACHE.lock();
    let fits = |e: &Entry| e.kept.len >= len && e.kept.block.addr() & (align - 1) == 0;
    let entries = cache.used().iter().enumerate();
    let Some((best, _)) = entries.filter(|(_, e)| fits(e)).min_by_key(|(_, e)| e.kept.len) else {
        if regret {
            cache.regret(len, now);
        }
        return None;
    };
    let whole = cache.entries[best].kept.len - len <= len / SLACK;
    let kept = if whole { cache.remove(best) } else { cache.cut(best, len) };
    drop(cache);
    super::CACHE_HITS.fetch_add(1, Relaxed);
    Some(kept)
}

/// The longest memory there is, if it is a good part of `len` bytes: to be made longer.
pub(super) fn take_part(len: usize) -> Option<Kept> {
    if BYTES.load(Relaxed) < len / PART || cfg!(miri) {
        return None;
    }
    let mut cache = CACHE.lock();
    let entries = cache.used().iter().enumerate();
    let (longest, entry) = entries.max_by_key(|(_, e)| e.kept.len)?;
    let good = entry.kept.len >= len / PART && entry.kept.len < len;
    good.then(|| cache.remove(longest))
}

/// At least `len` bytes that begin at `end`, where a block ends that wants to grow; how many.
pub(super) fn take_behind(end: *mut u8, len: usize, huge: bool) -> Option<usize> {
    if BYTES.load(Relaxed) < len {
        return None;
    }
    let mut cache = CACHE.lock();
    let i =
        cache.used().iter().position(|e| e.kept.block == end && e.kept.len >= len && e.kept.huge == huge)?;
    Some(cache.cut(i, len).len)
}

/// Keeps memory, as far as the limit allows. Makes room by dropping the oldest, and lets go what is too old.
///
/// # Safety
///
/// A mapping of ours, or part of one, that nobody uses.
pub(super) unsafe fn give(kept: Kept) {
    // The usual answer of those that keep nothing needs neither the time nor the lock.
    if options::get().large_cache == 0 {
        return kept.unmap();
    }
    let now = now_ms();
    loop {
        let mut cache = CACHE.lock();
        let limit = cache.limit(now);
        if kept.len > limit {
            cache.drop_for_room(kept.len, now);
            drop(cache);
            return kept.unmap();
        }
        let Some(out) = cache.make_room(kept.len, limit, now) else {
            let added = cache.add(kept, now);
            debug_assert!(added, "there was room");
            drop(cache);
            alarm::ring();
            break;
        };
        drop(cache);
        out.unmap();
    }
    tick_at(now);
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
    }
}

/// Unmaps everything that is kept; how many bytes. Regrets are forgotten: who asks for this knows better.
pub(crate) fn drain() -> usize {
    let mut cache = CACHE.lock();
    cache.slack = 0;
    cache.set_dropped(0);
    drop(cache);
    unmap_while(now_ms(), |_| true)
}

fn unmap_while(now: u32, wanted: impl Fn(u32) -> bool) -> usize {
    let mut bytes = 0;
    loop {
        let mut cache = CACHE.lock();
        let Some(i) = cache.oldest(now, &wanted) else { return bytes };
        // Between the cache and the system it is in no list, so a fork must not come between. One that waits for this lock
        // lets nobody begin.
        let Some(_work) = ongoing::begin() else {
            drop(cache);
            drop(ongoing::begin_or_wait());
            continue;
        };
        let kept = cache.remove(i);
        drop(cache);
        kept.unmap();
        bytes += kept.len;
    }
}

/// Milliseconds until what has been kept longest has been so for `delay`; nothing when nothing is kept.
pub(crate) fn due_in(now: u32, delay: u32) -> Option<u32> {
    let cache = CACHE.lock();
    cache.used().iter().map(|entry| delay.saturating_sub(now.wrapping_sub(entry.since))).min()
}

/// For the time across a fork.
pub(crate) fn acquire() {
    CACHE.acquire();
}

/// See [`acquire`].
pub(crate) fn release(child: bool) {
    if child { CACHE.reset_in_child() } else { CACHE.release() }
}

#[cfg(test)]
mod tests;
