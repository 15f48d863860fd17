//! Slabs of which whole free pages are given back, without a request if hardly a block is in use: what is in
//! use stays as it is.

mod support;

use hakmem::Hakmem;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::mpsc;
use std::thread;
use support::{in_own_process, in_own_processes, resident};

static HAKMEM: Hakmem = Hakmem::new();

const MIB: usize = 1 << 20;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn tag(block: usize) -> u8 {
    (block >> 4) as u8 | 1
}

/// A block of `size` bytes, filled with what follows from its address.
fn make(size: usize) -> usize {
    // SAFETY: not of size 0.
    let block = unsafe { HAKMEM.alloc(layout(size)) };
    assert!(!block.is_null());
    // SAFETY: ours, of that size.
    unsafe { block.write_bytes(tag(block as usize), size) };
    block as usize
}

/// Checks that a block of `make` is as that left it.
fn check(block: usize, size: usize) {
    // SAFETY: of `make`, with this size.
    let bytes = unsafe { std::slice::from_raw_parts(block as *const u8, size) };
    assert!(bytes.iter().all(|&b| b == tag(block)), "{block:x} of {size} bytes was changed");
}

/// Frees a block of `make`.
fn free(block: usize, size: usize) {
    check(block, size);
    // SAFETY: as in `check`.
    unsafe { HAKMEM.dealloc(block as *mut u8, layout(size)) };
}

/// A generator of numbers below what it is given.
fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut x = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move |n| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as usize % n
    }
}

#[test]
fn survivors_in_slabs_of_nobody_stay_as_they_are_however_often_these_are_purged() {
    let name = "survivors_in_slabs_of_nobody_stay_as_they_are_however_often_these_are_purged";
    // The ends of slabs of 10 KiB blocks are a page and a half.
    in_own_processes(name, &[10_240, 24, 200, 3000, 5000, 20_480, 40_000], |size| {
        for keep in 0..40 {
            let kept = thread::spawn(move || {
                let blocks: Vec<_> = (0..80 * size.max(1000) / size).map(|_| make(size)).collect();
                let (kept, rest): (Vec<_>, Vec<_>) =
                    blocks.into_iter().enumerate().partition(|(i, _)| i % 40 == keep);
                rest.into_iter().for_each(|(_, block)| free(block, size));
                kept
            });
            let kept = kept.join().unwrap();
            for _ in 0..3 {
                hakmem::purge();
                kept.iter().for_each(|&(_, block)| check(block, size));
            }
            kept.into_iter().for_each(|(_, block)| free(block, size));
        }
        hakmem::purge();
        assert_eq!(hakmem::stats().allocated_bytes, 0);
    });
}

#[test]
fn what_is_freed_of_a_slab_after_its_pages_were_given_back_comes_back_too() {
    in_own_process("what_is_freed_of_a_slab_after_its_pages_were_given_back_comes_back_too", || {
        let before = resident();
        let mut blocks: Vec<_> = (0..100 * MIB / 200).map(|_| make(200)).collect();
        let peak = resident() - before;
        let mut random = random(5);
        // In no order: so nearly all slabs are nearly empty at the same time.
        for i in (1..blocks.len()).rev() {
            blocks.swap(i, random(i + 1));
        }
        let kept = blocks.split_off(blocks.len() / 100 * 99);
        blocks.into_iter().for_each(|block| free(block, 200));
        hakmem::purge();
        let left = resident() - before;
        assert!(left < peak / 4 + 8 * MIB, "{left} of {peak} bytes");
        kept.into_iter().for_each(|block| free(block, 200));
    });
}

#[test]
fn what_is_given_back_first_is_in_slabs_of_large_blocks() {
    in_own_process("what_is_given_back_first_is_in_slabs_of_large_blocks", || {
        // Each kind is less than what may lie idle, both are more.
        let kinds =
            [64, 3072].map(|size| (size, (0..12 * MIB / size).map(|_| make(size)).collect::<Vec<_>>()));
        let mut kept = Vec::new();
        for (size, blocks) in kinds {
            // About one block of each slab stays.
            for (i, block) in blocks.into_iter().enumerate() {
                if i % (70_000 / size) == 0 { kept.push((block, size)) } else { free(block, size) }
            }
        }
        let classes = hakmem::class_stats();
        let given_back = |size| {
            let class = classes.iter().find(|class| class.block_bytes == size).unwrap();
            class.active_bytes - class.resident_bytes
        };
        let (small, large) = (given_back(64), given_back(3072));
        assert!(large > 4 * small && large > MIB as u64, "{small} and {large} bytes");
        kept.into_iter().for_each(|(block, size)| free(block, size));
    });
}

#[test]
fn on_request_the_free_pages_of_slabs_go_back_however_much_of_these_is_in_use() {
    let name = "on_request_the_free_pages_of_slabs_go_back_however_much_of_these_is_in_use";
    // SAFETY: it only asks.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != 4096 {
        // In longer pages each would have a block that stays.
        return;
    }
    // Of blocks of the one size the others stay, and so many percent of the pages at most.
    let sizes = [(4096, 2, 55), (20_000, 2, 55), (60_000, 2, 65), (1000, 8, 65)];
    let owners = ["this thread", "one that sleeps", "one that has ended"];
    let cases: Vec<_> = owners.into_iter().flat_map(|owner| sizes.map(|size| (owner, size))).collect();
    in_own_processes(name, &cases, |(owner, (size, keep, part))| {
        let fill = move || {
            let before = resident();
            let blocks: Vec<_> = (0..24 * MIB / size).map(|_| make(size)).collect();
            let peak = resident() - before;
            let (kept, rest): (Vec<_>, Vec<_>) =
                blocks.into_iter().enumerate().partition(|(i, _)| i % keep == 0);
            rest.into_iter().for_each(|(_, block)| free(block, size));
            (before, peak, kept)
        };
        let check_all = |kept: &[(usize, usize)]| kept.iter().for_each(|&(_, block)| check(block, size));
        thread::scope(|scope| {
            let ((send, filled), (stop, stopped)) = (mpsc::channel(), mpsc::channel::<()>());
            let mut sleeper = None;
            let (before, peak, kept) = if owner == "this thread" {
                fill()
            } else {
                let worker = scope.spawn(move || {
                    send.send(fill()).unwrap();
                    if owner == "one that sleeps" {
                        // Until the other side is dropped.
                        let _ = stopped.recv();
                    }
                });
                if owner == "one that has ended" {
                    worker.join().unwrap();
                } else {
                    sleeper = Some(worker);
                }
                filled.recv().unwrap()
            };
            for _ in 0..2 {
                hakmem::purge();
                let left = resident() - before;
                assert!(left < peak * part / 100 + 2 * MIB, "{owner}, {size}: {left} of {peak} bytes");
                check_all(&kept);
            }
            // What was given back is used again, beside what was kept; and again when that has been freed.
            for _ in 0..2 {
                let again: Vec<_> = (0..24 * MIB / size).map(|_| make(size)).collect();
                check_all(&kept);
                again.into_iter().for_each(|block| free(block, size));
                hakmem::purge();
                check_all(&kept);
            }
            kept.into_iter().for_each(|(_, block)| free(block, size));
            drop(stop);
            // The scope would not wait for its end, in which it gives up what its heap has.
            if let Some(sleeper) = sleeper {
                sleeper.join().unwrap();
            }
        });
        hakmem::purge();
        assert_eq!(hakmem::stats().allocated_bytes, 0);
    });
}
