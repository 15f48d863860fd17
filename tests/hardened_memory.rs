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
}
