use super::*;
extern crate std;

/// What is made anew meanwhile is nothing that figures read, or refer to.
#[test]
fn figures_are_read_while_slabs_come_and_go() {
    let times = if cfg!(miri) { 4 } else { 200 };
    let come_and_go = || {
        for _ in 0..times {
            let slab = Slab::make_usual(40).unwrap();
            slab.place.store(DEAD, Relaxed);
            // SAFETY: dead, and no block was handed out.
            unsafe { slab.release() };
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(come_and_go);
        for _ in 0..times * 2 {
            Slab::each(|slab| _ = slab.figures().fresh);
            std::thread::yield_now();
        }
    });
}

#[test]
fn figures_count_each_block_once() {
    let slab = Slab::make_usual(41).unwrap();
    let counts = || {
        let figures = slab.figures();
        [figures.fresh, figures.free, figures.used, figures.held]
    };
    assert_eq!(counts(), [slab.blocks(), 0, 0, 0]);
    for (index, state) in [FREE, USED, USED, HELD, HELD, HELD].into_iter().enumerate() {
        slab.state(index).store(state, Relaxed);
    }
    assert_eq!(counts(), [slab.blocks() - 6, 1, 2, 3]);
    let figures = slab.figures();
    assert_eq!((figures.class, figures.bytes, figures.stride), (41, slab.slices() * SLICE, slab.stride()));
    assert!(slab.blocks() > 6 && slab.blocks() * slab.stride() <= figures.bytes);
    (0..6).for_each(|index| slab.state(index).store(FRESH, Relaxed));
    slab.place.store(DEAD, Relaxed);
    // SAFETY: dead, and no block was handed out.
    unsafe { slab.release() };
}

/// A page counts once, however many blocks lie on it, and each that a block reaches into.
#[test]
fn figures_have_the_pages_of_blocks_that_were_handed_out() {
    let page = os::page_size();
    for class in if cfg!(miri) { [33, 38, 38, 38] } else { [3, 20, 33, 38] } {
        let slab = Slab::make_usual(class).unwrap();
        let mut pages = std::collections::BTreeSet::new();
        assert_eq!(slab.figures().touched, 0);
        for index in (0..slab.blocks()).filter(|index| index * index % 7 == 2) {
            let at = index * slab.stride();
            slab.state(index).store([FREE, USED, HELD][index % 3], Relaxed);
            pages.extend(at / page..=(at + slab.stride() - 1) / page);
            if index < 40 && !cfg!(miri) {
                assert_eq!(slab.figures().touched, pages.len() * page, "class {class}, block {index}");
            }
        }
        assert!(slab.figures().touched == pages.len() * page && !pages.is_empty(), "class {class}");
        (0..slab.blocks()).for_each(|index| slab.state(index).store(FRESH, Relaxed));
        slab.place.store(DEAD, Relaxed);
        // SAFETY: dead, and no block was handed out.
        unsafe { slab.release() };
    }
}
