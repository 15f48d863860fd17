//! Asks a process that runs for a profile, or for statistics (`stats`): writes to a few words in its copy of
//! Hakmem (`image` finds it), at which that looks when it next takes memory from a slab. The process is not
//! stopped, and gets no signal.

mod image;
pub mod stats;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use crate::{report, sys};

/// The name of the pointer to the words, in `libhakmem.so`.
const SYMBOL: &str = "__hak_control";
/// The words begin with this.
pub const MAGIC: &[u8; 8] = b"HAKCTRL2";
/// Where they are, from the first byte of [`MAGIC`]: `src/api/control.rs` has their meaning.
mod at {
    pub const REQUEST: u64 = 8;
    pub const STATE: u64 = 12;
    pub const RATE: u64 = 16;
    pub const INTERVAL: u64 = 24;
    pub const PREFIX: u64 = 32;
    pub const RUNNING: u64 = 288;
    /// What is for statistics, and in that:
    pub const STATS: u64 = 1568;
    pub const ASKED: u64 = STATS + 8;
}
/// Bytes from [`at::RUNNING`] on.
const LONGEST: usize = 1280;
const START: u8 = 1;
const STOP: u8 = 2;
const RUNNING: u32 = 1;
const ENDED: u32 = 2;
// The numbers of `hakmem::profile::Error`.
const REFUSED_RUNNING: u32 = 17;
const REFUSED_NOT_RUNNING: u32 = 18;

/// How often to look.
pub const LOOK: Duration = Duration::from_millis(20);
/// How long a process may take to load the library.
pub const LOADING: Duration = Duration::from_secs(2);
/// After this long without an answer the user is told why there may be none.
const PATIENCE: Duration = Duration::from_secs(3);

/// A process that can be asked.
pub struct Process {
    pid: i32,
    words: u64,
    /// Locked while this asks for a profile, and waits for its end.
    turn: Option<Flock<File>>,
}

/// Why waiting has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Waited {
    /// The process has answered, or the time is over.
    Done,
    /// The user has had enough (SIGINT, SIGTERM, SIGQUIT), or has gone (SIGHUP).
    Stopped,
    /// The process has ended.
    Gone,
}

impl Process {
    /// Finds Hakmem in a process. One that was just started has time to load it. `built_in` is what to do
    /// with a program that has it built in.
    pub fn find(pid: i32, built_in: &str) -> anyhow::Result<Self> {
        loop {
            // Asked before: who is old enough then and does not have it will not load it any more.
            let young = age(pid).is_some_and(|age| age < LOADING);
            if let Some(process) = Self::find_now(pid)? {
                return Ok(process);
            }
            ensure!(
                young,
                "process {pid} does not run on Hakmem's library: start it with `hakmem run`, or with LD_PRELOAD set \
                 to what `hakmem lib` prints; if it has Hakmem built in, {built_in}"
            );
            std::thread::sleep(LOOK);
        }
    }

