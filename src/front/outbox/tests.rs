use super::*;
use crate::os;
use crate::superslab::desc::Desc;
use crate::superslab::layout::SUPERSLAB;
use crate::tiny::classes::{CLASSES, stride};
extern crate std;
use std::vec::Vec;

#[test]
fn slabs_of_four_neighbouring_superslabs_never_meet() {
    for first in 0..64usize {
        let mut seen = [false; BUNDLES];
        for slab in 0..4 * 32usize {
            let record = ((first + slab / 32) << 21) + slab % 32 * size_of::<Slab>();
            assert!(!core::mem::replace(&mut seen[place(ptr::without_provenance_mut(record))], true));
        }
    }
}

/// Room for the slabs of five SuperSlabs: those of the first and the fifth have the same places.
const ROOM: usize = 5 * SUPERSLAB;

/// Runs `f` with an outbox, another heap's owner, and a function that makes a slab of the class for that, in
/// a slice of a SuperSlab, or of the fifth after that.
fn with_outbox(bundling: bool, f: impl FnOnce(&Outbox, *mut Owner, &dyn Fn(usize, usize) -> *mut Slab)) {
    let base = os::map_aligned(ptr::null_mut(), ROOM, SUPERSLAB);
    assert!(!base.is_null());
    let (owner, outbox) = (Owner::new(), Outbox::new());
    let owner = (&raw const owner).cast_mut();
    let mut memory = std::vec![0u64; BYTES / 8];
    let make = |index: usize, class: usize| {
        let desc = Desc::stand_in(base.wrapping_add(index / 32 * SUPERSLAB));
        // SAFETY: the places for SuperSlabs were just mapped, and nobody else knows them.
        unsafe {
            let slab = Slab::claim(desc, index % 32, 1, class as u8);
            Slab::make(slab, stride(class), false, owner);
            slab
        }
    };
    // SAFETY: the outbox and its memory are this thread's alone.
    unsafe {
        outbox.reset(memory.as_mut_ptr().cast(), bundling);
        f(&outbox, owner, &make);
        os::discard(base, ROOM);
    }
}

/// Takes the next block of a slab.
fn take(slab: *mut Slab) -> *mut Block {
    // SAFETY: the slab is this thread's alone, and has more.
    unsafe {
        let block = (*slab).bump;
        (*slab).bump = block.wrapping_add((*slab).stride as usize);
        Slab::count_taken(slab);
        block.cast()
    }
}

/// Adds the next block of a slab, and returns it; nobody is to be visited.
fn add(outbox: &Outbox, slab: *mut Slab) -> *mut Block {
    let block = take(slab);
    // SAFETY: the outbox and the block are this thread's alone.
    assert!(unsafe { outbox.add(slab, block) }.is_null());
    block
}

/// What has been sent to a slab, the last first.
fn sent(slab: *mut Slab) -> Vec<*mut Block> {
    // SAFETY: the slab is this thread's alone.
    unsafe {
        let chain = (*slab).remote.take_chain();
        let (mut at, mut all) = (chain.head, Vec::new());
        while !at.is_null() {
            all.push(at);
            at = Block::next(at);
        }
        assert_eq!(chain.count as usize, all.len());
        all
    }
}

/// The numbers of blocks of what waits.
fn waiting(outbox: &Outbox) -> Vec<usize> {
    let mut all = Vec::new();
    outbox.each_waiting(|_, blocks| all.push(blocks));
    all
}

#[test]
fn a_bundle_goes_when_it_is_full_and_each_block_once() {
    with_outbox(true, |outbox, owner, make| {
        assert!(outbox.resident_bytes() == 0 && waiting(outbox).is_empty());
        let large = (1..=CLASSES).find(|&class| stride(class) > MAX_BYTES / 2).unwrap();
        let middle = (1..=CLASSES).find(|&class| stride(class) >= MAX_BYTES / 8).unwrap();
        for (index, class) in [(3, 8), (4, middle), (5, large)] {
            let (slab, size) = (make(index, class), stride(class) as u64);
            let most = ((MAX_BYTES as u64 / size) as usize).clamp(1, MAX_BLOCKS as usize);
            assert!((class == large) == (most == 1));
            let published = outbox.publishes.get();
            let pushes = outbox.pushes.get();
            for round in 1..=2 {
                let mut blocks = Vec::new();
                for n in 1..most {
                    blocks.insert(0, add(outbox, slab));
                    assert_eq!(outbox.waiting.get(), n as u64 * size);
                    assert_eq!(waiting(outbox), [n]);
                    // SAFETY: the slab is this thread's alone.
                    assert!(outbox.may_hold(slab, blocks[0]) && !unsafe { (*slab).remote.has_chain() });
                }
                assert_eq!(outbox.pushes.get(), pushes + round - 1);
                blocks.insert(0, add(outbox, slab));
                assert!(!outbox.may_hold(slab, blocks[0]) && outbox.waiting.get() == 0);
                assert_eq!(sent(slab), blocks);
                assert_eq!((outbox.pushes.get(), outbox.publishes.get()), (pushes + round, published + 1));
            }
        }
        assert_eq!(outbox.resident_bytes(), BUNDLE_BYTES);
        // SAFETY: the owner stays.
        assert!(!unsafe { (*owner).ready.is_empty() });
    });
}

