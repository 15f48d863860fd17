//! Tests of slots. In children of a fork, because slots are the process's.

#![cfg(not(miri))]

use super::*;
extern crate std;
use crate::os::child;
use std::vec::Vec;

/// Whether the byte at an address can be read.
fn is_readable(address: *const u8) -> bool {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors, and gives the system an address, which it need not be able to read.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let written = libc::write(ends[1], address.cast(), 1);
        for end in ends {
            libc::close(end);
        }
        written == 1
    }
}

fn payload(index: usize) -> (usize, usize) {
    let start = BASE.load(SeqCst).addr() + index * stride();
    (start + os::page_size(), start + stride())
}

/// The two sides of a slot.
const LEFT: u64 = 0xab00;
const RIGHT: u64 = 0xcd20;

#[test]
fn a_block_lies_between_pages_that_cannot_be_touched() {
    assert!(child::is_so(|| {
        init(1, 1);
        assert!(index(0).is_none() && !in_use());
        let page = os::page_size();
        let whole = stride() - page;
        let mut taken = 0;
        for side in [LEFT, RIGHT] {
            for (size, align) in [
                (0, 1),
                (1, 1),
                (10, 8),
                (48, 16),
                (page, 8),
                (page + 1, 64),
                (200, page),
                (whole, 1),
                (whole, page),
            ] {
                let block = take(size, align, 9, side);
                // Where pages are of 64 KiB a slot has one.
                if size > whole {
                    assert!(block.is_null());
                    continue;
                }
                taken += 1;
                assert!(!block.is_null(), "{size} {align}");
                assert_eq!(block.addr() % align, 0);
                let ((first, end), room) = (payload(0), size.max(1));
                let place = if side == LEFT { first } else { (end - room) & !(align - 1) };
                assert_eq!(block.addr(), place, "{size} {align}");
                let slot = find(block).unwrap();
                let about = slot.about();
                assert_eq!((about.state, about.class, about.start, about.size), (USED, 9, place, size));
                assert!(!slot.allocated.is_none() && slot.freed.is_none() && in_use());

                // All of its pages, and nothing else.
                let (from, to) = (place & !(page - 1), (place + room).next_multiple_of(page));
                for at in (first - page..=end).step_by(page).chain([from - 1, to - 1]) {
                    let address = ptr::with_exposed_provenance(at);
                    assert_eq!(is_readable(address), (from..to).contains(&at), "{at:#x} {size} {align}");
                }
                let figures = figures();
                assert_eq!((figures.blocks, figures.allocated), (1, size as u64));
                assert_eq!(figures.active, (to - from) as u64);
                assert_eq!(figures.mapped, (bytes() + record_bytes()) as u64);
                assert_eq!(figures.records, record_bytes() as u64);

                // SAFETY: the block is in use, and this thread's alone; what is read and written lies in its
                // pages.
                unsafe {
                    assert!((0..size).all(|at| block.add(at).read() == 0));
                    assert!(!slot.hold(block.wrapping_add(1)) && slot.hold(block) && !slot.hold(block));
                    assert_eq!(slot.broken(block), None);
                    let (before, behind) = (place - from, to - place - size);
                    for at in [-1, -(before as isize)].into_iter().filter(|_| before > 0) {
                        let byte = block.offset(at);
                        let was = byte.replace(0);
                        assert_eq!((was, slot.broken(block)), ((side >> 8) as u8 | 1, Some(at)));
                        byte.write(was);
                    }
                    for at in [size, size + behind.max(1) - 1].into_iter().filter(|_| behind > 0) {
                        let was = block.add(at).replace(0);
                        assert_eq!((was, slot.broken(block)), ((side >> 8) as u8 | 1, Some(at as isize)));
                        block.add(at).write(was);
                    }
                    block.write_bytes(7, size);
                    assert_eq!(slot.broken(block), None, "the block's own bytes");
                    slot.close(block);
                }
                assert_eq!(slot.about().state, FREE);
                assert!(!is_readable(block) && !slot.freed.is_none() && !in_use() && !slot.hold(block));
                // As if the system had not taken the pages back then.
                slot.dirty.store(1, SeqCst);
            }
        }
        assert!(
            [(whole + 1, 1), (stride(), 1), (whole + 1, page)]
                .iter()
                .all(|&(size, align)| take(size, align, 9, 0).is_null())
        );
        assert_eq!((figures().blocks, samples(), in_use()), (0, taken, false));
        unmap();
        take(8, 8, 9, 0).is_null()
    }));
}

#[test]
fn the_slot_that_has_been_free_for_longest_is_next() {
    assert!(child::is_so(|| {
        init(1, 3);
        let taken = |_: i32| {
            let block = take(40, 8, 9, RIGHT);
            (block, index(block.addr()).unwrap_or(99))
        };
        let blocks: Vec<_> = (0..3).map(taken).collect();
        assert_eq!(blocks.iter().map(|block| block.1).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(take(40, 8, 9, RIGHT).is_null(), "all are in use");
        for at in [2, 0, 1] {
            let slot = find(blocks[at].0).unwrap();
            // SAFETY: the block is in use, and nobody uses it after this.
            unsafe {
                assert!(slot.hold(blocks[at].0));
                slot.close(blocks[at].0);
            }
        }
        assert_eq!([0; 3].map(taken).map(|block| block.1), [2, 0, 1]);

        // From the first guard page to what lies behind the last slot.
        let base = BASE.load(SeqCst).addr();
        let numbers = [0, stride() - 1, stride(), 3 * stride() - 1, 3 * stride(), bytes() - 1];
        assert_eq!(numbers.map(|at| index(base + at)), [0, 0, 1, 2, 3, 3].map(Some));
        assert_eq!([base - 1, base + bytes()].map(index), [None; 2]);
        assert!(at(2).is_some() && at(3).is_none());
        for slice in 0..bytes() / SLICE {
            assert_eq!(pagemap::kind(ptr::without_provenance_mut(base + slice * SLICE)), HARDENED);
        }
        unmap();
        (0..bytes() / SLICE)
            .all(|slice| pagemap::kind(ptr::without_provenance_mut(base + slice * SLICE)) == FOREIGN)
    }));
}

#[test]
fn a_child_has_the_slots_that_other_threads_were_changing() {
    assert!(child::is_so(|| {
        init(1, 4);
        let blocks = [(); 4].map(|()| take(40, 8, 9, LEFT));
        let slots = blocks.map(|block| find(block).unwrap());
        let mine = os::thread::id();
        for (slot, holder) in slots.iter().zip([mine, mine + 8, 0]) {
            slot.state.store(HELD, SeqCst);
            slot.holder.store(holder, SeqCst);
        }
        inherit();
        assert_eq!(slots.map(|slot| slot.state.load(SeqCst)), [HELD, FREE, HELD, USED]);
        assert_eq!(blocks.map(|block| is_readable(block)), [true, false, true, true]);
        assert_eq!((slots[1].freed_as.load(SeqCst), slots[1].holder.load(SeqCst)), (1, 0));
        // One that was making the slots has not got far.
        READY.store(SOON, SeqCst);
        assert!(take(40, 8, 9, LEFT).is_null());
        inherit();
        !take(40, 8, 9, LEFT).is_null()
    }));
}
