//! What is given up, what stays, and that all sums do.

use super::*;
use crate::sampling::sites::Bounds;
use crate::sampling::store::Sample;
use std::vec;

const BOUNDS: Bounds = Bounds { sites: 100, words: 2000 };

fn store() -> Store {
    let mut store = Store::new();
    store.bounds = BOUNDS;
    store
}

/// Notes a block at an address that `number` gives. Threads with different numbers have different names: else
/// they would share a row, as threads do that have ended.
fn note_sized(store: &mut Store, number: usize, size: u64, thread: u32, tag: u32, addresses: &[usize]) {
    let address = 0x70_0000 + number * 64;
    let (rate, now, mapped, end) = (1, 1000, 0, 0);
    let sample = Sample { address, size, rate, thread, tag, now, mapped, addresses, end };
    assert!(store.allocated(&sample, || [thread as u8; 16]));
    assert!(store.sites.len() <= BOUNDS.sites + 20 && store.stacks.words() <= BOUNDS.words + 200);
    assert!(store.site_index.places() == 512, "it has no entries of what has gone");
}

/// [`note_sized`], 64 bytes.
fn note(store: &mut Store, number: usize, thread: u32, tag: u32, addresses: &[usize]) {
    note_sized(store, number, 64, thread, tag, addresses);
}

fn free(store: &mut Store, number: usize) {
    store.freed(0x70_0000 + number * 64, 1, 1005);
}

/// The one site of a stack, if it is there.
fn site_of(store: &Store, addresses: &[usize]) -> Option<Site> {
    let stack = store.stacks.find(addresses, 0)?;
    store.sites.iter().find(|site| site.stack == stack).copied()
}

/// Samples, those that live, and those that lived at the peak; and lifetimes.
fn sums(store: &Store) -> [u64; 4] {
    let mut sums = [0; 4];
    for site in store.sites.iter() {
        let lived = store.lifetimes(site).map(|known| known.count).sum();
        let these = [site.allocated, site.live.into(), store.at_peak(site), lived];
        sums.iter_mut().zip(these).for_each(|(sum, one)| *sum += one);
    }
    sums
}

#[test]
fn stacks_that_come_without_end_take_no_more_memory_and_all_sums_stay() {
    let mut store = store();
    // What lives, at the peak.
    (0..10).for_each(|n| note(&mut store, n, 1, 0, &[1_000_000 + n, 7]));
    for n in 10..20_000usize {
        let deep = [n; 150];
        let stack = if n % 2 == 0 { &[5, 7][..] } else { &deep[..1 + n % 150] };
        note(&mut store, n, 1, 0, stack);
        free(&mut store, n);
    }
    assert_eq!(sums(&store), [20_000, 10, 11, 19_990]);
    assert!(store.lost == 0 && store.folds > 100 && store.has_others);
    assert_eq!(site_of(&store, &[5, 7]).unwrap().allocated, 9995);
    assert!((0..10).all(|n| site_of(&store, &[1_000_000 + n, 7]).unwrap().live == 1));
    // What lives is still found when it is freed, though its site lies elsewhere now.
    (0..10).for_each(|n| free(&mut store, n));
    assert_eq!(sums(&store), [20_000, 0, 11, 20_000]);
    // There is no file that would have to know what has gone.
    assert!(store.lifetimes.len() < 1000 && store.gone.is_empty());
    store.clear();
}

#[test]
fn what_matters_stays() {
    let mut store = store();
    // Less than this stands for as much as this: see below.
    store.start(4096, false, false);
    // At the peak, of which there is one, and which a small one has a part of.
    note(&mut store, 0, 1, 0, &[2, 2]);
    note_sized(&mut store, 1, 1 << 30, 1, 0, &[1, 1]);
    (0..2).for_each(|n| free(&mut store, n));
    // Large, though one only; and many that are small.
    note_sized(&mut store, 2, 1 << 16, 1, 0, &[3, 3]);
    free(&mut store, 2);
    for n in 3..11 {
        note_sized(&mut store, n, 1, 1, 0, &[4, 4]);
        free(&mut store, n);
    }
    for n in 11..5000usize {
        let new = [n];
        note(&mut store, n, 1, 0, if n % 2 == 0 { &[5, 7] } else { &new });
        free(&mut store, n);
    }
    assert!(store.folds > 10);
    let allocated = |addresses: &[usize]| site_of(&store, addresses).map(|site| site.allocated);
    let stay: [&[usize]; 5] = [&[2, 2], &[1, 1], &[3, 3], &[4, 4], &[5, 7]];
    assert_eq!(stay.map(allocated), [Some(1), Some(1), Some(1), Some(8), Some(2494)]);
    assert_eq!(allocated(&[11]), None);
    assert_eq!(sums(&store), [5000, 0, 2, 5000]);
    store.clear();
}

