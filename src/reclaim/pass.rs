//! One pass of the background thread over everything that can be given back.

use crate::base::options;
use crate::lockfree::waker::WAKER;
use crate::reclaim::idle_heaps;
use crate::superslab::{pool, purge};
use crate::{large, os};

/// What is left after a pass.
pub(super) struct Left {
    /// Something was due, but the system has taken nothing.
    pub(super) refused: bool,
    /// Idle heaps still hold something.
    pub(super) heaps: bool,
}

/// Gives back, piece by piece, what has been free longer than the purge delay. Holds no lock across a system
/// call.
pub(super) fn pass() -> Left {
    if options::get().purge_delay < 0 {
        return Left { refused: false, heaps: false };
    }
    let aged = purge::aged(|| WAKER.is_stopped());
    large::tick();
    Left { refused: aged == Some(0), heaps: idle_heaps::idle(os::now_ms()) }
}

/// Milliseconds until something may be due after a pass; `None` when nothing is dirty. Looks under the locks
/// that guard it, as the [waker](crate::lockfree::waker) needs.
pub(super) fn due(left: &Left) -> Option<u32> {
    let delay = u32::try_from(options::get().purge_delay).ok()?;
    let now = os::now_ms();
    let heaps = left.heaps.then_some(delay);
    [pool::due_in(now, delay), large::due_in(now, delay), heaps].into_iter().flatten().min()
}
