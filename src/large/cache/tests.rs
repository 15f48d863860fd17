use crate::base::options::Thp;
use crate::large::cache::spare::Pages;
use crate::large::cache::*;
use crate::superslab::decay;
use crate::superslab::layout::SUPERSLAB;
#[cfg(not(loom))]
use crate::superslab::{grow::Wanted, layout::SLICE};
use core::ptr;

const MIB: usize = 1 << 20;

fn kept(mib: usize, mibs: usize) -> Mapping {
    let block = ptr::without_provenance_mut((1 << 30) + mib * MIB);
    Mapping { block, len: mibs * MIB, huge: false, clean: false }
}

/// The places and lengths of the entries, in MiB.
fn places(cache: &Cache) -> Vec<(usize, usize)> {
    let place = |(_, e): (usize, &Entry)| ((e.block.addr() - (1 << 30)) / MIB, e.len() / MIB);
    let mut places: Vec<_> = cache.used().map(place).collect();
    places.sort();
    assert_eq!(cache.bytes, places.iter().map(|p| p.1 * MIB).sum());
    let last = cache.entries.0.iter().rposition(|e| e.len() != 0);
    assert_eq!(cache.top, last.map_or(0, |last| last + 1), "the last place in use, and no more");
    places
}

#[test]
fn neighbours_become_one_and_are_cut_again() {
    let mut cache = Cache::new();
    assert!(cache.add(kept(0, 2), 0, false) && cache.add(kept(6, 2), 0, false));
    assert_eq!(places(&cache), [(0, 2), (6, 2)]);
    assert!(
        cache.add(Mapping { huge: true, ..kept(2, 1) }, 0, false),
        "it has huge pages, so it is not merged"
    );
    assert!(cache.add(kept(3, 3), 1, false));
    assert_eq!(places(&cache), [(0, 2), (2, 1), (3, 5)]);
    let i = cache.used().find(|(_, e)| e.len() == 5 * MIB).unwrap().0;
    assert_eq!(cache.take(i, 2 * MIB).block, kept(3, 1).block);
    assert_eq!(places(&cache), [(0, 2), (2, 1), (5, 3)]);
    let i = cache.used().find(|(_, e)| e.len() == 3 * MIB).unwrap().0;
    assert_eq!(cache.take(i, 3 * MIB - 4096).len, 3 * MIB, "what is left would be too short for a block");
    assert_eq!(places(&cache), [(0, 2), (2, 1)]);
}

/// A short block that comes and goes does not keep what is beside it from going back.
#[test]
fn what_is_merged_is_as_old_as_its_longest_part() {
    let mut cache = Cache::new();
    let age = |cache: &Cache| cache.used().next().unwrap().1.since;
    assert!(cache.add(kept(0, 8), 5, false) && cache.add(kept(8, 2), 9, false));
    assert_eq!((places(&cache), age(&cache)), (vec![(0, 10)], 5));
    assert!(cache.add(kept(10, 10), 12, false));
    assert_eq!((places(&cache), age(&cache)), (vec![(0, 20)], 12), "half of it is new");
    assert!(cache.add(kept(50, 5), 1, false) && cache.add(kept(56, 4), 2, false));
    assert!(cache.add(kept(55, 1), 20, false));
    assert_eq!(places(&cache), [(0, 20), (50, 10)]);
    assert!(cache.used().any(|(_, e)| e.len() == 10 * MIB && e.since == 1));
}

#[test]
fn what_a_block_was_cut_off_is_halved() {
    let mut cache = Cache::new();
    assert!(cache.add(kept(0, 9), 7, false) && !cache.entries[0].follows);
    assert_eq!(cache.take(0, MIB).block, kept(0, 1).block);
    assert!(cache.entries[0].follows);
    assert_eq!(cache.halve(0, 5 * MIB, 1), None, "too short");
    assert_eq!(cache.halve(0, MIB, 64 * MIB), None, "not at a multiple");
    assert_eq!(cache.halve(0, 4 * MIB, 4096), Some(1));
    assert_eq!(places(&cache), [(1, 4), (5, 4)]);
    assert_eq!((cache.entries[1].since, cache.entries[1].follows), (7, false));
    assert!(cache.add(kept(28, 8), 7, false));
    assert_eq!(cache.halve(2, MIB, 32 * MIB), Some(3));
    while cache.used().count() < ENTRIES {
        assert!(cache.add(kept(100 + 2 * cache.used().count(), 1), 10, false));
    }
    assert_eq!(cache.halve(0, MIB, 4096), None, "no place");
}

