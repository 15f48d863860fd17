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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardened::slab::{DEAD, LISTED};
    use crate::hardened::{blocks, child, large};
    use crate::superslab::pagemap;

    /// As if somebody had last looked so many milliseconds ago.
    fn looked(ago: i32) -> u32 {
        let looked = os::now_ms().wrapping_sub(ago as u32);
        LOOKED.store(looked, Relaxed);
        looked
    }

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn who_comes_by_gives_back_what_is_due_and_else_nothing() {
        let _alone = lists::ALONE.lock();
        assert!(child::is_so(|| {
            const LONG: i32 = 200_000;
            crate::hardened::inherit();
            lists::purge();
            unmapping::purge();
            RESIDENT.store(0, Relaxed);
            assert!(!has_any() && due_in(0, 250).is_none() && !lists::has_empty());
            let before = looked(LONG);
            tick();
            assert_eq!(LOOKED.load(Relaxed), before, "nothing is there");
            // A slab that is empty.
            let slab = lists::take_or_make(20, &Default::default()).unwrap();
            lists::drop_current(slab);
            LOOKED.store(1000, Relaxed);
            assert_eq!([1000, 1100, 1250, 2000].map(|now| due_in(now, 250)), [250, 150, 0, 0].map(Some));
            let before = looked(-LONG);
            tick();
            tick();
            assert_eq!((LOOKED.load(Relaxed), slab.place.load(Relaxed)), (before, LISTED), "not yet");
            for place in [LISTED, DEAD] {
                looked(LONG);
                tick();
                assert_eq!(slab.place.load(Relaxed), place, "it was empty since the last look");
                assert!(os::elapsed(LOOKED.load(Relaxed), os::now_ms()) < LONG as u32 / 2);
            }
            assert!(!has_any());
            // A large block that was freed.
            let block = blocks::alloc(100_000, 16, false).ptr;
            // SAFETY: the record of a block of ours, which is freed once.
            unsafe {
                let large = large::of(pagemap::hardened(block).cast(), block).unwrap();
                large.free(block, "free");
                large.freed.store(os::now_ms().wrapping_sub(LONG as u32), Relaxed);
            }
            assert!(has_any() && due_in(0, 250).is_some());
            looked(LONG);
            tick();
            RESIDENT.load(Relaxed) == 0 && due_in(0, 250).is_none()
        }));
    }
}
