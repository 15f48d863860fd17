//! The slices of a SuperSlab: two threads take them and give them back without a lock.

use crate::lockfree::slice_sets::{Sets, Slices};
use crate::sync::loom::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct SuperSlab {
    slices: Slices,
    memory: [UnsafeCell<u32>; 2],
}

// SAFETY: the slice word is atomic, and loom checks the cells.
unsafe impl Sync for SuperSlab {}
// SAFETY: as for `Sync`; nothing in it belongs to a thread.
unsafe impl Send for SuperSlab {}

/// A slice is with one thread at a time, which sees what was done to the slice before. A slice is dirty once
/// a thread had it.
#[test]
fn a_slice_belongs_to_whoever_took_it() {
    model(None, || {
        let shared = Arc::new(SuperSlab {
            slices: Slices::new(Sets { free: 0b11, dirty: 0 }),
            memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let work = |s: &SuperSlab| {
            for _ in 0..2 {
                let Some((index, before)) = s.slices.take(1, 1, u32::MAX) else { continue };
                // SAFETY: the slice has been taken, so its memory is ours; loom checks it.
                unsafe {
                    s.memory[index].with_mut(|p| {
                        assert!(*p == 0 || before.dirty & 1 << index != 0);
                        *p += 1;
                    });
                }
                let given =
                    |sets: Sets| Some(Sets { free: sets.free | 1 << index, dirty: sets.dirty | 1 << index });
                assert!(s.slices.change(given).is_some());
            }
        };
        let other = shared.clone();
        let thread = thread::spawn(move || work(&other));
        work(&shared);
        thread.join().unwrap();
        assert_eq!(shared.slices.get().free, 0b11);
    });
}

/// Whoever takes a slice of a SuperSlab that is only just being described sees all that was written down
/// before.
#[test]
fn slices_that_are_set_publish_what_was_stored_before() {
    model(None, || {
        let shared = Arc::new(SuperSlab {
            slices: Slices::new(Sets { free: 0, dirty: 0 }),
            memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let other = shared.clone();
        let thread = thread::spawn(move || {
            // SAFETY: nobody reads it before the slice is free; loom checks it.
            unsafe { other.memory[0].with_mut(|p| *p = 1) };
            other.slices.set(Sets { free: 0b1, dirty: 0 });
        });
        if shared.slices.take(1, 1, u32::MAX).is_some() {
            // SAFETY: written before the slice became free; loom checks it.
            assert_eq!(unsafe { shared.memory[0].with(|p| *p) }, 1);
        }
        thread.join().unwrap();
    });
}
