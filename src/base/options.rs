//! Options: `HAKMEM_*` in the environment, or the const builder. Read once, before the first allocation is
//! served.
//!
//! Fast paths read no options: what an option changes is set up in a heap when the heap is made.

mod environment;

use crate::base::once::Once;
use core::ffi::CStr;
use core::fmt;

/// Format of the statistics printed at exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatsFormat {
    /// No statistics are printed.
    None,
    /// A table for people.
    Table,
    /// One line of JSON.
    Json,
}

/// Use of transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Thp {
    /// For new SuperSlabs while the heap grows densely, or once the kernel reports that earlier ones are
    /// resident; for mappings of 2 MiB and more, once earlier ones were. Other SuperSlabs are advised against
    /// huge pages.
    Auto,
    /// As [`Thp::Auto`], but the others are left to the system's default: for systems that give folios of 16
    /// to 64 KiB to all memory, and huge pages only on advice.
    Folios,
    /// For every SuperSlab and mapping.
    Always,
    /// For nothing.
    Never,
}

/// What happens when a pointer that is not ours is freed, or when C or C++ frees a block with a size that it
/// cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// One line on standard error, then abort.
    Abort,
    /// One line on standard error; a foreign pointer is ignored, a block with a wrong size is freed.
    Warn,
}

/// Parts of hardened mode, which stops programs that misuse memory. All of them check every free: whether a
/// block begins there, whether it is in use, and what the program says about its size.
///
/// ```
/// use hakmem::{Hakmem, Hardened, Options};
///
/// #[global_allocator]
/// static GLOBAL: Hakmem =
///     Hakmem::with_options(Options::new().hardened(Hardened::CANARY.with(Hardened::GUARD)));
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardened(u8);

impl Hardened {
    /// No hardened mode.
    pub const OFF: Self = Self(0);
    /// Only the checks of every free, and records that lie apart from all blocks.
    pub const CHECKS: Self = Self(1);
    /// Blocks are handed out in random order.
    pub const RANDOM: Self = Self(1 | 2);
    /// Freed blocks are not handed out again for a while: see [`Options::quarantine_bytes`].
    pub const QUARANTINE: Self = Self(1 | 4);
    /// Freed blocks are cleared, and must still be clear when they are handed out again.
    pub const ZERO: Self = Self(1 | 8);
    /// What lies behind the bytes asked for must not change while the program has the block.
    pub const CANARY: Self = Self(1 | 16);
    /// Pages that cannot be touched behind slabs, and around large blocks.
    pub const GUARD: Self = Self(1 | 32);
    /// What costs least for what it stops: `CANARY`, `ZERO` and `GUARD`.
    pub const LIGHT: Self = Self::CANARY.with(Self::ZERO).with(Self::GUARD);
    /// All of it.
    pub const ON: Self = Self(63);

    /// These parts, and those of `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// A bit for each part.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }
}

/// A preset: a set of options for one goal. Single options override it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preset {
    /// Highest throughput, for more memory: huge pages for every SuperSlab, 256 MiB of freed mappings kept,
    /// free pages kept for a second or two.
    Throughput,
    /// The defaults.
    Balanced,
    /// Least memory, for more page faults: free pages go back at once, no freed mapping is kept, no huge
    /// pages.
    Memory,
    /// Shortest single calls, for more memory: no free pages are given back unless asked for, 128 MiB of
    /// freed mappings are kept (what is beyond that is unmapped at once), and no huge pages, because the
    /// first touch of one clears 2 MiB.
    Latency,
}

/// Settings of the allocator. The whole process uses one set: see [`crate::Hakmem::with_options`].
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub(crate) stats: StatsFormat,
    pub(crate) stats_file: Path,
    pub(crate) purge_delay: i64,
    pub(crate) magazine: bool,
    pub(crate) outbox: bool,
    pub(crate) orphans: bool,
    pub(crate) thp: Thp,
    pub(crate) large_cache: usize,
    pub(crate) foreign: Foreign,
    pub(crate) soft_limit: usize,
    pub(crate) hard_limit: usize,
    pub(crate) background: bool,
    pub(crate) few_syscalls: bool,
    pub(crate) hardened: Hardened,
    pub(crate) quarantine_bytes: usize,
    pub(crate) quarantine_blocks: usize,
    /// The mean number of allocations between two that get guard pages; 0 for none.
    pub(crate) guard: usize,
    pub(crate) guard_slots: usize,
    /// Where profiles go: a path to which the process's number and an ending are added.
    pub(crate) profile: Path,
    pub(crate) profile_rate: usize,
    /// The number of the signal that starts and stops a profile; 0 for none.
    pub(crate) profile_signal: i32,
    /// Milliseconds between two snapshots; 0 for none but the last.
    pub(crate) profile_interval: u32,
    /// For the C library only: `HAKMEM_DEEPBIND`.
    pub(crate) keep_deepbind: bool,
}

