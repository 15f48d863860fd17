//! From raw recordings, made by hand, to traces.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hakmem_trace::raw::{self, CHUNK, HEADER, Kind, MAGIC};
use hakmem_trace::{Event, Trace, convert};

/// A raw recording on the way.
struct Raw {
    chunks: Vec<Vec<u8>>,
    refused: u64,
}

/// Who writes a chunk: process, forked from, thread, pid, parent's pid.
type Writer = (u32, u32, u32, i32, i32);

impl Raw {
    fn new() -> Self {
        Self { chunks: Vec::new(), refused: 0 }
    }

    /// Adds a chunk with these words of events.
    fn chunk(&mut self, (process, forked_from, thread, pid, parent): Writer, words: &[u64]) {
        let mut bytes = Vec::new();
        for number in [process, forked_from, thread, pid as u32, parent as u32] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(*b"a program\0\0\0\0\0\0\0");
        bytes.resize(64, 0);
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.resize(CHUNK, 0);
        self.chunks.push(bytes);
    }

    fn file(&self) -> File {
        let file = tempfile::tempfile().unwrap();
        let count = self.chunks.len() as u64;
        let numbers: Vec<u8> = [MAGIC, count, count + 3, self.refused, 0]
            .iter()
            .flat_map(|number| number.to_ne_bytes())
            .collect();
        file.write_all_at(&numbers, 0).unwrap();
        for (index, bytes) in self.chunks.iter().enumerate() {
            file.write_all_at(bytes, (HEADER + index * CHUNK) as u64).unwrap();
        }
        file.set_len(raw::file_size(count)).unwrap();
        file
    }

    fn trace(&self) -> Trace {
        convert(&self.file(), true).unwrap().trace
    }
}

fn malloc(time: u64, address: usize, size: u64) -> Vec<u64> {
    vec![time, raw::place(Kind::Allocate, 0, address), size]
}

fn free(time: u64, address: usize) -> Vec<u64> {
    vec![time, raw::place(Kind::Free, 0, address)]
}

fn realloc(time: u64, address: usize, size: u64, after: u64, to: usize) -> Vec<u64> {
    let place = |address| raw::place(Kind::Reallocate, 0, address);
    vec![time, place(address), size, after, place(to)]
}

const ONE: Writer = (1, 0, 0, 100, 50);
const OTHER: Writer = (1, 0, 1, 100, 50);

/// Thread and event, in short.
fn events(trace: &Trace, process: usize) -> Vec<(u32, String)> {
    let short = |event| match event {
        Event::Allocate { object, size, align_log2: 0, zeroed: false } => format!("{object}={size}"),
        Event::Allocate { object, size, align_log2: 0, zeroed: true } => format!("{object}={size} zeroed"),
        Event::Allocate { object, size, align_log2, .. } => format!("{object}={size} at 2^{align_log2}"),
        Event::Free { object } => format!("free {object}"),
        Event::Reallocate { object, from, size } => format!("{object}={size} from {from}"),
    };
    trace.processes[process].steps().map(|step| (step.thread, short(step.event))).collect()
}

fn expect(trace: &Trace, process: usize, expected: &[(u32, &str)]) {
    let expected: Vec<_> = expected.iter().map(|&(thread, text)| (thread, text.to_string())).collect();
    assert_eq!(events(trace, process), expected);
}

#[test]
fn threads_are_merged_by_time() {
    let mut raw = Raw::new();
    // The address changes hands: freed here, allocated there, freed here.
    raw.chunk(ONE, &[malloc(10, 0x1000, 8), free(20, 0x1000), free(50, 0x1000)].concat());
    raw.chunk(OTHER, &[malloc(30, 0x1000, 16), malloc(40, 0x2000, 32)].concat());
    // A second chunk of the first thread.
    raw.chunk(ONE, &malloc(60, 0x3000, 64));
    expect(
        &raw.trace(),
        0,
        &[(0, "0=8"), (0, "free 0"), (1, "1=16"), (1, "2=32"), (0, "free 1"), (0, "3=64")],
    );
}

#[test]
fn at_the_same_time_what_ends_comes_first() {
    let mut raw = Raw::new();
    raw.chunk(ONE, &malloc(20, 0x1000, 16));
    raw.chunk(OTHER, &[malloc(10, 0x1000, 8), free(20, 0x1000)].concat());
    expect(&raw.trace(), 0, &[(0, "0=8"), (0, "free 0"), (1, "1=16")]);
}

#[test]
fn a_new_size_gives_its_address_up_before_it_has_another() {
    let mut raw = Raw::new();
    raw.chunk(ONE, &[malloc(10, 0x1000, 8), realloc(20, 0x1000, 99, 40, 0x2000), free(60, 0x2000)].concat());
    raw.chunk(OTHER, &[malloc(30, 0x1000, 16), free(50, 0x1000)].concat());
    expect(&raw.trace(), 0, &[(0, "0=8"), (1, "1=16"), (0, "2=99 from 0"), (1, "free 1"), (0, "free 2")]);
}

#[test]
fn what_was_there_before_is_left_out() {
    let mut raw = Raw::new();
    raw.chunk(ONE, &[free(10, 0x1000), realloc(20, 0x5000, 70, 21, 0x6000), free(30, 0x6000)].concat());
    let trace = raw.trace();
    expect(&trace, 0, &[(0, "0=70"), (0, "free 0")]);
    assert_eq!(trace.processes[0].unknown, 1);
}

