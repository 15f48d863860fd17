//! Tests of heaps.

use super::*;
use crate::superslab::pagemap::KINDS;
use crate::tiny::classes::CLASSES;

#[test]
fn placeholders_are_empty_and_full() {
    for heap in [&EMPTY, &AFTER_EXIT] {
        let heap = ptr::from_ref(heap).cast_mut();
        for kind in 0..KINDS {
            // SAFETY: placeholders; nothing is written to a magazine that is empty and full at once.
            unsafe {
                assert!(MagazineTops::pop(heap.cast(), kind).is_null());
                assert!(!MagazineTops::push(heap.cast(), kind, ptr::without_provenance_mut(8)));
            }
        }
        for class in 1..=CLASSES {
            // SAFETY: placeholders; nothing is written to `NO_SLAB`.
            assert!(unsafe { Heap::alloc_from_slab(heap, class) }.ptr.is_null());
        }
    }
}