/// A path, stored without allocating. Empty for none.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    bytes: [u8; 256],
}

impl Path {
    const NONE: Path = Path { bytes: [0; 256] };

    /// A path, or `None` when it is too long, or has a zero byte, behind which it would be another one.
    pub(crate) fn new(path: &[u8]) -> Option<Self> {
        if path.contains(&0) {
            return None;
        }
        let mut new = Self::NONE;
        // The last byte stays 0 and ends the path.
        let (_, bytes) = new.bytes.split_last_mut()?;
        bytes.get_mut(..path.len())?.iter_mut().zip(path).for_each(|(to, from)| *to = *from);
        Some(new)
    }

    /// The path as a C string, or `None` if there is none.
    pub(crate) fn as_c_str(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).ok().filter(|path| !path.is_empty())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_c_str().fmt(f)
    }
}

/// Bytes between two samples of a profile, unless the options say otherwise.
pub(crate) const PROFILE_RATE: usize = 512 << 10;
/// Milliseconds between two snapshots of a profile, unless the options say otherwise.
const PROFILE_INTERVAL: u32 = 1000;
/// The default of [`Options::purge_delay_ms`].
const PURGE_DELAY: i32 = 250;
/// The default of [`Options::quarantine_bytes`].
const QUARANTINE_BYTES: usize = 256 << 10;
/// The default of [`Options::quarantine_blocks`].
const QUARANTINE_BLOCKS: usize = 4096;
/// What `HAKMEM_GUARD=on` means.
const GUARD: usize = 5000;
/// The default of [`Options::guard_slots`].
const GUARD_SLOTS: usize = 32;
/// The most slots that there can be.
const MOST_GUARD_SLOTS: usize = 4096;
/// The default of [`Options::large_cache`].
const LARGE_CACHE: usize = 32 << 20;

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            stats: StatsFormat::None,
            stats_file: Path::NONE,
            purge_delay: PURGE_DELAY as i64,
            magazine: true,
            outbox: true,
            orphans: true,
            thp: Thp::Auto,
            large_cache: LARGE_CACHE,
            foreign: Foreign::Abort,
            soft_limit: 0,
            hard_limit: 0,
            background: false,
            few_syscalls: false,
            hardened: Hardened::OFF,
            quarantine_bytes: QUARANTINE_BYTES,
            quarantine_blocks: QUARANTINE_BLOCKS,
            guard: 0,
            guard_slots: GUARD_SLOTS,
            profile: Path::NONE,
            profile_rate: PROFILE_RATE,
            profile_interval: PROFILE_INTERVAL,
            profile_signal: 0,
            keep_deepbind: false,
        }
    }

    /// `HAKMEM_PRESET`: sets all options of the preset. Call it before you set single options.
    pub const fn preset(self, preset: Preset) -> Self {
        match preset {
            Preset::Throughput => self.purge_delay_ms(1000).large_cache(256 << 20).thp(Thp::Always),
            Preset::Balanced => self.purge_delay_ms(PURGE_DELAY).large_cache(LARGE_CACHE).thp(Thp::Auto),
            Preset::Memory => self.purge_delay_ms(0).large_cache(0).thp(Thp::Never),
            Preset::Latency => self.purge_delay_ms(-1).large_cache(128 << 20).thp(Thp::Never),
        }
    }

    /// `HAKMEM_STATS`: print statistics to standard error at exit.
    pub const fn stats(mut self, format: StatsFormat) -> Self {
        self.stats = format;
        self
    }

    /// `HAKMEM_PURGE_DELAY`: milliseconds until a free page is given back to the system. It may take eight
    /// times as long, but no more than two seconds, where such pages are needed again within a second, unless
    /// there is a background thread. With -1, pages go back only when asked for, except those of freed large
    /// blocks beyond [`Options::large_cache`].
    pub const fn purge_delay_ms(mut self, delay: i32) -> Self {
        self.purge_delay = if delay < 0 { -1 } else { delay as i64 };
        self
    }

    /// `HAKMEM_MAGAZINE`: whether threads cache blocks. Without it every call takes the slow path and is
    /// counted.
    pub const fn magazine(mut self, on: bool) -> Self {
        self.magazine = on;
        self
    }

    /// `HAKMEM_OUTBOX`: whether remote frees are collected in bundles before they are sent to their slabs.
    pub const fn outbox(mut self, on: bool) -> Self {
        self.outbox = on;
        self
    }

    /// `HAKMEM_ORPHANS`: whether a thread adopts slabs of threads that have exited, and many threads share
    /// theirs.
    pub const fn orphans(mut self, on: bool) -> Self {
        self.orphans = on;
        self
    }

    /// `HAKMEM_THP`: use of transparent huge pages.
    pub const fn thp(mut self, thp: Thp) -> Self {
        self.thp = thp;
        self
    }

    /// `HAKMEM_LARGE_CACHE`: how many bytes of freed large mappings are kept for reuse. Up to half of the
    /// bytes of the large blocks in use are kept where that is more, plus up to four times this option while
    /// memory that was released is soon wanted again. 0 keeps none.
    pub const fn large_cache(mut self, bytes: usize) -> Self {
        self.large_cache = bytes;
        self
    }

    /// `HAKMEM_FOREIGN`: what happens when a pointer that is not ours is freed, or when C or C++ frees a
    /// block with a size that it cannot have.
    pub const fn foreign(mut self, foreign: Foreign) -> Self {
        self.foreign = foreign;
        self
    }

    /// `HAKMEM_SOFT_LIMIT`: bytes held from the system. Before more are held, memory is given back. 0 is no
    /// limit. See [`crate::set_limits`].
    pub const fn soft_limit(mut self, bytes: usize) -> Self {
        self.soft_limit = bytes;
        self
    }

    /// `HAKMEM_HARD_LIMIT`: bytes held from the system beyond which allocations fail. 0 is no limit. A soft
    /// limit above it is ignored. See [`crate::set_limits`].
    pub const fn hard_limit(mut self, bytes: usize) -> Self {
        self.hard_limit = bytes;
        self
    }

    /// `HAKMEM_BACKGROUND`: whether a thread of the allocator gives free memory back
    /// ([`crate::start_background`]). It starts once the process holds a few MiB.
    pub const fn background(mut self, on: bool) -> Self {
        self.background = on;
        self
    }

    /// `HAKMEM_FEW_SYSCALLS`: only the system calls that any allocator makes, for programs that restrict
    /// themselves. See [`few_syscalls`](crate::few_syscalls).
    pub const fn few_syscalls(mut self, on: bool) -> Self {
        self.few_syscalls = on;
        self
    }

    /// `HAKMEM_HARDENED`: which parts of hardened mode are on.
    pub const fn hardened(mut self, parts: Hardened) -> Self {
        self.hardened = parts;
        self
    }

    /// `HAKMEM_QUARANTINE`: how many bytes of freed blocks each thread keeps from being used again in
    /// hardened mode, at most; but always the last one.
    pub const fn quarantine_bytes(mut self, bytes: usize) -> Self {
        self.quarantine_bytes = bytes;
        self
    }

    /// `HAKMEM_GUARD`: puts one in so many allocations of small blocks between guard pages, on average, and
    /// reports what is written behind them, or after their free, with the stacks of allocation and free. 0,
    /// the default, for none; 5,000 is what `on` means in the environment. In hardened mode these blocks lie
    /// where others do, and reports about them have the stacks.
    pub const fn guard(mut self, one_in: usize) -> Self {
        self.guard = one_in;
        self
    }

    /// `HAKMEM_GUARD_SLOTS`: how many blocks can lie between guard pages at once, or of how many hardened
    /// mode keeps the stacks: 1 to 4,096.
    pub const fn guard_slots(mut self, slots: usize) -> Self {
        self.guard_slots = match slots {
            0 => 1,
            1..=MOST_GUARD_SLOTS => slots,
            _ => MOST_GUARD_SLOTS,
        };
        self
    }

    /// `HAKMEM_QUARANTINE_BLOCKS`: how many freed blocks each thread keeps from being used again in hardened
    /// mode, at most. There is room for 8,192. 0 is no quarantine.
    pub const fn quarantine_blocks(mut self, blocks: usize) -> Self {
        self.quarantine_blocks = blocks;
        self
    }
}

static OPTIONS: Once<Options> = Once::new();

/// What is in force before the options have been read.
static DEFAULTS: Options = Options::new();

/// The options in force; the defaults until [`init`] has run.
pub(crate) fn get() -> &'static Options {
    OPTIONS.get().unwrap_or(&DEFAULTS)
}

/// What to do about foreign pointers, which somebody may free before the process has allocated anything.
#[cold]
pub(crate) fn foreign() -> Foreign {
    OPTIONS.get().copied().unwrap_or_else(Options::with_foreign).foreign
}

/// Reads the options: `base`, overridden by the environment. Then runs `then` with them. Only the first call
/// does so; the others wait until it is done.
#[inline]
pub(crate) fn init(base: &Options, then: impl FnOnce(&Options)) {
    if OPTIONS.get().is_none() {
        OPTIONS.init(|| {
            let options = base.with_environment();
            then(&options);
            options
        });
    }
}

#[cfg(test)]
mod tests;