/// In a child: other tests use the cache as well.
#[cfg(not(loom))]
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn the_pool_gets_what_is_kept() {
    let kept = |touched: usize, huge: bool| {
        let block = os::map_aligned(ptr::null_mut(), SUPERSLAB, SUPERSLAB);
        // SAFETY: mapped just now with this length.
        unsafe {
            os::advise_huge(block, SUPERSLAB, false);
            block.write_bytes(1, touched);
        }
        Mapping { block, len: SUPERSLAB, huge, clean: false }
    };
    // SAFETY: mapped for this, and not used any more.
    let keep = |kept: Mapping| unsafe { keep(kept) };
    assert!(crate::large::child::is_so(|| {
        // What other tests have kept in this process.
        drain(true);
        assert!(spare(Wanted::Small).is_none());
        // Set where test.sh emulates other page sizes: what is resident is not told by those there.
        let is_emulated = std::env::var_os("EXPECT_PAGE_SIZE").is_some();
        let half = SUPERSLAB / 2;
        for (touched, is_clean) in [(SUPERSLAB, false), (half, false), (half - os::page_size(), true)] {
            if is_clean && is_emulated {
                continue;
            }
            let block = kept(touched, false);
            keep(block);
            let spare = spare(Wanted::Small).unwrap();
            assert_eq!((spare.base, spare.huge, spare.clean), (block.block, false, is_clean));
            // SAFETY: ours alone.
            assert_eq!(unsafe { block.block.read() }, if is_clean { 0 } else { 1 });
        }
        let two = [(); 2].map(|()| kept(SUPERSLAB, false));
        two.into_iter().for_each(keep);
        let (mut kept_two, mut got) =
            (two.map(|two| two.block), two.map(|_| spare(Wanted::Small).unwrap().base));
        kept_two.sort();
        got.sort();
        assert_eq!(kept_two, got);
        // With huge pages for one that should have none only if all of it is resident.
        if !cfg!(feature = "valgrind") {
            let huge = kept(SUPERSLAB, true);
            keep(huge);
            let spare = spare(Wanted::Small).unwrap();
            assert_eq!((spare.base, spare.huge, spare.clean), (huge.block, true, false));
        }
        let huge = kept(SUPERSLAB - os::page_size(), true);
        keep(huge);
        assert!(is_emulated || spare(Wanted::Small).is_none() && super::kept() == SUPERSLAB);
        spare(Wanted::Huge).is_some_and(|spare| spare.base == huge.block && spare.huge) && super::kept() == 0
    }));
}

/// What nobody has touched is the last to be used, and then only for blocks. In a child, as above.
#[cfg(not(loom))]
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_is_clean_comes_last() {
    let map = |len| Mapping {
        block: os::map_aligned(ptr::null_mut(), len, SUPERSLAB),
        len,
        huge: true,
        clean: false,
    };
    assert!(crate::large::child::is_so(|| {
        drain(true);
        let (dirty, fresh) = (map(2 * MIB), map(8 * MIB));
        // SAFETY: mapped just now.
        unsafe {
            keep(dirty);
            keep_clean(Mapping { clean: true, ..fresh });
        }
        assert_eq!((super::kept(), clean()), (10 * MIB, 8 * MIB));
        assert_eq!(take_kept(MIB, 1, false).unwrap().block, dirty.block);
        assert_eq!(take_kept(MIB, 1, true).unwrap().block, dirty.block.wrapping_add(MIB));
        assert!(take_part(16 * MIB).is_none() && spare(Wanted::Huge).is_none());
        // What is to be made longer.
        // SAFETY: mapped just now.
        unsafe { keep(map(2 * MIB)) };
        let part = take_part(3 * MIB).unwrap();
        assert_eq!(part.len, 2 * MIB);
        // But nothing that lies between others.
        keep_refused(part);
        assert!(take_part(3 * MIB).is_none());
        assert_eq!(take_kept(2 * MIB, 1, false).unwrap().block, part.block);
        let one = take_kept(MIB, 1, true).unwrap();
        assert!(one.clean && one.block == fresh.block && clean() == 7 * MIB);
        assert_eq!(take_behind(fresh.block.wrapping_add(MIB), MIB, true), Some(MIB));
        let (purged, before) = (os::PURGED.load(Relaxed), unused());
        drain(true);
        assert_eq!((os::PURGED.load(Relaxed), unused()), (purged, before));
        (super::kept(), clean()) == (0, 0)
    }));
}

