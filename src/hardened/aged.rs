//! What goes back because nobody has wanted it for the purge delay: slabs that are empty, and the pages of
//! large blocks that are freed.
//!
//! Nothing has a timer. Whoever comes by looks when the delay has passed since somebody last looked; so what
//! is due goes back when it is between one and two delays old, or when the program next does something.

use crate::base::options;
use crate::hardened::kept::RESIDENT;
use crate::hardened::{lists, reused, unmapping};
use crate::os;
use crate::sync::AtomicU32;
use crate::sync::Ordering::Relaxed;

/// When somebody last looked, in milliseconds. Relaxed: a figure; of those that come at the same time the
/// exchange admits one.
static LOOKED: AtomicU32 = AtomicU32::new(0);

/// Whether there is anything that may become due.
#[inline(always)]
fn has_any() -> bool {
    lists::has_empty() || RESIDENT.load(Relaxed) != 0
}

/// Gives back what is due. With no lock held, since it calls the system.
#[inline(always)]
pub(super) fn tick() {
    if has_any() {
        look();
    }
}

/// [`tick`], where there is something.
#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn look() {
    // No delay: nothing goes back unless asked for.
    let Ok(delay) = u32::try_from(options::get().purge_delay) else { return };
    let (now, looked) = (os::now_ms(), LOOKED.load(Relaxed));
    if os::elapsed(looked, now) >= delay && LOOKED.compare_exchange(looked, now, Relaxed, Relaxed).is_ok() {
        lists::give_back_idle();
        if unmapping::give_back_aged(now, delay) {
            reused::unwanted();
        }
    }
}

/// Milliseconds until somebody should look. `None` if there is nothing.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn due_in(now: u32, delay: u32) -> Option<u32> {
    has_any().then(|| delay.saturating_sub(os::elapsed(LOOKED.load(Relaxed), now)))
}
