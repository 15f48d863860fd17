//! What is kept is taken for blocks.

use crate::base::counters::LARGE_CACHE_HITS;
use crate::large::cache::{CACHE, DELAY, REGRET, kept, missed};
use crate::large::huge::Mapping;
use crate::os::now_ms;
use crate::superslab::layout::SLICE;
use crate::sync::Ordering::Relaxed;

/// A mapping is handed out whole if it is longer than needed by at most one part in this many; else it is
/// cut.
const SLACK: usize = 8;
/// A bit that no length has.
const SIGN: usize = 1 << (usize::BITS - 1);
/// A mapping is made longer only if it has at least one part in this many of the new length.
const PART: usize = 4;

/// Takes memory of at least `len` bytes at a multiple of `align`. Unless it is clean, its contents are
/// unknown. For a block that is `growing`: out of the longest, and not right behind another block, which may
/// grow, too. What is clean comes last, since it costs page faults.
pub(in crate::large) fn take_kept(len: usize, align: usize, growing: bool) -> Option<Mapping> {
    let can_regret = can_regret();
    if kept() < len && !can_regret {
        return None;
    }
    let fits = |kept: &Mapping| kept.len >= len && kept.block.addr() & (align - 1) == 0;
    let mut cache = CACHE.lock_soon()?;
    let all = cache.used().filter(|(_, e)| fits(&e.kept()));
    // Keys of one word: of pairs with a `bool` the bytes between the two were copied from place to place in
    // overlapping words, for which some processors wait (docs/decisions/048).
    let best = if growing {
        all.max_by_key(|(_, e)| e.len() | if e.clean { 0 } else { SIGN })
    } else {
        all.min_by_key(|(_, e)| e.len() | if e.clean { SIGN } else { 0 })
    };
    let found = if let Some((mut i, entry)) = best {
        let whole = entry.len() - len <= len / SLACK;
        let len = if whole { entry.len() } else { len };
        if growing && entry.follows {
            i = cache.halve(i, len, align).unwrap_or(i);
        }
        cache.take(i, len)
    } else if let Some(mut popped) = cache.pop(fits) {
        let rest = popped.len - len;
        if rest >= SLICE {
            cache.push(Mapping { block: popped.block.wrapping_add(len), len: rest, ..popped });
            popped.len = len;
        }
        popped
    } else {
        if can_regret {
            wanted(len);
        }
        return None;
    };
    drop(cache);
    if !found.clean {
        LARGE_CACHE_HITS.fetch_add(1, Relaxed);
    }
    Some(found)
}

/// Notes that a block grows by `len` bytes, none of which are kept.
pub(in crate::large) fn grows_fresh(len: usize) {
    if can_regret() {
        wanted(len);
    }
}

/// Whether anything has gone back that may turn out to be needed.
fn can_regret() -> bool {
    REGRET.dropped() != 0 || DELAY.has_gone()
}

/// Notes that `len` bytes were wanted and not there.
fn wanted(len: usize) {
    let now = now_ms();
    missed(&REGRET, len, now);
    DELAY.wanted(len, now);
}

/// Takes the longest memory that is kept, if it is shorter than `len` bytes but a good part of it: to be made
/// longer. Nothing that the system has refused to unmap: it lies between others.
pub(in crate::large) fn take_part(len: usize) -> Option<Mapping> {
    if kept() < len / PART {
        return None;
    }
    let mut cache = CACHE.lock_soon()?;
    let (longest, entry) =
        cache.used().filter(|(_, e)| !e.clean && !e.refused).max_by_key(|(_, e)| e.len())?;
    let part = entry.len();
    (part >= len / PART && part < len).then(|| cache.take(longest, part))
}

/// Takes at least `len` bytes of memory that begins at `end`, the end of a block that grows. Returns how many
/// bytes.
pub(in crate::large) fn take_behind(end: *mut u8, len: usize, huge: bool) -> Option<usize> {
    if kept() < len {
        return None;
    }
    let mut cache = CACHE.lock_soon()?;
    let i = cache.used().find(|(_, e)| e.kept().begins_at(end) && e.len() >= len && e.huge == huge)?.0;
    Some(cache.take(i, len).len)
}
