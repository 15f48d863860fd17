//! Runs a program of several threads, and checks it.

use crate::block::{self, Block};
use crate::faults;
use crate::functions::Functions;
use crate::hand::Hand;
use crate::operations::{Free, Operation, Profile, Program, Request, THREADS};
use crate::threads::{run_in_turn, run_together};
use hakmem::Hakmem;
use std::ffi::CString;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The allocator in its Rust form.
pub(crate) static HAKMEM: Hakmem = Hakmem::new();

const SUPERSLAB: usize = 2 << 20;

/// What a program may do, beside allocating.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // Each is what its name says.
pub struct Allowed {
    /// How many.
    pub forks: usize,
    /// The binary has [interposed](crate::interpose) the calls.
    pub faults: bool,
    pub limits: bool,
    pub background: bool,
    pub profiles: bool,
    pub figures: bool,
    /// Blocks of one [`Operation::Many`].
    pub most_at_once: usize,
    /// Bytes of a block.
    pub largest: usize,
    /// Bytes of all blocks together.
    pub most_bytes: usize,
}

impl Allowed {
    /// All there is.
    pub const ALL: Allowed = Allowed {
        forks: 2,
        faults: true,
        limits: true,
        background: true,
        profiles: true,
        figures: true,
        most_at_once: 1024,
        largest: 12 << 20,
        most_bytes: 48 << 20,
    };

    /// What Miri can run, in bearable time.
    pub const MIRI: Allowed = Allowed {
        forks: 0,
        faults: false,
        limits: true,
        background: false,
        profiles: false,
        figures: true,
        most_at_once: 24,
        largest: 3000,
        most_bytes: 1 << 20,
    };
}

/// What a program has done.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // Each is what its name says.
pub struct Report {
    pub operations: usize,
    /// Allocations that were refused, as they may be with limits and failing calls.
    pub refused: usize,
    /// Bytes that the allocator holds at the end, when nothing is in use and it was asked to give back what
    /// it can.
    pub held: u64,
}

/// Whether there has been a session in this process.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// What the threads of one run share.
pub(crate) struct Session {
    pub(crate) functions: Functions,
    pub(crate) allowed: Allowed,
    in_turn: bool,
    mailboxes: Vec<Mutex<Vec<Block>>>,
    /// Whether a hard limit may refuse memory.
    pub(crate) refusing: AtomicBool,
    /// Whether there has ever been one: another thread may set it, and remove it, while an allocation runs.
    has_refused: AtomicBool,
    /// What may be held at most, if the limits have not been changed since it was.
    most_held: AtomicU64,
    has_background: AtomicBool,
    /// Whether calls to the system were made to fail.
    pub(crate) has_failed: AtomicBool,
    /// Bytes held when it began.
    held_before: u64,
    /// Bytes of live blocks.
    pub(crate) bytes: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    forks: AtomicUsize,
    pub(crate) done: AtomicUsize,
}

