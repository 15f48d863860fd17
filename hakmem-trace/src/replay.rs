//! Replaying a program on a heap.

use std::ffi::c_void;
use std::io::Read;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use hakmem_workloads::{Heap, Report};

use crate::memory::Mapping;
use crate::pace::{Pace, futex};
use crate::program::{Kind, Op, Program, SHARED};

/// The figures that [`replay`] puts into [`Report::figures`]: key, label, unit.
pub const FIGURES: [(&str, &str, &str); 3] = [
    ("threads", "threads", "count"),
    ("peak_live", "bytes in live objects at the peak", "bytes"),
    ("own", "memory of the replay itself, part of what is resident", "bytes"),
];

/// What is written to each new object. The recording does not say what the program wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    /// Nothing.
    None,
    /// The first byte.
    First,
    /// The first byte and one in every 4 KiB: so every page becomes resident.
    #[default]
    Pages,
    /// Every byte.
    All,
}

/// How to replay.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is written to each object.
    pub touch: Touch,
    /// How often, at least once; after each time what is still alive is freed, off the clock.
    pub repeat: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { touch: Touch::default(), repeat: 1 }
    }
}

/// Replays `program`: as many threads as were recorded, each started where it made its first call and ended
/// after its last one, each with its own calls in their order; across threads see `pace`. The calling thread
/// is the first of them.
///
/// Objects are allocated, written to as [`Options::touch`] says, given new sizes (with alignment, which C's
/// `realloc` does not keep, where there was one) and freed as in the recording. The bookkeeping is outside of
/// the heap.
///
/// An allocation that fails is an error, after the replay. Where a thread cannot be started the process ends
/// with a line on standard error: the others could only wait for it.
pub fn replay<H: Heap>(program: &Program, heap: &H, options: Options) -> anyhow::Result<Report> {
    ensure!(options.repeat > 0, "nothing to do: 0 times");
    let (threads, spans, slots) = (program.threads(), program.spans(), program.slots());
    let memory = |bytes| Mapping::zeros(bytes).context("no memory for the replay's tables");
    let table = memory(slots * 8)?;
    let counters = memory(spans.len() * 4)?;
    let crew_memory = memory(threads * size_of::<Member>())?;
    // SAFETY: atomic numbers and pointers, for which zeros are valid.
    let (table, counters, members) =
        unsafe { (table.slice(0, slots), counters.slice(0, spans.len()), crew_memory.slice(0, threads)) };
    let stage = Stage {
        program,
        heap,
        touch: options.touch,
        table,
        pace: Pace(counters),
        members,
        done: AtomicU32::new(0),
        ended: AtomicU32::new(0),
        out_of_memory: AtomicU64::new(0),
    };
    let mut report =
        Report { resident_before: resident()?, live_after: program.live_at_end(), ..Report::default() };
    for _ in 0..options.repeat {
        for (counter, &count) in counters.iter().zip(spans) {
            // Relaxed: no other thread runs.
            counter.store(count, Ordering::Relaxed);
        }
        report.elapsed_ns += stage.perform()?;
        report.operations += program.operations();
        report.resident_after = resident()?;
        // What is still alive.
        stage.run(threads);
    }
    report.figures = vec![
        ("threads".into(), threads as f64),
        ("peak_live".into(), program.peak_live() as f64),
        ("own".into(), program.own_bytes() as f64),
    ];
    Ok(report)
}

/// What a thread's entry in the crew holds.
#[repr(C)]
struct Member {
    stage: AtomicPtr<c_void>,
    handle: AtomicU64,
    /// The next in the list of those done, as number + 1.
    next: AtomicU32,
    number: AtomicU32,
}

/// All that the threads share.
struct Stage<'a, H> {
    program: &'a Program,
    heap: &'a H,
    touch: Touch,
    table: &'a [AtomicPtr<u8>],
    pace: Pace<'a>,
    members: &'a [Member],
    /// The list of threads that are done and not yet joined, as number + 1; the memory of their stacks is
    /// theirs until then.
    done: AtomicU32,
    /// How many are done.
    ended: AtomicU32,
    /// The size of an allocation that failed.
    out_of_memory: AtomicU64,
}

