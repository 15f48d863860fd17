//! Figures by size class.

use crate::hardened;
use crate::superslab::pagemap::RUN;
use crate::superslab::survey::{self, Survey};
use crate::tiny::classes::{CLASSES, stride};

/// Defines a structure of figures, which are all `u64`, and a function that goes through them by name.
macro_rules! figures {
    ($(#[$about:meta])* $Struct:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(C)]
        pub struct $Struct {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $Struct {
            /// Calls `f` with each name and value, in order of declaration.
            pub fn each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($name), self.$name);)*
            }
        }
    };
}

pub(super) use figures;

figures! {
    /// The live figures of one size class, or of one kind of large block: see
    /// [`class_stats()`](crate::class_stats()).
    ///
    /// While no thread allocates or frees, all but `resident_bytes` are exact. Then `active_bytes` is the
    /// sum of `allocated_bytes`, of the cached, free and fresh blocks at `block_bytes` each, and of
    /// `slack_bytes`. Free slices belong to no class.
    ClassStats {
        /// Bytes from one block to the next. 0 for the two kinds of large blocks, which have no common size.
        block_bytes,
        /// Blocks that the program holds.
        blocks,
        /// Bytes in the blocks that the program holds.
        allocated_bytes,
        /// Free blocks in magazines and outboxes.
        cached_blocks,
        /// Free blocks in slabs that have been used before.
        free_blocks,
        /// Blocks in slabs that have not been handed out since the slab was made, or since their memory was
        /// purged.
        fresh_blocks,
        /// Slabs; 0 for large blocks.
        slabs,
        /// Bytes at the ends of slabs that are too few for a block.
        slack_bytes,
        /// Bytes of memory that the slabs or the large blocks take.
        active_bytes,
        /// How many of the active bytes may be resident, as far as is known.
        resident_bytes,
    }
}

impl ClassStats {
    /// Number of rows: one per size class, and one for each of the two kinds of large blocks.
    pub const COUNT: usize = CLASSES + 2;
    /// Row of the runs: large blocks of up to 960 KiB, which lie in SuperSlabs.
    pub const RUNS: usize = CLASSES;
    /// Row of the direct mappings: all larger blocks.
    pub const DIRECT: usize = CLASSES + 1;

    /// Sets all rows to zero.
    pub(super) fn clear(all: &mut [Self; Self::COUNT]) {
        for (row, stats) in all.iter_mut().enumerate() {
            let block_bytes = if row < CLASSES { stride(row + 1) as u64 } else { 0 };
            *stats = Self { block_bytes, ..Self::default() };
        }
    }

    /// Whether this class has any memory.
    pub fn is_used(&self) -> bool {
        self.active_bytes != 0
    }
}

/// Adds up the spans in use. Afterwards `blocks` still includes those in magazines and outboxes: see
/// [`finish`].
pub(super) fn look(patient: bool, classes: &mut [ClassStats; ClassStats::COUNT]) -> Survey {
    let survey = survey::survey(patient, |span| {
        let row = if span.class == RUN { ClassStats::RUNS } else { (span.class as usize).wrapping_sub(1) };
        let Some(class) = classes.get_mut(row) else { return };
        class.blocks += span.used as u64;
        class.active_bytes += span.bytes as u64;
        class.resident_bytes += span.bytes.saturating_sub(span.untouched) as u64;
        if row == ClassStats::RUNS {
            class.allocated_bytes += span.bytes as u64;
            return;
        }
        class.slabs += 1;
        class.fresh_blocks += span.fresh as u64;
        class.free_blocks += span.blocks.saturating_sub(span.fresh + span.used) as u64;
        // The figures of a slab that changes meanwhile may be those of two.
        class.slack_bytes += (span.bytes as u64).saturating_sub(span.blocks as u64 * class.block_bytes);
    });
    if survey.missed {
        // The lock may have been lost on the way.
        ClassStats::clear(classes);
    }
    survey
}

/// Adds the slabs of the hardened heap.
pub(super) fn look_hardened(classes: &mut [ClassStats; ClassStats::COUNT]) -> hardened::Figures {
    hardened::figures(|slab| {
        let Some(class) = classes.get_mut(slab.class.wrapping_sub(1)) else { return };
        class.slabs += 1;
        class.blocks += (slab.used + slab.held) as u64;
        class.cached_blocks += slab.held as u64;
        class.free_blocks += slab.free as u64;
        class.fresh_blocks += slab.fresh as u64;
        let blocks = slab.used + slab.held + slab.free;
        class.slack_bytes += slab.bytes.saturating_sub((blocks + slab.fresh) * slab.stride) as u64;
        class.active_bytes += slab.bytes as u64;
        class.resident_bytes += slab.touched as u64;
    })
}

/// Subtracts the cached blocks, which are known by now, and fills in the direct mappings: the large blocks
/// that are not runs.
pub(super) fn finish(classes: &mut [ClassStats; ClassStats::COUNT], large_blocks: u64, large_bytes: u64) {
    for class in &mut classes[..CLASSES] {
        class.blocks = class.blocks.saturating_sub(class.cached_blocks);
        class.allocated_bytes = class.blocks * class.block_bytes;
    }
    let runs = classes[ClassStats::RUNS];
    let bytes = large_bytes.saturating_sub(runs.allocated_bytes);
    classes[ClassStats::DIRECT] = ClassStats {
        blocks: large_blocks.saturating_sub(runs.blocks),
        allocated_bytes: bytes,
        active_bytes: bytes,
        resident_bytes: bytes,
        ..ClassStats::default()
    };
}
