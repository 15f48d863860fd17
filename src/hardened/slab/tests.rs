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