#[test]
fn an_address_given_out_twice_was_freed_unseen() {
    let mut raw = Raw::new();
    raw.chunk(ONE, &[malloc(10, 0x1000, 8), malloc(20, 0x1000, 9), free(30, 0x1000)].concat());
    expect(&raw.trace(), 0, &[(0, "0=8"), (0, "1=9"), (0, "free 0"), (0, "free 1")]);
}

#[test]
fn kinds_and_alignments_are_kept() {
    let mut raw = Raw::new();
    let events = [
        vec![10, raw::place(Kind::Zeroed, 0, 0x1000), 5],
        vec![11, raw::place(Kind::Allocate, 12, 0x2000), 6],
        // A signal handler that allocated while that was being written.
        malloc(9, 0x3000, 7),
    ];
    raw.chunk(ONE, &events.concat());
    expect(&raw.trace(), 0, &[(0, "0=5 zeroed"), (0, "1=6 at 2^12"), (0, "2=7")]);
}

#[test]
fn an_event_half_written_is_the_end_of_a_chunk() {
    let mut raw = Raw::new();
    let mut half = malloc(0, 0x2000, 9);
    half.extend(malloc(15, 0x4000, 9));
    raw.chunk(ONE, &[malloc(10, 0x1000, 8), half].concat());
    raw.chunk((0, 0, 0, 0, 0), &[]);
    raw.chunk(ONE, &malloc(20, 0x3000, 8));
    expect(&raw.trace(), 0, &[(0, "0=8"), (0, "1=8")]);
}

/// As of a forked child that starts a thread and frees what it has of its parent last, or first.
#[test]
fn what_writes_nothing_begins_no_thread() {
    for unknown in [free(30, 0x1000), realloc(30, 0x1000, 9, 90, 0x5000)] {
        let mut raw = Raw::new();
        raw.chunk(ONE, &malloc(10, 0x2000, 7));
        raw.chunk(OTHER, &unknown);
        raw.refused = !80;
        expect(&raw.trace(), 0, &[(0, "0=7")]);
        assert_eq!(raw.trace().processes[0].facts.threads, 1);
    }
    let mut raw = Raw::new();
    raw.chunk(ONE, &free(10, 0x1000));
    raw.chunk(OTHER, &free(20, 0x1000));
    raw.chunk((1, 0, 2, 100, 50), &malloc(30, 0x2000, 7));
    raw.chunk((1, 0, 3, 100, 50), &free(40, 0x2000));
    expect(&raw.trace(), 0, &[(0, "0=7"), (1, "free 0")]);
    assert_eq!(raw.trace().processes[0].facts.threads, 2);
}

#[test]
fn processes_know_where_they_come_from() {
    let mut raw = Raw::new();
    raw.chunk(ONE, &malloc(10, 0x1000, 1));
    // Forked; then it became another program; and that started one, by vfork and exec.
    raw.chunk((2, 1, 0, 101, 100), &free(20, 0x1000));
    raw.chunk((3, 0, 0, 101, 100), &malloc(30, 0x1000, 3));
    raw.chunk((4, 0, 0, 102, 101), &malloc(40, 0x1000, 4));
    // Claimed a chunk, wrote nothing.
    raw.chunk((5, 1, 0, 103, 100), &[]);
    let trace = raw.trace();
    let parents: Vec<_> = trace.processes.iter().map(|process| process.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2)]);
    assert_eq!(trace.processes[1].unknown, 1);
    assert_eq!(trace.processes[3].name, "a program");
    let without = convert(&raw.file(), false).unwrap().trace;
    assert!(without.processes.iter().all(|process| process.name.is_empty()));
}

#[test]
fn nothing_counts_after_the_first_loss() {
    let mut raw = Raw::new();
    raw.chunk(ONE, &[malloc(10, 0x1000, 8), malloc(20, 0x2000, 8), free(30, 0x1000)].concat());
    raw.chunk((2, 0, 0, 101, 100), &malloc(40, 0x1000, 8));
    assert!(!raw.trace().truncated);
    raw.refused = !25;
    let trace = raw.trace();
    assert!(trace.truncated);
    assert_eq!(trace.processes.len(), 1);
    expect(&trace, 0, &[(0, "0=8"), (0, "1=8")]);
}

#[test]
fn what_is_no_recording_is_refused() {
    let complaint = |file: &File| convert(file, true).err().unwrap().to_string();
    let file = tempfile::tempfile().unwrap();
    assert!(complaint(&file).contains("too short"));
    file.set_len(1 << 20).unwrap();
    assert!(complaint(&file).contains("no recording"));
    let mut raw = Raw::new();
    raw.chunk(ONE, &[10, 0, 5]);
    assert!(format!("{:#}", convert(&raw.file(), true).err().unwrap()).contains("no known kind"));
    let cut = raw.file();
    cut.set_len(raw::file_size(0)).unwrap();
    assert!(complaint(&cut).contains("cut"));
    let mut raw = Raw::new();
    raw.chunk(ONE, &malloc(10, 0x1000, u64::MAX));
    assert!(format!("{:#}", convert(&raw.file(), true).err().unwrap()).contains("no machine"));
}
