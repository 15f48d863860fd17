//! From the raw recording to a trace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};

use crate::codec::{LARGEST, Object, STRICTEST};
use crate::file::Trace;
use crate::process::Builder;
use crate::raw::{self, CHUNK, HEADER, Kind, ROOM};

/// What a raw recording came to.
pub struct Recording {
    /// The trace.
    pub trace: Trace,
    /// Processes that found the file and could not use it.
    pub failed: u64,
    /// It is truncated because there was no room on the disk, not by the size of the file.
    pub disk_full: bool,
}

/// Makes a trace of what is in `file`; with `names`, the names of the programs are kept.
///
/// The file may still be written by processes that go on in the background: it is taken as it is now.
pub fn convert(file: &File, names: bool) -> anyhow::Result<Recording> {
    let size = file.metadata()?.len();
    ensure!(size >= HEADER as u64, "the recording is too short");
    let head = read(file, 0, 40)?;
    let word = |index: usize| word(&head, index);
    ensure!(word(0) == raw::MAGIC, "this is no recording");
    let chunks = word(1);
    ensure!(chunks <= (size - HEADER as u64) / CHUNK as u64, "the recording has been cut");
    let (claimed, refused, failed) = (word(2).min(chunks), word(3), word(4));
    // Nothing counts from the first event on that found no room.
    let until = if refused == 0 { u64::MAX } else { !refused };

    let mut processes = BTreeMap::<u32, Process>::new();
    for index in 0..claimed {
        let start = raw::file_size(index);
        let head = read(file, start, HEAD + 8)?;
        let field = |index: usize| u32::from_ne_bytes(*head[index * 4..].first_chunk().expect("it is long"));
        let number = field(0);
        if number == 0 {
            continue;
        }
        let process = processes.entry(number).or_insert_with(|| {
            let name = head[20..36].iter().copied().take_while(|&byte| byte != 0).collect::<Vec<u8>>();
            Process {
                forked_from: field(1),
                pid: field(3) as i32,
                parent_pid: field(4) as i32,
                name: String::from_utf8_lossy(&name).into_owned(),
                first: None,
                threads: BTreeMap::new(),
            }
        });
        let thread = process.threads.entry(field(2)).or_default();
        if thread.chunks.is_empty() {
            thread.first = self::word(&head, HEAD / 8);
            let time = Some(thread.first).filter(|&time| time != 0);
            process.first = [process.first, time].into_iter().flatten().min();
        }
        thread.chunks.push(start + HEAD as u64);
    }

    // In the order of their first events; those without any are left out.
    let mut order: Vec<(u64, u32)> = processes
        .iter()
        .filter_map(|(&number, process)| Some((process.first?, number)))
        .filter(|&(first, _)| first < until)
        .collect();
    order.sort_unstable();
    let mut trace = Trace { processes: Vec::new(), truncated: refused != 0 };
    for (place, &(_, number)) in order.iter().enumerate() {
        let process = &processes[&number];
        let parent = process.parent(&processes, &order, place);
        let mut builder = Builder::new(if names { process.name.clone() } else { String::new() }, parent);
        let merged = process.merge(file, until, &mut builder).and_then(|()| builder.finish());
        trace.processes.push(merged.with_context(|| format!("process {}", process.pid))?);
    }
    Ok(Recording { trace, failed, disk_full: refused != 0 && word(2) <= chunks })
}

/// Bytes of a chunk before its events.
const HEAD: usize = size_of::<raw::ChunkHeader>();

/// Bytes of the recording. Not by a mapping: to read a hole of a file in memory (tmpfs) there takes a page,
/// and kills the reader if there is no room for one.
fn read(file: &File, at: u64, len: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).context("cannot read the recording")?;
    Ok(bytes)
}

/// The word at a place that is counted in words.
fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(*bytes[index * 8..].first_chunk().expect("within what was read"))
}

/// The chunks of one process.
struct Process {
    forked_from: u32,
    pid: i32,
    parent_pid: i32,
    name: String,
    /// When it began.
    first: Option<u64>,
    threads: BTreeMap<u32, Thread>,
}

/// The chunks of one thread.
#[derive(Default)]
struct Thread {
    /// The time of its first event; 0 if there was none when the chunk was looked at.
    first: u64,
    /// Where the events of each chunk are in the file.
    chunks: Vec<u64>,
}

impl Process {
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
    fn merge(&self, file: &File, until: u64, builder: &mut Builder) -> anyhow::Result<()> {
        let mut cursors: Vec<_> = self
            .threads
            .iter()
            .map(|(&number, thread)| Cursor {
                file,
                thread: number,
                chunks: &thread.chunks,
                place: 0,
                last: 0,
                begun: [const { Vec::new() }; 2],
            })
            .collect();
        // At the same time what ends comes before what begins: the clock may not tell them apart. A thread
        // begins with no event: nothing of it is read before its turn, as there may be very many.
        let first = self.threads.values().enumerate();
        let mut next: BinaryHeap<_> =
            first.map(|(index, thread)| Reverse((thread.first, false, index, None))).collect();
        let queue =
            |next: &mut BinaryHeap<_>, cursors: &mut Vec<Cursor>, index: usize| -> anyhow::Result<()> {
                if let Some(event) = cursors[index].next()? {
                    next.push(Reverse((event.time(), event.begins(), index, Some(event))));
                }
                Ok(())
            };
        let mut live = HashMap::<u64, Object>::new();
        while let Some(Reverse((time, _, index, event))) = next.pop() {
            if time >= until {
                break;
            }
            let Some(event) = event else {
                queue(&mut next, &mut cursors, index)?;
                continue;
            };
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
                    next.push(Reverse((put.time(), put.begins(), index, Some(put))));
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
    file: &'a File,
    thread: u32,
    chunks: &'a [u64],
    place: usize,
    last: u64,
    /// The chunk at hand, read twice. Empty before the first and after the last one.
    begun: [Vec<u8>; 2],
}

impl Cursor<'_> {
    /// The next event, not earlier than the one before.
    fn next(&mut self) -> anyhow::Result<Option<Raw>> {
        while let Some(&chunk) = self.chunks.first() {
            if self.place == 0 {
                // A writer may be at it: an event is whole in the second one if its time, which is written
                // last, is in the first.
                let [times, rest] = &mut self.begun;
                *times = read(self.file, chunk, ROOM)?;
                *rest = read(self.file, chunk, ROOM)?;
            }
            let time = if self.place + 1 < ROOM / 8 { word(&self.begun[0], self.place) } else { 0 };
            if time == 0 {
                (self.chunks, self.place) = (&self.chunks[1..], 0);
                continue;
            }
            let word = |index: usize| word(&self.begun[1], index);
            let place = word(self.place + 1);
            let kind = raw::kind(place).context("an event of no known kind")?;
            ensure!(self.place + kind.words() <= ROOM / 8, "an event breaks off");
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
        self.begun = Default::default();
        Ok(None)
    }
}