#[test]
fn where_all_lives_what_comes_is_others() {
    let mut store = store();
    (0..1000).for_each(|n| note(&mut store, n, n as u32 % 3, 0, &[n]));
    assert_eq!(sums(&store), [1000, 1000, 1000, 0]);
    let others = store.sites.iter().filter(|site| site.stack == OTHERS);
    assert!(others.map(|site| site.live).sum::<u32>() >= 890);
    assert_eq!(store.folds, 0, "there was nothing to give up");
    // What is known is counted where it is.
    note(&mut store, 1000, 0, 0, &[0]);
    assert_eq!(site_of(&store, &[0]).unwrap().live, 2);
    // What lived at the peak gives way in the end, once it does not live, but it is not tried each time.
    (0..=1000).for_each(|n| free(&mut store, n));
    let folds = store.folds;
    let mut n = 1001;
    while store.folds == folds && n < 3 * AGAIN as usize {
        note(&mut store, n, 1, 0, &[n]);
        free(&mut store, n);
        n += 1;
    }
    assert!(n > AGAIN as usize && n <= 1001 + AGAIN as usize, "{n}");
    for _ in 0..400 {
        note(&mut store, n, 1, 0, &[n]);
        free(&mut store, n);
        n += 1;
    }
    assert_eq!(sums(&store), [n as u64, 0, 1001, n as u64]);
    assert!(store.stacks.find(&[n - 1], 0).is_some());
    store.clear();
}

#[test]
fn what_has_no_room_is_of_its_thread_where_that_has_others() {
    let mut store = store();
    // Threads 5 and 7 have some that were given up, thread 6 has not.
    for n in 0..150 {
        note(&mut store, n, 5 + n as u32 % 2 * 2, 0, &[n]);
        free(&mut store, n);
    }
    (150..400).for_each(|n| note(&mut store, n, 5, 0, &[n]));
    (400..500).for_each(|n| note(&mut store, n, 6, 0, &[n]));
    // Stacks that are known, but not of this thread.
    (150..160).for_each(|n| note(&mut store, 400 + n, 7, 0, &[n]));
    let live = |thread| {
        let found = store.sites.iter().find(|site| (site.stack, site.thread) == (OTHERS, thread));
        found.map(|site| site.live)
    };
    assert!(live(5).is_some_and(|live| live > 150));
    assert_eq!([live(6), live(7), live(OTHERS)], [None, Some(10), Some(100)]);
    store.clear();
}

/// Also what others had of an earlier peak.
#[test]
fn what_lived_at_the_peak_is_added_to_what_others_had_then() {
    let mut store = store();
    for n in 0..300 {
        note(&mut store, n, 1, 0, &[n]);
        free(&mut store, n);
    }
    (300..380).for_each(|n| note(&mut store, n, 1, 0, &[n]));
    assert_eq!(sums(&store), [380, 80, 80, 300]);
    (300..380).for_each(|n| free(&mut store, n));
    for n in 380..450 {
        note(&mut store, n, 1, 0, &[n]);
        free(&mut store, n);
    }
    assert_eq!((site_of(&store, &[300]).is_none(), sums(&store)), (true, [450, 0, 80, 450]));
    store.clear();
}

