use super::*;
extern crate std;
use std::vec;

#[test]
fn all_magazines_fit_at_the_size_that_is_their_own() {
    let slots: usize = (1..=CLASSES).map(|c| 1usize << FREE_LOGS[c]).sum();
    // The arrays that magazines have grown out of take at most as much again.
    assert!(2 * slots * 8 + size_of::<crate::front::heap::Heap>() <= crate::front::heap::RECORD / 2);
    assert!(FREE_LOGS.0[1..=CLASSES].iter().all(|log| (1..=MAX_LOG).contains(log)));
}

/// Runs `f` with the tops and the magazines of a heap that has memory for `slots` slots.
fn with_magazines(slots: usize, f: impl FnOnce(&MagazineTops, &Magazines)) {
    let tops = MagazineTops::without();
    let mut memory = vec![ptr::null_mut::<u8>(); slots];
    let m = Magazines::none();
    let range = memory.as_mut_ptr_range();
    // SAFETY: all of it is this thread's alone, and the memory outlives the call of `f`.
    unsafe { m.reset(&tops, true, range.start.cast(), range.end.cast()) };
    f(&tops, &m);
}

/// [`fill_beside`] few slabs.
fn fill(tops: &MagazineTops, m: &Magazines, class: usize) -> usize {
    fill_beside(0, tops, m, class)
}

/// Pushes until the magazine of `class` is full and does not grow, where the heap's slabs have `bytes`; how
/// many blocks it holds then.
fn fill_beside(bytes: usize, tops: &MagazineTops, m: &Magazines, class: usize) -> usize {
    // SAFETY: `tops` and `m` are this thread's alone, from `with_magazines`.
    let now = |m: &Magazines| unsafe { m.held(tops, class, 0..usize::MAX) };
    let mut held = now(m);
    loop {
        let block = ptr::without_provenance_mut((held + 1) * 8);
        // SAFETY: `tops` and `m` are this thread's alone; the blocks are numbers that nobody follows.
        unsafe {
            if !(MagazineTops::push(tops, class, block)
                || m.grow(tops, class, &tops.limit[class], bytes) && MagazineTops::push(tops, class, block))
            {
                assert!(m.frees_to_slab(class));
                return held;
            }
        }
        held += 1;
        assert_eq!(now(m), held);
    }
}

#[test]
fn last_in_first_out_and_growing_keeps_everything() {
    with_magazines(2000, |tops, m| {
        for class in [1usize, 8, 30, CLASSES] {
            // SAFETY: `tops` and `m` are this thread's alone.
            unsafe {
                assert!(MagazineTops::pop(tops, class).is_null());
                let capacity = fill(tops, m, class);
                assert_eq!(capacity, (1 << FREE_LOGS[class]) - 1);
                for i in (1..=capacity).rev() {
                    assert_eq!(MagazineTops::pop(tops, class).addr(), i * 8);
                }
                assert!(MagazineTops::pop(tops, class).is_null());
            }
        }
    });
}

#[test]
fn what_runs_empty_grows_by_one_step_for_every_miss_and_within_bounds() {
    with_magazines(20_000, |tops, m| {
        let class = 8;
        let mut capacity = fill(tops, m, class);
        assert_eq!(capacity, (1 << FREE_LOGS[class]) - 1);
        for log in FREE_LOGS[class] + 1..=MAX_LOG {
            // SAFETY: `class` is a size class, and `m` this thread's.
            unsafe { m.on_miss(class) };
            assert!(!m.frees_to_slab(class));
            capacity = fill(tops, m, class);
            assert_eq!(capacity, (1 << log) - 1);
        }
        // SAFETY: `class` is a size class, and `m` this thread's.
        unsafe { m.on_miss(class) };
        assert_eq!(fill(tops, m, class), capacity);
        // All classes together: beyond their own share no more than the extra bytes.
        for class in 1..=CLASSES {
            for _ in 0..MAX_LOG {
                // SAFETY: `class` is a size class, and `m` this thread's.
                unsafe { m.on_miss(class) };
                fill(tops, m, class);
            }
        }
        // SAFETY: `tops` and `m` are this thread's alone.
        let held = |c| unsafe { m.held(tops, c, 0..usize::MAX) };
        let beyond: usize =
            (1..=CLASSES).map(|c| (held(c) + 1).saturating_sub(1 << FREE_LOGS[c]) * stride(c) as usize).sum();
        assert!(beyond <= MAX_EXTRA && beyond == m.extra.get() as usize);
    });
}

