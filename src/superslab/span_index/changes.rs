//! Changes of descriptors, and of the index where the pool's lock can be had; else the index is marked as
//! stale.

use crate::os;
use crate::superslab::desc::{DescRef, descs, unused_desc};
use crate::superslab::layout::SLICES;
use crate::superslab::span::{Span, make_span};
use crate::superslab::span_index::{lock, set_stale};
use crate::sync::Ordering::Relaxed;

/// Adds a SuperSlab whose slices are free: see [`Desc::fill`](super::Desc::fill). False if no descriptor is
/// left.
pub(in crate::superslab) fn add(base: *mut u8, huge: bool, reused: bool) -> bool {
    let mut pool = lock();
    let spare = pool.as_mut().and_then(|pool| pool.take_spare());
    let Some(desc) = spare.or_else(unused_desc) else { return false };
    desc.fill(base, huge, reused);
    match pool {
        Some(mut pool) => {
            let now = os::now_ms();
            pool.enter(desc, now);
            if reused {
                pool.policy.wanted(SLICES, now);
            }
        }
        None => set_stale(),
    }
    true
}

/// Takes a span without the lock, anywhere, of slices in the mask `among`.
pub(in crate::superslab) fn take_unlocked(slices: usize, class: u8, among: u32) -> Option<Span> {
    descs().find_map(|desc| {
        let (index, before) = desc.slices.take(slices, slices, among)?;
        set_stale();
        Some(make_span(desc, index, slices, class, before))
    })
}

/// Puts back the slices that [`State::hide`](super::State::hide) has hidden. Those in `clean` are not dirty
/// any more.
pub(in crate::superslab) fn put_back(desc: DescRef, clean: u32) {
    let pool = lock();
    let hidden = desc.job.load(Relaxed);
    let after = desc.end_job(clean);
    match pool {
        Some(mut pool) => pool.reindex(desc, hidden, after, os::now_ms()),
        None => set_stale(),
    }
}

/// Removes a SuperSlab that was hidden as a whole and has been unmapped. Without the lock it stays listed
/// until the index is rebuilt, but none of its slices is free.
pub(in crate::superslab) fn remove(desc: DescRef) {
    let Some(mut pool) = lock() else {
        desc.clear();
        return set_stale();
    };
    pool.forget(desc);
}
