//! Replays on a heap that checks what it is asked.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use hakmem_trace::{Builder, Options, ProcessTrace, Program, Touch, replay};
use hakmem_workloads::{Heap, Malloc};

/// Knows every live block with its size and alignment.
#[derive(Default)]
struct Checked {
    live: Mutex<HashMap<usize, (usize, usize)>>,
    threads: Mutex<HashSet<ThreadId>>,
    most: AtomicU64,
    allocated: AtomicU64,
    zeroed: AtomicU64,
    freed: AtomicU64,
    resized: AtomicU64,
    /// Allocations after this many fail, if it is not 0.
    enough: u64,
}

impl Checked {
    fn add(&self, block: *mut u8, size: usize, align: usize) -> *mut u8 {
        assert!(size > 0 && block as usize % align == 0);
        let mut live = self.live.lock().unwrap();
        assert!(live.insert(block as usize, (size, align)).is_none());
        self.most.fetch_max(live.len() as u64, Ordering::Relaxed);
        self.threads.lock().unwrap().insert(std::thread::current().id());
        block
    }

    fn remove(&self, block: *mut u8, size: usize, align: usize) {
        assert_eq!(self.live.lock().unwrap().remove(&(block as usize)), Some((size, align)));
    }

    fn counts(&self) -> [u64; 4] {
        [&self.allocated, &self.zeroed, &self.resized, &self.freed].map(|count| count.load(Ordering::Relaxed))
    }
}

// SAFETY: passes everything on to malloc.
unsafe impl Heap for Checked {
    fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        if self.enough != 0 && self.allocated.load(Ordering::Relaxed) >= self.enough {
            return std::ptr::null_mut();
        }
        self.allocated.fetch_add(1, Ordering::Relaxed);
        self.add(Malloc.allocate(size, align), size, align)
    }

    fn allocate_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        self.zeroed.fetch_add(1, Ordering::Relaxed);
        self.add(Malloc.allocate_zeroed(size, align), size, align)
    }

    unsafe fn free(&self, block: *mut u8, size: usize, align: usize) {
        self.freed.fetch_add(1, Ordering::Relaxed);
        self.remove(block, size, align);
        // SAFETY: passed on.
        unsafe { Malloc.free(block, size, align) };
    }

    unsafe fn reallocate(&self, block: *mut u8, size: usize, align: usize, new_size: usize) -> *mut u8 {
        self.resized.fetch_add(1, Ordering::Relaxed);
        self.remove(block, size, align);
        // SAFETY: passed on.
        self.add(unsafe { Malloc.reallocate(block, size, align, new_size) }, new_size, align)
    }
}

fn times(repeat: u32) -> Options {
    Options { repeat, touch: Touch::Pages }
}

/// Everything in an order of chance, by this many threads; the objects left over stay alive.
fn mixture(threads: u32, operations: u32, seed: u64) -> ProcessTrace {
    let mut state = seed;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut builder = Builder::new("mixture".into(), None);
    let mut live = Vec::new();
    for number in 0..operations {
        // Each thread takes part for some time only.
        let first = number * threads / operations / 2;
        builder.thread((first + next((threads - first).into()) as u32).min(threads - 1));
        let place = next(live.len().max(1) as u64) as usize;
        match next(5) {
            0 | 1 if !live.is_empty() => builder.free(live.swap_remove(place)),
            2 if !live.is_empty() => live[place] = builder.reallocate(live[place], 1 + next(10_000)),
            3 => live.push(builder.allocate(next(9_000), 4 + next(9) as u8, false)),
            what => live.push(builder.allocate(next(500), 0, what == 4)),
        }
    }
    builder.finish().unwrap()
}