#[test]
fn without_bundles_each_block_goes_at_once() {
    with_outbox(false, |outbox, _, make| {
        let slab = make(3, 8);
        for n in 1..4 {
            let block = add(outbox, slab);
            assert_eq!((sent(slab), outbox.pushes.get(), outbox.waiting.get()), ([block].into(), n, 0));
        }
        // Nor does it evict, or is set aside.
        let other = make(4 * 32 + 3, 8);
        let block = add(outbox, other);
        assert_eq!((sent(other), outbox.resident_bytes()), ([block].into(), BUNDLE_BYTES));
    });
}

#[test]
fn blocks_are_set_aside_where_their_place_is_taken_until_there_are_many() {
    with_outbox(true, |outbox, _, make| {
        let (first, second) = (make(3, 8), make(4 * 32 + 3, 8));
        let of_first = add(outbox, first);
        let mut of_second = Vec::new();
        for n in 0..ASIDE {
            of_second.push(add(outbox, second));
            assert_eq!(waiting(outbox), [1].repeat(n + 2));
        }
        assert_eq!(outbox.resident_bytes(), BYTES);
        assert!(outbox.may_hold(first, of_second[0]), "some block of that slab is here");
        assert!(of_second.iter().all(|&block| outbox.may_hold(second, block)));
        assert!(!outbox.may_hold(second, of_first) && outbox.pushes.get() == 0);
        // The next one evicts the bundle, and fills that of its own, which goes, and opens another one.
        assert_eq!(of_second.len(), MAX_BLOCKS as usize);
        let next = add(outbox, second);
        assert_eq!(sent(first), [of_first]);
        of_second.reverse();
        assert_eq!(sent(second), of_second);
        assert_eq!((waiting(outbox), outbox.waiting.get()), ([1].into(), stride(8) as u64));
        let back = add(outbox, first);
        assert_eq!((waiting(outbox), outbox.aside.load(Relaxed)), ([1, 1].into(), 1));
        // SAFETY: the outbox is this thread's alone.
        unsafe { assert!(outbox.flush().is_null()) };
        assert_eq!((sent(first), sent(second)), ([back].into(), [next].into()));
        assert!(waiting(outbox).is_empty() && outbox.waiting.get() == 0);
        assert_eq!(outbox.pushes.get(), 4);
    });
}

/// Runs `f` in the child of a fork, because other tests have heaps, which count, as with so many threads that
/// have one: with an outbox, a function that makes a slab, and the bytes that may wait.
fn among(threads: u64, kib: usize, f: impl Fn(&Outbox, &dyn Fn(usize, usize) -> *mut Slab, u64)) {
    assert!(os::child::is_so(|| {
        counts::LEFT.store(0, Relaxed);
        counts::STARTED.store(counts::EXITED.load(Relaxed) + threads, Relaxed);
        with_outbox(true, |outbox, _, make| f(outbox, make, (kib << 10) as u64));
        true
    }));
}

const BOUNDS: [(u64, usize); 5] =
    [(0, MAX_WAITING), (8, MAX_WAITING), (15, MAX_WAITING), (16, MAX_WAITING / 2), (999, LEAST_WAITING)];

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_waits_is_bounded_in_all() {
    let class = (1..=CLASSES).find(|&class| stride(class) == 8 << 10).unwrap();
    for (threads, kib) in BOUNDS {
        among(threads, kib, |outbox, make, bytes| {
            let most = (bytes / stride(class) as u64) as usize;
            // One block of each, and a second bundle in the place of the first.
            let slabs: Vec<_> = (0..=most).map(|n| make(n / 30 * 32 + n % 30 + 1, class)).collect();
            let mut blocks: Vec<_> = slabs[..most].iter().map(|&slab| add(outbox, slab)).collect();
            assert_eq!((outbox.waiting.get(), outbox.pushes.get()), (bytes, 0));
            blocks.push(add(outbox, slabs[most]));
            assert_eq!((outbox.waiting.get(), outbox.pushes.get()), (stride(class) as u64, most as u64));
            for n in 0..most {
                assert_eq!(sent(slabs[n]), [blocks[n]]);
            }
            assert!(sent(slabs[most]).is_empty());
            // Where the bundle of its own is open, too, which goes with the others and begins anew.
            blocks.extend(slabs[..most - 1].iter().map(|&slab| add(outbox, slab)));
            assert_eq!((outbox.waiting.get(), outbox.pushes.get()), (bytes, most as u64));
            let last = add(outbox, slabs[5]);
            assert_eq!((outbox.waiting.get(), outbox.pushes.get()), (stride(class) as u64, 2 * most as u64));
            assert_eq!(sent(slabs[5]), [blocks[most + 1 + 5]]);
            assert!(outbox.may_hold(slabs[5], last) && waiting(outbox) == [1]);
        });
    }
}

