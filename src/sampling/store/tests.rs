//! Samples become sites.

use super::*;

fn sample(address: usize, size: u64, addresses: &[usize]) -> Sample<'_> {
    Sample { address, size, rate: 1, thread: 1, tag: 0, now: 1000, mapped: 0, addresses, end: 0 }
}

#[test]
fn equal_samples_are_one_site_and_the_peak_is_kept() {
    let mut store = Store::new();
    for n in 0..1000usize {
        let stack = [n % 10, 7];
        store.allocated(&sample(0x10_0000 + n * 64, 64, &stack), || *b"main\0\0\0\0\0\0\0\0\0\0\0\0");
    }
    assert_eq!((store.stacks.len(), store.sites.len(), store.threads.len()), (10, 10, 1));
    assert_eq!(store.stacks.get(3), (0, &[3usize, 7][..]));
    for n in 0..900usize {
        store.freed(0x10_0000 + n * 64, 1, 1000 + 5);
    }
    // A few more, but not as many as there were.
    for n in 0..100usize {
        store.allocated(&sample(0x20_0000 + n * 64, 64, &[3, 7]), || unreachable!());
    }
    let site = store.sites[3];
    assert_eq!((site.allocated, site.live, store.at_peak(&site)), (200, 110, 100));
    let other = store.sites[4];
    assert_eq!((other.allocated, other.live, store.at_peak(&other)), (100, 10, 100));
    assert!(
        store
            .sites
            .iter()
            .all(|site| { store.lifetimes(site).map(|known| (known.log, known.count)).eq([(2, 90)]) })
    );
    assert_eq!(store.lost, 0);
    store.clear();
    assert_eq!((store.stacks.len(), store.sites.len()), (0, 0));
}

/// How many blocks of 64 bytes the peak is said to have had of these 1,000 of the first site, after `mapped`
/// has grown when `left` of them lived.
fn peak_after_growth(left: usize) -> u64 {
    let mut store = Store::new();
    let allocate = |store: &mut Store, n: usize, mapped| {
        let sample = Sample { mapped, ..sample(0x60_0000 + n * 64, 64, &[5]) };
        store.allocated(&sample, || [0; 16]);
    };
    (0..1000).for_each(|n| allocate(&mut store, n, 1 << 20));
    (left..1000).for_each(|n| store.freed(0x60_0000 + n * 64, 1, 1005));
    // For metadata, say.
    allocate(&mut store, 1000, 2 << 20);
    let peak = store.at_peak(&store.sites[0]);
    store.clear();
    peak
}

#[test]
fn memory_that_is_mapped_later_is_no_peak() {
    assert_eq!(peak_after_growth(10), 1000);
    assert_eq!(peak_after_growth(900), 1000);
    // Chance explains less by one: the estimate of then may have been too large.
    assert_eq!(peak_after_growth(998), 999);
    assert_eq!(peak_after_growth(1000), 1001);
}

/// Adds blocks of 4,096 bytes until so many live, where the process has `mapped` so much at the most. Returns
/// how many lived whenever that was said to be the peak.
fn peaks(store: &mut Store, live: std::ops::RangeInclusive<usize>, mapped: usize) -> Vec<usize> {
    let is_peak = |&n: &usize| {
        let before = store.peak;
        let sample = Sample { rate: 4096, mapped, ..sample(0xa0_0000 + n * 64, 4096, &[5]) };
        assert!(store.allocated(&sample, || [0; 16]));
        store.peak != before
    };
    live.filter(is_peak).collect()
}

/// Each of these samples stands for 6,480 bytes, so that the standard deviation of what `n` say is 0.6065
/// times the root of `n` samples.
#[test]
fn what_chance_explains_is_no_peak() {
    let mut store = Store::new();
    // The next one comes when three times that are more.
    assert_eq!(peaks(&mut store, 1..=37, 0), [1, 3, 7, 12, 19, 27, 37]);
    // No less counts after some have gone.
    (28..=37).for_each(|n| store.freed(0xa0_0000 + n * 64, 4096, 1005));
    assert_eq!(peaks(&mut store, 28..=49, 0), [49]);
    store.clear();
}

/// It is known then that more lives than ever.
#[test]
fn after_more_is_mapped_each_rise_is_a_peak_until_that_much_was_sampled() {
    let mut store = Store::new();
    peaks(&mut store, 1..=37, 0);
    assert_eq!(peaks(&mut store, 38..=40, 0), []);
    // As many samples as 2 MiB are, rounded up.
    let counts = (SUPERSLAB as f64 / (4096.0 / random::probability(4096, 4096))).ceil() as usize;
    assert_eq!(counts, 324);
    assert!(peaks(&mut store, 41..=40 + counts, 1).into_iter().eq(41..=40 + counts));
    // From then on chance explains 34 more again.
    assert_eq!(peaks(&mut store, 365..=398, 1), []);
    assert_eq!(peaks(&mut store, 399..=399, 1), [399]);
    assert!(peaks(&mut store, 400..=410, 2).into_iter().eq(400..=410));
    store.clear();
}

#[test]
fn a_block_whose_free_was_not_seen_does_not_count_twice() {
    let mut store = Store::new();
    for _ in 0..3 {
        store.allocated(&sample(0x30_0000, 48, &[1]), || [0; 16]);
    }
    let site = store.sites[0];
    assert_eq!((site.allocated, site.live), (3, 1));
    store.clear();
}

#[test]
fn sites_have_the_tags_of_their_samples() {
    let mut store = Store::new();
    let numbers = [&b"a"[..], b"query 42", b"a", b"", b"query 42"].map(tags::number);
    for (n, tag) in numbers.into_iter().chain([0, 0x1234_5678]).enumerate() {
        let sample = Sample { tag, ..sample(0x50_0000 + n * 64, 64, &[5]) };
        store.allocated(&sample, || [0; 16]);
    }
    let found: Vec<_> = store.sites.iter().map(|site| (site.tag, site.live)).collect();
    assert_eq!(found, [(0, 2), (1, 2), (2, 1), (u32::MAX, 2)]);
    assert_eq!(store.tags[..], [numbers[0], numbers[1], numbers[3]]);
    store.clear();
}
