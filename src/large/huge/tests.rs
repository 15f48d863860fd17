use super::*;
use crate::large::huge::purged::{CLEARED, MOST_CLEARED};
use crate::large::huge::sample::FEW;
use crate::os::scattered;

/// Sparse buffers of a MiB say nothing about long mappings, nor those about buffers.
#[test]
fn what_is_shorter_than_a_huge_page_is_judged_by_itself() {
    assert!(ptr::eq(seen(HUGE_PAGE), &SEEN) && ptr::eq(seen(HUGE_PAGE - 1), &SHORT));
    assert!(ptr::eq(recent(HUGE_PAGE), &RECENT) && ptr::eq(recent(HUGE_PAGE - 1), &RECENT_SHORT));
    let recent = Recent::new();
    let block = |i| ptr::without_provenance_mut(i);
    for i in 1..=4 {
        assert!(recent.remember(block(i)).is_null() && recent.newest() == block(i));
    }
    assert!(recent.remember(block(5)) == block(1) && recent.newest() == block(5));
}

#[test]
fn dense_is_seven_eighths_of_enough() {
    let seen = Density::new();
    assert!(!seen.is_dense(HUGE_PAGE, LONGER));
    seen.add(HUGE_PAGE, ENOUGH - 1, ENOUGH - 1);
    assert!(!seen.is_dense(HUGE_PAGE, LONGER) && !seen.wants(HUGE_PAGE, LONGER, 1));
    seen.add(HUGE_PAGE, 1, 1);
    assert!(seen.is_dense(HUGE_PAGE, LONGER));
    seen.add(HUGE_PAGE, 8, 0);
    assert!(!seen.is_dense(HUGE_PAGE, LONGER));
    for _ in 0..100 {
        seen.add(HUGE_PAGE, 16, 16);
    }
    assert!(seen.is_dense(HUGE_PAGE, LONGER), "old looks fade");
    for _ in 0..3 {
        seen.add(HUGE_PAGE, 16, 0);
    }
    assert!(!seen.is_dense(HUGE_PAGE, LONGER));
}

#[test]
fn both_counts_are_halved_when_there_are_many() {
    let seen = Density::new();
    let counts = || (seen.looked.load(Relaxed), seen.resident.load(Relaxed));
    seen.add(HUGE_PAGE, MANY, 100);
    assert_eq!(counts(), (MANY, 100));
    seen.add(HUGE_PAGE, 2, 2);
    assert_eq!(counts(), (MANY / 2 + 1, 51));
}

/// Wherever the mapping lies, also where an address has the bits of all small numbers.
#[test]
fn looks_at_one_place_go_to_different_pages() {
    for place in [0, 0xfff, 0x7fff_ffff_f000 | 0xfff] {
        let pages: std::collections::BTreeSet<_> = (0..64).map(|look| scattered(place, look) % 512).collect();
        assert!(pages.len() > 40, "{} of 64", pages.len());
    }
}

/// A program touches one page in 64 of a mapping that comes and goes. The looks must not all hit such a
/// page, nor all miss.
#[test]
fn looks_at_one_mapping_are_independent() {
    for start in (0..100).map(|i| i << 21) {
        let hits = (0..1000).filter(|&look| scattered(start, look) % 512 % 64 == 0).count();
        assert!((2..60).contains(&hits), "{hits}");
    }
}

#[test]
fn one_dense_mapping_is_enough_and_sparse_ones_are_not_looked_at_for_ever() {
    let seen = Density::new();
    assert!(seen.knows_little());
    for _ in 1..TRIES {
        assert!(!seen.add_close(SHORTEST_CLOSE, 16, 13));
    }
    assert!(seen.knows_little() && !seen.is_dense(SHORTEST_CLOSE, LONGER), "they do not count");
    assert!(
        seen.add_close(SHORTEST_CLOSE, 16, 14)
            && !seen.knows_little()
            && seen.is_dense(LONGER * SHORTEST_CLOSE, LONGER)
    );
    let seen = Density::new();
    for _ in 0..TRIES {
        assert!(seen.knows_little() && !seen.add_close(SHORTEST_CLOSE, 16, 0));
    }
    assert!(!seen.knows_little());
}

