//! One process of a trace, made ready to be replayed: for every thread, its operations at a fixed size each.
//!
//! It lives in a file without a name (memfd), so that one process can make it and another replay it, whose
//! heap then has seen nothing of the work of reading a trace. A file holds any number of them, each at a
//! multiple of [`PAGE`], and an index in front.

use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};

use crate::memory::Mapping;
use crate::plan::Plan;
use crate::process::ProcessTrace;

/// What an operation does; the number is what [`Op`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Allocate into a slot.
    Allocate = 1,
    /// The same, zeros.
    Zeroed = 2,
    /// Free what is in a slot.
    Free = 3,
    /// A new size for what is in slot `from`, which goes into `slot`; the old size is in the next operation.
    Reallocate = 4,
    /// Start thread `slot`.
    Start = 5,
    /// Begin with a span of the recording.
    Enter = 6,
    /// This thread's part of a span is done.
    Leave = 7,
    /// The old size of a [`Kind::Reallocate`].
    OldSize = 8,
}

/// Set in the number of a slot whose object is ended by another thread than the one that makes it. Such slots
/// are used once, so that one with something in it is always the right thing; others are used again by their
/// thread.
pub(crate) const SHARED: u32 = 1 << 31;

/// An operation: size (48 bits), logarithm of the alignment (8), kind (8); two slots.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct Op {
    pub(crate) head: u64,
    pub(crate) slot: u32,
    pub(crate) from: u32,
}

impl Op {
    pub(crate) fn new(kind: Kind, size: u64, align_log2: u8, slot: u32) -> Self {
        // No size is 0 for a heap (`Heap`), nor above what fits.
        let size = size.clamp(1, (1 << 48) - 1);
        Self { head: size | u64::from(align_log2) << 48 | (kind as u64) << 56, slot, from: 0 }
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        match self.head >> 56 {
            1 => Kind::Allocate,
            2 => Kind::Zeroed,
            3 => Kind::Free,
            4 => Kind::Reallocate,
            5 => Kind::Start,
            6 => Kind::Enter,
            7 => Kind::Leave,
            _ => Kind::OldSize,
        }
    }

    #[inline(always)]
    pub(crate) fn size(self) -> usize {
        (self.head & ((1 << 48) - 1)) as usize
    }

    #[inline(always)]
    pub(crate) fn align(self) -> usize {
        1 << (self.head >> 48 & 63)
    }
}

/// What a program begins at a multiple of: more than the largest page there is.
const PAGE: u64 = 64 * 1024;

/// A number in the index of the file.
fn word(file: &File, index: u64) -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, index * 8).context("nothing was made ready to be replayed")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The start of a program: 8 numbers, then for every thread (and the one that cleans up) where its operations
/// begin and how many they are, then those, then the spans.
pub(crate) const NUMBERS: usize = 8;

pub(crate) fn ops_at(threads: usize) -> usize {
    (NUMBERS + 2 * (threads + 1)) * 8
}

/// A process to be replayed.
pub struct Program {
    mapping: Mapping,
}

impl Program {
    /// Makes `process` ready.
    pub fn new(process: &ProcessTrace) -> anyhow::Result<Self> {
        let file = Self::file()?;
        Self::save([process], &file)?;
        Self::load(&file, 0)
    }

    /// A file without a name for [`Program::save`].
    pub fn file() -> anyhow::Result<File> {
        // SAFETY: a constant string; the descriptor is new and nobody else's.
        unsafe {
            let fd = libc::memfd_create(c"hakmem-replay".as_ptr(), libc::MFD_CLOEXEC);
            ensure!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
            Ok(File::from_raw_fd(fd))
        }
    }

    /// Makes processes ready in `file`, which is empty.
    pub fn save<'a>(
        processes: impl IntoIterator<Item = &'a ProcessTrace>,
        file: &File,
    ) -> anyhow::Result<()> {
        let context = "cannot write what is to be replayed";
        let processes: Vec<_> = processes.into_iter().collect();
        let mut index = vec![processes.len() as u64];
        let mut at = (8 * (1 + 2 * processes.len() as u64)).next_multiple_of(PAGE);
        for process in processes {
            let bytes = Plan::new(process)?.to_bytes(&process.facts);
            file.write_all_at(&bytes, at).context(context)?;
            index.extend([at, bytes.len() as u64]);
            at = (at + bytes.len() as u64).next_multiple_of(PAGE);
        }
        let index: Vec<_> = index.into_iter().flat_map(u64::to_ne_bytes).collect();
        file.write_all_at(&index, 0).context(context)
    }

    /// The number of processes that [`Program::save`] made ready.
    pub fn count(file: &File) -> anyhow::Result<u64> {
        word(file, 0)
    }

    /// Maps one of those.
    pub fn load(file: &File, number: u64) -> anyhow::Result<Self> {
        ensure!(number < Self::count(file)?, "no process {number} was made ready to be replayed");
        let at = 1 + 2 * number;
        let mapping = Mapping::of_file(file, word(file, at)?, word(file, at + 1)?);
        Ok(Self { mapping: mapping.context("cannot map what is to be replayed")? })
    }

    fn number(&self, index: usize) -> usize {
        // SAFETY: plain numbers that nobody writes any more.
        let numbers: &[u64] = unsafe { self.mapping.slice(0, NUMBERS) };
        numbers[index] as usize
    }

    fn spans_at(&self) -> usize {
        ops_at(self.threads()) + self.number(1) * size_of::<Op>()
    }

    /// Threads; the first is the one that the process begins with.
    pub fn threads(&self) -> usize {
        self.number(0)
    }

    /// The operations of `thread`; behind the last thread are those that free what is still alive at the end.
    pub(crate) fn ops(&self, thread: usize) -> &[Op] {
        let threads = self.threads();
        // SAFETY: plain numbers that nobody writes any more.
        unsafe {
            let table: &[[u64; 2]] = self.mapping.slice(NUMBERS * 8, threads + 1);
            let [start, count] = table[thread].map(|number| number as usize);
            self.mapping.slice(ops_at(threads) + start * size_of::<Op>(), count)
        }
    }

    /// For every span of the recording the number of threads that have a part in it.
    pub(crate) fn spans(&self) -> &[u32] {
        // SAFETY: plain numbers that nobody writes any more.
        unsafe { self.mapping.slice(self.spans_at(), self.number(2)) }
    }

    /// Slots for objects.
    pub(crate) fn slots(&self) -> usize {
        self.number(3)
    }

    /// Operations as the program counted them, without what the replay adds.
    pub fn operations(&self) -> u64 {
        self.number(4) as u64
    }

    /// Bytes in live objects at the end.
    pub fn live_at_end(&self) -> u64 {
        self.number(5) as u64
    }

    /// The largest sum of the sizes of live objects, bytes.
    pub fn peak_live(&self) -> u64 {
        self.number(6) as u64
    }

    /// Bytes that the replay itself keeps resident: the operations and the slots.
    pub fn own_bytes(&self) -> u64 {
        (self.mapping.bytes() + self.slots() * 8 + self.spans().len() * 4) as u64
    }
}