/// Also of bundles that were opened while little waited.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn what_joins_open_bundles_is_bounded_in_all() {
    let class = (1..=CLASSES).find(|&class| stride(class) == 512).unwrap();
    for (threads, kib) in BOUNDS {
        among(threads, kib, |outbox, make, bytes| {
            let slabs: Vec<_> = (0..BUNDLES - 8).map(|n| make(n / 30 * 32 + n % 30 + 1, class)).collect();
            let mut most = 0;
            for slab in slabs.iter().cycle().take(slabs.len() * 31) {
                add(outbox, *slab);
                most = most.max(outbox.waiting.get());
            }
            assert_eq!(most, bytes, "{threads} threads");
        });
    }
}

#[test]
fn what_an_outbox_had_under_its_last_owner_is_not_sent() {
    with_outbox(true, |outbox, _, make| {
        let (first, second) = (make(3, 8), make(4 * 32 + 3, 8));
        add(outbox, first);
        add(outbox, second);
        let bytes = outbox.bundles.load(Relaxed).cast::<u8>().wrapping_sub(BYTES - BUNDLE_BYTES);
        // SAFETY: the memory that it had before.
        unsafe { outbox.reset(bytes, true) };
        assert!(waiting(outbox).is_empty() && !outbox.may_hold(first, ptr::null_mut()));
        // In the place of what was there before.
        let block = add(outbox, second);
        // SAFETY: the outbox is this thread's alone.
        unsafe { assert!(outbox.flush().is_null()) };
        assert_eq!((sent(first), sent(second)), ([].into(), [block].into()));
    });
}

/// As the record of a thread that the child of a fork does not have: nobody has sent what was there.
#[test]
fn what_was_given_back_with_its_memory_is_not_looked_for() {
    with_outbox(true, |outbox, _, make| {
        let (first, second) = (make(3, 8), make(4 * 32 + 3, 8));
        add(outbox, first);
        add(outbox, second);
        assert_eq!(outbox.aside.load(Relaxed), 1);
        let bytes = outbox.bundles.load(Relaxed).cast::<u8>().wrapping_sub(BYTES - BUNDLE_BYTES);
        // SAFETY: the memory that it had before, and nobody else's.
        unsafe { bytes.write_bytes(0, BYTES) };
        outbox.forget_resident();
        assert!(outbox.resident_bytes() == 0 && !outbox.may_hold(second, ptr::null_mut()));
        // SAFETY: the same memory, which is zero.
        unsafe { outbox.reset(bytes, true) };
        let block = add(outbox, second);
        // SAFETY: the outbox is this thread's alone.
        unsafe { assert!(outbox.flush().is_null()) };
        assert_eq!((sent(first), sent(second)), ([].into(), [block].into()));
    });
}

#[test]
fn one_of_two_owners_is_visited_and_the_other_later() {
    let (first, second) = (Owner::new(), Owner::new());
    let idle = || (first.idle.load(Relaxed), second.idle.load(Relaxed));
    let (one, other) = ((&raw const first).cast_mut(), (&raw const second).cast_mut());
    let nobody = ptr::null_mut();
    assert_eq!([either(nobody, nobody), either(one, nobody), either(nobody, other)], [nobody, one, other]);
    assert!(either(one, one) == one && idle() == (0, 0));
    assert!(either(one, other) == other && idle().0 > 0 && idle().1 == 0);
    for address in [0, 4096] {
        let owner = ptr::without_provenance_mut::<Owner>(address);
        assert!(late(owner) == (false, owner) && late(owner.map_addr(|a| a | LATE)) == (true, owner));
    }
}

/// In the child of a fork, because other tests have heaps, which would be armed.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn who_opens_a_bundle_learns_that_heaps_are_to_be_armed() {
    assert!(os::child::is_so(|| {
        with_outbox(true, |outbox, _, make| {
            let (slab, other) = (make(3, 8), make(4, 8));
            // SAFETY: the outbox and the blocks are this thread's alone.
            let add = |slab| late(unsafe { outbox.add(slab, take(slab)) });
            assert_eq!(add(slab), (false, ptr::null_mut()));
            EPOCH.store(1, Relaxed);
            assert_eq!(add(slab), (false, ptr::null_mut()), "the bundle is open");
            assert_eq!(add(other), (true, ptr::null_mut()));
            outbox.armed.set(true);
            // SAFETY: the outbox is this thread's alone.
            unsafe { outbox.flush() };
            assert_eq!(add(other), (false, ptr::null_mut()));
        });
        true
    }));
}
