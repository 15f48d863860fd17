//! One pass of the background thread over everything that can be given back.

use crate::base::options;
use crate::lockfree::waker::WAKER;
use crate::reclaim::idle_heaps;
use crate::superslab::{pool, purge};
use crate::sync::AtomicBool;
use crate::sync::Ordering::Relaxed;
use crate::{large, os};

/// What a pass has achieved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Everything that was due has been given back, if anything was.
    Done,
    /// Something was due, but the system has taken nothing.
    Refused,
}

/// Whether idle heaps still held something at the end of the last pass. Relaxed: only the background thread
/// uses it.
static HEAPS: AtomicBool = AtomicBool::new(false);

/// Gives back, piece by piece, what has been free longer than the purge delay. Holds no lock across a system
/// call.
pub(crate) fn pass() -> Pass {
    if options::get().purge_delay < 0 {
        return Pass::Done;
    }
    let aged = purge::aged(|| WAKER.is_stopped());
    large::tick();
    HEAPS.store(idle_heaps::idle(os::now_ms()), Relaxed);
    if aged == Some(0) { Pass::Refused } else { Pass::Done }
}

/// Milliseconds until something may be due; `None` when nothing is dirty. Looks under the locks that guard
/// it, as the [waker](crate::lockfree::waker) needs.
pub(crate) fn due() -> Option<u32> {
    let delay = u32::try_from(options::get().purge_delay).ok()?;
    let now = os::now_ms();
    let heaps = HEAPS.load(Relaxed).then_some(delay);
    [pool::due_in(now, delay), large::due_in(now, delay), heaps].into_iter().flatten().min()
}