#[test]
fn what_shrinks_gives_back_its_room_and_grows_again() {
    with_magazines(4096, |tops, m| {
        let class = 8;
        for _ in 0..3 {
            for _ in FREE_LOGS[class]..MAX_LOG {
                fill(tops, m, class);
                // SAFETY: `class` is a size class, and `m` this thread's.
                unsafe { m.on_miss(class) };
            }
            assert_eq!(fill(tops, m, class), (1 << MAX_LOG) - 1);
            for log in (MIN_LOG..MAX_LOG).rev() {
                assert!(m.may_shrink(class));
                // SAFETY: `tops` and `m` are this thread's alone, and the magazine is emptied first.
                unsafe {
                    while !MagazineTops::pop(tops, class).is_null() {}
                    m.shrink(tops, class);
                    assert!(MagazineTops::pop(tops, class).is_null());
                }
                // Without a miss it does not grow.
                assert_eq!(fill(tops, m, class), (1 << log) - 1);
            }
            assert!(!m.may_shrink(class));
            assert_eq!(m.extra.get(), 0);
            // SAFETY: `class` is a size class, and `m` this thread's.
            unsafe { m.on_miss(class) };
        }
    });
}

#[test]
fn a_miss_before_the_first_free_gives_no_magazine_more_than_its_own() {
    with_magazines(2000, |tops, m| {
        // As in a thread that first only allocates and then only frees.
        // SAFETY: 8 is a size class, and `m` this thread's.
        unsafe { m.on_miss(8) };
        assert_eq!(fill(tops, m, 8), (1 << FREE_LOGS[8]) - 1);
    });
}

/// Lets the magazine of `class` grow as far as it may beside slabs of `bytes`; how many blocks it holds then.
fn grow_all(bytes: usize, tops: &MagazineTops, m: &Magazines, class: usize) -> usize {
    let mut held = 0;
    for _ in 0..=MAX_LOG {
        // SAFETY: `class` is a size class, and `m` this thread's.
        unsafe { m.on_miss(class) };
        held = fill_beside(bytes, tops, m, class);
    }
    held
}

#[test]
fn a_heap_with_more_slabs_may_hold_more_and_no_class_takes_all() {
    let bytes_of = |blocks: usize, class| (blocks + 1) * stride(class) as usize;
    let mut before = 0;
    for slabs in [0, 4 << 20, 64 << 20, 256 << 20, 1 << 30] {
        with_magazines(20_000, |tops, m| {
            let most = slabs.clamp(MAX_EXTRA, MUCH).max(slabs / EXTRA_PART);
            let large = grow_all(slabs, tops, m, CLASSES);
            assert!(large >= before && bytes_of(large, CLASSES) <= most, "{slabs} {large}");
            before = large;
            // What is left is enough for blocks that are smaller.
            assert_eq!(grow_all(slabs, tops, m, 8), (1 << MAX_LOG) - 1);
            assert!(bytes_of(grow_all(slabs, tops, m, CLASSES - 8), CLASSES - 8) >= 64 << 10);
        });
    }
    assert!(before > 100);
}

#[test]
fn when_the_process_grows_what_is_beyond_a_magazines_own_is_surplus() {
    with_magazines(20_000, |tops, m| {
        grow_all(0, tops, m, CLASSES);
        assert!(!m.has_much(), "any heap's may have as much room");
        assert_eq!(m.surplus(2 << 20).count(), 1);
        grow_all(4 << 20, tops, m, CLASSES);
        fill(tops, m, 8);
        assert!(m.has_much());
        assert_eq!(m.surplus(2 << 20).count(), 0, "the process has not grown");
        assert_eq!(m.surplus(4 << 20).collect::<std::vec::Vec<_>>(), [CLASSES]);
        assert_eq!(m.surplus(4 << 20).count(), 0);
    });
}

