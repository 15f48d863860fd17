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
