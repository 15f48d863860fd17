//! Models of hardened blocks: whose a block is, by its byte; how it comes back, by its bit; and when the
//! memory of a slab, or a large block, is whose.

use super::blocks;
use super::large::{self, Large};
use super::mappings::hand_out;
use super::place::Place;
use super::slab::{ALL, FREE, FRESH, HELD, Slab, USED};
use crate::superslab::pagemap;
use crate::sync::Ordering::Relaxed;
use crate::sync::loom::{aside, beside, model_of_statics as model, second};
use crate::sync::{reads, wrote};
use core::ptr;
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

/// Whoever frees a block that another thread has allocated, or asks for its size, finds what that has
/// written, however it came by its address.
#[test]
fn a_block_that_is_found_in_use_was_handed_out() {
    for frees in [true, false] {
        model(None, move || {
            let place = place(1);
            place.state().store(FREE, Relaxed);
            let other = beside(move || {
                wrote(place.block);
                place.take();
            });
            second(move || {
                let is_used = if frees { place.hold().is_ok() } else { place.look() == USED };
                if is_used {
                    reads(place.block);
                }
            });
            other.join().unwrap();
        });
    }
}

/// Whoever takes a block's bit finds it as the thread has left it that has freed it, or given it up.
#[test]
fn a_block_comes_back_with_its_bit() {
    for given in [true, false] {
        model(None, move || {
            let place = place(1);
            place.state().store(HELD, Relaxed);
            aside(|| place.slab.word(0).store(0, Relaxed));
            let other = beside(move || {
                wrote(place.block);
                if given { place.give() } else { place.slab.put_bits(0, 2) }
            });
            second(move || {
                if place.slab.take_bits(0) == 2 {
                    reads(place.block);
                    wrote(place.block);
                }
            });
            other.join().unwrap();
        });
    }
}

/// Of two threads that free the last two blocks of a slab, one into its current slab, whoever finds that all
/// are free may give the memory back.
#[test]
fn memory_goes_back_after_its_last_use() {
    model(None, || {
        let (first, last) = (place(0), place(1));
        let (slab, all) = (first.slab, first.slab.blocks() as i32);
        slab.free.store(all - 2, Relaxed);
        let other = beside(move || {
            wrote(first.block);
            first.give();
            slab.count(1);
        });
        second(move || {
            wrote(last.block);
            if last.let_go() == all {
                reads(first.block);
            }
        });
        other.join().unwrap();
    });
}

/// A new slab is listed while figures are made.
#[test]
fn a_slab_is_listed_whole() {
    model(None, || {
        let slab = place(0).slab;
        aside(|| ALL.store(ptr::null_mut(), Relaxed));
        let other = beside(|| slab.enlist());
        second(|| Slab::each(|each| assert!(ptr::eq(each, slab))));
        other.join().unwrap();
    });
}

/// A large block, of which the record says that it is freed, and was one of 5 bytes.
fn large() -> (&'static Large, *mut u8) {
    std::thread_local! {
        static BLOCK: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
    }
    aside(|| {
        if BLOCK.get().is_null() {
            BLOCK.set(blocks::alloc(100_000, 16, false).ptr);
        }
        let block = BLOCK.get();
        // SAFETY: the record of a large block.
        let large = unsafe { large::of(pagemap::hardened(block).cast(), block) }.unwrap();
        large.state.store(large::HELD, Relaxed);
        large.size.store(5, Relaxed);
        (large, block)
    })
}

/// Hands the block out, of another size.
fn hand_out_again(large: &'static Large, block: *mut u8) {
    let record = ptr::from_ref(large).cast_mut();
    wrote(record);
    // SAFETY: nobody has it, and its pages can be touched.
    unsafe { hand_out(record, block, 99_999, 16) };
}

/// Whoever finds a large block in use finds how large it is, and whoever frees it the rest of its record.
#[test]
fn a_large_block_is_handed_out_whole() {
    for frees in [true, false] {
        model(None, move || {
            let (large, block) = large();
            let other = beside(move || hand_out_again(large, block));
            second(move || {
                if frees && large.hold(block) {
                    reads(ptr::from_ref(large));
                }
                if !frees {
                    assert!(large.size().is_none_or(|size| size == 99_999));
                }
            });
            other.join().unwrap();
        });
    }
}

/// A free that comes late, when the mapping has another block, leaves that to whoever frees it.
#[test]
fn a_late_free_of_a_large_block_does_nothing() {
    model(None, || {
        let (large, block) = large();
        let other = beside(move || hand_out_again(large, block));
        let late = beside(move || assert!(!large.hold(block.wrapping_add(16))));
        second(move || {
            if large.hold(block) {
                reads(ptr::from_ref(large));
            }
        });
        other.join().unwrap();
        late.join().unwrap();
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
            let _ = first.swap_free(first.mix());
            first.take();
        });
        second(move || assert!(behind.is_neighbour_intact()));
        other.join().unwrap();
    });
}
