//! What tools that watch memory should say something about: built and run by `tests/watched.rs`.

use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;

#[global_allocator]
static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();

/// The size of the block in question: not a multiple of 8, and less than its class.
const SIZE: usize = 37;

#[inline(never)]
fn makes_a_block(size: usize) -> *mut u8 {
    // SAFETY: the size is not 0.
    unsafe { alloc(Layout::from_size_align(size, 1).unwrap()) }
}

#[inline(never)]
fn frees_the_block(block: *mut u8, size: usize) {
    // SAFETY: the callers pass a block of that layout, but where they want to be found out.
    unsafe { dealloc(block, Layout::from_size_align(size, 1).unwrap()) }
}

#[inline(never)]
fn reads(address: *const u8) {
    // SAFETY: there is none: that is what the tools are for. The memory is mapped.
    black_box(unsafe { address.read_volatile() });
}

#[inline(never)]
fn leaks_a_block() {
    let block = makes_a_block(SIZE);
    // SAFETY: just allocated.
    unsafe { block.write_bytes(1, SIZE) };
    black_box(block.addr() & 1);
}

/// Everything that a program may do.
fn fine() {
    let mut maps = Vec::new();
    for thread in 0..4u64 {
        maps.push(std::thread::spawn(move || {
            let mut map = std::collections::BTreeMap::new();
            for i in 0..2000u64 {
                map.insert(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1000, vec![thread as u8; (i % 300) as usize]);
                if i % 3 == 0 {
                    map.remove(&(i % 1000));
                }
            }
            map
        }));
    }
    // Freed by another thread, and enough to fill what is kept of freed blocks.
    for map in maps {
        let map = map.join().unwrap();
        assert!(map.values().all(|bytes| bytes.iter().all(|&b| b == bytes[0])));
    }
    let mut grown = Vec::new();
    for i in 0..200_000u64 {
        grown.push(i);
    }
    assert!(vec![0u64; 300_000].iter().all(|&word| word == 0));
    let mut boxes: Vec<Box<[u64; 13]>> = Vec::new();
    for i in 0..30_000 {
        boxes.push(Box::new([i; 13]));
        if i % 2 == 0 {
            boxes.swap_remove((i * 7 % boxes.len() as u64) as usize);
        }
    }
    println!("{} {}", grown.len(), boxes.len());
}

fn main() {
    let (mode, size) = (std::env::args().nth(1).unwrap(), std::env::args().nth(2));
    let size = size.map_or(SIZE, |size| size.parse().unwrap());
    let block = makes_a_block(size);
    match mode.as_str() {
        "fine" => {
            frees_the_block(block, size);
            fine();
        }
        "after_free" => {
            frees_the_block(block, size);
            // Would get the same block from an allocator that keeps none.
            black_box(makes_a_block(size));
            reads(block.wrapping_add(size / 2));
        }
        "behind" => reads(block.wrapping_add(size)),
        "before" => reads(block.wrapping_sub(1)),
        "moved" => {
            // SAFETY: a block of that layout.
            black_box(unsafe { std::alloc::realloc(block, Layout::from_size_align(size, 1).unwrap(), size + 1) });
            reads(block);
        }
        "twice" => {
            frees_the_block(block, size);
            frees_the_block(block, size);
        }
        "leak" => {
            frees_the_block(block, size);
            leaks_a_block();
        }
        _ => panic!("{mode}"),
    }
    println!("end");
}
