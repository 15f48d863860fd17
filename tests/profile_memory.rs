//! The memory of a profile: at most 1 MiB, and 100 bytes for each sampled block that lives, and the call
//! stacks, each of them once; however many threads and blocks come and go.

mod support;

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::thread;
use support::in_own_process;

static ALLOCATOR: hakmem::Hakmem = hakmem::Hakmem::new();

const MIB: u64 = 1 << 20;

fn layout() -> Layout {
    Layout::from_size_align(16, 8).unwrap()
}

/// A block of 16 bytes.
fn make() -> usize {
    // SAFETY: not of size 0.
    unsafe { ALLOCATOR.alloc(layout()) }.expose_provenance()
}

fn free(block: usize) {
    // SAFETY: of `make`, which nobody uses any more.
    unsafe { ALLOCATOR.dealloc(std::ptr::with_exposed_provenance_mut(block), layout()) };
}

/// Runs `work` with every allocation sampled; it returns the blocks that live then. How much more memory the
/// allocator has for itself than without a profile, how much of that is for stacks, and how many sampled
/// blocks live.
fn profiled(work: impl Fn() -> Vec<usize>) -> (u64, u64, u64) {
    // So that there is room for the blocks, and a heap for each thread.
    let blocks = work();
    let before = hakmem::stats().metadata_bytes;
    blocks.into_iter().for_each(free);
    hakmem::profile::start(1).unwrap();
    let blocks = work();
    let more = hakmem::stats().metadata_bytes.saturating_sub(before);
    let path = std::env::temp_dir().join(format!("hakmem-memory-{}.hakprof", std::process::id()));
    hakmem::profile::write(path.to_str().unwrap()).unwrap();
    let stacks = bytes_of_stacks(&std::fs::read(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    hakmem::profile::stop();
    let live = blocks.len() as u64;
    blocks.into_iter().for_each(free);
    println!("{more} bytes for {live} live blocks and {stacks} bytes of stacks");
    (more, stacks, live)
}

/// Bytes of the frames that have the stacks: see docs/profile-format.md.
fn bytes_of_stacks(file: &[u8]) -> u64 {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut sum) = (8, 0);
    while at < file.len() {
        let (kind, len) = (word(at), word(at + 4));
        sum += if kind == 3 { u64::from(len) } else { 0 };
        at += len as usize + 16;
    }
    sum
}

#[test]
fn many_blocks() {
    in_own_process("many_blocks", || {
        for count in [10_000, 70_000, 140_000] {
            let (more, stacks, live) = profiled(|| (0..count).map(|_| make()).collect());
            assert!(more <= MIB + 100 * live + 2 * stacks, "{more} bytes for {live}");
        }
    });
}

#[test]
fn many_threads_one_after_the_other() {
    in_own_process("many_threads_one_after_the_other", || {
        let work = || {
            for i in 0..4000 {
                let name = if i % 2 == 0 { String::from("even") } else { format!("odd {i}") };
                let body = move || (0..3).for_each(|_| free(make()));
                thread::Builder::new().name(name).spawn(body).unwrap().join().unwrap();
            }
            Vec::new()
        };
        let (more, stacks, _) = profiled(work);
        assert!(more <= MIB / 2 + 2 * stacks, "{more} bytes");
    });
}

#[inline(never)]
fn left(path: u32, depth: u32) -> usize {
    black_box(down(path, depth))
}

#[inline(never)]
fn right(path: u32, depth: u32) -> usize {
    black_box(down(path, depth))
}

/// Makes a block below a stack that tells `path`.
fn down(path: u32, depth: u32) -> usize {
    match (depth, path & 1) {
        (0, _) => make(),
        (_, 0) => left(path >> 1, depth - 1),
        _ => right(path >> 1, depth - 1),
    }
}

#[test]
fn many_stacks() {
    in_own_process("many_stacks", || {
        // Each many times.
        let work = || (0..40_000).map(|i| left(i % 2000, 11)).collect();
        let (more, stacks, live) = profiled(work);
        assert!(stacks > 2000 * 12 * 8, "{stacks}");
        assert!(more <= MIB + 100 * live + 2 * stacks, "{more} bytes for {stacks} bytes of stacks");
    });
}

#[test]
fn many_tags() {
    in_own_process("many_tags", || {
        let work = || {
            let tagged = |i: usize| {
                let _scope = hakmem::scope(&format!("query {i}"));
                make()
            };
            (0..20_000).map(tagged).collect()
        };
        let (more, stacks, live) = profiled(work);
        assert!(more <= MIB + 100 * live + 2 * stacks, "{more} bytes");
    });
}
