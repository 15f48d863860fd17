//! Blocks, and the advice that their memory has.

use std::alloc::{Layout, alloc, dealloc};

pub const MIB: usize = 1 << 20;

/// Blocks of `size` bytes, a byte written in every `step`.
pub fn make(count: usize, size: usize, step: usize) -> Vec<(*mut u8, Layout)> {
    let layout = Layout::from_size_align(size, 16).unwrap();
    let one = |_| {
        // SAFETY: the size is not zero.
        let block = unsafe { alloc(layout) };
        assert!(!block.is_null());
        for at in (0..size).step_by(step) {
            // SAFETY: inside the block.
            unsafe { block.add(at).write(1) };
        }
        (block, layout)
    };
    (0..count).map(one).collect()
}

pub fn free(blocks: Vec<(*mut u8, Layout)>) {
    for (block, layout) in blocks {
        // SAFETY: made with this layout.
        unsafe { dealloc(block, layout) };
    }
}

/// The value of a line of /proc that is in KiB, in bytes.
pub fn bytes(value: &str) -> usize {
    value.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Bytes of mappings that have this flag: `hg` where huge pages have been advised, `nh` where they have been
/// advised against.
pub fn flagged(flag: &str) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut size, mut sum) = (0, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Size:") {
            size = bytes(kib);
        } else if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split(' ').any(|f| f == flag)) {
            sum += size;
        }
    }
    sum
}

/// Bytes of mappings for which huge pages have been advised.
pub fn advised() -> usize {
    flagged("hg")
}

/// Whether advice can be seen: an emulator does not pass it on, and not every kernel has huge pages.
pub fn advice_can_be_seen() -> bool {
    let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let before = advised();
    // SAFETY: a new mapping, which nothing else uses.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), 4 * MIB, read, private, -1, 0);
        let can = libc::madvise(map, 4 * MIB, libc::MADV_HUGEPAGE) == 0 && advised() > before;
        libc::munmap(map, 4 * MIB);
        can
    }
}
