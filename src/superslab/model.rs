//! Models of what all threads share: the page map, descriptors, the pool, records that statistics read.

use crate::os;
use crate::superslab::desc::{self, CHUNK, Desc, DescRef, descs, unused_desc};
use crate::superslab::layout::{HEADER, SLICE, SLICES, SUPERSLAB};
use crate::superslab::slab::{Owner, Slab};
use crate::superslab::span_index::{self, POOL, State};
use crate::superslab::{orphans, pagemap, pool, survey};
use crate::sync::loom::{aside, before, beside, model_of_statics as model, second};
use crate::sync::{reads, wrote};
use core::ptr;
use std::boxed::Box;
use std::cell::Cell;
use std::sync::Arc;

std::thread_local! {
    static MEMORY: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// Memory for a SuperSlab and one for descriptors, behind which nothing lies.
fn memory() -> (*mut u8, *mut u8) {
    if MEMORY.get().is_null() {
        MEMORY.set(aside(|| os::map_aligned(ptr::null_mut(), 2 * SUPERSLAB, SUPERSLAB)));
    }
    let base = MEMORY.get();
    (base, base.wrapping_add(SUPERSLAB))
}

/// A pool that has one SuperSlab, with a span in use, so that it stays.
pub(crate) fn ground() -> *mut u8 {
    let (base, chunk) = memory();
    assert!(pagemap::prepare(base));
    // SAFETY: our memory, which nobody uses before this execution of the model has begun.
    unsafe {
        base.write_bytes(0, HEADER);
        // The first blocks of each slice, which are all that models use.
        (0..SLICES).for_each(|i| base.add((i * SLICE).max(HEADER)).write_bytes(0, 1024));
        chunk.write_bytes(0, CHUNK);
    }
    *POOL.lock() = State::new();
    orphans::clear();
    desc::supply(chunk);
    assert!(span_index::add(base, false, false));
    assert!(pool::take_span(1, pagemap::RUN, |_| None).is_some());
    base
}

/// The end of a model that began with [`ground`]. Leaves that other models have left stay.
pub(crate) fn level() {
    aside(|| pagemap::unmap_but(before, before));
}

/// How many slices of SuperSlabs are in use, that of [`ground`] included.
pub(crate) fn slices_in_use() -> usize {
    span_index::lock().unwrap().used_slices as usize
}

/// An owner, which stays.
pub(crate) fn owner() -> *mut Owner {
    Box::leak(Box::new(Owner::new()))
}

/// Something plain.
fn cell() -> Arc<u32> {
    Arc::new(0)
}

const ADDRESS: *const u8 = ptr::without_provenance(0x1234_5670_0000);

#[test]
fn whoever_finds_a_kind_finds_the_record() {
    model(None, || {
        assert!(pagemap::prepare(ADDRESS));
        let record = cell();
        let theirs = record.clone();
        let other = beside(move || {
            wrote(&*theirs);
            pagemap::set(ADDRESS, 1, 7);
        });
        second(move || {
            if pagemap::kind_published(ADDRESS) == 7 {
                reads(&*record);
            }
        });
        other.join().unwrap();
        level();
    });
}

/// Two threads need the same leaf, and each finds what it has entered there.
#[test]
fn a_leaf_is_mapped_once() {
    model(None, || {
        let enter = |address: *const u8| {
            assert!(pagemap::prepare(address));
            pagemap::set(address, 1, 7);
            assert_eq!(pagemap::kind(address), 7);
        };
        let other = beside(move || enter(ADDRESS));
        enter(ADDRESS.wrapping_add(1 << 20));
        other.join().unwrap();
        assert_eq!((pagemap::kind(ADDRESS), pagemap::kind(ADDRESS.wrapping_add(1 << 20))), (7, 7));
        level();
    });
}

/// Whoever asks for what nobody has told it of finds nothing, or the whole of it.
#[test]
fn the_side_table_is_seen_as_far_as_it_is_there() {
    model(None, || {
        assert!(pagemap::prepare(ADDRESS));
        let other = beside(|| {
            assert!(pagemap::prepare_direct(ADDRESS));
            pagemap::set_direct(ADDRESS, 41);
        });
        second(|| assert!([0, 41].contains(&pagemap::direct(ADDRESS))));
        other.join().unwrap();
        level();
    });
}

/// Two threads enter direct mappings in the same leaf of the side table, which one of them maps.
#[test]
fn direct_mappings_are_entered_beside_each_other() {
    model(Some(2), || {
        assert!(pagemap::prepare(ADDRESS));
        let enter = |address: *const u8, entry: u64| {
            assert!(pagemap::prepare_direct(address));
            pagemap::set_direct(address, entry);
            assert_eq!(pagemap::direct(address), entry);
        };
        let second = ADDRESS.wrapping_add(1 << 20);
        let other = beside(move || enter(ADDRESS, 41));
        enter(second, 42);
        // What the other one has is only a hint yet, but never another one's.
        assert!([0, 41].contains(&pagemap::direct(ADDRESS)));
        other.join().unwrap();
        assert_eq!((pagemap::direct(ADDRESS), pagemap::direct(second)), (41, 42));
        level();
    });
}

#[test]
fn a_direct_mapping_is_cleared_by_one() {
    model(None, || {
        assert!(pagemap::prepare_direct(ADDRESS));
        pagemap::set_direct(ADDRESS, 41);
        let other = beside(|| pagemap::clear_direct(ADDRESS, 41));
        let ours = pagemap::clear_direct(ADDRESS, 41);
        assert_ne!(ours, other.join().unwrap());
        assert_eq!(pagemap::kind(ADDRESS), pagemap::FOREIGN);
        level();
    });
}

/// A model may have its memory made beside it, for the models that run after it in this process, too.
#[test]
fn what_one_model_leaves_the_next_does_not_unmap() {
    const LEFT: *const u8 = ptr::without_provenance(0x2345_6780_0000);
    model(None, || {
        aside(|| {
            assert!(pagemap::prepare_direct(LEFT));
            pagemap::set_direct(LEFT, 41);
        });
    });
    model(None, || {
        assert!(pagemap::prepare_direct(LEFT) && pagemap::prepare_direct(ADDRESS));
        let other = beside(|| pagemap::set_direct(ADDRESS, 42));
        other.join().unwrap();
        level();
    });
    model(None, || {
        let found = |address| (pagemap::kind(address), pagemap::direct(address));
        assert_eq!(aside(|| found(LEFT)), (pagemap::DIRECT, 41));
        assert_eq!(aside(|| found(ADDRESS)), (pagemap::FOREIGN, 0));
    });
}

fn described(base: *mut u8) -> DescRef {
    Desc::stand_in(base)
}

#[test]
fn a_descriptor_is_claimed_after_its_last_use() {
    model(None, || {
        let desc = described(ptr::without_provenance_mut(SUPERSLAB));
        assert!(desc.claim());
        let plain = cell();
        let theirs = plain.clone();
        let other = beside(move || {
            wrote(&*theirs);
            desc.clear();
        });
        second(move || {
            if desc.claim() {
                wrote(&*plain);
                assert!(desc.base().is_null());
            }
        });
        other.join().unwrap();
    });
}

#[test]
fn whoever_finds_a_superslab_finds_it_mapped() {
    model(None, || {
        let desc = described(ptr::null_mut());
        assert!(desc.claim());
        let plain = cell();
        let theirs = plain.clone();
        let other = beside(move || {
            wrote(&*theirs);
            desc.fill(ptr::without_provenance_mut(SUPERSLAB), false, false);
        });
        second(move || {
            if !desc.base().is_null() {
                reads(&*plain);
            }
        });
        other.join().unwrap();
    });
}

/// A SuperSlab that is gone is not mistaken for one that is whole again.
#[test]
fn what_is_not_hidden_any_more_has_no_address() {
    model(None, || {
        let desc = described(ptr::without_provenance_mut(SUPERSLAB));
        assert!(desc.claim());
        desc.job.store(u32::MAX, crate::sync::Ordering::Relaxed);
        let other = beside(move || desc.clear());
        second(move || assert!(desc.is_hidden() || desc.base().is_null()));
        other.join().unwrap();
    });
}

/// A chunk of descriptors is added while another thread looks at all SuperSlabs.
#[test]
fn descriptors_are_added_whole() {
    model(None, || {
        let (base, chunk) = memory();
        // SAFETY: as in `ground`.
        unsafe { chunk.write_bytes(0, CHUNK) };
        let (base, chunk) = (base.expose_provenance(), chunk.expose_provenance());
        let other = beside(move || {
            desc::supply(ptr::with_exposed_provenance_mut(chunk));
            let desc = unused_desc().unwrap();
            desc.fill(ptr::with_exposed_provenance_mut(base), false, false);
        });
        second(move || descs().for_each(|desc| assert_eq!(desc.base().addr(), base)));
        other.join().unwrap();
        assert_eq!(descs().count(), 1);
    });
}

#[test]
fn a_descriptor_is_given_to_one() {
    model(None, || {
        let (_, chunk) = memory();
        // SAFETY: as in `ground`.
        unsafe { chunk.write_bytes(0, CHUNK) };
        desc::supply(chunk);
        let take = || ptr::from_ref(unused_desc().unwrap()).addr();
        let other = beside(take);
        assert_ne!(take(), other.join().unwrap());
    });
}

/// A thread that did not get the lock has changed a descriptor. Whoever finds the index to be stale rebuilds
/// it with that change in it.
#[test]
fn a_stale_index_is_rebuilt_with_the_change() {
    model(None, || {
        ground();
        let other = beside(|| assert!(span_index::take_unlocked(1, pagemap::RUN, !1).is_some()));
        second(|| drop(span_index::lock()));
        other.join().unwrap();
        assert_eq!(span_index::lock().unwrap().used_slices, 2);
        level();
    });
}

/// Two threads take spans, one of them without the lock when it does not get it, and give them back.
#[test]
fn a_span_is_taken_by_one() {
    model(Some(2), || {
        ground();
        let work = || {
            let span = pool::take_span(1, pagemap::RUN, |_| None).unwrap();
            wrote(span.slab);
            // SAFETY: the span was taken just now, and nobody else knows it.
            unsafe { pool::give_span(span.slab, 1) };
        };
        let other = beside(work);
        work();
        other.join().unwrap();
        assert_eq!(span_index::lock().unwrap().used_slices, 1);
        level();
    });
}

/// Statistics that find an owner find the slab as it was made, of blocks of `stride` bytes.
pub(crate) fn figures_agree(slab: *mut Slab, stride: usize) {
    // SAFETY: the memory stays mapped, and so does the descriptor.
    unsafe {
        let figures = survey::look(slab, Slab::desc(slab), 4096);
        assert!(figures.blocks == 0 || figures.stride == stride && figures.blocks == figures.bytes / stride);
    }
}

/// Statistics look at a span while a thread makes a slab of it.
#[test]
fn statistics_pass_over_what_is_no_slab_yet() {
    model(None, || {
        let (base, _) = memory();
        // SAFETY: as in `ground`.
        unsafe { base.write_bytes(0, HEADER) };
        let desc = described(base);
        // SAFETY: the span is ours.
        let slab = unsafe { Slab::claim(desc, 3, 1, 5) };
        let record = slab.expose_provenance();
        let owner = owner().expose_provenance();
        let other = beside(move || {
            // SAFETY: the span is this thread's now.
            unsafe {
                let slab = ptr::with_exposed_provenance_mut(record);
                Slab::make(slab, 48, false, ptr::with_exposed_provenance_mut(owner));
            }
        });
        second(move || figures_agree(slab, 48));
        other.join().unwrap();
    });
}