/// What the magazine of `class` holds, from the bottom to the top, nulls too.
fn slots_of(tops: &MagazineTops, m: &Magazines, class: usize) -> std::vec::Vec<usize> {
    let first = m.first(tops, class).unwrap();
    let held = (tops.top[class].load(Relaxed).addr() - first.addr()) / size_of::<Slot>();
    // SAFETY: slots of the magazine, which is this thread's alone.
    (0..held).map(|i| unsafe { (*first.add(i)).load(Relaxed) }.addr() / 8).collect()
}

/// As a visitor does: takes the blocks out of the slots in the mask.
fn drain(tops: &MagazineTops, m: &Magazines, class: usize, taken: usize) {
    let first = m.first(tops, class).unwrap();
    for i in (0..usize::BITS as usize).filter(|i| taken & 1 << i != 0) {
        // SAFETY: slots of the magazine, which is this thread's alone.
        unsafe { (*first.add(i)).store(ptr::null_mut(), Relaxed) };
    }
    m.set_drained(class);
}

#[test]
fn gaps_are_closed_and_nothing_is_lost_or_there_twice() {
    with_magazines(600, |tops, m| {
        for class in [8, 9] {
            // SAFETY: `tops` and `m` are this thread's alone, and the blocks numbers that nobody follows.
            unsafe {
                m.begin(tops, class);
                for taken in 0..1 << 6 {
                    while !MagazineTops::pop(tops, class).is_null() {}
                    (1..=7).for_each(|i| {
                        MagazineTops::push(tops, class, ptr::without_provenance_mut(i * 8));
                    });
                    assert!(!m.gather(tops, class) && slots_of(tops, m, class) == [1, 2, 3, 4, 5, 6, 7]);
                    drain(tops, m, class, taken);
                    let left = 7 - taken.count_ones() as usize;
                    assert_eq!(m.held(tops, class, 0..usize::MAX), left);
                    assert!(m.gather(tops, class) && !m.gather(tops, class));
                    let mut now = slots_of(tops, m, class);
                    now.sort_unstable();
                    let expected: std::vec::Vec<_> = (1..=7).filter(|i| taken & 1 << (i - 1) == 0).collect();
                    assert_eq!(now, expected, "{taken:b}");
                    assert_eq!(m.held(tops, class, 0..usize::MAX), left);
                }
                // All of them, the topmost too.
                drain(tops, m, class, (1 << slots_of(tops, m, class).len()) - 1);
                assert!(m.gather(tops, class) && slots_of(tops, m, class).is_empty());
            }
        }
    });
}

#[test]
fn a_full_magazine_with_gaps_closes_them_instead_of_growing() {
    with_magazines(1100, |tops, m| {
        let class = 8;
        // SAFETY: `tops` and `m` are this thread's alone, and the blocks numbers that nobody follows.
        let grow = || unsafe { m.grow(tops, class, &tops.limit[class], 0) };
        // SAFETY: `tops` and `m` are this thread's alone.
        let push = || unsafe { MagazineTops::push(tops, class, ptr::without_provenance_mut(8)) };
        let log = || m.logs[class].load(Relaxed);
        assert!(!push() && grow() && log() == MIN_LOG);
        while push() {}
        drain(tops, m, class, 0b101);
        assert!(grow() && log() == MIN_LOG && slots_of(tops, m, class).len() == 5);
        while push() {}
        drain(tops, m, class, 0);
        assert!(grow() && log() == MIN_LOG + 1, "it was drained, and has no gaps");
        while log() < FREE_LOGS[class] {
            assert!(!m.frees_to_slab(class));
            while push() {}
            assert!(grow());
        }
        assert!(m.frees_to_slab(class), "it has as many slots as it may have");
        // SAFETY: a size class, of magazines that are this thread's.
        unsafe { m.on_miss(class) };
        while push() {}
        drain(tops, m, class, 0b11);
        assert!(grow() && log() == FREE_LOGS[class] && !m.frees_to_slab(class));
        while push() {}
        assert!(grow() && log() == FREE_LOGS[class] + 1, "it had run empty");
    });
}