#[test]
fn what_is_clean_is_kept_beside_the_limit() {
    let mut cache = Cache::new();
    let clean = |mib, mibs| Mapping { clean: true, ..kept(mib, mibs) };
    assert!(cache.add(clean(0, 8), 5, false) && cache.add(kept(8, 4), 5, false));
    assert_eq!((places(&cache), cache.clean), (vec![(0, 8), (8, 4)], 8 * MIB), "not merged");
    assert!(cache.add(clean(12, 2), 6, false) && cache.add(clean(14, 1), 6, false));
    assert_eq!((places(&cache), cache.clean), (vec![(0, 8), (8, 4), (12, 3)], 11 * MIB));
    assert!(cache.make_room(4 * MIB, 8 * MIB, 9).is_none());
    assert_eq!(cache.make_room(4 * MIB, 4 * MIB, 9).unwrap().block, kept(8, 4).block, "what counts goes");
    assert_eq!((places(&cache), cache.clean), (vec![(0, 8), (12, 3)], 11 * MIB));
    assert!(cache.make_room(4 * MIB, 0, 9).is_none(), "that would not help");
    cache.take(0, 2 * MIB);
    assert!(cache.entries[0].since != 5, "the rest waits for another block as long as it did for this one");
    assert_eq!(cache.clean, 9 * MIB);
    sums_are_made_anew(&mut cache);
    // What is noted for the whole process, for tests that come later.
    (0..ENTRIES).for_each(|i| _ = cache.remove(i));
    assert_eq!((cache.bytes, cache.clean), (0, 0));
}

#[test]
fn huge_pages_are_taken_only_where_they_are_wanted() {
    for thp in [Thp::Auto, Thp::Never, Thp::Folios] {
        assert_eq!([true, false].map(|huge| Pages::wanted(thp, huge)), [Pages::Any, Pages::Small]);
    }
    assert_eq!([true, false].map(|huge| Pages::wanted(Thp::Always, huge)), [Pages::Huge; 2]);
}

#[test]
fn a_superslab_is_cut_out_of_the_oldest() {
    let mut cache = Cache::new();
    let taken = |cache: &mut Cache, pages| {
        let taken = cache.take_superslab(20, pages)?;
        assert_eq!(taken.len, 2 * MIB);
        Some((taken.block.addr() - (1 << 30)) / MIB)
    };
    assert!(cache.add(kept(1, 8), 7, false) && cache.add(kept(20, 3), 5, false));
    assert!(cache.add(kept(31, 2), 1, false), "no multiple of its length with as much behind it");
    assert!(cache.add(kept(40, 8), 1, true), "refused");
    assert_eq!(taken(&mut cache, Pages::Small), Some(20));
    assert_eq!(places(&cache), [(1, 8), (22, 1), (31, 2), (40, 8)]);
    assert_eq!(taken(&mut cache, Pages::Huge), None, "without huge pages");
    assert_eq!(taken(&mut cache, Pages::Small), Some(6));
    assert_eq!(places(&cache), [(1, 5), (8, 1), (22, 1), (31, 2), (40, 8)]);
    assert!(cache.used().filter(|(_, e)| e.block < kept(9, 0).block).all(|(_, e)| e.since == 7));
    assert!(cache.add(Mapping { huge: true, ..kept(60, 2) }, 9, false));
    assert_eq!(taken(&mut cache, Pages::Huge), Some(60));
    assert_eq!([taken(&mut cache, Pages::Small), taken(&mut cache, Pages::Small)], [Some(4), Some(2)]);
    assert_eq!(
        (taken(&mut cache, Pages::Small), places(&cache)),
        (None, vec![(1, 1), (8, 1), (22, 1), (31, 2), (40, 8)])
    );
    assert!(cache.add(kept(80, 4), 9, false) && cache.add(kept(91, 4), 15, false));
    while cache.used().count() < ENTRIES {
        assert!(cache.add(kept(100 + 2 * cache.used().count(), 1), 10, false));
    }
    assert_eq!(taken(&mut cache, Pages::Small), Some(82), "nothing lies behind");
    assert_eq!(taken(&mut cache, Pages::Small), Some(80));
    assert!(cache.add(kept(84, 3), 9, false));
    assert_eq!(taken(&mut cache, Pages::Small), Some(84), "nothing lies before it");
    assert_eq!(taken(&mut cache, Pages::Any), None, "no place for what lies behind");
    let mut cache = Cache::new();
    assert!(cache.add(kept(0, 8), 5, false) && cache.add(Mapping { huge: true, ..kept(20, 2) }, 9, false));
    let splinter = Mapping { block: kept(40, 0).block.wrapping_add(4096), ..kept(40, 4) };
    assert!(cache.add(splinter, 7, false));
    assert_eq!(taken(&mut cache, Pages::Any), Some(20), "with huge pages");
    cache.take(0, MIB);
    assert_eq!(taken(&mut cache, Pages::Any), Some(6));
    assert!(cache.add(kept(60, 2), 9, false));
    assert_eq!(
        [(); 3].map(|()| taken(&mut cache, Pages::Small)),
        [Some(60), Some(4), Some(2)],
        "a block may grow into the older one"
    );
    assert_eq!(taken(&mut cache, Pages::Any), None, "4 KiB would be left over");
}

