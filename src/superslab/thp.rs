//! Huge pages for SuperSlabs, where what they hold is touched densely.
//!
//! A huge page is resident as a whole when one byte of it is touched, so the kernel is asked first, of SuperSlabs without
//! huge pages that have hardly a free page, how much of them is resident. While that is most of it, new SuperSlabs get huge
//! pages; but for one in 64, by which a change is noticed.

use crate::os;
use crate::superslab::layout::SUPERSLAB;
use crate::superslab::span_index::State;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};

/// SuperSlabs from which on huge pages are thought of: one that then stays empty wastes an eighth.
const FROM: usize = 8;
/// One new SuperSlab in so many is a control, without huge pages.
const CONTROL: usize = 64;
/// New SuperSlabs from one look to the next.
const RARELY: usize = 4;
/// SuperSlabs that are looked at, of how many that come first among those with the same number of free pages, and how
/// many that may be: runs leave some that no run fits into.
const LOOKS: usize = 4;
const AMONG: usize = 32;
const MOST_FREE: usize = 2;
/// The ones that became full last may not have been touched yet.
const TOO_FRESH: usize = 2;

/// New SuperSlabs that were asked for, from the time there were enough.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// What the last look said.
static DENSE: AtomicBool = AtomicBool::new(false);

/// SuperSlabs to look at.
pub(super) struct Samples([*mut u8; LOOKS]);

/// None.
impl Default for Samples {
    fn default() -> Self {
        Self([ptr::null_mut(); LOOKS])
    }
}

/// Chooses some; under the pool's lock.
pub(super) fn choose(pool: &State) -> Samples {
    let old = (0..=MOST_FREE).flat_map(|free| {
        let bucket = core::iter::successors(pool.first_of_bucket(free), |desc| desc.next_of_bucket());
        bucket.take(AMONG).skip(TOO_FRESH).filter(|desc| !desc.huge.load(Relaxed))
    });
    let mut chosen = Samples::default();
    chosen.0.iter_mut().zip(old).for_each(|(place, desc)| *place = desc.base());
    chosen
}

/// Whether the next SuperSlab should have huge pages. Without the pool's lock.
pub(super) fn wants_huge(superslabs: usize, samples: impl FnOnce() -> Samples) -> bool {
    if superslabs < FROM {
        return false;
    }
    let asked = ASKED.fetch_add(1, Relaxed);
    if asked % RARELY == 0 {
        if let Some(dense) = judge(&samples()) {
            DENSE.store(dense, Relaxed);
        }
    }
    asked % CONTROL != CONTROL - 1 && DENSE.load(Relaxed)
}

/// Whether most of what was chosen is resident; `None` when there is nothing to judge by.
fn judge(samples: &Samples) -> Option<bool> {
    let (mut pages, mut resident) = (0, 0);
    for &base in samples.0.iter().filter(|base| !base.is_null()) {
        // SAFETY: changes nothing, and says nothing of what is not there: should it have been unmapped meanwhile.
        resident += unsafe { os::resident_pages(base, SUPERSLAB) }?;
        pages += SUPERSLAB >> os::page_size().trailing_zeros();
    }
    (pages != 0).then_some(resident * 8 >= pages * 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_kernel_is_believed() {
        assert_eq!(judge(&Samples([ptr::null_mut(); LOOKS])), None);
        let base = os::map_uncounted(2 * SUPERSLAB);
        let sample = |n: usize| {
            let mut chosen = [ptr::null_mut(); LOOKS];
            chosen[..n].fill(base);
            Samples(chosen)
        };
        // SAFETY: ours. Without huge pages, whatever the system's default is.
        unsafe { os::advise_huge(base, 2 * SUPERSLAB, false) };
        assert_eq!(judge(&sample(1)), Some(false));
        for page in 0..SUPERSLAB / os::page_size() * 3 / 4 {
            // SAFETY: inside the mapping.
            unsafe { base.add(page * os::page_size()).write(1) };
        }
        assert_eq!(judge(&sample(2)), Some(false));
        // SAFETY: inside the mapping.
        unsafe { base.write_bytes(1, SUPERSLAB) };
        assert_eq!(judge(&sample(4)), Some(true));
        assert!(!wants_huge(FROM - 1, || sample(1)));
        let answers: Vec<bool> = (0..CONTROL).map(|_| wants_huge(FROM, || sample(1))).collect();
        assert_eq!(answers.iter().filter(|yes| !**yes).count(), 1, "a control");
        // SAFETY: ours.
        unsafe { os::unmap_uncounted(base, 2 * SUPERSLAB) };
        // What is not there tells nothing.
        assert_eq!(judge(&sample(1)), None);
    }
}