impl Session {
    fn new(functions: Functions, allowed: Allowed, in_turn: bool, threads: usize) -> Self {
        Self {
            functions,
            allowed,
            in_turn,
            mailboxes: (0..threads).map(|_| Mutex::default()).collect(),
            refusing: AtomicBool::new(false),
            has_refused: AtomicBool::new(false),
            most_held: AtomicU64::new(u64::MAX),
            // By the option it begins as soon as there is something to do; what ends a session stops it.
            has_background: AtomicBool::new(
                !HAS_BEGUN.swap(true, Relaxed)
                    && std::env::var("HAKMEM_BACKGROUND").is_ok_and(|value| value != "off"),
            ),
            has_failed: AtomicBool::new(false),
            held_before: if functions.are_the_core() { hakmem::stats().bytes_held } else { 0 },
            bytes: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            forks: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }

    pub(crate) fn mailbox(&self, number: usize) -> &Mutex<Vec<Block>> {
        &self.mailboxes[number % self.mailboxes.len()]
    }

    /// Whether another thread's limit may have refused memory meanwhile.
    pub(crate) fn may_have_refused(&self) -> bool {
        !self.in_turn && self.has_refused.load(Relaxed)
    }

    /// Whether a block of `size` bytes more is not too much.
    pub(crate) fn has_room(&self, size: usize) -> bool {
        self.bytes.load(Relaxed) + size <= self.allowed.most_bytes
    }

    /// Whether there may be one child more.
    pub(crate) fn may_fork(&self) -> bool {
        self.forks.fetch_add(1, Relaxed) < self.allowed.forks
    }

    /// The request that is made instead of one that these functions do not have.
    pub(crate) fn translated(&self, request: Request) -> Request {
        match (self.functions.are_the_core(), request) {
            (true, Request::New) => Request::Malloc,
            (true, Request::NewNothrow) => Request::Calloc,
            (true, Request::NewAligned) => Request::AlignedAlloc,
            (false, Request::Rust) => Request::New,
            (false, Request::RustZeroed) => Request::NewAligned,
            (_, request) => request,
        }
    }

    /// An operation that concerns the whole process.
    pub(crate) fn of_the_process(&self, operation: &Operation) {
        let (f, allowed) = (&self.functions, &self.allowed);
        match *operation {
            Operation::Purge => {
                // SAFETY: no preconditions.
                unsafe { (f.purge)() };
            }
            Operation::Figures if allowed.figures && f.are_the_core() => self.figures(),
            Operation::Limits(soft, hard) if allowed.limits => self.limits(soft, hard),
            Operation::Background(on) if allowed.background => {
                self.has_background.fetch_or(on, Relaxed);
                // SAFETY: no preconditions.
                unsafe {
                    if on {
                        // The system may refuse a thread.
                        let _ = (f.background_start)();
                    } else {
                        (f.background_stop)();
                    }
                }
            }
            Operation::Profile(what) if allowed.profiles => profile(f, what),
            Operation::Wait => thread::sleep(std::time::Duration::from_millis(2)),
            _ => (),
        }
    }

    /// While nobody else is at work all figures are exact: blocks are those of the map, and the sums hold.
    fn figures(&self) {
        let stats = hakmem::stats();
        let classes = hakmem::class_stats();
        if !self.in_turn || self.has_background.load(Relaxed) || block::has_no_map() {
            return;
        }
        let blocks: u64 = classes.iter().map(|class| class.blocks).sum();
        assert_eq!(blocks + stats.guard_blocks, block::live() as u64, "blocks in {stats:?}");
        let sum = stats.allocated_bytes
            + stats.cached_bytes
            + stats.free_bytes
            + stats.fresh_bytes
            + stats.slack_bytes;
        assert_eq!(stats.active_bytes, sum, "{stats:?}");
        assert!(stats.allocated_bytes >= self.bytes.load(Relaxed) as u64, "{stats:?}");
        let most = self.most_held.load(Relaxed);
        assert!(stats.bytes_held <= most, "{} bytes held, of {most}", stats.bytes_held);
    }

    fn limits(&self, soft: u8, hard: u8) {
        let core = self.functions.are_the_core();
        let held = if core { hakmem::stats().bytes_held as usize } else { 1 << 30 };
        let limit = |n: u8| match n {
            0..64 => 0,
            64..224 => held + usize::from(n % 16) * SUPERSLAB,
            _ => (held / 2).max(1),
        };
        let (soft, hard) = (limit(soft), limit(hard));
        if core {
            hakmem::on_soft_limit((soft % 4096 == 0).then_some(on_crossing));
        }
        let is_valid = soft == 0 || hard == 0 || soft <= hard;
        // Before it may refuse, and after it cannot any more.
        if is_valid && hard != 0 {
            self.has_refused.store(true, Relaxed);
            self.refusing.store(true, Relaxed);
        }
        // SAFETY: no preconditions.
        assert_eq!(unsafe { (self.functions.set_limits)(soft, hard) } == 0, is_valid);
        if is_valid {
            let most = if hard == 0 { u64::MAX } else { hard.max(held) as u64 };
            self.most_held.store(most, Relaxed);
            if hard == 0 && self.in_turn {
                self.refusing.store(false, Relaxed);
            }
        }
    }

    /// Frees what is left, ends what was begun, and looks whether anything is lost.
    fn finish(&self, mut rest: Hand) -> Report {
        faults::plan(0, 0, 0);
        for mailbox in &self.mailboxes {
            rest.blocks.append(&mut mailbox.lock().unwrap());
        }
        for block in std::mem::take(&mut rest.blocks) {
            rest.free(block, Free::Plain);
        }
        drop(rest);
        let f = &self.functions;
        // SAFETY: none of these has preconditions.
        unsafe {
            if self.allowed.background {
                (f.background_stop)();
            }
            if self.allowed.profiles {
                (f.profile_stop)();
            }
            (f.set_limits)(0, 0);
            (f.purge)();
        }
        assert_eq!(block::live(), 0);
        let mut report = Report {
            operations: self.done.load(Relaxed),
            refused: self.refused.load(Relaxed),
            ..Report::default()
        };
        if f.are_the_core() {
            hakmem::on_soft_limit(None);
            let stats = hakmem::stats();
            assert_eq!(stats.allocated_bytes, 0, "everything was freed: {stats:?}");
            assert_eq!(stats.large_allocs, stats.large_frees);
            // What was to be unmapped, and neither was nor could be noted, is lost.
            if !self.has_failed.load(Relaxed) {
                assert!(stats.bytes_held <= self.held_before, "{} bytes before: {stats:?}", self.held_before);
            }
            report.held = stats.bytes_held;
        }
        report
    }
}

/// The hook may allocate.
fn on_crossing(held: usize, limit: usize) {
    use std::alloc::{GlobalAlloc, Layout};
    assert!(held > limit && limit > 0);
    let layout = Layout::from_size_align(1 + held % 3000, 8).unwrap();
    // SAFETY: the size is not zero; allocated just now.
    unsafe {
        let block = HAKMEM.alloc(layout);
        if !block.is_null() {
            HAKMEM.dealloc(block, layout);
        }
    }
}

fn profile(f: &Functions, what: Profile) {
    const EXPECTED: [i32; 4] = [0, libc::EALREADY, libc::ESRCH, libc::ENOMEM];
    // One after another, as they have one file.
    static WRITES: Mutex<()> = Mutex::new(());
    // A mapping that fails is no memory for the file's contents.
    let may_fail = faults::are_planned();
    let error = match what {
        // SAFETY: any rate.
        Profile::Start(rate) => unsafe { (f.profile_start)(rate) },
        Profile::Stop => {
            // SAFETY: no preconditions.
            unsafe { (f.profile_stop)() };
            0
        }
        Profile::Write if block::has_no_map() => 0,
        Profile::Write => {
            let _alone = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
            let path = std::env::temp_dir().join(format!("hakmem-shadow-{}.hakprof", std::process::id()));
            let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
            // SAFETY: a C string.
            let error = unsafe { (f.profile_write)(name.as_ptr()) };
            let _ = std::fs::remove_file(path);
            if may_fail { 0 } else { error }
        }
    };
    assert!(EXPECTED.contains(&error), "{what:?}: error {error}");
}

impl Hand<'_> {
    /// Does the operations in the child of a fork, where nobody else is.
    pub(crate) fn run_in_child(&mut self, operations: &[Operation]) {
        for operation in operations {
            match operation {
                // Others may have held those locks; and there is no end to children's children.
                Operation::Give(..) | Operation::Take(_) | Operation::Fork(_) | Operation::Exit(_) => (),
                operation => drop(self.run(std::slice::from_ref(operation))),
            }
        }
    }
}

/// One run at a time: the allocator's figures are of the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a program.
pub fn run(program: Program, functions: &Functions, allowed: Allowed) -> Report {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let session = Session::new(*functions, allowed, program.in_turn, THREADS);
    let rest = if program.in_turn {
        run_in_turn(&session, program.parts)
    } else {
        let mut lanes: [Vec<Vec<Operation>>; THREADS] = Default::default();
        program.parts.into_iter().for_each(|(number, part)| lanes[number].push(part));
        let nexts = lanes.map(|lane| {
            let mut parts = lane.into_iter();
            move || parts.next()
        });
        run_together(&session, nexts.into())
    };
    session.finish(rest)
}

/// Runs as many threads as there are sources of operations, each until its own has no more.
pub fn run_all(
    sources: Vec<impl FnMut() -> Option<Vec<Operation>> + Send>,
    functions: &Functions,
    allowed: Allowed,
) -> Report {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let session = Session::new(*functions, allowed, false, sources.len());
    let rest = run_together(&session, sources);
    session.finish(rest)
}
