//! One process of a trace, made ready to be replayed: for every thread, its operations at a fixed size each.
//!
//! It lives in a file without a name (memfd), so that one process can make it and another replay it, whose
//! heap then has seen nothing of the work of reading a trace. A file holds any number of them, each at a
//! multiple of [`PAGE`], and an index in front.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};

use crate::codec::{Event, Object};
use crate::memory::Mapping;
use crate::pace::SPAN;
use crate::process::{Facts, ProcessTrace};

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
    head: u64,
    pub(crate) slot: u32,
    pub(crate) from: u32,
}

impl Op {
    fn new(kind: Kind, size: u64, align_log2: u8, slot: u32) -> Self {
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
const NUMBERS: usize = 8;

fn ops_at(threads: usize) -> usize {
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
        let mapping = Mapping::of_file(file, word(file, at)?, word(file, at + 1)?, true);
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

/// A thread's operations on the way.
#[derive(Default)]
struct Thread {
    ops: Vec<Op>,
    /// Slots used and free again.
    free: Vec<u32>,
    /// Slots in use at the most.
    slots: u32,
    /// Whether it has a part in the span that is being gone through.
    takes_part: bool,
}

impl Thread {
    /// A slot that only this thread uses.
    fn slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    /// Its own slots are used again.
    fn done_with(&mut self, slot: u32) {
        if slot & SHARED == 0 {
            self.free.push(slot);
        }
    }
}

/// An object alive.
struct Live {
    slot: u32,
    thread: u32,
    size: u64,
    align_log2: u8,
}

/// What [`Program::save`] writes.
struct Plan {
    /// The last is none: it frees what is still alive at the end, off the clock.
    threads: Vec<Thread>,
    spans: Vec<u32>,
    slots: u64,
}

impl Plan {
    fn new(process: &ProcessTrace) -> anyhow::Result<Self> {
        let several = process.facts.threads > 1;
        let shared = if several { Shared::of(process) } else { Shared::default() };
        let mut threads: Vec<Thread> =
            (0..=process.facts.threads.max(1)).map(|_| Thread::default()).collect();
        let mut spans = Vec::new();
        let mut live = HashMap::<Object, Live>::new();
        let (mut started, mut last, mut shared_slots) = (1, 0, 0);
        for (number, step) in process.steps().enumerate() {
            if several && number % SPAN == 0 {
                leave(&mut threads, &spans);
                ensure!(spans.len() < u32::MAX as usize, "too many operations");
                spans.push(0);
            }
            if step.thread == started {
                threads[last as usize].ops.push(Op::new(Kind::Start, 0, 0, started));
                started += 1;
            }
            last = step.thread;
            let own = &mut threads[step.thread as usize];
            if several && !own.takes_part {
                own.takes_part = true;
                own.ops.push(Op::new(Kind::Enter, 0, 0, spans.len() as u32 - 1));
                *spans.last_mut().expect("pushed above") += 1;
            }
            let mut slot_for = |own: &mut Thread, object: Object| {
                if shared.contains(object) {
                    shared_slots += 1;
                    SHARED | (shared_slots - 1)
                } else {
                    own.slot()
                }
            };
            match step.event {
                Event::Allocate { object, size, align_log2, zeroed } => {
                    let slot = slot_for(own, object);
                    let kind = if zeroed { Kind::Zeroed } else { Kind::Allocate };
                    own.ops.push(Op::new(kind, size, align_log2, slot));
                    live.insert(object, Live { slot, thread: step.thread, size, align_log2 });
                }
                Event::Free { object } => {
                    let old = live.remove(&object).expect("checked when the trace was made");
                    own.ops.push(Op::new(Kind::Free, old.size, old.align_log2, old.slot));
                    own.done_with(old.slot);
                }
                Event::Reallocate { object, from, size } => {
                    let old = live.remove(&from).expect("checked when the trace was made");
                    // The alignment stays: a heap that is told it (`Heap::free`) must be told the same to the
                    // end.
                    let align_log2 = old.align_log2;
                    own.done_with(old.slot);
                    let slot = slot_for(own, object);
                    let op = Op::new(Kind::Reallocate, size, align_log2, slot);
                    own.ops.push(Op { from: old.slot, ..op });
                    own.ops.push(Op::new(Kind::OldSize, old.size, 0, 0));
                    live.insert(object, Live { slot, thread: step.thread, size, align_log2 });
                }
            }
            ensure!(own.slots < SHARED >> 1 && shared_slots < SHARED >> 1, "too many objects");
        }
        leave(&mut threads, &spans);
        let mut left: Vec<_> = live.into_iter().collect();
        left.sort_unstable_by_key(|&(object, _)| object);
        Self { threads, spans, slots: 0 }.place(left.into_iter().map(|(_, live)| live))
    }

    /// The program as it is mapped.
    fn to_bytes(&self, facts: &Facts) -> Vec<u8> {
        let ops: usize = self.threads.iter().map(|thread| thread.ops.len()).sum();
        let numbers: [u64; NUMBERS] = [
            self.threads.len() as u64 - 1,
            ops as u64,
            self.spans.len() as u64,
            self.slots,
            facts.operations(),
            facts.live_at_end,
            facts.peak_live,
            0,
        ];
        let size = ops_at(self.threads.len() - 1) + ops * size_of::<Op>() + self.spans.len() * 4;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(numbers.into_iter().flat_map(u64::to_ne_bytes));
        let mut start = 0;
        for thread in &self.threads {
            bytes.extend([start, thread.ops.len() as u64].into_iter().flat_map(u64::to_ne_bytes));
            start += thread.ops.len() as u64;
        }
        for op in self.threads.iter().flat_map(|thread| &thread.ops) {
            bytes.extend(op.head.to_ne_bytes());
            bytes.extend([op.slot, op.from].into_iter().flat_map(u32::to_ne_bytes));
        }
        bytes.extend(self.spans.iter().flat_map(|threads| threads.to_ne_bytes()));
        bytes
    }

    /// Gives every thread's slots their place in the one table: thread after thread, then the shared ones.
    fn place(mut self, left: impl Iterator<Item = Live>) -> anyhow::Result<Self> {
        let mut bases = Vec::new();
        let mut own_slots = 0u64;
        for thread in &self.threads {
            bases.push(own_slots);
            own_slots += u64::from(thread.slots);
        }
        let mut highest = own_slots;
        let mut placed = |slot: u32, base: u64| {
            let at = if slot & SHARED == 0 {
                base + u64::from(slot)
            } else {
                own_slots + u64::from(slot & !SHARED)
            };
            highest = highest.max(at + 1);
            (at as u32 & !SHARED) | (slot & SHARED)
        };
        for (thread, &base) in self.threads.iter_mut().zip(&bases) {
            for op in &mut thread.ops {
                if matches!(op.kind(), Kind::Allocate | Kind::Zeroed | Kind::Free | Kind::Reallocate) {
                    op.slot = placed(op.slot, base);
                }
                if op.kind() == Kind::Reallocate {
                    op.from = placed(op.from, base);
                }
            }
        }
        let ops = &mut self.threads.last_mut().expect("there is always the one that cleans up").ops;
        for live in left {
            let slot = placed(live.slot, bases[live.thread as usize]);
            ops.push(Op::new(Kind::Free, live.size, live.align_log2, slot));
        }
        ensure!(highest < u64::from(SHARED), "too many objects");
        self.slots = highest;
        Ok(self)
    }
}

/// Ends the latest span: right behind the last operation in it of every thread, so that no thread keeps it
/// open.
fn leave(threads: &mut [Thread], spans: &[u32]) {
    for thread in threads.iter_mut().filter(|thread| thread.takes_part) {
        thread.takes_part = false;
        thread.ops.push(Op::new(Kind::Leave, 0, 0, spans.len() as u32 - 1));
    }
}

/// The objects that are ended by another thread than the one that makes them: a bit for each.
#[derive(Default)]
struct Shared(Vec<u64>);

impl Shared {
    fn of(process: &ProcessTrace) -> Self {
        let mut bits = Vec::new();
        let mut owners = HashMap::<Object, u32>::new();
        for step in process.steps() {
            let (begun, ended) = match step.event {
                Event::Allocate { object, .. } => (Some(object), None),
                Event::Free { object } => (None, Some(object)),
                Event::Reallocate { object, from, .. } => (Some(object), Some(from)),
            };
            if let Some(object) = ended.filter(|object| owners.remove(object) != Some(step.thread)) {
                let word = (object / 64) as usize;
                bits.resize(bits.len().max(word + 1), 0u64);
                bits[word] |= 1 << (object % 64);
            }
            owners.extend(begun.map(|object| (object, step.thread)));
        }
        Self(bits)
    }

    fn contains(&self, object: Object) -> bool {
        self.0.get((object / 64) as usize).is_some_and(|bits| bits >> (object % 64) & 1 == 1)
    }
}
