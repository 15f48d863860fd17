//! The raw file, as `docs/profile-format.md` has it.

mod read;
mod write;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use read::{Damaged, read};
pub use write::{Writer, frame};

/// What a file begins with.
pub const MAGIC: [u8; 8] = *b"HAKPROF1";

/// The version that [`read`] knows.
pub const VERSION: u32 = 1;

/// The stack that stands for others, and the thread that does.
pub const OTHERS: u32 = u32::MAX;

/// No tag.
pub const NO_TAG: u32 = u32::MAX;

/// The kinds of frames.
pub mod kind {
    #![allow(missing_docs)]
    pub const PROCESS: u32 = 1;
    pub const MODULES: u32 = 2;
    pub const STACKS: u32 = 3;
    pub const TAGS: u32 = 4;
    pub const SITES: u32 = 5;
    pub const THREADS: u32 = 6;
    pub const SNAPSHOT: u32 = 7;
    pub const LIFETIMES: u32 = 8;
    pub const END: u32 = 9;
}

/// A file that has been read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Raw {
    /// Whose profile it is.
    pub process: Process,
    /// The lists of modules, in the order in which they replaced each other.
    pub modules: Vec<Vec<Module>>,
    /// The call stacks.
    pub stacks: Vec<Stack>,
    /// The tags by identifier.
    pub tags: BTreeMap<u32, String>,
    /// The names of threads.
    pub threads: BTreeMap<u32, String>,
    /// The sites.
    pub sites: Vec<Site>,
    /// The snapshots, in the order of time.
    pub snapshots: Vec<Snapshot>,
    /// By index of the site: how many sampled blocks were freed after 2^b to 2^(b+1) ns.
    pub lifetimes: BTreeMap<usize, Vec<(u8, u64)>>,
    /// Why it ended; `None` where the process ended without saying so.
    pub end: Option<Why>,
    /// Where the file was cut, if it was: everything before this offset is good.
    pub cut: Option<usize>,
}

/// Whose profile it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// The process.
    pub pid: u32,
    /// Mean bytes between two samples.
    pub rate: u64,
    /// When the profile was started, ns since 1970.
    pub start: u64,
    /// The same by the monotonic clock.
    pub monotonic: u64,
    /// Bytes in a page.
    pub page_size: u32,
    /// Armed while the process was running already: what was allocated before is unknown.
    pub armed_late: bool,
    /// From an older allocator, which rounds the sizes of large blocks to eighths of a power of two.
    pub coarse: bool,
    /// The command line.
    pub arguments: Vec<String>,
    /// The allocator's version.
    pub allocator: String,
}

/// A file that was mapped executable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Module {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// What identifies the build; may be empty.
    pub build_id: Vec<u8>,
    /// The file, as the kernel shows it: a newline is `\012`, and what was removed ends with ` (deleted)`.
    /// Empty for anonymous memory.
    pub path: PathBuf,
}

/// Where a stack ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// At the outermost frame.
    #[default]
    Complete,
    /// At the most frames that are recorded.
    Cut,
    /// Where the walk had to stop.
    Stopped,
    /// No walk was possible.
    NoWalk,
    /// It stands for the stacks that the allocator had no room for.
    Others,
}

/// A call stack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stack {
    /// Where it ends.
    pub end: StackEnd,
    /// Return addresses, the innermost first.
    pub addresses: Vec<u64>,
    /// The list of modules that was valid then: an index of [`Raw::modules`].
    pub modules: Option<usize>,
}

/// A combination of stack, thread, tag and size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// An index of [`Raw::stacks`].
    pub stack: usize,
    /// The system's identifier of the thread.
    pub thread: u32,
    /// A key of [`Raw::tags`].
    pub tag: Option<u32>,
    /// Bytes of a block.
    pub size: u64,
}

/// Why a snapshot was made, or a profile ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// Its time had come.
    #[default]
    Timer,
    /// The process or the profile ended.
    End,
    /// Somebody asked.
    Asked,
    /// In the child of a fork: no allocator writes it so far.
    Fork,
}

/// One moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// ns since the start.
    pub time: u64,
    /// Why it was made.
    pub why: Why,
    /// What the memory was used for.
    pub totals: Totals,
    /// Samples, and frees of such, that could not be noted so far.
    pub lost: u64,
    /// What has changed since the snapshot before: an index of [`Raw::sites`], and its figures.
    pub rows: Vec<(usize, Row)>,
}

/// What the memory is used for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Resident, of the whole process.
    pub resident: u64,
    /// Mapped by the allocator.
    pub mapped: u64,
    /// In blocks that the program holds.
    pub live: u64,
    /// In free blocks that threads and caches keep at hand.
    pub cached: u64,
    /// In free blocks of slabs that hold a block in use.
    pub free: u64,
    /// Resident with no block in use, waiting to be purged.
    pub dirty: u64,
    /// The allocator's own records.
    pub metadata: u64,
    /// In slabs, not handed out yet or too little for a block, where it may be resident; 0 in older files.
    pub fresh: u64,
}

/// The figures of a site in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Row {
    /// Sampled allocations so far.
    pub allocated: u64,
    /// Sampled blocks that live.
    pub live: u64,
    /// Sampled blocks that lived when sampled live bytes were at their peak.
    pub peak: u64,
    /// Bytes that the sampled live blocks pin.
    pub pinned: f64,
}

/// The 64-bit FNV-1a checksum.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
