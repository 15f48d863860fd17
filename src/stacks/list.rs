//! A list of modules: what walks need of each, for everybody to read, and what the profile's file needs.

use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// Modules in a list at most. Those beyond are not known.
pub(super) const MOST: usize = 4096;
/// Bytes of all paths in a list.
pub(super) const PATHS: usize = 256 << 10;
/// The longest build id that is kept.
pub(super) const LONGEST_ID: usize = 32;

/// What a walk needs to know of a module. Words of 0 where there is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Code {
    /// The executable mapping.
    pub start: usize,
    pub end: usize,
    /// Where its file begins in memory.
    pub base: usize,
    /// The table of `.eh_frame_hdr` (12 bytes behind its beginning) and the number of its entries.
    pub table: usize,
    pub entries: usize,
    /// Of the first bytes at `base`.
    pub fingerprint: usize,
}

/// [`Code`], for everybody to read. Relaxed throughout: see [`find`](super::modules::find).
#[derive(Default)]
pub(super) struct Shared([AtomicUsize; 6]);

impl Shared {
    /// The first address.
    pub(super) fn start(&self) -> usize {
        self.0[0].load(Relaxed)
    }

    /// All of it.
    pub(super) fn get(&self) -> Code {
        let [start, end, base, table, entries, fingerprint] =
            [0, 1, 2, 3, 4, 5].map(|i| self.0[i].load(Relaxed));
        Code { start, end, base, table, entries, fingerprint }
    }

    /// Replaces it.
    pub(super) fn set(&self, code: &Code) {
        let words = [code.start, code.end, code.base, code.table, code.entries, code.fingerprint];
        self.0.iter().zip(words).for_each(|(shared, word)| shared.store(word, Relaxed));
    }
}

/// What only those need who write down the list.
#[derive(Clone, Copy)]
pub(super) struct Detail {
    pub(super) offset: u64,
    pub(super) path: usize,
    pub(super) path_len: usize,
    pub(super) id: [u8; LONGEST_ID],
    pub(super) id_len: usize,
}

/// A list of modules, by address. All zeros is an empty one.
pub(super) struct List {
    pub(super) len: AtomicUsize,
    pub(super) code: [Shared; MOST],
    pub(super) details: [Detail; MOST],
    pub(super) paths: [u8; PATHS],
    pub(super) paths_len: AtomicUsize,
    /// Of everything above.
    pub(super) sum: u64,
}
