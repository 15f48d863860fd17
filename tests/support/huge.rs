//! Blocks, and the advice that their memory has.
#![allow(dead_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;

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

/// Bytes of mappings that have this flag: `hg` where huge pages have been advised, `nh` where they have been
/// advised against.
pub fn flagged(flag: &str) -> usize {
    mappings(flag).iter().map(ExactSizeIterator::len).sum()
}

/// Whether the mapping that holds the block has this flag.
pub fn is_flagged(block: *mut u8, flag: &str) -> bool {
    mappings(flag).iter().any(|mapping| mapping.contains(&block.addr()))
}

/// The addresses of a mapping, of whose lines this is the first: "from-to permissions ...".
fn addresses(line: &str) -> Option<Range<usize>> {
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some(address(from)?..address(to)?)
}

/// The addresses of mappings that have this flag, and can be written to: not those of guard pages.
fn mappings(flag: &str) -> Vec<Range<usize>> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut mapping, mut found) = (0..0, Vec::new());
    for line in smaps.lines() {
        if let Some(range) = addresses(line) {
            let writable = line.split(' ').nth(1).is_some_and(|permissions| permissions.starts_with("rw"));
            mapping = if writable { range } else { range.start..range.start };
        } else if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split(' ').any(|f| f == flag)) {
            found.push(mapping.clone());
        }
    }
    found
}

/// Resident bytes of mappings for which huge pages have been advised, or advised against.
pub fn resident_with_advice() -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut resident, mut bytes) = (0, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            resident = kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            bytes += if flags.split(' ').any(|f| f == "hg" || f == "nh") { resident } else { 0 };
        }
    }
    bytes
}

/// The value of a line of /proc that is in KiB, in bytes.
pub fn bytes(value: &str) -> usize {
    value.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Resident bytes: of the process, or, where the system gives huge pages to all that do not refuse, of what
/// is mapped with advice, which is the allocator's. Rust's own memory and the stacks have huge pages then.
pub fn resident() -> usize {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if enabled.contains("[always]") {
        return resident_with_advice();
    }
    // In KiB, whatever the size of a page.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    bytes(status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap())
}

/// Bytes of mappings for which huge pages have been advised.
pub fn advised() -> usize {
    flagged("hg")
}

/// Whether advice can be seen: an emulator does not pass it on, and not every kernel has huge pages.
pub fn advice_can_be_seen() -> bool {
    let (write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let before = advised();
    // SAFETY: a new mapping, which nothing else uses.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), 4 * MIB, write, private, -1, 0);
        let can = libc::madvise(map, 4 * MIB, libc::MADV_HUGEPAGE) == 0 && advised() > before;
        libc::munmap(map, 4 * MIB);
        can
    }
}