#[test]
fn every_call_is_made_as_recorded() {
    for (threads, seed) in [(1, 1), (2, 2), (3, 3), (8, 4), (40, 5)] {
        let process = mixture(threads, 20_000, seed);
        let facts = &process.facts;
        let program = Program::new(&process).unwrap();
        for touch in [Touch::None, Touch::First, Touch::Pages, Touch::All] {
            let heap = Checked::default();
            let report = replay(&program, &heap, Options { touch, repeat: 1 }).unwrap();
            let left = facts.allocations - facts.frees;
            let expected = [
                facts.allocations - facts.zeroed,
                facts.zeroed,
                facts.reallocations,
                // What was still alive is freed after the measurement.
                facts.frees + left,
            ];
            assert_eq!(heap.counts(), expected, "{threads} threads");
            assert!(heap.live.lock().unwrap().is_empty());
            assert_eq!(heap.threads.lock().unwrap().len(), facts.threads as usize);
            assert_eq!((report.operations, report.live_after), (facts.operations(), facts.live_at_end));
            assert!(report.elapsed_ns > 0 && report.resident_before > 0 && report.resident_after > 0);
            assert!(report.figures.contains(&("peak_live".into(), facts.peak_live as f64)));
        }
    }
}

#[test]
fn repetitions_start_afresh() {
    let process = mixture(5, 5_000, 9);
    let heap = Checked::default();
    let report = replay(&Program::new(&process).unwrap(), &heap, times(3)).unwrap();
    assert_eq!(report.operations, 3 * process.facts.operations());
    assert_eq!(heap.counts()[2], 3 * process.facts.reallocations);
    assert!(heap.live.lock().unwrap().is_empty());
    assert!(replay(&Program::new(&process).unwrap(), &heap, times(0)).is_err());
}

#[test]
fn a_producer_does_not_run_away() {
    // One object at a time in the recording; who frees them has more to do.
    let mut builder = Builder::new(String::new(), None);
    for _ in 0..40_000 {
        builder.thread(0);
        let mut object = builder.allocate(100, 0, false);
        builder.thread(1);
        for size in 101..105 {
            object = builder.reallocate(object, size);
        }
        builder.free(object);
    }
    let heap = Checked::default();
    replay(&Program::new(&builder.finish().unwrap()).unwrap(), &heap, times(1)).unwrap();
    let most = heap.most.load(Ordering::Relaxed);
    // As many as are allocated in three spans: the two that may be open, and what the first of them began
    // with.
    assert!(most <= 3 * 1024 / 6 + 3, "{most} at a time");
}

#[test]
fn threads_that_come_and_go_are_joined() {
    let mut builder = Builder::new(String::new(), None);
    // More than there may be mappings, if their stacks stayed.
    for number in 0..40_000 {
        builder.thread(0);
        let object = builder.allocate(64, 0, false);
        builder.thread(number + 1);
        builder.free(object);
    }
    let heap = Checked::default();
    let report = replay(&Program::new(&builder.finish().unwrap()).unwrap(), &heap, times(1)).unwrap();
    assert_eq!(report.operations, 80_000);
    assert_eq!(heap.counts(), [40_000, 0, 0, 40_000]);
}

#[test]
fn a_heap_without_memory_is_an_error_and_not_the_end() {
    let program = Program::new(&mixture(4, 10_000, 11)).unwrap();
    let heap = Checked { enough: 500, ..Checked::default() };
    let error = replay(&program, &heap, times(1)).unwrap_err().to_string();
    assert!(error.contains("bytes failed"), "{error}");
}

#[test]
fn what_is_not_made_ready_is_not_replayed() {
    let file = Program::file().unwrap();
    assert!(Program::load(&file, 0).is_err());
    let (one, two) = (mixture(1, 100, 1), mixture(3, 5_000, 2));
    Program::save([&one, &two], &file).unwrap();
    assert_eq!(Program::count(&file).unwrap(), 2);
    assert_eq!(Program::load(&file, 1).unwrap().operations(), two.facts.operations());
    assert!(Program::load(&file, 2).is_err());
    // Nothing at all.
    let nothing = Program::new(&Builder::new(String::new(), None).finish().unwrap()).unwrap();
    assert_eq!(replay(&nothing, &Malloc, times(1)).unwrap().operations, 0);
}
