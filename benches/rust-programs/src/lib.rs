//! What the programs share: the allocator that a feature chose, and how they are asked and answer.

#[cfg(feature = "hakmem")]
#[global_allocator]
static ALLOCATOR: hakmem::Hakmem = hakmem::Hakmem::new();

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(any(feature = "mimalloc2", feature = "mimalloc3"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(feature = "rusty_alloc")]
#[global_allocator]
static ALLOCATOR: rusty_alloc_api::RustyAlloc = rusty_alloc_api::RustyAlloc;

#[cfg(feature = "snmalloc")]
#[global_allocator]
static ALLOCATOR: snmalloc_rs::SnMalloc = snmalloc_rs::SnMalloc;

#[cfg(feature = "tcmalloc")]
#[global_allocator]
static ALLOCATOR: tcmalloc_better::TCMalloc = tcmalloc_better::TCMalloc;

/// How much to do: the program's only argument, `default` without.
pub fn scale(default: usize) -> usize {
    match std::env::args().nth(1) {
        Some(text) => text.parse().unwrap_or_else(|_| panic!("{text}: expected a whole number")),
        None => default,
    }
}

/// A small generator of random numbers, the same in every run.
pub struct Random(u64);

impl Random {
    /// Begins anew from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }
}

/// A checksum over bytes (FNV-1a).
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
