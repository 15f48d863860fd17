//! Freed mappings kept for a while: bounded in bytes, in number and in age.

use crate::os::{self, futex::Lock};
use crate::{options, os::now_ms};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const ENTRIES: usize = 16;
/// A cached mapping may be longer than what is asked for by this part.
const SLACK: usize = 8;

#[derive(Clone, Copy)]
struct Entry {
    block: *mut u8,
    len: usize,
    since: u32,
}

struct Cache {
    entries: [Entry; ENTRIES],
    bytes: usize,
}

// SAFETY: only used under the lock.
unsafe impl Send for Cache {}

const EMPTY: Entry = Entry { block: ptr::null_mut(), len: 0, since: 0 };

static CACHE: Lock<Cache> = Lock::new(Cache { entries: [EMPTY; ENTRIES], bytes: 0 });
/// Bytes in the cache: lets a look pass by without the lock.
static BYTES: AtomicUsize = AtomicUsize::new(0);

impl Cache {
    fn remove(&mut self, index: usize) -> Entry {
        let entry = core::mem::replace(&mut self.entries[index], EMPTY);
        self.bytes -= entry.len;
        BYTES.store(self.bytes, Relaxed);
        entry
    }

    /// The oldest entry that `wanted` accepts.
    fn oldest(&self, now: u32, wanted: impl Fn(u32) -> bool) -> Option<usize> {
        (0..ENTRIES)
            .filter(|&i| self.entries[i].len != 0 && wanted(now.wrapping_sub(self.entries[i].since)))
            .max_by_key(|&i| now.wrapping_sub(self.entries[i].since))
    }
}

/// A mapping of at least `len` bytes at a multiple of `align`, and its length. What it holds is not known.
pub(super) fn take(len: usize, align: usize) -> Option<(*mut u8, usize)> {
    if BYTES.load(Relaxed) < len {
        return None;
    }
    let mut cache = CACHE.lock();
    let best = (0..ENTRIES)
        .filter(|&i| {
            let e = &cache.entries[i];
            e.len >= len && e.len - len <= len / SLACK && e.block.addr() & (align - 1) == 0
        })
        .min_by_key(|&i| cache.entries[i].len)?;
    let entry = cache.remove(best);
    super::CACHE_HITS.fetch_add(1, Relaxed);
    Some((entry.block, entry.len))
}

/// Keeps a mapping, if there is room for one of that size. The caller unmaps it when not.
pub(super) fn give(block: *mut u8, len: usize) -> bool {
    let limit = options::get().large_cache;
    if len > limit / 2 {
        return false;
    }
    let now = now_ms();
    loop {
        let mut cache = CACHE.lock();
        let free = cache.entries.iter().position(|e| e.len == 0);
        if let (Some(i), true) = (free, cache.bytes + len <= limit) {
            cache.entries[i] = Entry { block, len, since: now };
            cache.bytes += len;
            BYTES.store(cache.bytes, Relaxed);
            return true;
        }
        let Some(i) = cache.oldest(now, |_| true) else { return false };
        let old = cache.remove(i);
        drop(cache);
        // SAFETY: out of the cache, so ours alone.
        unsafe { os::unmap(old.block, old.len) };
        os::PURGED.fetch_add(old.len, Relaxed);
    }
}

/// Unmaps what has been kept longer than the purge delay.
pub(crate) fn tick() {
    let delay = options::get().purge_delay;
    if delay >= 0 && BYTES.load(Relaxed) > 0 {
        unmap_while(now_ms(), |age| age as i64 >= delay);
    }
}

/// Unmaps everything that is kept; how many bytes.
pub(crate) fn drain() -> usize {
    unmap_while(now_ms(), |_| true)
}

fn unmap_while(now: u32, wanted: impl Fn(u32) -> bool) -> usize {
    let mut bytes = 0;
    loop {
        let mut cache = CACHE.lock();
        let Some(i) = cache.oldest(now, &wanted) else { return bytes };
        let entry = cache.remove(i);
        drop(cache);
        // SAFETY: out of the cache, so ours alone.
        unsafe { os::unmap(entry.block, entry.len) };
        os::PURGED.fetch_add(entry.len, Relaxed);
        bytes += entry.len;
    }
}

/// For the time across a fork.
pub(crate) fn acquire() {
    CACHE.acquire();
}

/// See [`acquire`].
pub(crate) fn release(child: bool) {
    if child { CACHE.reset_in_child() } else { CACHE.release() }
}
