//! Profiles of this process, and what they say of blocks of one size.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard};

use hakmem_profile::estimate::Estimate;
use hakmem_profile::file::{self, Raw};

pub static ALLOCATOR: hakmem::Hakmem = hakmem::Hakmem::new();

/// Bytes between two samples.
pub const RATE: usize = 2048;

pub fn allocate(size: usize) -> usize {
    // SAFETY: the size is not 0.
    let block = unsafe { ALLOCATOR.alloc(Layout::from_size_align(size, 8).unwrap()) };
    assert!(!block.is_null());
    block.expose_provenance()
}

pub fn free(block: usize, size: usize) {
    let layout = Layout::from_size_align(size, 8).unwrap();
    // SAFETY: a block of this size that nobody uses any more.
    unsafe { ALLOCATOR.dealloc(std::ptr::with_exposed_provenance_mut(block), layout) }
}

/// One profile at a time in the process.
static ALONE: Mutex<()> = Mutex::new(());

/// What takes profiles, and reads them.
pub struct Profiles {
    _alone: MutexGuard<'static, ()>,
    folder: tempfile::TempDir,
}

impl Profiles {
    pub fn new() -> Self {
        let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Self { _alone, folder: tempfile::tempdir().unwrap() }
    }

    /// What has been gathered.
    pub fn write(&self) -> Raw {
        let path = self.folder.path().join("x.hakprof");
        hakmem::profile::write(path.to_str().unwrap()).unwrap();
        file::read(&std::fs::read(path).unwrap()).unwrap()
    }

    /// The same, and ends the profile.
    pub fn end(&self) -> Raw {
        let raw = self.write();
        hakmem::profile::stop();
        raw
    }
}

/// How likely it is that of so many blocks, each of which is sampled with probability `p`, as few are sampled
/// as these, or as many: the smaller of the two. Where few samples are expected, or all but few, that is far
/// more than as many standard deviations of a normal distribution say.
pub fn chance(blocks: usize, p: f64, samples: u64) -> f64 {
    let blocks = blocks as u64;
    if p >= 1.0 {
        return f64::from(u8::from(samples == blocks));
    }
    // As a logarithm: many of these are too small for a number.
    let (mut sums, mut likely) = ([0.0; 2], blocks as f64 * (-p).ln_1p());
    for n in 0..=blocks {
        sums[0] += if n <= samples { likely.exp() } else { 0.0 };
        sums[1] += if n >= samples { likely.exp() } else { 0.0 };
        likely += (p / (1.0 - p)).ln() + ((blocks - n) as f64 / (n + 1) as f64).ln();
    }
    sums[0].min(sums[1])
}

/// The estimates for blocks of one size: how many were allocated, and how many live.
pub fn estimates(raw: &Raw, size: usize) -> (Estimate, Estimate) {
    let (mut allocated, mut live) = (0, 0);
    for &(site, row) in &raw.snapshots.last().unwrap().rows {
        if raw.sites[site].size == size as u64 {
            (allocated, live) = (allocated + row.allocated, live + row.live);
        }
    }
    (Estimate::new(allocated, size as u64, RATE as u64), Estimate::new(live, size as u64, RATE as u64))
}
