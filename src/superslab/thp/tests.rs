use super::*;
use crate::lockfree::slice_sets::Sets;
use crate::superslab::desc::Desc;

#[test]
#[cfg_attr(miri, ignore)]
fn the_kernel_is_believed() {
    if !os::child::is_alone() {
        return;
    }
    assert_eq!(LONG.judge(&NO_SAMPLES), None);
    let base = os::map_uncounted(2 * SUPERSLAB);
    let sample = |n: usize| {
        let mut chosen = NO_SAMPLES;
        chosen[..n].fill(base);
        chosen
    };
    // Without huge pages, whatever the system's default is.
    // SAFETY: our own mapping of this length.
    unsafe { os::advise_huge(base, 2 * SUPERSLAB, false) };
    let fill = |pages| {
        for page in 0..pages {
            // SAFETY: inside the mapping.
            unsafe { base.add(page * os::page_size()).write(1) };
        }
    };
    let pages = SUPERSLAB / os::page_size();
    let judge = |n| [ANY.judge(&sample(n)), LONG.judge(&sample(n))];
    assert_eq!(judge(1), [Some(false); 2]);
    fill(pages * 3 / 4);
    assert_eq!(judge(2), [Some(false); 2]);
    fill(pages * 13 / 16);
    // An emulator of larger pages says what the machine's own are.
    let emulated = std::env::var_os("EXPECT_PAGE_SIZE").is_some();
    assert!(emulated || judge(2) == [Some(false), Some(true)]);
    // SAFETY: inside the mapping.
    unsafe { base.write_bytes(1, SUPERSLAB) };
    assert_eq!(judge(4), [Some(true); 2]);
    let answers = Answers::new(is_most, |_| SUPERSLAB_CONTROL);
    assert!(!answers.are_dense(FROM - 1, false, || sample(1), || NO_SAMPLES), "too few to ask");
    let said: Vec<bool> = (0..SUPERSLAB_CONTROL)
        .map(|i| answers.are_dense(FROM, i % 2 == 0, || sample(1), || NO_SAMPLES))
        .collect();
    assert_eq!(said.iter().filter(|yes| !**yes).count(), 1, "a control");
    assert_eq!([8, 30, 1000].map(long_control), [8, 15, 64]);
    assert!(answers.are_dense(GROWING_FROM, true, || sample(1), || NO_SAMPLES));
    assert!(
        !answers.are_dense(GROWING_FROM, true, || NO_SAMPLES, || NO_SAMPLES),
        "what was said before says nothing"
    );
    // SAFETY: our own mapping of this length, not used any more.
    unsafe { os::discard_uncounted(base, 2 * SUPERSLAB) };
    // The system does not say anything about memory that is not mapped.
    assert_eq!(judge(1), [None; 2]);
}

#[test]
fn superslabs_that_are_nearly_full_and_tell_something_are_asked_about() {
    let mut pool = State::new();
    let mut places = 0;
    let mut add = |free: u32, huge: bool, reused: bool| {
        places += 1;
        let desc = Desc::stand_in(ptr::without_provenance_mut(places * SUPERSLAB));
        desc.slices.set(Sets { free: (1 << free) - 1, dirty: 0 });
        desc.huge.store(huge, Relaxed);
        desc.reused.store(reused, Relaxed);
        pool.enter(desc, 0);
        desc.base()
    };
    let mut chosen = NO_SAMPLES;
    for free in [0, 4, 5] {
        let tells = add(free, false, false);
        if free <= 4 {
            chosen[free as usize / 4] = tells;
        }
        add(free, true, false);
        add(free, false, true);
        (0..TOO_FRESH).for_each(|_| _ = add(free, false, false));
    }
    assert_eq!(choose(&pool), chosen);
}