#[test]
fn a_mapping_that_grows_by_a_page_is_not_looked_at_each_time() {
    let seen = Density::new();
    seen.add(HUGE_PAGE, ENOUGH, ENOUGH);
    let looks = (HUGE_PAGE..16 * HUGE_PAGE).step_by(4096).filter(|&len| {
        let look = seen.is_longest(len);
        if look {
            seen.add_huge(len, 1, 1);
        }
        look
    });
    assert_eq!(looks.count(), 3, "at 2, 4 and 8 times its length");
}

/// A mapping without huge pages of which the first `touched` bytes were written to.
fn with_mapping(len: usize, touched: usize, f: impl FnOnce(Mapping)) {
    let block = os::map_uncounted(len);
    // SAFETY: our own mapping of this length, which nobody uses after the last line.
    unsafe {
        os::advise_huge(block, len, false);
        block.write_bytes(1, touched);
        f(Mapping { block, len, huge: false, clean: false });
        os::discard_uncounted(block, len);
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn the_system_is_asked_about_a_page_of_each_part() {
    let whole = 8 * HUGE_PAGE;
    with_mapping(whole, whole / 2, |mapping| {
        for _ in 0..100 {
            assert_eq!(sample(mapping, 0, HUGE_PAGE), Some((8, 4)));
            assert_eq!(sample(mapping, 2 * HUGE_PAGE, HUGE_PAGE), Some((6, 2)));
            assert_eq!(sample(mapping, 4 * HUGE_PAGE, 3 * HUGE_PAGE), Some((1, 0)), "whole parts");
            assert_eq!(sample(mapping, whole, HUGE_PAGE), Some((0, 0)));
            // Anywhere in a part: in half of the cases where that was touched.
            assert!(matches!(sample(mapping, 0, whole), Some((1, 0 | 1))));
        }
        let hits = (0..200).filter(|_| sample(mapping, 0, whole) == Some((1, 1))).count();
        assert!((50..150).contains(&hits), "{hits}");
        let seen = Density::new();
        assert!(!seen.is_sparse(mapping), "half of it");
    });
    with_mapping(HUGE_PAGE, HUGE_PAGE, |mapping| {
        let page = Mapping { len: os::page_size(), ..mapping };
        assert_eq!(sample(page, 0, 1), Some((1, 1)), "at least a page");
    });
    let gone =
        Mapping { block: ptr::without_provenance_mut(HUGE_PAGE), len: HUGE_PAGE, huge: false, clean: false };
    assert_eq!(sample(gone, 0, HUGE_PAGE), None, "the system does not say");
    assert!(!Density::new().is_sparse(gone) && !Density::new().look_closely(gone, 0));
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_mapping_is_sparse_of_which_less_than_half_was_touched() {
    with_mapping(8 * HUGE_PAGE, 3 * HUGE_PAGE, |mapping| {
        let seen = Density::new();
        assert!(seen.is_sparse(mapping));
        assert_eq!(seen.looked.load(Relaxed), 0, "it is counted when it is freed");
        assert!(seen.is_sparse(Mapping { huge: true, ..mapping }));
        assert_eq!((seen.looked.load(Relaxed), seen.resident.load(Relaxed)), (FEW, 3));
    });
    with_mapping(2 * HUGE_PAGE, 0, |mapping| {
        let seen = Density::new();
        assert!(seen.is_sparse(Mapping { len: HUGE_PAGE, ..mapping }));
        assert!(!seen.is_sparse(Mapping { len: HUGE_PAGE - os::page_size(), ..mapping }), "short");
    });
    with_mapping(HUGE_PAGE, HUGE_PAGE, |mapping| {
        let seen = Density::new();
        assert!(!seen.is_sparse(Mapping { huge: true, ..mapping }));
        assert_eq!(seen.looked.load(Relaxed), 0);
    });
}

/// What was cleared is dense: now and then it is purged instead, and less often while that does not help.
#[test]
#[cfg_attr(miri, ignore)]
fn a_dense_mapping_is_not_cleared_for_ever() {
    let seen = Density::new();
    let cleared = |mapping| (0..2000).take_while(|_| !seen.is_better_purged(mapping)).count();
    with_mapping(HUGE_PAGE, HUGE_PAGE, |dense| {
        assert_eq!([(); 3].map(|()| cleared(dense)), [CLEARED, 2 * CLEARED, 4 * CLEARED]);
        // It has helped; or another one was sparse anyway.
        with_mapping(HUGE_PAGE, 0, |other| assert!(seen.is_better_purged(other)));
        assert_eq!(cleared(dense), 8 * CLEARED);
        with_mapping(HUGE_PAGE, 0, |sparse| {
            seen.purged.store(sparse.block, Relaxed);
            assert!(seen.is_better_purged(sparse));
        });
        assert_eq!([(); 7].map(|()| cleared(dense)), [32, 64, 128, 256, 512, MOST_CLEARED, MOST_CLEARED]);
        let short = Mapping { len: HUGE_PAGE - os::page_size(), ..dense };
        assert_eq!(cleared(short), 2000);
    });
}

/// One in 15,000 looks at eight pages is wrong here, and whoever is wrong once clears the mapping each time
/// from then on.
#[test]
#[cfg_attr(miri, ignore)]
fn a_mapping_that_is_hardly_touched_is_always_sparse() {
    let seen = Density::new();
    // 2 MiB where pages are smallest.
    let len = 512 * os::page_size();
    with_mapping(len, 0, |mapping| {
        for part in (0..FEW).map(|i| i * len / FEW) {
            for at in [part, part + os::page_size()] {
                // SAFETY: the mapping is ours, and this is in it.
                unsafe { mapping.block.add(at).write(1) };
            }
        }
        let dense = (0..200_000).filter(|_| !seen.is_sparse(mapping)).count();
        assert_eq!(dense, 0);
    });
}

#[test]
#[cfg_attr(miri, ignore)]
fn one_mapping_is_looked_at_closely() {
    with_mapping(HUGE_PAGE, HUGE_PAGE / 2, |mapping| {
        let half = Mapping { len: SHORTEST_CLOSE, ..mapping };
        let seen = Density::new();
        assert!(!seen.look_closely(Mapping { huge: true, ..half }, 0));
        assert!(!seen.look_closely(Mapping { len: SHORTEST_CLOSE - os::page_size(), ..half }, 0), "short");
        assert_eq!(seen.tries.load(Relaxed), 0);
        assert!(!seen.look_closely(mapping, 0), "half of it");
        assert!(!seen.look_closely(mapping, SHORTEST_CLOSE), "the other half");
        assert!(!seen.look_closely(half, SHORTEST_CLOSE), "nothing of it");
        assert_eq!((seen.tries.load(Relaxed), seen.looked.load(Relaxed)), (2, 0));
        assert!(seen.look_closely(half, 0));
        assert_eq!((seen.looked.load(Relaxed), seen.resident.load(Relaxed)), (LOOKS, LOOKS));
        assert!(!seen.look_closely(half, 0), "enough is known");
        // Less than a page for each look.
        let seen = Density::new();
        assert!(seen.look_closely(half, SHORTEST_CLOSE - 4 * os::page_size()));
        assert_eq!(seen.looked.load(Relaxed), 4);
    });
}

/// As many parts as are enough, also where they are not whole pages.
#[test]
#[cfg_attr(miri, ignore)]
fn one_look_is_enough_at_any_length() {
    let len = SHORTEST_CLOSE + LOOKS / 2 * os::page_size();
    with_mapping(len, len, |mapping| {
        let seen = Density::new();
        assert!(seen.look_closely(mapping, 0) && !seen.knows_little());
    });
}

#[test]
fn one_in_sixteen_is_a_control() {
    let seen = Density::new();
    seen.add(HUGE_PAGE, ENOUGH, ENOUGH);
    assert!(!seen.is_time_to_look());
    let controls: Vec<_> = (0..160).filter(|_| !seen.wants(HUGE_PAGE, LONGER, 1)).collect();
    assert_eq!(controls, (0..10).map(|i| CONTROL_AT + CONTROL * i).collect::<Vec<_>>());
    // The last one is looked at once, some mappings later.
    let [first, second] = [1, 2].map(ptr::without_provenance_mut);
    seen.made_without(first);
    seen.made_without(second);
    assert!(seen.control.load(Relaxed) == first);
    assert!(seen.is_time_to_look() && !seen.is_time_to_look());
    // Of several blocks at a time as many.
    let (seen, mut blocks) = (Density::new(), 0);
    seen.add(HUGE_PAGE, ENOUGH, ENOUGH);
    let mut looks = Vec::new();
    while blocks < 160 {
        if seen.is_time_to_look() {
            looks.push(blocks);
        }
        blocks += if seen.wants(HUGE_PAGE, LONGER, 8) { 8 } else { 1 };
    }
    assert_eq!(looks, (0..9).map(|i| 17 + 17 * i).collect::<Vec<_>>());
}

#[test]
fn a_mapping_of_another_order_is_not_trusted() {
    let seen = Density::new();
    seen.add(HUGE_PAGE, 64, 64);
    assert!(seen.is_dense(LONGER * HUGE_PAGE, LONGER) && !seen.is_dense((LONGER + 1) * HUGE_PAGE, LONGER));
    // Unless one with huge pages was touched all over.
    seen.add_huge(4 * HUGE_PAGE, 4, 3);
    assert!(!seen.is_dense(4 * LONGER * HUGE_PAGE, LONGER));
    seen.add_huge(4 * HUGE_PAGE, 4, 4);
    assert!(seen.is_dense(4 * LONGER * HUGE_PAGE, LONGER) && !seen.is_dense(5 * LONGER * HUGE_PAGE, LONGER));
    seen.add(64 * HUGE_PAGE, 16, 16);
    assert!(seen.is_dense(64 * LONGER * HUGE_PAGE, LONGER));
    seen.add(32 * HUGE_PAGE, 4, 1);
    assert!(seen.is_dense(16 * HUGE_PAGE, LONGER) && !seen.is_dense(32 * HUGE_PAGE, LONGER));
}

/// What grows by a page is not looked at each time, and what doubles is.
#[test]
fn a_mapping_that_grows_is_looked_at_in_steps() {
    let steps = |lens: &[usize]| lens.windows(2).filter(|pair| is_step(pair[0], pair[1])).count();
    let by_pages: Vec<usize> = (256..16384).map(|pages| pages * 4096).collect();
    assert!((30..60).contains(&steps(&by_pages)), "{}", steps(&by_pages));
    let doubling: Vec<usize> = (20..34).map(|log| 1 << log).collect();
    assert_eq!(steps(&doubling), doubling.len() - 1);
}

/// Where the system gives huge pages to all memory, arrays that a program makes before it fills them have
/// them, too, until something is known.
#[test]
fn the_longest_mappings_are_left_to_the_system_while_nothing_is_known() {
    let seen = Density::new();
    assert!(seen.wants_or(unasked::LONG, LONGER, || true) && !seen.wants_or(unasked::LONG, LONGER, || false));
    assert!(!seen.wants_or(unasked::LONG - 1, LONGER, || panic!("asked for a short one")));
    // What a close look saw that came too early does not count.
    assert!(!seen.add_close(unasked::LONG, ENOUGH, 0));
    assert!(seen.wants_or(unasked::LONG, LONGER, || true));
    seen.add(unasked::LONG, ENOUGH, 0);
    assert!(!seen.wants_or(unasked::LONG, LONGER, || true), "it is known that they are sparse");
    for _ in 0..100 {
        seen.add(unasked::LONG, ENOUGH, ENOUGH);
    }
    assert!(seen.wants_or(unasked::LONG, LONGER, || panic!("asked though they are known to be dense")));
    let longer = 2 * LONGER * unasked::LONG;
    assert!(
        seen.wants_or(longer, LONGER, || true) && !seen.wants_or(longer, LONGER, || false),
        "dense ones were shorter"
    );
}
