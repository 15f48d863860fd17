//! What goes back to the system: because of its age, because the limit has fallen, or because somebody asks.

use crate::base::counters::LARGE_IN_USE;
use crate::base::options;
use crate::large::cache::entry::AGAIN;
use crate::large::cache::{
    CACHE, Cache, DELAY, ENTRIES, KEPT_PART, REFUSED, REGRET, RETRY, dropped, keep_refused, kept, limit,
    unmap,
};
use crate::large::huge::Mapping;
use crate::os::returning::Returning;
use crate::os::{self, elapsed, now_ms};
use crate::superslab::purge;
use crate::sync::Ordering::Relaxed;

/// How many mappings in the queue the system may refuse again to unmap in a row, until it is left alone, or
/// how many of them are tried where nobody has asked: others come first the next time.
const TRIES: usize = 16;
/// How often each is tried at most when somebody asks for all: when one has gone, the next one may. Not as
/// long as one goes: that could be one of 60,000 each time.
const PASSES: usize = 4;

/// Unmaps what has been kept longer than the purge delay, and sees to it that the pool does so as well.
#[inline]
pub(crate) fn tick() {
    if kept() > 0 {
        tick_at(now_ms());
    }
}

/// [`tick`], at `now`.
pub(crate) fn tick_at(now: u32) {
    unmap_excess(now);
    purge::tick(now);
    // No delay: nothing goes back unless asked for.
    let Some(term) = term() else { return };
    if kept() > 0 {
        let bytes = unmap_due(now, term);
        if bytes != 0 {
            DELAY.went(bytes, now);
        }
        if REFUSED.load(Relaxed) && !RETRY.is_on(now) {
            RETRY.tried(unmap_refused(TRIES, TRIES), now);
        }
    }
}

/// How long memory is kept, in milliseconds: the purge delay, if there is one, or longer.
fn term() -> Option<u32> {
    u32::try_from(options::get().purge_delay).ok().map(|delay| DELAY.stretch(delay))
}

/// Unmaps what may not be kept any more, since the limit falls with the blocks that are freed: more than
/// there is in use.
#[inline(always)]
pub(super) fn unmap_excess(now: u32) {
    // What the option allows is always allowed.
    if kept() > options::get().large_cache {
        unmap_rest(now);
    }
}

/// Takes a mapping out of the cache that is about to be unmapped.
fn take_out(choose: impl FnOnce(&mut Cache) -> Option<Mapping>) -> Option<(Mapping, Returning)> {
    let mut cache = CACHE.lock_soon()?;
    // While the cache is locked: see `Returning`.
    choose(&mut cache).map(|out| (out, Returning::begin()))
}

/// [`unmap_excess`], where there may be some.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn unmap_rest(now: u32) {
    let limit = limit(&REGRET, LARGE_IN_USE.load(Relaxed).saturating_mul(KEPT_PART), now);
    while let Some((out, _returning)) = take_out(|cache| cache.make_room(0, limit, now)) {
        dropped(&out, now);
        unmap(out);
    }
}

/// Unmaps everything that is kept; what the system has refused to unmap is tried again, with `all` each of
/// it, else some. Regrets are forgotten: whoever asks for this knows better.
pub(crate) fn drain(all: bool) {
    REGRET.forget();
    DELAY.forget();
    unmap_due(now_ms(), 0);
    let in_a_row = if all { usize::MAX } else { TRIES };
    for _ in 0..PASSES {
        if !unmap_refused(usize::MAX, in_a_row) {
            break;
        }
    }
}

/// Unmaps what has been kept for `least` milliseconds or more: as much as there can be. What other threads
/// put there meanwhile may be due at once, and they may be faster. Returns how many bytes that somebody has
/// used are gone.
fn unmap_due(now: u32, least: u32) -> usize {
    let oldest = |cache: &mut Cache| cache.oldest(now, least, |e| !e.refused).map(|i| cache.remove(i));
    let mut bytes = 0;
    for _ in 0..ENTRIES {
        let Some((kept, _returning)) = take_out(oldest) else { break };
        let used = if kept.clean { 0 } else { kept.len };
        bytes += if unmap(kept) { used } else { 0 };
    }
    bytes
}

/// Tries again to unmap what the system has refused to unmap, each once: what is in places, and then what is
/// in the queue, `most` of that, until `in_a_row` have been refused. Returns whether anything is gone.
fn unmap_refused(most: usize, in_a_row: usize) -> bool {
    if !REFUSED.load(Relaxed) {
        return false;
    }
    // Before the first is taken out, and until the last is back: who is refused memory waits for all of it.
    let _returning = Returning::begin();
    let (mut gone, mut from) = (false, 0);
    while let Some((i, kept)) = CACHE.lock_soon().and_then(|mut cache| cache.take_refused(from)) {
        // It comes back to this place, or to one before it.
        from = i + 1;
        gone |= unmap_again(kept);
    }
    let queued = CACHE.lock_soon().map_or(0, |cache| cache.queue.len());
    let mut refusals = 0;
    // What is refused again comes to a place, or to the end of the queue.
    for _ in 0..queued.min(most) {
        let Some(kept) = CACHE.lock_soon().and_then(|mut cache| cache.pop(|_| true)) else { break };
        let is_gone = unmap_again(kept);
        refusals = if is_gone { 0 } else { refusals + 1 };
        gone |= is_gone;
        if refusals == in_a_row {
            break;
        }
    }
    gone
}

/// Tries again to unmap what the system has refused to unmap. Its pages have been given back as far as they
/// could be.
fn unmap_again(kept: Mapping) -> bool {
    // SAFETY: the caller has just taken it out of the cache: ours alone, and mapped.
    let gone = unsafe { os::unmap_again(kept.block, kept.len) };
    if !gone {
        keep_refused(kept);
    }
    gone
}

impl Cache {
    /// Takes out the first of what the system has refused to unmap, of the places from `from` on.
    fn take_refused(&mut self, from: usize) -> Option<(usize, Mapping)> {
        let (i, _) = self.used().find(|&(i, e)| i >= from && e.refused)?;
        Some((i, self.remove(i)))
    }
}

/// Milliseconds until the first of the kept mappings is due by age, or those are tried again that the system
/// has refused to unmap. `None` if nothing is kept, or never is.
pub(crate) fn due_in(now: u32) -> Option<u32> {
    let term = term()?;
    let Some(cache) = CACHE.lock_soon() else { return Some(term) };
    let kept = cache.used().filter(|(_, e)| !e.refused);
    let first = kept.map(|(_, e)| term.saturating_sub(elapsed(e.since, now))).min();
    if cache.refused == 0 { first } else { Some(first.map_or(AGAIN, |first| first.min(AGAIN))) }
}
