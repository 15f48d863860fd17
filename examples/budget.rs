//! The loops whose instructions `tests/budgets.rs` counts: `budget LOOP ROUNDS`.

use hakmem::Hakmem;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::hint::black_box;

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::new();

const BATCH: usize = 100;
const LIVE: usize = 8192;
/// Blocks at a time in the loops for single entries.
const FEW: usize = 50;

/// A batch of blocks of one constant layout up, then down.
#[inline(never)]
fn constant(rounds: usize) {
    let layout = const { Layout::new::<[u64; 8]>() };
    let mut blocks = [std::ptr::null_mut::<u8>(); BATCH];
    for _ in 0..rounds {
        for slot in &mut blocks {
            // SAFETY: the size is not zero.
            *slot = unsafe { alloc(layout) };
        }
        black_box(&mut blocks);
        for &block in blocks.iter().rev() {
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(block, layout) };
        }
    }
}

/// Pairs of `make` and `free`: a batch up, then down.
#[inline(always)]
fn pairs(rounds: usize, make: impl Fn() -> *mut u8, free: impl Fn(*mut u8)) {
    let mut blocks = [std::ptr::null_mut::<u8>(); FEW];
    for _ in 0..rounds {
        for slot in &mut blocks {
            *slot = make();
        }
        black_box(&mut blocks);
        for &block in blocks.iter().rev() {
            free(block);
        }
    }
}

/// A batch of blocks, each given to `step` and back in every round: two calls for a block.
#[inline(always)]
fn steps(rounds: usize, layout: Layout, step: impl Fn(*mut u8) -> *mut u8) {
    // SAFETY: the size is not zero.
    let mut blocks = [(); FEW].map(|()| unsafe { alloc(layout) });
    for _ in 0..rounds {
        for slot in &mut blocks {
            *slot = step(*slot);
        }
        black_box(&mut blocks);
    }
}

#[inline(never)]
fn zeroed(rounds: usize, layout: Layout) {
    // SAFETY: the size is not zero; what is freed was allocated with this layout.
    pairs(rounds, || unsafe { alloc_zeroed(layout) }, |block| unsafe { dealloc(block, layout) });
}

#[inline(never)]
fn of_layout(rounds: usize, layout: Layout) {
    // SAFETY: no layout here has a size of zero; what is freed was allocated with this layout.
    pairs(rounds, || unsafe { alloc(layout) }, |block| unsafe { dealloc(block, layout) });
}

/// To another size, and back.
#[inline(never)]
fn resized(rounds: usize, layout: Layout, other: Layout) {
    // SAFETY: allocated with the layout that is named; no size here is zero.
    steps(rounds, layout, |block| unsafe {
        realloc(black_box(realloc(block, layout, other.size())), other, layout.size())
    });
}

/// A layout of which the compiler knows nothing, as in a container's code.
fn of(size: usize, align: usize) -> Layout {
    black_box(Layout::from_size_align(size, align).expect("a layout"))
}

/// One draw gives a slot and a size.
#[inline(always)]
fn draw(x: &mut u64) -> (usize, usize) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    // The upper half, scaled to 0..504 without a division.
    (*x as usize % LIVE, 8 + (((*x >> 32) * 504) >> 32) as usize)
}

/// Replaces blocks of random size among many live ones.
#[inline(never)]
fn random(rounds: usize, slots: &mut [(*mut u8, usize)]) {
    let mut x = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..rounds {
        let (i, size) = draw(&mut x);
        let (block, old) = slots[i];
        if !block.is_null() {
            // SAFETY: allocated here with this layout.
            unsafe { dealloc(block, Layout::from_size_align_unchecked(old, 8)) };
        }
        // SAFETY: the size is not zero.
        slots[i] = (unsafe { alloc(Layout::from_size_align_unchecked(size, 8)) }, size);
    }
}

/// The same without the allocator: what the loop itself costs.
#[inline(never)]
fn random_bare(rounds: usize, slots: &mut [(*mut u8, usize)]) {
    let mut x = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..rounds {
        let (i, size) = draw(&mut x);
        let (block, old) = slots[i];
        if !block.is_null() {
            black_box(old);
        }
        slots[i] = (black_box(size as *mut u8), size);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let rounds: usize = arguments[2].parse().expect("a number of rounds");
    let mut slots = vec![(std::ptr::null_mut(), 0); LIVE];
    match arguments[1].as_str() {
        "constant" => constant(rounds),
        "zeroed" => zeroed(rounds, of(64, 8)),
        "aligned" => of_layout(rounds, of(200, 64)),
        "medium" => of_layout(rounds, of(3_000, 8)),
        "large-class" => of_layout(rounds, of(20_000, 8)),
        "moved" => resized(rounds, of(64, 8), of(256, 8)),
        "in-place" => resized(rounds, of(64, 8), of(60, 8)),
        "random" => {
            // Everything live before counting starts: the difference of two runs leaves that out.
            random(20 * LIVE, &mut slots);
            random(rounds, &mut slots);
        }
        "random-bare" => random_bare(rounds, &mut slots),
        other => panic!("no loop {other}"),
    }
}
