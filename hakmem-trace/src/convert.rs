//! From the raw recording to a trace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, ensure};

use crate::codec::{LARGEST, Object, STRICTEST};
use crate::file::Trace;
use crate::memory::Mapping;
use crate::process::Builder;
use crate::raw::{self, CHUNK, HEADER, Kind, ROOM};

/// What a raw recording came to.
pub struct Recording {
    /// The trace.
    pub trace: Trace,
    /// Processes that found the file and could not use it.
    pub failed: u64,
}

/// Makes a trace of what is in `file`; with `names`, the names of the programs are kept.
///
/// The file may still be written by processes that go on in the background: it is taken as it is now.
pub fn convert(file: &File, names: bool) -> anyhow::Result<Recording> {
    let size = file.metadata()?.len();
    ensure!(size >= HEADER as u64, "the recording is too short");
    let mapping = Mapping::of_file(file, 0, size, false).context("cannot map the recording")?;
    // SAFETY: atomic numbers; a file that is written to, not made shorter.
    let words: &[AtomicU64] = unsafe { mapping.slice(0, mapping.bytes() / 8) };
    // Acquire here and below: pairs with the Release of the recorder's last write of each event and chunk.
    let word = |index: usize| words[index].load(Ordering::Acquire);
    ensure!(word(0) == raw::MAGIC, "this is no recording");
    let chunks = word(1);
    ensure!(chunks <= (size - HEADER as u64) / CHUNK as u64, "the recording has been cut");
    let (claimed, refused, failed) = (word(2).min(chunks), word(3), word(4));
    // Nothing counts from the first event on that found no room.
    let until = if refused == 0 { u64::MAX } else { !refused };

    let mut processes = BTreeMap::<u32, Process>::new();
    for index in 0..claimed as usize {
        let start = HEADER + index * CHUNK;
        // SAFETY: as above.
        let head: &[AtomicU32] = unsafe { mapping.slice(start, 16) };
        let field = |index: usize| head[index].load(Ordering::Acquire);
        let number = field(0);
        if number == 0 {
            continue;
        }
        let process = processes.entry(number).or_insert_with(|| {
            let name: Vec<u8> =
                (5..9).flat_map(|index| field(index).to_ne_bytes()).take_while(|&b| b != 0).collect();
            Process {
                forked_from: field(1),
                pid: field(3) as i32,
                parent_pid: field(4) as i32,
                name: String::from_utf8_lossy(&name).into_owned(),
                threads: BTreeMap::new(),
            }
        });
        let events = start / 8 + size_of::<raw::ChunkHeader>() / 8;
        process.threads.entry(field(2)).or_default().push(&words[events..events + ROOM / 8]);
    }

    // In the order of their first events; those without any are left out.
    let mut order: Vec<(u64, u32)> = processes
        .iter()
        .filter_map(|(&number, process)| Some((process.first()?, number)))
        .filter(|&(first, _)| first < until)
        .collect();
    order.sort_unstable();
    let mut trace = Trace { processes: Vec::new(), truncated: refused != 0 };
    for (place, &(_, number)) in order.iter().enumerate() {
        let process = &processes[&number];
        let parent = process.parent(&processes, &order, place);
        let mut builder = Builder::new(if names { process.name.clone() } else { String::new() }, parent);
        process.merge(until, &mut builder).with_context(|| format!("process {}", process.pid))?;
        trace.processes.push(builder.finish());
    }
    Ok(Recording { trace, failed })
}

/// The chunks of one process.
struct Process<'a> {
    forked_from: u32,
    pid: i32,
    parent_pid: i32,
    name: String,
    threads: BTreeMap<u32, Vec<&'a [AtomicU64]>>,
}

