//! Which parts of hardened mode are on. Set once, before the first block is allocated.

use crate::base::options::{Hardened, Options};
use crate::os;
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU8, AtomicUsize};

/// The bits of [`Hardened`]. Relaxed, like the rest here: `options::init` publishes them.
static PARTS: AtomicU8 = AtomicU8::new(0);
/// What the secrets of slabs are made of.
static SECRET: AtomicUsize = AtomicUsize::new(0);
/// What the seeds of threads are made of: another number in each child of a fork.
static SEED: AtomicUsize = AtomicUsize::new(0);
/// Seeds made so far.
static SEEDS: AtomicUsize = AtomicUsize::new(0);
/// Bytes of freed blocks that a thread keeps from being used again, at most.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Freed blocks that a thread keeps from being used again, at most.
static BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Blocks that a thread's quarantine has room for.
pub(super) const MOST_HELD: usize = 8192;

/// Takes the options over. `secret` is random.
pub(crate) fn init(options: &Options, secret: usize) {
    SECRET.store(secret, Relaxed);
    // Nothing of the secret: what is handed out in random order shows something of the seeds.
    SEED.store(os::random(), Relaxed);
    let is_held = options.hardened.bits() & Hardened::QUARANTINE.bits() == Hardened::QUARANTINE.bits();
    BYTES.store(if is_held { options.quarantine_bytes } else { 0 }, Relaxed);
    BLOCKS.store(if is_held { options.quarantine_blocks.min(MOST_HELD) } else { 0 }, Relaxed);
    PARTS.store(options.hardened.bits(), Relaxed);
}

/// Whether hardened mode is on: then every block of the process comes from here.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    PARTS.load(Relaxed) != 0
}

/// Whether hardened mode has this part.
#[inline(always)]
pub(super) fn has(part: Hardened) -> bool {
    now().has(part)
}

/// The parts that are on.
#[inline(always)]
pub(super) fn now() -> Parts {
    Parts(PARTS.load(Relaxed))
}

/// The parts that are on, read once.
#[derive(Clone, Copy)]
pub(super) struct Parts(u8);

impl Parts {
    /// Whether `part` is one of them.
    #[inline(always)]
    pub(super) fn has(self, part: Hardened) -> bool {
        self.0 & part.bits() == part.bits()
    }
}

/// The most that a thread's quarantine holds: bytes and blocks.
#[inline(always)]
pub(super) fn quarantine() -> (usize, usize) {
    (BYTES.load(Relaxed), BLOCKS.load(Relaxed))
}

/// A secret for a slab or a large block, another one for each `number`.
pub(super) fn secret(number: usize) -> usize {
    mixed(SECRET.load(Relaxed), number)
}

/// A seed for a thread's random numbers, another one each time. No system call: the program may have
/// restricted these.
#[cold]
pub(super) fn seed() -> u64 {
    mixed(SEED.load(Relaxed), SEEDS.fetch_add(1, Relaxed)) as u64 | 1
}

/// In the child of a fork: its seeds are not those of its parent, or of other children.
pub(super) fn inherit() {
    // Random is only the time where the process has confined itself: the same to children made at once.
    let seed = mixed(SEED.load(Relaxed), os::process_id() as usize);
    SEED.store(mixed(seed, os::random()), Relaxed);
}

fn mixed(secret: usize, number: usize) -> usize {
    // The finalizer of splitmix64.
    let mut z = secret.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ() {
        let seeds: std::collections::HashSet<_> = (0..1000).map(|_| seed()).collect();
        assert!(seeds.len() == 1000 && !seeds.contains(&0));
        inherit();
        assert!((0..1000).all(|_| !seeds.contains(&seed())));
    }
}
