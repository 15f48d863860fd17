//! What goes back to the system: because of its age, because the limit has fallen, or because somebody asks.

use crate::base::counters::LARGE_IN_USE;
use crate::base::options;
use crate::large::cache::{
    CACHE, Cache, DELAY, ENTRIES, KEPT_PART, QUEUED, REGRET, RETRY, dropped, kept, limit, unmap,
};
use crate::large::huge::Mapping;
use crate::os::returning::Returning;
use crate::os::{elapsed, now_ms};
use crate::sync::Ordering::Relaxed;

/// How many mappings the system is asked again to unmap in one go,
const RETRIES: usize = 16;
/// and how many when somebody asks for all that can be given back, or memory has been refused,
const MOST_RETRIES: usize = 1024;
/// and how often then, at most.
const PASSES: usize = 4;

/// Unmaps what has been kept longer than the purge delay.
#[inline]
pub(crate) fn tick() {
    if kept() > 0 {
        tick_at(now_ms());
    }
}

/// [`tick`], at `now`.
pub(crate) fn tick_at(now: u32) {
    unmap_excess(now);
    // No delay: nothing goes back unless asked for.
    let Some(term) = term() else { return };
    if kept() > 0 {
        let bytes = unmap_due(now, term);
        if bytes != 0 {
            DELAY.went(bytes, now);
        }
        if QUEUED.load(Relaxed) && !RETRY.is_on(now) {
            RETRY.tried(unmap_queued(RETRIES), now);
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

/// Unmaps everything that is kept. Regrets are forgotten: whoever asks for this knows better.
pub(crate) fn drain() {
    REGRET.forget();
    DELAY.forget();
    unmap_due(now_ms(), 0);
    unmap_refused();
}

/// Unmaps what has been kept for `least` milliseconds or more: as much as there can be. What other threads
/// put there meanwhile may be due at once, and they may be faster. Returns how many bytes that somebody has
/// used are gone.
fn unmap_due(now: u32, least: u32) -> usize {
    let oldest = |cache: &mut Cache| cache.oldest(now, least, |_| true).map(|i| cache.remove(i));
    let mut bytes = 0;
    for _ in 0..ENTRIES {
        let Some((kept, _returning)) = take_out(oldest) else { break };
        let used = if kept.clean { 0 } else { kept.len };
        bytes += if unmap(kept) { used } else { 0 };
    }
    bytes
}

/// Tries again to unmap what is in the queue, `most` mappings or each once. Returns whether anything is gone.
fn unmap_queued(most: usize) -> bool {
    let queued = CACHE.lock_soon().map_or(0, |cache| cache.queue.len());
    let mut gone = false;
    // What is refused again comes to the end of the queue, if not to a place.
    for _ in 0..most.min(queued) {
        let Some((kept, _returning)) = take_out(|cache| cache.pop(|_| true)) else { break };
        gone |= unmap(kept);
    }
    gone
}

/// Tries again to unmap all that the system has refused to unmap, as long as something goes: then the next
/// one may.
fn unmap_refused() {
    for _ in 0..PASSES {
        if let Some(mut cache) = CACHE.lock_soon() {
            cache.queue_refused();
        }
        if !unmap_queued(MOST_RETRIES) {
            break;
        }
    }
}

impl Cache {
    /// Puts what the system has refused to unmap at the end of the queue.
    fn queue_refused(&mut self) {
        for i in 0..self.top {
            let entry = &self.entries[i];
            if entry.refused && entry.len() != 0 {
                let kept = self.remove(i);
                self.push(kept);
            }
        }
    }
}

/// Milliseconds until the first of the kept mappings is due by age. `None` if nothing is kept, or never is.
pub(crate) fn due_in(now: u32) -> Option<u32> {
    let term = term()?;
    let Some(cache) = CACHE.lock_soon() else { return Some(term) };
    cache.used().map(|(_, e)| e.term(term).saturating_sub(elapsed(e.since, now))).min()
}
