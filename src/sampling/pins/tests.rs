//! What sites pin, in slabs that are made here.

use super::*;
use crate::os;
use crate::sampling::store::Sample;
use crate::superslab::desc::Desc;
use crate::superslab::layout::SUPERSLAB;
use crate::superslab::pagemap::{self, FOREIGN};
use crate::superslab::slab::{Owner, Slab};
use crate::tiny::classes::{class_of, slices, stride};

/// Of a slab that was used for many blocks one lives, and keeps what those have touched.
#[test]
#[cfg_attr(miri, ignore)]
fn who_lives_shares_what_is_free_and_resident_with_the_others_of_its_slab() {
    // Another test may have the pool's lock, and then nothing is measured.
    if !os::child::is_alone() {
        return;
    }
    let class = class_of(64, 1);
    let (slices, stride) = (slices(class), stride(class as usize) as usize);
    let base = os::map_aligned(ptr::null_mut(), SUPERSLAB, SUPERSLAB);
    assert!(!base.is_null() && pagemap::prepare(base) && stride == 64);
    // SAFETY: the place for a SuperSlab was just mapped, and nobody else knows it. The owner is never
    // followed.
    let slab = unsafe {
        let slab = Slab::claim(Desc::stand_in(base), 8, slices, class);
        Slab::make(slab, stride as u32, true, ptr::without_provenance_mut::<Owner>(4096));
        slab
    };
    let first = Slab::address(slab);
    pagemap::set(first, slices, class);
    // SAFETY: the slab is ours alone, here and below.
    let take = |blocks: usize| (0..blocks).for_each(|_| unsafe { Slab::count_taken(slab) });
    // So many were handed out, of which all but one are free again: a quarter of a slice, in whole pages.
    const HANDED_OUT: usize = 256;
    // SAFETY: as above; whole blocks.
    unsafe { Slab::set_bump(slab, first.wrapping_add(HANDED_OUT * stride)) };
    let touched = (HANDED_OUT * stride).next_multiple_of(os::page_size());
    take(1);

    let mut store = Store::new();
    let (address, size, addresses) = (first.wrapping_add(3 * stride).expose_provenance(), 64, &[5][..]);
    let (rate, thread, tag, now, mapped, end) = (1, 1, 0, 1000, 0, 0);
    let sample = Sample { address, size, rate, thread, tag, now, mapped, addresses, end };
    assert!(store.allocated(&sample, || [0; 16]));
    let mut pinned = || {
        measure(&mut store);
        let site = store.sites[0];
        (site.live, site.pinned)
    };
    let alone = (1, (touched - stride) as f64);
    assert_eq!([pinned(), pinned()], [alone; 2], "it is the same each time");
    // Two others are in use again.
    take(2);
    let shared = (1, (touched - 3 * stride) as f64 / 3.0);
    assert_eq!([pinned(), pinned()], [shared; 2]);
    // The slab was given back: nobody has seen the block's free.
    pagemap::set(first, slices, FOREIGN);
    assert_eq!([pinned(), pinned()], [(0, 0.0); 2]);
    assert_eq!((store.live.iter().count(), store.lost), (0, 0));
    assert_eq!(store.lifetimes(&store.sites[0]).map(|known| known.count).sum::<u64>(), 1);
    store.clear();
    // SAFETY: mapped above, and not used any more.
    unsafe { os::discard(base, SUPERSLAB) };
}
