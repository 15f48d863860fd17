use super::*;
use crate::lockfree::slice_sets::Sets;
use crate::superslab::pool::{give_span, take_span};

const KIB: usize = 1 << 10;

/// As where several threads ask at once in a process of many slabs.
#[test]
#[cfg_attr(miri, ignore)]
fn statistics_wait_for_the_lock() {
    if !os::child::is_alone() {
        return;
    }
    let span = take_span(1, RUN, |_| None).unwrap();
    let held = POOL.lock();
    std::thread::scope(|threads| {
        let other = threads.spawn(|| survey(true, |_| ()).mapped);
        while !POOL.is_waited_for() {
            std::thread::yield_now();
        }
        // So long nobody waits who has something else to do.
        std::thread::sleep(std::time::Duration::from_millis(15));
        drop(held);
        assert_ne!(other.join().unwrap(), 0);
    });
    // SAFETY: our own span, given back once.
    unsafe { give_span(span.slab, 0) };
}

/// However many SuperSlabs there are: nobody waits for all of them.
#[test]
#[cfg_attr(miri, ignore)]
fn who_needs_the_pool_has_it_before_a_survey_ends() {
    if !os::child::is_alone() {
        return;
    }
    // Each most of a SuperSlab.
    let spans = [0; 8].map(|_| take_span(SLICES - 8, RUN, |_| None).unwrap());
    let (mut had_it, mut seen) = (false, 0);
    // Again if it is not awake within all the breaks.
    while !had_it && seen < 1000 {
        std::thread::scope(|threads| {
            let mut other = None;
            survey(true, |_| {
                seen += 1;
                let other = other.get_or_insert_with(|| {
                    let other = threads.spawn(|| drop(POOL.lock()));
                    while !POOL.is_waited_for() {
                        std::thread::yield_now();
                    }
                    other
                });
                had_it |= other.is_finished();
            });
        });
    }
    assert!(had_it, "of {seen} spans");
    for span in spans {
        // SAFETY: our own span, given back once.
        unsafe { give_span(span.slab, 0) };
    }
}

#[test]
fn a_huge_page_is_clean_until_something_in_it_was_used() {
    let desc = Desc::stand_in(core::ptr::without_provenance_mut(SUPERSLAB));
    for (huge, free, dirty, clean) in [
        (true, u32::MAX, 0, u32::MAX),
        (true, u32::MAX, 1, 0),
        (true, u32::MAX - 1, 0, 0),
        (false, u32::MAX, 6, !6),
        (false, 0b1100, 0b0100, !0b0100),
    ] {
        desc.huge.store(huge, Relaxed);
        desc.slices.set(Sets { free, dirty });
        assert_eq!(clean_slices(desc), clean, "{huge} {free:#x} {dirty:#x}");
    }
}

#[test]
fn what_lies_above_in_clean_slices() {
    for (from, clean, bytes) in [
        (0, 0b1111, 256 * KIB),
        (4 * KIB, 0b1111, 252 * KIB),
        (64 * KIB, 0b1111, 192 * KIB),
        (65 * KIB, 0b1111, 191 * KIB),
        (65 * KIB, 0b1101, 128 * KIB),
        (65 * KIB, 0b1011, 127 * KIB),
        (256 * KIB, 0b1111, 0),
        (SUPERSLAB, u32::MAX, 0),
    ] {
        assert_eq!(above(from, clean), bytes, "{from:x} {clean:b}");
    }
}

#[test]
fn the_header_is_as_resident_as_the_systems_pages_make_it() {
    assert_eq!(header_and_clean(0, 4 * KIB), (4 * KIB, 0));
    assert_eq!(header_and_clean(0b110, 16 * KIB), (4 * KIB, 128 * KIB));
    assert_eq!(header_and_clean(0b11, 4 * KIB), (4 * KIB, 124 * KIB));
    assert_eq!(header_and_clean(0b11, 16 * KIB), (16 * KIB, 112 * KIB));
    assert_eq!(header_and_clean(0b1, 64 * KIB), (64 * KIB, 0));
}
