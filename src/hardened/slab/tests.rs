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
