//! Models of heaps: how a record gets into the list of all, whose it is, and how heaps follow an arming.

use crate::front::heap::Heap;
use crate::front::{lease, registry};
use crate::os::process;
use crate::sampling;
use crate::sync::Ordering::Relaxed;
use crate::sync::loom::{aside, beside, model_of_statics as model, second, spare};
use crate::sync::reads;
use std::vec::Vec;

fn heaps() -> Vec<usize> {
    let mut all = Vec::new();
    registry::each(|heap| all.push(heap.expose_provenance()));
    all
}

/// A thread gets a new record while another one looks at all of them.
#[test]
fn a_record_is_listed_whole() {
    spare(800);
    model(Some(2), || {
        let other = beside(|| registry::acquire().expose_provenance());
        second(|| {
            for heap in heaps() {
                // SAFETY: a listed record stays.
                assert!(unsafe { !Heap::is_left_behind(core::ptr::with_exposed_provenance_mut(heap)) });
            }
        });
        let heap = other.join().unwrap();
        assert_eq!(heaps(), [heap]);
        aside(registry::unmap);
    });
}

/// Two threads get records at the same time: both are listed.
#[test]
fn two_records_are_listed() {
    spare(1200);
    model(Some(1), || {
        let other = beside(|| registry::acquire().expose_provenance());
        let mut both = [registry::acquire().expose_provenance(), other.join().unwrap()];
        let mut all = heaps();
        all.sort_unstable();
        both.sort_unstable();
        assert_eq!(all, both);
        aside(registry::unmap);
    });
}

/// In the child of a fork a thread gets a heap. Nobody mistakes it for one that the fork has left behind.
#[test]
fn a_heap_of_this_process_was_not_left_behind() {
    spare(800);
    model(Some(2), || {
        let heap = aside(registry::acquire).expose_provenance();
        let heap = move || core::ptr::with_exposed_provenance_mut::<Heap>(heap);
        // SAFETY: nobody has it: it is as one that was given up.
        unsafe { (*heap()).live.store(false, Relaxed) };
        assert!(process::forked(true));
        // SAFETY: the record is this thread's now.
        let other = beside(move || unsafe { Heap::reset(heap(), 0, false, 1, 0) });
        second(move || {
            // SAFETY: a record, which stays.
            unsafe {
                assert!(!Heap::is_left_behind(heap()));
            }
        });
        second(move || {
            // SAFETY: a record, which stays.
            unsafe {
                // Of what is somebody's everything may be visited.
                if Heap::is_somebodys(heap()) {
                    reads(heap());
                }
            }
        });
        other.join().unwrap();
        aside(registry::unmap);
    });
}

/// A heap that follows an arming samples at the rate that was set before.
#[test]
fn a_heap_that_is_armed_has_the_rate() {
    spare(800);
    model(Some(2), || {
        let heap = aside(registry::acquire);
        let other = beside(|| {
            sampling::model_rate(1);
            lease::set_epoch(1);
        });
        second(move || {
            // SAFETY: the heap is this thread's.
            unsafe {
                let _entered = Heap::enter(heap);
                if Heap::follow(heap) {
                    let gate = Heap::gate(heap);
                    assert!(gate.pushes[4].get() < 1 << 30, "without a rate the next sample never comes");
                }
            }
        });
        other.join().unwrap();
        aside(registry::unmap);
    });
}
