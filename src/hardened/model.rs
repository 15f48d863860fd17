//! Models of hardened blocks: whose a block is, by its byte.

use super::place::Place;
use super::slab::{FREE, FRESH, Slab, USED};
use crate::sync::Ordering::Relaxed;
use crate::sync::loom::{aside, beside, model_of_statics as model, second};
use crate::sync::{reads, wrote};
use std::cell::Cell;

const CLASS: usize = 30;

/// A block of a slab, as no thread has used it yet.
fn place(index: usize) -> Place<'static> {
    std::thread_local! {
        static SLAB: Cell<Option<&'static Slab>> = const { Cell::new(None) };
    }
    if SLAB.get().is_none() {
        SLAB.set(aside(|| Slab::make(CLASS)));
    }
    let place = SLAB.get().unwrap().nth(index);
    aside(|| {
        place.state().store(FRESH, Relaxed);
        place.trailer().store(0, Relaxed);
    });
    place
}

/// Whoever frees a block that another thread has allocated finds what that has written, however it came by
/// its address.
#[test]
fn a_block_that_is_freed_was_handed_out() {
    model(None, || {
        let place = place(1);
        place.state().store(FREE, Relaxed);
        let other = beside(move || {
            wrote(place.block);
            place.take();
        });
        second(move || {
            if place.hold().is_ok() {
                reads(place.block);
            }
        });
        other.join().unwrap();
    });
}

#[test]
fn a_block_is_freed_by_one() {
    model(None, || {
        let place = place(1);
        place.state().store(USED, Relaxed);
        let other = beside(move || place.hold().is_ok());
        let ours = place.hold().is_ok();
        assert_ne!(ours, other.join().unwrap());
    });
}

/// A block is handed out for the first time beside a look at its trailer.
#[test]
fn a_neighbour_that_is_handed_out_is_intact() {
    model(None, || {
        let (first, behind) = (place(0), place(1));
        let other = beside(move || {
            first.seal_free(first.mix());
            first.take();
        });
        second(move || assert!(behind.is_neighbour_intact()));
        other.join().unwrap();
    });
}