    /// The same, of one that has it now.
    pub fn find_now(pid: i32) -> anyhow::Result<Option<Self>> {
        let maps = sys::proc_text(pid, "maps").map_err(|error| refused(pid, &error))?;
        let mut wrong = None;
        for line in maps.lines() {
            // A file may have been mapped as data, too, before or behind the library: each place where it
            // begins is looked at. The path begins behind five fields and is the rest of the line.
            let Some(path) = line.find('/').map(|at| &line[at..]) else { continue };
            let mut fields = line.split(' ');
            let mut field = || fields.next().unwrap_or_default();
            let (range, rights, offset) = (field(), field(), field());
            let start = range.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok());
            // What is shared is no library, and may be memory that a look would make resident.
            let is_begin = rights.ends_with('p') && offset.bytes().all(|digit| digit == b'0');
            let Some(start) = start.filter(|_| is_begin) else { continue };
            let process = Self { pid, words: 0, turn: None };
            let found = match image::symbol(&|at, to| process.read_raw(at, to), start, SYMBOL) {
                Ok(found) => found,
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ESRCH)) =>
                {
                    return Err(refused(pid, &error));
                }
                // What cannot be read, such as the memory of a device.
                Err(_) => None,
            };
            match found.map(|address| process.words_at(address, path)) {
                Some(Ok(words)) => return Ok(Some(Self { words, ..process })),
                Some(Err(error)) => wrong = Some(error),
                None => {}
            }
        }
        wrong.map_or(Ok(None), Err)
    }

    /// Where the words are that the pointer at `address` leads to, in the library of that path.
    fn words_at(&self, address: u64, path: &str) -> anyhow::Result<u64> {
        let start = Instant::now();
        loop {
            let (mut pointer, mut magic) = ([0; 8], [0; 8]);
            self.read(address, &mut pointer)?;
            let words = u64::from_le_bytes(pointer);
            match self.read(words, &mut magic) {
                Ok(()) if &magic == MAGIC => return Ok(words),
                Ok(()) => {
                    let path = report::printable(path.as_ref());
                    bail!("process {}: {path} is of another version than this command", self.pid)
                }
                Err(error) if start.elapsed() >= LOADING => return Err(error),
                // The process is just starting: the loader has not written the pointer yet.
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Asks for a profile, and waits until it has begun. `say` is called once if that takes long.
    pub fn start(
        &mut self,
        prefix: &Path,
        rate: u64,
        interval: Duration,
        say: impl FnOnce(&str),
    ) -> anyhow::Result<Waited> {
        self.take_turn()?;
        // Before it is asked: who gets one after that has to take it back.
        block()?;
        // It may have become another program since it was found.
        self.state()?;
        let mut path = prefix.as_os_str().as_bytes().to_vec();
        path.push(0);
        self.write(self.words + at::PREFIX, &path)?;
        self.write(self.words + at::RATE, &rate.to_le_bytes())?;
        let interval = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        self.write(self.words + at::INTERVAL, &interval.to_le_bytes())?;
        self.ask(START)?;
        // What is answered before that was asked of it by somebody who ends the profile before.
        let is_taken = || {
            let mut request = [0];
            self.read(self.words + at::REQUEST, &mut request).is_err() || request[0] != START
        };
        let waited = self.wait(None, true, say, |state| state != 0 && is_taken())?;
        let state = self.state();
        if state.is_ok() && (waited != Waited::Done || !matches!(state, Ok(RUNNING))) {
            // So that it does not begin later.
            let _ = self.write(self.words + at::REQUEST, &[0]);
        }
        if waited != Waited::Done {
            return Ok(waited);
        }
        match state? {
            RUNNING => Ok(waited),
            // It has begun, and somebody else has ended it since.
            ENDED if self.prefix()?.as_deref() == Some(prefix) => Ok(waited),
            REFUSED_RUNNING => bail!(self.occupied()),
            ENDED | REFUSED_NOT_RUNNING => {
                bail!("process {}: somebody else has ended a profile before or as this one began", self.pid)
            }
            _ => bail!(
                "process {}: it has no memory for a profile, or may make few system calls only",
                self.pid
            ),
        }
    }

    /// Keeps others of these commands from asking the same process: they would overwrite each other's words.
    /// What is locked is the process's own folder in /proc, and that ends with this command.
    fn take_turn(&mut self) -> anyhow::Result<()> {
        let Ok(folder) = File::open(format!("/proc/{}", self.pid)) else { return Ok(()) };
        match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
            Ok(turn) => self.turn = Some(turn),
            Err((_, Errno::EWOULDBLOCK)) => bail!(self.occupied()),
            // Where there are no locks, nobody is kept away.
            Err(_) => {}
        }
        Ok(())
    }

    fn occupied(&self) -> String {
        format!(
            "process {0}: there is a profile already; wait for its end, or end it with `hakmem profile \
             --pid {0} --stop`, which shows it",
            self.pid
        )
    }

    /// Ends the profile, and waits until that is written, but no longer than `limit`.
    pub fn stop(&self, limit: Duration) -> anyhow::Result<Waited> {
        block()?;
        if self.state().is_err() {
            return Ok(Waited::Gone);
        }
        self.ask(STOP)?;
        self.wait(Some(limit), false, |_| (), |state| state != 0)
    }

    /// What came of [`Process::stop`]: whether there was a profile, if the process has answered.
    pub fn stopped(&self) -> anyhow::Result<Option<bool>> {
        Ok(match self.state()? {
            ENDED => Some(true),
            REFUSED_NOT_RUNNING => Some(false),
            _ => None,
        })
    }

    /// What the path of the last profile's file begins with, if that has one of its own.
    pub fn prefix(&self) -> anyhow::Result<Option<PathBuf>> {
        let mut path = [0; LONGEST];
        self.read(self.words + at::RUNNING, &mut path)?;
        let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok((!path.is_empty()).then(|| OsStr::from_bytes(path).into()))
    }

    /// Waits for `time`, or until somebody else has ended the profile.
    pub fn sleep(&self, time: Duration) -> anyhow::Result<Waited> {
        self.wait(Some(time), true, |_| (), |state| state == ENDED)
    }

    fn ask(&self, request: u8) -> anyhow::Result<()> {
        self.write(self.words + at::STATE, &0u32.to_le_bytes())?;
        // One byte of the word: another one is for statistics, which somebody may be asking for.
        self.write(self.words + at::REQUEST, &[request])
    }

    /// What the process has answered. An error if it has ended, or has become another program meanwhile, in
    /// which anything may be at this address.
    fn state(&self) -> anyhow::Result<u32> {
        let mut words = [0; at::STATE as usize + 4];
        self.read(self.words, &mut words)?;
        let (&magic, rest) = words.split_first_chunk().expect("longer than that");
        ensure!(&magic == MAGIC, "process {}: it has become another program", self.pid);
        Ok(u32::from_le_bytes(*rest.last_chunk().expect("longer than that")))
    }

    fn wait(
        &self,
        limit: Option<Duration>,
        // Whether that the terminal is gone ends it. Two such signals come at once, from the shell and the
        // kernel, and the second one is not to end what the first one has begun.
        hangup: bool,
        say: impl FnOnce(&str),
        done: impl Fn(u32) -> bool,
    ) -> anyhow::Result<Waited> {
        let signals = signals();
        let (start, mut say) = (Instant::now(), Some(say));
        loop {
            let arrived = sys::next_signal(&signals, true);
            if arrived.is_some_and(|arrived| hangup || arrived.signal != libc::SIGHUP) {
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
        self.read_raw(address, to).map_err(|error| refused(self.pid, &error))
    }

    fn read_raw(&self, address: u64, to: &mut [u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
        // SAFETY: writes to `to` only; what is read is another process's.
        let n = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
        check(n, to.len())
    }

    fn write(&self, address: u64, from: &[u8]) -> anyhow::Result<()> {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: from.len() };
        // SAFETY: reads `from` only. What is written belongs to another process, and is there to be written.
        let n = unsafe { libc::process_vm_writev(self.pid, &local, 1, &remote, 1, 0) };
        check(n, from.len()).map_err(|error| refused(self.pid, &error))
    }
}

/// Fields of a process's `stat`, by their numbers in proc(5), none of them the first two.
fn stat<const N: usize>(pid: i32, fields: [usize; N]) -> Option<[u64; N]> {
    let stat = sys::proc_text(pid, "stat").ok()?;
    // The second one is its name in parentheses, with whatever is in that.
    let rest: Vec<&str> = stat.rsplit_once(") ")?.1.trim_end().split(' ').collect();
    let mut values = [0; N];
    for (value, field) in values.iter_mut().zip(fields) {
        *value = rest.get(field.checked_sub(3)?)?.parse().ok()?;
    }
    Some(values)
}

/// What the kernel knows of the environment that a process was started with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Environment {
    /// Nothing yet: it becomes another program just now.
    Unknown,
    /// It has none, or has ended.
    None,
    /// There is one.
    Some,
}

/// The environment of a process that may be looked into.
pub fn environment(pid: i32) -> Option<Environment> {
    // The bytes of its address space, where its code begins, and where its environment begins and ends. The
    // code comes last when a program is started, and the environment grows before.
    let [size, code, start, end] = stat(pid, [23, 26, 50, 51])?;
    Some(match (size, code) {
        (0, _) => Environment::None,
        (_, 0) => Environment::Unknown,
        _ if start == end => Environment::None,
        _ => Environment::Some,
    })
}

/// How long ago a process was started.
pub fn age(pid: i32) -> Option<Duration> {
    let [ticks] = stat(pid, [22])?;
    let each = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
    let started = Duration::from_millis(ticks * 1000 / each);
    Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?).checked_sub(started)
}

/// Whether everything was read, or written.
fn check(n: isize, len: usize) -> io::Result<()> {
    match n {
        n if n == len as isize => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What ends waiting. Not that the terminal is gone, or its key was hit, for who has been told to ignore
/// that: by nohup, or as a command in the background.
fn signals() -> SigSet {
    let mut signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    let others = [Signal::SIGHUP, Signal::SIGQUIT].into_iter();
    others.filter(|&signal| !sys::is_ignored(signal as i32)).for_each(|signal| signals.add(signal));
    signals
}

/// Keeps these signals until they are waited for.
fn block() -> anyhow::Result<()> {
    signals().thread_block().context("cannot wait for signals")
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