impl Process<'_> {
    /// When it began.
    fn first(&self) -> Option<u64> {
        let first =
            |chunks: &Vec<&[AtomicU64]>| Some(chunks.first()?[0].load(Ordering::Acquire)).filter(|&t| t != 0);
        self.threads.values().filter_map(first).min()
    }

    /// The place of its parent among `order`: the process it was forked from; else what ran before an `exec`
    /// in the same process, else the last program before it in its parent process.
    fn parent(&self, all: &BTreeMap<u32, Process>, order: &[(u64, u32)], own: usize) -> Option<u32> {
        let place = |test: &dyn Fn(u32, &Process) -> bool| {
            order[..own].iter().rposition(|(_, number)| test(*number, &all[number])).map(|place| place as u32)
        };
        if self.forked_from != 0 {
            return place(&|number, _| number == self.forked_from);
        }
        place(&|_, process| process.pid == self.pid)
            .or_else(|| place(&|_, process| process.pid == self.parent_pid))
    }

    /// Writes down the events of all threads in the order of time, with numbers in place of addresses.
    fn merge(&self, until: u64, builder: &mut Builder) -> anyhow::Result<()> {
        let mut cursors: Vec<_> = self
            .threads
            .iter()
            .map(|(&thread, chunks)| Cursor { thread, chunks, place: 0, last: 0 })
            .collect();
        // At the same time what ends comes before what begins: the clock may not tell them apart.
        let mut next = BinaryHeap::new();
        let queue =
            |next: &mut BinaryHeap<_>, cursors: &mut Vec<Cursor>, index: usize| -> anyhow::Result<()> {
                if let Some(event) = cursors[index].next()? {
                    next.push(Reverse((event.time(), event.begins(), index, event)));
                }
                Ok(())
            };
        for index in 0..cursors.len() {
            queue(&mut next, &mut cursors, index)?;
        }
        let mut live = HashMap::<u64, Object>::new();
        while let Some(Reverse((time, _, index, event))) = next.pop() {
            if time >= until {
                break;
            }
            builder.thread(cursors[index].thread);
            match event {
                Raw::Free { address, .. } => match live.remove(&address) {
                    Some(object) => builder.free(object),
                    None => builder.unknown(),
                },
                Raw::Allocate { address, size, align_log2, zeroed, .. } => {
                    let object = builder.allocate(size, align_log2, zeroed);
                    end(live.insert(address, object), builder);
                }
                // Its address is free for others from here on, though its new one is known only later.
                Raw::Take { address, size, after, to, .. } => {
                    let from = live.remove(&address);
                    let put = Raw::Put { time: after.max(time), address: to, size, from };
                    next.push(Reverse((put.time(), put.begins(), index, put)));
                    continue;
                }
                Raw::Put { address, size, from, .. } => {
                    let object = match from {
                        Some(from) => builder.reallocate(from, size),
                        // Older than the recording: as good as new.
                        None => builder.allocate(size, 0, false),
                    };
                    end(live.insert(address, object), builder);
                }
            }
            queue(&mut next, &mut cursors, index)?;
        }
        Ok(())
    }
}

/// An object whose address has been given out again was freed in some way that is not recorded (by the C
/// library at a thread's end, say).
fn end(object: Option<Object>, builder: &mut Builder) {
    if let Some(object) = object {
        builder.free(object);
    }
}

/// An event of a thread; a new size is two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Raw {
    Free { time: u64, address: u64 },
    Take { time: u64, address: u64, size: u64, after: u64, to: u64 },
    Allocate { time: u64, address: u64, size: u64, align_log2: u8, zeroed: bool },
    Put { time: u64, address: u64, size: u64, from: Option<Object> },
}

impl Raw {
    fn time(&self) -> u64 {
        match *self {
            Raw::Free { time, .. }
            | Raw::Take { time, .. }
            | Raw::Allocate { time, .. }
            | Raw::Put { time, .. } => time,
        }
    }

    /// Whether an object begins with it.
    fn begins(&self) -> bool {
        matches!(self, Raw::Allocate { .. } | Raw::Put { .. })
    }
}

/// Where in a thread's chunks the reader is.
struct Cursor<'a> {
    thread: u32,
    chunks: &'a [&'a [AtomicU64]],
    place: usize,
    last: u64,
}

impl Cursor<'_> {
    /// The next event, not earlier than the one before.
    fn next(&mut self) -> anyhow::Result<Option<Raw>> {
        while let Some(chunk) = self.chunks.first() {
            let word = |index: usize| chunk[index].load(Ordering::Acquire);
            let time = if self.place + 1 < chunk.len() { word(self.place) } else { 0 };
            if time == 0 {
                (self.chunks, self.place) = (&self.chunks[1..], 0);
                continue;
            }
            let place = word(self.place + 1);
            let kind = raw::kind(place).context("an event of no known kind")?;
            ensure!(self.place + kind.words() <= chunk.len(), "an event breaks off");
            // A signal handler that allocates writes behind the event it interrupted, with an earlier time.
            let time = time.max(self.last);
            let address = raw::address(place);
            let size = if kind == Kind::Free { 0 } else { word(self.place + 2) };
            let align_log2 = raw::align_log2(place);
            ensure!(size <= LARGEST && align_log2 <= STRICTEST, "a size that no machine has");
            let event = match kind {
                Kind::Free => Raw::Free { time, address },
                Kind::Allocate => Raw::Allocate { time, address, size, align_log2, zeroed: false },
                Kind::Zeroed => Raw::Allocate { time, address, size, align_log2: 0, zeroed: true },
                Kind::Reallocate => {
                    let to = raw::address(word(self.place + 4));
                    Raw::Take { time, address, size, after: word(self.place + 3), to }
                }
            };
            self.last = time;
            self.place += kind.words();
            return Ok(Some(event));
        }
        Ok(None)
    }
}