#[test]
fn room_is_made_at_the_end_of_the_oldest() {
    let mut cache = Cache::new();
    assert!(cache.add(kept(0, 8), 5, false) && cache.add(kept(20, 8), 7, false));
    assert!(cache.make_room(4 * MIB, 20 * MIB, 9).is_none());
    let out = cache.make_room(4 * MIB, 18 * MIB, 9).unwrap();
    assert_eq!((out.block, out.len), (kept(6, 2).block, 2 * MIB));
    assert_eq!(places(&cache), [(0, 6), (20, 8)]);
    assert!(cache.make_room(4 * MIB, 18 * MIB, 9).is_none());
    let out = cache.make_room(18 * MIB, 18 * MIB, 9).unwrap();
    assert_eq!((out.block, out.len), (kept(0, 6).block, 6 * MIB));
    let huge = Mapping { huge: true, ..kept(1, 9) };
    assert_eq!((huge.without(MIB), huge.without(3 * MIB + 1)), (Some(7 * MIB), Some(5 * MIB)));
    while cache.used().count() < ENTRIES {
        assert!(cache.add(kept(100 + 2 * cache.used().count(), 1), 10, false));
    }
    assert_eq!(cache.make_room(MIB, usize::MAX, 11).unwrap().block, kept(20, 8).block);
}

/// In a child, since what is kept, and how long, is the process's.
#[cfg(not(loom))]
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_is_wanted_soon_after_it_was_too_old_is_kept_longer() {
    assert!(crate::large::child::is_so(|| {
        drain(true);
        let later = 200_000;
        let keep_one = |clean| {
            let block = os::map_aligned(ptr::null_mut(), MIB, SLICE);
            assert!(!block.is_null());
            // SAFETY: mapped just now.
            unsafe { keep(Mapping { block, len: MIB, huge: false, clean }) };
        };
        let is_kept_at = |now| {
            tick_at(now);
            super::kept() == MIB
        };
        let began = now_ms();
        keep_one(false);
        assert!(is_kept_at(began + 249) && !is_kept_at(began + later));
        assert!(DELAY.has_gone() && take_kept(MIB / 4, 1, false).is_none());
        assert_eq!(DELAY.stretch(250), 250, "that is less than half of it");
        grows_fresh(MIB);
        assert_eq!(DELAY.stretch(250), 500);
        let began = now_ms();
        keep_one(false);
        assert!(due_in(began + 499).is_some_and(|left| left != 0));
        assert!(is_kept_at(began + 499) && !is_kept_at(began + later));
        assert!(take_kept(MIB, 1, false).is_none());
        assert_eq!(DELAY.stretch(250), 1000);
        // Nobody has used it, so nothing is lost with it.
        keep_one(true);
        assert!(!is_kept_at(now_ms() + later) && !DELAY.has_gone());
        // But to use it is to need memory.
        keep_one(false);
        assert!(!is_kept_at(now_ms() + later) && DELAY.has_gone());
        keep_one(true);
        assert!(take_kept(MIB, 1, false).is_some_and(|taken| taken.clean));
        assert_eq!((DELAY.stretch(250), DELAY.has_gone()), (2000, false));
        drain(true);
        DELAY.stretch(250) == 250
    }));
}