#[test]
fn of_long_blocks_the_newest_that_tells_is_asked_about() {
    let mut pool = State::new();
    let add = |pool: &mut State, free: u32, age: u32, huge: bool| {
        let desc = Desc::stand_in(ptr::without_provenance_mut(age as usize * SUPERSLAB));
        desc.slices.set(Sets { free: (1 << free) - 1, dirty: 0 });
        desc.huge.store(huge, Relaxed);
        desc.set_age(age);
        pool.enter(desc, 0);
        desc.base()
    };
    add(&mut pool, 0, 30, false);
    let newest = add(&mut pool, 2, 11, false);
    add(&mut pool, 3, 20, false);
    add(&mut pool, 4, 10, true);
    add(&mut pool, 5, 5, false);
    assert_eq!(choose_like(&pool, Kind::Long, 0, false)[0], newest);
    assert_eq!(choose_like(&pool, Kind::Long, 1, false), NO_SAMPLES, "none of them has long blocks");
    // Runs of one length leave more.
    add(&mut pool, 17, 2, false);
    let newest = add(&mut pool, 16, 4, false);
    assert_eq!(choose_like(&pool, Kind::Runs, 0, false)[0], newest);
    assert_eq!(choose_like(&pool, Kind::Runs, 1, false), NO_SAMPLES, "none of them has runs");
}

#[test]
fn what_blocks_longer_than_a_page_fill_counts_by_itself() {
    let filled = Filled::new();
    let page = os::page_size();
    for stride in [8, page, page + 1, 20 * page] {
        filled.of(stride).fetch_add(stride, Relaxed);
    }
    let counted = [&filled.short, &filled.long].map(|counter| counter.load(Relaxed));
    assert_eq!(counted, [8 + page, page + 1 + 20 * page]);
}

#[test]
fn a_heap_grows_by_what_is_filled() {
    let grows = |superslabs, filled| is_growing(superslabs, 40, filled, false);
    assert!(grows(GROWING_FROM, 40 + SLICES));
    assert!(!grows(GROWING_FROM - 1, 40 + SLICES), "small");
    assert!(!grows(100, 40 + SLICES / 2), "spans that are hardly touched");
    assert!(!grows(100, 8), "slabs were given back");
    let goes_on = |superslabs, filled| is_growing(superslabs, 40, filled, true);
    assert!(goes_on(GOES_ON_FROM, 40 + GOES_ON) && !grows(GOES_ON_FROM, 40 + GOES_ON));
    assert!(!goes_on(GOES_ON_FROM - 1, 40 + GOES_ON), "one would be too large a part");
    assert!(!goes_on(100, 39 + GOES_ON), "the end of the growth");
}

#[test]
#[cfg_attr(any(miri, feature = "valgrind"), ignore)]
fn what_huge_pages_hold_is_believed_until_they_hold_little() {
    let base = os::map_uncounted(SUPERSLAB);
    // SAFETY: our own mapping of this length, filled with that.
    let fill = |byte: u8| unsafe { base.write_bytes(byte, SUPERSLAB) };
    let answers = Answers::new(is_most, |_| 10);
    answers.dense.store(true, Relaxed);
    let is_dense = |n| answers.are_dense(FROM, false, || NO_SAMPLES, || [base; SAMPLES]) == (n < 10);
    fill(1);
    assert!((0..49).all(|_| is_dense(0)), "no control is needed");
    // Zeros say nothing for sure: for two the system is not asked, and then about one without huge pages.
    fill(0);
    assert!((10..12).all(is_dense));
    let asked = core::cell::Cell::new(false);
    let sample = || {
        asked.set(true);
        [base; SAMPLES]
    };
    assert!(!answers.dense.load(Relaxed));
    assert!(answers.are_dense(FROM, false, sample, || [base; SAMPLES]) && asked.get());
    // It is dense, so zeros are not doubted again, and controls come as ever.
    let said: Vec<bool> =
        (0..20).map(|_| answers.are_dense(FROM, false, || NO_SAMPLES, || [base; SAMPLES])).collect();
    assert_eq!(said.iter().filter(|yes| !**yes).count(), 2);
    // SAFETY: our own mapping of this length, not used any more.
    unsafe { os::discard_uncounted(base, SUPERSLAB) };
}
