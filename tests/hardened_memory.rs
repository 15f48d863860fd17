//! What hardened mode keeps of the memory that a program has freed: one test, since that depends on what the
//! process did before.

use hakmem::{Hakmem, Hardened, Options};
use std::alloc::{GlobalAlloc, Layout};

#[global_allocator]
static GLOBAL: Hakmem = Hakmem::with_options(Options::new().hardened(Hardened::ON));

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Slabs that are kept although they are empty are fewer when the program has less in use.
#[test]
fn memory_goes_back_as_the_program_shrinks() {
    let layout = Layout::from_size_align(4_000, 8).unwrap();
    let before = resident();
    let block = |_| {
        // SAFETY: the size is not 0, and the block has it.
        unsafe {
            let block = GLOBAL.alloc(layout);
            block.write_bytes(7, layout.size());
            block
        }
    };
    let blocks: Vec<_> = (0..200_000).map(block).collect();
    assert!(resident() - before > 700 << 20);
    // SAFETY: blocks of this layout, each freed once.
    blocks.iter().for_each(|&block| unsafe { GLOBAL.dealloc(block, layout) });
    let more = resident().saturating_sub(before) >> 20;
    assert!(more < 64, "{more} MiB of 800 are still resident");
    // What is freed in no order leaves a block in quarantine in nearly each slab.
    let small = Layout::from_size_align(60, 8).unwrap();
    // SAFETY: the size is not 0.
    let mut blocks: Vec<_> = (0..500_000).map(|_| unsafe { GLOBAL.alloc(small) }).collect();
    let mut random = 1u64;
    for last in (1..blocks.len()).rev() {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        blocks.swap(last, (random >> 33) as usize % (last + 1));
    }
    // SAFETY: blocks of this layout, each freed once.
    blocks.iter().for_each(|&block| unsafe { GLOBAL.dealloc(block, small) });
    drop(blocks);
    hakmem::purge();
    let more = resident().saturating_sub(before) >> 20;
    assert!(more < 16, "{more} MiB of 48 are still resident");
}
