//! Asks a process that runs for a profile: writes to a few words in its copy of Hakmem, at which that looks
//! when it next takes memory from a slab. The process is not stopped, and gets no signal.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;
use nix::sys::signal::{SigSet, Signal};

use crate::sys;

/// The name of the pointer to the words, in `libhakmem.so`.
const SYMBOL: &str = "__hak_control";
/// The words begin with this.
const MAGIC: &[u8; 8] = b"HAKCTRL1";
/// Where they are, from the first byte of [`MAGIC`]: `src/api/control.rs` has their meaning.
mod at {
    pub const REQUEST: u64 = 8;
    pub const STATE: u64 = 12;
    pub const RATE: u64 = 16;
    pub const INTERVAL: u64 = 24;
    pub const PREFIX: u64 = 32;
}
const START: u32 = 1;
const STOP: u32 = 2;
const RUNNING: u32 = 1;
const ENDED: u32 = 2;

/// How often to look.
const LOOK: Duration = Duration::from_millis(20);
/// After this long without an answer the user is told why there may be none.
const PATIENCE: Duration = Duration::from_secs(3);

/// A process that can be asked.
pub struct Process {
    pid: i32,
    words: u64,
}

/// Why waiting has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Waited {
    /// The process has answered, or the time is over.
    Done,
    /// The user has had enough (SIGINT, SIGTERM).
    Stopped,
    /// The process has ended.
    Gone,
}

impl Process {
    /// Finds Hakmem in a process.
    pub fn find(pid: i32) -> anyhow::Result<Self> {
        let maps =
            std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|error| refused(pid, &error))?;
        let mut seen: Vec<&str> = Vec::new();
        for line in maps.lines() {
            // The path begins behind five fields and is the rest of the line.
            let Some(path) = line.find('/').map(|at| &line[at..]) else { continue };
            if seen.contains(&path) {
                continue;
            }
            seen.push(path);
            let start = line.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok());
            // As the process sees it, which may be in a container.
            let file = PathBuf::from(format!("/proc/{pid}/root{path}"));
            if let (Some(start), Some(offset)) = (start, symbol(&file)) {
                let process = Self { pid, words: 0 };
                let mut pointer = [0; 8];
                process.read(start + offset, &mut pointer)?;
                let process = Self { pid, words: u64::from_le_bytes(pointer) };
                let mut magic = [0; 8];
                process.read(process.words, &mut magic)?;
                ensure!(&magic == MAGIC, "process {pid}: {path} is of another version than this command");
                return Ok(process);
            }
        }
        bail!(
            "process {pid} does not run on Hakmem's library: start it with `hakmem run`, or with LD_PRELOAD set to \
             what `hakmem lib` prints; if it has Hakmem built in, start it with `hakmem profile -- PROGRAM`"
        )
    }

    /// Asks for a profile, and waits until it has begun. `say` is called once if that takes long.
    pub fn start(
        &self,
        prefix: &Path,
        rate: u64,
        interval: Duration,
        say: impl FnOnce(&str),
    ) -> anyhow::Result<Waited> {
        let mut path = prefix.as_os_str().as_bytes().to_vec();
        path.push(0);
        self.write(self.words + at::PREFIX, &path)?;
        self.write(self.words + at::RATE, &rate.to_le_bytes())?;
        let interval = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        self.write(self.words + at::INTERVAL, &interval.to_le_bytes())?;
        self.ask(START)?;
        let waited = self.wait(None, say, |state| state != 0)?;
        if waited != Waited::Done {
            // So that it does not begin later.
            let _ = self.write(self.words + at::REQUEST, &0u32.to_le_bytes());
            return Ok(waited);
        }
        match self.state()? {
            RUNNING => Ok(waited),
            // The numbers of `hakmem::profile::Error`.
            17 => {
                bail!("process {}: there is a profile already; stop it first, or wait for its end", self.pid)
            }
            _ => bail!(
                "process {}: it has no memory for a profile, or may make few system calls only",
                self.pid
            ),
        }
    }

    /// Ends the profile, and waits until that is written, but no longer than `limit`.
    pub fn stop(&self, limit: Duration) -> anyhow::Result<Waited> {
        self.ask(STOP)?;
        self.wait(Some(limit), |_| (), |state| state == ENDED)
    }

    /// Waits for `time`.
    pub fn sleep(&self, time: Duration) -> anyhow::Result<Waited> {
        self.wait(Some(time), |_| (), |_| false)
    }

    fn ask(&self, request: u32) -> anyhow::Result<()> {
        self.write(self.words + at::STATE, &0u32.to_le_bytes())?;
        self.write(self.words + at::REQUEST, &request.to_le_bytes())
    }

    fn state(&self) -> anyhow::Result<u32> {
        let mut state = [0; 4];
        self.read(self.words + at::STATE, &mut state)?;
        Ok(u32::from_le_bytes(state))
    }

    fn wait(
        &self,
        limit: Option<Duration>,
        say: impl FnOnce(&str),
        done: impl Fn(u32) -> bool,
    ) -> anyhow::Result<Waited> {
        let mut signals = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM].into_iter().for_each(|signal| signals.add(signal));
        signals.thread_block().context("cannot wait for signals")?;
        let (start, mut say) = (Instant::now(), Some(say));
        loop {
            if sys::next_signal(&signals, true).is_some() {
                return Ok(Waited::Stopped);
            }
            // A process that has ended has no memory any more.
            let Ok(state) = self.state() else { return Ok(Waited::Gone) };
            if done(state) || limit.is_some_and(|limit| start.elapsed() >= limit) {
                return Ok(Waited::Done);
            }
            if limit.is_none() && start.elapsed() >= PATIENCE {
                if let Some(say) = say.take() {
                    say(
                        "waiting: the process begins when it next takes memory that its threads do not have at hand",
                    );
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    fn read(&self, address: u64, to: &mut [u8]) -> anyhow::Result<()> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
        // SAFETY: writes to `to` only; what is read is another process's.
        let n = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        self.check(n, to.len())
    }

    fn write(&self, address: u64, from: &[u8]) -> anyhow::Result<()> {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: from.len() };
        // SAFETY: reads `from` only. What is written belongs to another process, and is there to be written.
        let n = unsafe { libc::process_vm_writev(self.pid, &local, 1, &remote, 1, 0) };
        self.check(n, from.len())
    }

    fn check(&self, n: isize, len: usize) -> anyhow::Result<()> {
        if n == len as isize {
            return Ok(());
        }
        let error = if n < 0 { io::Error::last_os_error() } else { io::ErrorKind::UnexpectedEof.into() };
        Err(refused(self.pid, &error))
    }
}

/// What to do about an error that stands between us and a process.
fn refused(pid: i32, error: &io::Error) -> anyhow::Error {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => anyhow::anyhow!("there is no process {pid}"),
        Some(libc::EPERM | libc::EACCES) => anyhow::anyhow!(
            "process {pid} is another user's, or protected: run this as its user or as root (and see \
             /proc/sys/kernel/yama/ptrace_scope)"
        ),
        _ => anyhow::anyhow!("process {pid}: {error}"),
    }
}

/// Where the pointer to the words is, from the library's first byte in memory.
fn symbol(file: &Path) -> Option<u64> {
    let bytes = std::fs::read(file).ok()?;
    let elf = Elf::parse(&bytes).ok()?;
    let first = elf.program_headers.iter().find(|header| header.p_type == PT_LOAD)?.p_vaddr & !0xfff;
    let symbol = elf.dynsyms.iter().find(|symbol| elf.dynstrtab.get_at(symbol.st_name) == Some(SYMBOL))?;
    Some(symbol.st_value - first)
}