#[test]
fn an_array_is_had_while_there_is_memory_for_all_of_it() {
    for (slots, first, second) in [(7, 0, 0), (8, 7, 0), (15, 7, 0), (16, 7, 7), (17, 7, 7), (32, 15, 7)] {
        with_magazines(slots, |tops, m| {
            assert_eq!((fill(tops, m, 8), fill(tops, m, 9)), (first, second), "{slots}");
        });
    }
}

#[test]
fn the_most_memory_that_arrays_had_is_known_for_good() {
    let tops = MagazineTops::without();
    let mut memory = vec![ptr::null_mut::<u8>(); 100];
    let m = Magazines::none();
    let range = memory.as_mut_ptr_range();
    let slots = || m.most().addr().saturating_sub(range.start.addr()) / size_of::<Slot>();
    assert_eq!((m.most(), slots()), (ptr::null_mut(), 0));
    for (class, most) in [(8, 8 + 16 + 32), (CLASSES, 56), (9, 56)] {
        // SAFETY: all of it is this thread's alone.
        unsafe { m.reset(&tops, true, range.start.cast(), range.end.cast()) };
        fill(&tops, &m, class);
        assert_eq!(slots(), most);
    }
}

#[test]
fn what_begins_has_all_that_is_its_own_and_keeps_what_it_has() {
    with_magazines(2000, |tops, m| {
        let class = 8;
        // SAFETY: `tops` and `m` are this thread's alone.
        unsafe {
            m.begin(tops, class);
            let (first, used) = (m.first(tops, class), m.most());
            assert_eq!(m.logs[class].load(Relaxed), FREE_LOGS[class]);
            m.begin(tops, class);
            assert!(m.first(tops, class) == first && m.most() == used);
            m.on_miss(class);
            let held = fill(tops, m, class);
            assert_eq!(held, (2 << FREE_LOGS[class]) - 1);
            m.begin(tops, class);
            assert_eq!(slots_of(tops, m, class), (1..=held).collect::<std::vec::Vec<_>>());
        }
    });
}

#[test]
fn room_for_what_is_cut_ahead_comes_in_steps_and_only_where_nothing_is_freed() {
    with_magazines(2000, |tops, m| {
        let log = |class: usize| m.logs[class].load(Relaxed);
        // SAFETY: `tops` and `m` are this thread's alone.
        unsafe {
            for class in [8, CUT_CLASSES] {
                assert!(!m.widen(tops, class) && log(class) == 0);
                m.on_miss(class);
                for expected in [4, 5, 6, 6] {
                    assert!(m.widen(tops, class));
                    assert_eq!(log(class), expected.min(FREE_LOGS[class]));
                }
                let used = m.most();
                assert!(m.widen(tops, class) && m.most() == used);
                // A free that finds it full ends that.
                fill(tops, m, class);
                assert!(!m.widen(tops, class));
            }
            m.on_miss(CUT_CLASSES + 1);
            assert!(!m.widen(tops, CUT_CLASSES + 1) && log(CUT_CLASSES + 1) == 0);
        }
    });
}

#[test]
fn what_a_magazine_holds_is_found_and_no_more() {
    with_magazines(300, |tops, m| {
        let (class, block) = (8, |n: usize| ptr::without_provenance_mut::<u8>(n * 8));
        // SAFETY: `tops` and `m` are this thread's alone.
        let holds = |n| unsafe { m.holds(tops, class, block(n), 0..usize::MAX) };
        assert!(!holds(1));
        // SAFETY: as above, and the blocks are numbers that nobody follows.
        unsafe {
            m.begin(tops, class);
            (1..=5).for_each(|n| assert!(MagazineTops::push(tops, class, block(n))));
            assert!((1..=5).all(holds) && !holds(6) && !holds(0));
            MagazineTops::pop(tops, class);
            assert!((1..=4).all(holds) && !holds(5), "what is above the top is in use");
            drain(tops, m, class, 0b10);
            assert!(!holds(2) && holds(4) && holds(1));
            let first = m.first(tops, class).unwrap();
            let record = first.addr()..first.wrapping_add(2).addr();
            assert!(
                m.holds(tops, class, block(1), record.clone()) && !m.holds(tops, class, block(3), record)
            );
        }
    });
}