/// Put into a slot where the allocation failed, so that nobody waits for it.
const FAILED: *mut u8 = std::ptr::dangling_mut();

impl<H: Heap> Stage<'_, H> {
    /// Once through, on the calling thread and those it starts; returns the nanoseconds.
    fn perform(&self) -> anyhow::Result<u64> {
        let others = self.members.len() as u32 - 1;
        let start = Instant::now();
        self.run(0);
        loop {
            // Acquire: pairs with the Release in `body`.
            match self.ended.load(Ordering::Acquire) {
                ended if ended == others => break,
                ended => futex(&self.ended, libc::FUTEX_WAIT, ended),
            }
        }
        let elapsed = start.elapsed().as_nanos() as u64;
        self.join();
        self.ended.store(0, Ordering::Relaxed);
        let failed = self.out_of_memory.load(Ordering::Relaxed);
        ensure!(failed == 0, "an allocation of {failed} bytes failed");
        Ok(elapsed)
    }

    /// The operations of one thread.
    fn run(&self, thread: usize) {
        let mut ops = self.program.ops(thread).iter();
        while let Some(&op) = ops.next() {
            match op.kind() {
                Kind::Allocate => self.put(op, self.heap.allocate(op.size(), op.align()), 0),
                Kind::Zeroed => self.put(op, self.heap.allocate_zeroed(op.size(), op.align()), 0),
                Kind::Free => {
                    if let Some(block) = self.take(op.slot) {
                        // SAFETY: live, as it was in the slot; `Program` gives it the size and alignment it
                        // was made with.
                        unsafe { self.heap.free(block, op.size(), op.align()) };
                    }
                }
                Kind::Reallocate => {
                    let old_size = ops.next().expect("it has its old size behind it").size();
                    let new = match self.take(op.from) {
                        // SAFETY: as above; no size is 0.
                        Some(old) => unsafe { self.heap.reallocate(old, old_size, op.align(), op.size()) },
                        None => std::ptr::null_mut(),
                    };
                    self.put(op, new, old_size);
                }
                Kind::Start => self.start(op.slot as usize),
                Kind::Enter => self.pace.enter(op.slot),
                Kind::Leave => self.pace.leave(op.slot),
                Kind::OldSize => unreachable!("read with what is before it"),
            }
        }
    }

    /// Writes to a new block, of which the first `kept` bytes are older, and puts it into its slot.
    #[inline(always)]
    fn put(&self, op: Op, mut block: *mut u8, kept: usize) {
        let size = op.size();
        if block.is_null() {
            self.out_of_memory.store(size as u64, Ordering::Relaxed);
            block = FAILED;
        } else if kept < size {
            // SAFETY: within the block, which is this thread's own so far.
            unsafe { touch(self.touch, block, kept, size) };
        }
        // Release: pairs with the Acquire in `take`, for what is written in the block.
        self.table[(op.slot & !SHARED) as usize].store(block, Ordering::Release);
    }

    /// Takes a block out of its slot; `None` where its allocation had failed. Waits for one that another
    /// thread makes: it is being made, or soon will be (`pace`), so this spins and lets others run.
    #[inline(always)]
    fn take(&self, slot: u32) -> Option<*mut u8> {
        let place = &self.table[(slot & !SHARED) as usize];
        // Acquire: pairs with the Release in `put`.
        let mut block = place.load(Ordering::Acquire);
        if slot & SHARED != 0 {
            let mut spins = 0;
            while block.is_null() {
                spins += 1;
                if spins % 64 == 0 {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
                block = place.load(Ordering::Acquire);
            }
            // For the next repetition. Relaxed: nobody else looks at it in this one.
            place.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
        (block != FAILED).then_some(block)
    }

    /// Starts a thread, by the C library alone: Rust's threads allocate.
    fn start(&self, thread: usize) {
        self.join();
        let member = &self.members[thread];
        // Relaxed: starting a thread orders what comes before it.
        member.stage.store(std::ptr::from_ref(self).cast_mut().cast(), Ordering::Relaxed);
        member.number.store(thread as u32, Ordering::Relaxed);
        let mut handle = 0;
        // SAFETY: `body` takes what it is given: a member, whose stage outlives the thread, as `perform`
        // joins it.
        let error = unsafe {
            libc::pthread_create(
                &mut handle,
                std::ptr::null(),
                body::<H>,
                std::ptr::from_ref(member).cast_mut().cast(),
            )
        };
        if error != 0 {
            eprintln!("hakmem: replay: cannot start a thread: {}", std::io::Error::from_raw_os_error(error));
            std::process::exit(1);
        }
        // Release: pairs with the Acquire in `join`.
        member.handle.store(handle, Ordering::Release);
    }

    /// Joins the threads that are done, so that their stacks serve others.
    fn join(&self) {
        // Acquire: pairs with the Release in `body`.
        let mut next = self.done.swap(0, Ordering::Acquire);
        while next != 0 {
            let member = &self.members[next as usize - 1];
            next = member.next.load(Ordering::Relaxed);
            let mut handle = 0;
            while handle == 0 {
                // It may be done before whoever started it has written this down.
                // Acquire: pairs with the Release in `start`.
                handle = member.handle.swap(0, Ordering::Acquire);
                if handle == 0 {
                    std::thread::yield_now();
                }
            }
            // SAFETY: a thread that was started joinable, and once, as its handle was taken away.
            unsafe { libc::pthread_join(handle, std::ptr::null_mut()) };
        }
    }
}

/// A thread of the replay.
extern "C" fn body<H: Heap>(member: *mut c_void) -> *mut c_void {
    // SAFETY: `start` passes a member whose stage is of this type; both live until the thread is joined.
    let (member, stage) = unsafe {
        let member = &*member.cast::<Member>();
        (member, &*member.stage.load(Ordering::Relaxed).cast::<Stage<'_, H>>())
    };
    let number = member.number.load(Ordering::Relaxed);
    stage.run(number as usize);
    let mut head = stage.done.load(Ordering::Relaxed);
    loop {
        member.next.store(head, Ordering::Relaxed);
        // Release: pairs with the Acquire in `join`. (The list is only ever taken whole, so nothing comes
        // back to its head.)
        match stage.done.compare_exchange_weak(head, number + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => head = now,
        }
    }
    // Release: pairs with the Acquire in `perform`, which joins after it, so `stage` is still there for the
    // wake-up.
    if stage.ended.fetch_add(1, Ordering::Release) + 2 == stage.members.len() as u32 {
        futex(&stage.ended, libc::FUTEX_WAKE, 1);
    }
    std::ptr::null_mut()
}

/// Writes to the bytes from `kept` to `size` of a block, which are some.
///
/// # Safety
///
/// They are the caller's.
#[inline(always)]
unsafe fn touch(touch: Touch, block: *mut u8, kept: usize, size: usize) {
    const STEP: usize = 4096;
    // SAFETY: each write is within the bytes. Volatile: the compiler knows what malloc is and would drop
    // them.
    unsafe {
        match touch {
            Touch::None => {}
            Touch::First if kept > 0 => {}
            Touch::First => block.write_volatile(1),
            Touch::Pages => {
                block.add(kept).write_volatile(1);
                for offset in (kept.next_multiple_of(STEP).max(STEP)..size).step_by(STEP) {
                    block.add(offset).write_volatile(1);
                }
            }
            Touch::All => {
                block.add(kept).write_bytes(1, size - kept);
                std::hint::black_box(block);
            }
        }
    }
}

/// Resident bytes of this process. Does not use the heap.
fn resident() -> anyhow::Result<u64> {
    let mut buffer = [0; 128];
    let len = std::fs::File::open("/proc/self/statm").and_then(|mut file| file.read(&mut buffer));
    let text = std::str::from_utf8(&buffer[..len.context("/proc/self/statm")?])?;
    let pages: u64 = text.split(' ').nth(1).context("/proc/self/statm")?.parse()?;
    // SAFETY: asks for a number.
    Ok(pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64)
}