/// However many live, and whatever the stacks' lengths, there is room for an eighth afterwards.
#[test]
fn enough_is_given_up_at_once() {
    let mut many_live = store();
    // Those which live are the ones that matter least: they were not there at the peak.
    note_sized(&mut many_live, 0, 1 << 30, 1, 0, &[0]);
    free(&mut many_live, 0);
    (1..61).for_each(|n| note(&mut many_live, n, 1, 0, &[n]));
    for n in 61..137 {
        note(&mut many_live, n, 1, 0, &[100 + n / 2]);
        free(&mut many_live, n);
    }
    assert_eq!((many_live.folds, many_live.sites.len()), (0, 100));
    note(&mut many_live, 137, 1, 0, &[1000]);
    assert!(many_live.folds > 0 && many_live.has_room(3));
    assert!(site_of(&many_live, &[1000]).is_some());
    // The stacks that matter are the long ones.
    let mut long = store();
    for n in 0..24 {
        note(&mut long, n, 1, 0, &[n / 2; 150]);
        free(&mut long, n);
    }
    for n in 24..83 {
        note(&mut long, n, 1, 0, &[n]);
        free(&mut long, n);
    }
    assert!(long.folds == 0 && long.stacks.words() >= BOUNDS.words);
    note(&mut long, 83, 1, 0, &[83]);
    assert!(long.folds > 1 && long.has_room(3) && site_of(&long, &[83]).is_some());
    many_live.clear();
    long.clear();
}

/// They are never charged to themselves.
#[test]
fn others_of_many_sizes_keep_their_sums() {
    let mut store = store();
    let mut live = 0;
    for n in 0..5000 {
        note_sized(&mut store, n, 8 * (n as u64 % 40 + 1), n as u32 % 5, 0, &[n]);
        if n % 10 == 0 && n > 4000 {
            live += 1;
        } else {
            free(&mut store, n);
        }
    }
    let [samples, lives, _, freed] = sums(&store);
    assert_eq!([samples, lives, freed], [5000, live, 5000 - live]);
    store.clear();
}

#[test]
fn others_that_live_stay_where_they_are() {
    let mut store = store();
    for n in 0..150 {
        note_sized(&mut store, n, 8 * (1 + n as u64 % 20), 5, 0, &[n]);
        free(&mut store, n);
    }
    (150..400).for_each(|n| note_sized(&mut store, n, 8 * (1 + n as u64 % 20), 5, 0, &[n]));
    let live = |store: &Store| {
        let others = store.sites.iter().filter(|site| (site.stack, site.thread) == (OTHERS, 5));
        others.map(|site| site.live).sum::<u32>()
    };
    let before = live(&store);
    assert!(before > 100);
    // There is room again, and then there are too many of others.
    (150..200).for_each(|n| free(&mut store, n));
    let folds = store.folds;
    store.turned_away = 0;
    for n in 400..500 {
        note_sized(&mut store, n, 8 * (21 + n as u64 % 20), 5, 0, &[n]);
        free(&mut store, n);
    }
    assert!(
        store.folds > folds && store.sites.iter().any(|site| (site.stack, site.thread) == (OTHERS, OTHERS))
    );
    assert_eq!((live(&store), sums(&store)[..2].to_vec()), (before, vec![500, 200]));
    store.clear();
}

#[test]
fn where_numbers_run_out_what_comes_is_others() {
    for of_sites in [true, false] {
        let mut store = store();
        note(&mut store, 0, 1, 0, &[0]);
        let last = u32::MAX - (1 << 20);
        if of_sites {
            store.next_site = last - 10;
        } else {
            store.stacks.set_next(last - 10);
        }
        (1..1000).for_each(|n| note(&mut store, n, 1, 0, &[n]));
        assert!(store.next_site.max(store.stacks.next()) <= last + 1);
        assert_eq!((sums(&store), store.lost), ([1000, 1000, 1000, 0], 0));
        (0..1000).for_each(|n| free(&mut store, n));
        assert_eq!(sums(&store), [1000, 0, 1000, 1000]);
        store.clear();
    }
}

#[test]
fn where_tags_are_too_many_they_are_others_too() {
    let mut store = store();
    for n in 0..3000 {
        let tag = tags::number(std::format!("given up {}", n % 300).as_bytes());
        note(&mut store, n, 1, tag, &[n % 7]);
        free(&mut store, n);
    }
    let [samples, live, _, freed] = sums(&store);
    assert_eq!([samples, live, freed], [3000, 0, 3000]);
    let all = store.sites.iter().filter(|site| (site.stack, site.thread) == (OTHERS, OTHERS));
    assert!(all.map(|site| site.allocated).sum::<u64>() > 2000);
    store.clear();
}