#[test]
fn what_is_wanted_again_widens_the_limit_for_a_while() {
    let regret = Regret::none();
    let option = options::get().large_cache;
    assert_eq!(limit(&regret, 0, 5000), option);
    regret.drop(80 * MIB, 5000);
    missed(&regret, 40 * MIB, 5001);
    missed(&regret, 60 * MIB, 5002);
    assert_eq!(limit(&regret, 0, 5003), option + 80 * MIB, "no more than was dropped");
    assert_eq!(limit(&regret, 0, 5002 + decay::REGRET), option + 40 * MIB);
    regret.drop(80 * MIB, 7000);
    missed(&regret, 80 * MIB, 7000 + decay::REGRET);
    assert_eq!(limit(&regret, 0, 7000 + decay::REGRET), option + 20 * MIB, "too late to be regretted");
    regret.drop(usize::MAX / 2, 9000);
    missed(&regret, usize::MAX / 2, 9000);
    assert_eq!(limit(&regret, 0, 9000), option + WIDEST * option);
}

/// Half of what is in use, or what the option says.
#[test]
fn what_is_allowed_grows_with_what_is_in_use() {
    let option = options::get().large_cache;
    assert_eq!([0, 2 * option, 6 * option].map(allowed), [option, option, 3 * option]);
}

/// Where a fork has torn the cache, and only there.
pub(super) fn sums_are_made_anew(cache: &mut Cache) {
    let all = |cache: &Cache| (cache.bytes, cache.refused, cache.clean, cache.top);
    let sums = all(cache);
    (cache.bytes, cache.refused, cache.clean, cache.top) = (1, 2, 3, 0);
    cache.inherit(false);
    assert_eq!(all(cache), (1, 2, 3, 0));
    cache.inherit(true);
    assert_eq!(all(cache), sums);
}

#[test]
fn what_the_system_would_not_unmap_is_kept_beside_the_limit_and_not_tried_again_at_once() {
    let mut cache = Cache::new();
    assert!(cache.add(kept(0, 8), 5, true) && cache.add(kept(20, 4), 7, false));
    assert_eq!((cache.bytes, cache.refused), (12 * MIB, 8 * MIB));
    assert!(cache.make_room(4 * MIB, 8 * MIB, 9).is_none(), "it holds no slices");
    assert_eq!(cache.oldest(5 + AGAIN - 1, 0, |_| true), Some(1));
    assert_eq!(cache.oldest(5 + AGAIN, 0, |_| true), Some(0));
    assert_eq!(
        cache.oldest(4, 0, |_| true),
        Some(1),
        "not tried again by a thread that read the clock before it was refused"
    );
    // It can be used like any other memory that is kept.
    assert_eq!(cache.take(0, 3 * MIB).len, 3 * MIB);
    assert_eq!((cache.bytes, cache.refused), (9 * MIB, 5 * MIB));
    sums_are_made_anew(&mut cache);
    cache.remove(0);
    assert_eq!((cache.bytes, cache.refused), (4 * MIB, 0));
}

#[test]
fn what_the_system_would_not_unmap_becomes_a_superslab_where_it_gives_no_more() {
    let mut cache = Cache::new();
    assert!(cache.add(kept(1, 4), 5, true) && cache.add(kept(20, 8), 7, false));
    assert!(cache.add(kept(30, 1), 7, true));
    let taken = cache.take_refused_superslab(5).unwrap();
    assert_eq!((taken.block, taken.len), (kept(2, 2).block, SUPERSLAB));
    assert_eq!(places(&cache), [(1, 1), (4, 1), (20, 8), (30, 1)]);
    assert_eq!((cache.bytes, cache.refused), (11 * MIB, 3 * MIB));
    assert!(cache.take_refused_superslab(5).is_none());
}
