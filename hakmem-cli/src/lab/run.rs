//! One measured run of one program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::model::Subject;
use super::output::{Digest, Output, last_line};
use super::resident::Sampler;
use crate::preload::Preload;
use crate::process;
use crate::report::{mebibytes, printable};
use crate::sys::interrupt::{self, Program};
use crate::sys::{self, Change};

/// How often to look, at the least, whether a program has to be ended.
const LOOK: Duration = Duration::from_millis(100);
/// So long a program may live on that was killed: the kernel has to give back its memory, and may have to
/// write down its core.
const GRACE: Duration = Duration::from_secs(60);

/// What to run.
pub struct Job<'a> {
    /// The program.
    pub program: &'a OsStr,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// Its standard input; `/dev/null` without.
    pub input: Option<&'a Path>,
    /// What it may take.
    pub timeout: Duration,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It took too long and was killed.
    TimedOut,
    /// This signal stopped it, so it was killed.
    Stopped(Signal),
    /// It had printed more than so many bytes and was killed.
    Flooded(u64),
    /// It ended, but there was no room for what it printed.
    NoRoom,
}

/// What was measured.
pub struct Measured {
    /// How it ended.
    pub ended: Ended,
    /// Wall-clock seconds from the start to the end of the program itself.
    pub wall: f64,
    /// Processor time of it and all children it waited for.
    pub used: sys::Used,
    /// Standard output, if it has exited.
    pub stdout: Digest,
    /// Standard error, if it has exited.
    pub stderr: Digest,
    /// The beginning and the end of standard error.
    pub errors: String,
    /// The loader's complaint, if it left the library out.
    pub refused: bool,
    /// Whether something that it had started lived on when it had ended by itself; that was ended then.
    pub left: bool,
    /// Resident bytes of its process group over time: seconds, bytes.
    pub timeline: Vec<(f64, u64)>,
}

/// Runs it once under `subject`. An error means that it could not be started at all.
pub fn run(job: &Job, subject: &Subject) -> anyhow::Result<Measured> {
    let mut output = Output::new()?;
    let [stdout, stderr] = output.streams()?;
    let input = match job.input {
        Some(path) => File::open(path).with_context(|| path.display().to_string())?.into(),
        None => Stdio::null(),
    };
    let preload = subject.library.as_deref().map(|library| Preload::new(library, None)).transpose()?;

    let program = subject.program.as_deref().map_or(job.program, Path::as_os_str);
    let mut command = Command::new(program);
    command.args(job.arguments).stdin(input).stdout(stdout).stderr(stderr);
    command.env_remove("LD_PRELOAD").envs(subject.environment.iter().map(|(name, value)| (name, value)));
    if let Some(preload) = &preload {
        command.env("LD_PRELOAD", preload.value());
    }
    // A group of its own, so that all of it can be ended, and counted.
    command.process_group(0);
    // SAFETY: prctl is a plain system call. (Having a closure also makes std fork instead of vfork, whose
    // child would inherit our own peak resident size.)
    unsafe { command.pre_exec(|| sys::die_with_parent().map_err(Into::into)) };

    interrupt::begin();
    let start = Instant::now();
    let started = command.spawn().map_err(|error| anyhow!(process::not_started(program, &error).0));
    let pid = started?.id() as i32;
    let running = Program::of_group(pid);
    let mut sampler = Sampler::new(pid, start);
    let handle = sys::ProcessHandle::open(pid)?;
    // Why it was not let go on.
    let (mut cut, mut killed) = (None, Duration::ZERO);
    let mut waited = Duration::ZERO;
    loop {
        let step = sampler.interval().min(LOOK);
        if handle.wait(step)? {
            break;
        }
        waited += step;
        if waited >= sampler.interval() {
            sampler.sample();
            waited = Duration::ZERO;
        }
        running.reap_orphans();
        if cut.is_none() {
            cut = output.too_much()?.or_else(|| stopped(pid));
            cut = cut.or((start.elapsed() >= job.timeout).then_some(Ended::TimedOut));
            killed = start.elapsed();
        }
        if let Some(ended) = cut {
            // More than once: what it starts meanwhile may leave the group, too.
            running.strike();
            ensure!(
                start.elapsed() < killed + GRACE,
                "{}: {}, and process {pid} cannot be killed",
                printable(program),
                ended.in_words(job.timeout)
            );
        }
    }
    let wall = start.elapsed().as_secs_f64();
    let left = cut.is_none() && running.leaves_something();
    // What it left behind in the background would disturb the next run. Before it is reaped: then the number
    // is free.
    sys::send(-pid, libc::SIGKILL);
    let (change, used) = sys::reap(pid)?;
    running.end_family();
    let ended = match (cut.or(output.no_room()?), change) {
        (Some(ended), _) => ended,
        (None, Change::Killed(signal)) => Ended::Killed(signal),
        (None, Change::Exited(code)) => Ended::Exited(code),
        (None, Change::Stopped(_) | Change::Continued) => unreachable!("only ends are asked for"),
    };
    let errors = output.errors()?;
    let refused = preload.is_some() && errors.contains("from LD_PRELOAD cannot be preloaded");
    // What was cut off may be long, and is not compared.
    let (stdout, stderr) =
        if matches!(ended, Ended::Exited(_)) { output.digests()? } else { Default::default() };
    let left = left && matches!(ended, Ended::Exited(_));
    Ok(Measured { ended, wall, used, stdout, stderr, errors, refused, left, timeline: sampler.finish() })
}

impl Measured {
    /// The last line on standard error, for messages.
    pub fn last_words(&self) -> String {
        last_line(&self.errors)
    }
}

/// The signal that has stopped child `pid`, if one has. It would wait for somebody to let it go on, such as
/// the shell of a terminal that it must not read from, and nobody is there.
fn stopped(pid: i32) -> Option<Ended> {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
    match waitid(Id::Pid(Pid::from_raw(pid)), flags) {
        Ok(WaitStatus::Stopped(_, signal)) => Some(Ended::Stopped(signal)),
        _ => None,
    }
}

impl Ended {
    /// In words, such as "exited with 3".
    pub fn in_words(self, timeout: Duration) -> String {
        let folder = std::env::temp_dir();
        match self {
            Ended::Exited(code) => format!("exited with {code}"),
            Ended::Killed(signal) => match Signal::try_from(signal) {
                Ok(signal) => format!("killed by {signal}"),
                Err(_) => format!("killed by signal {signal}"),
            },
            Ended::TimedOut => format!("timed out after {}", humantime::format_duration(timeout)),
            Ended::Stopped(signal) => format!("stopped by {signal}"),
            Ended::Flooded(most) => format!(
                "printed over {}, which are kept in {}, and was ended",
                mebibytes(most),
                folder.display()
            ),
            Ended::NoRoom => format!(
                "not compared: the disk of {} is full, and what it prints goes there (TMPDIR)",
                folder.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: u64) -> Measured {
        let arguments = ["-c".into(), script.into()];
        let timeout = Duration::from_millis(timeout);
        let job = Job { program: "sh".as_ref(), arguments: &arguments, input: None, timeout };
        let subject = Subject { name: "glibc".into(), ..Subject::default() };
        run(&job, &subject).unwrap()
    }

    #[test]
    fn ends_and_output() {
        let first = shell("echo one; echo two >&2; exit 3", 60_000);
        assert_eq!(first.ended, Ended::Exited(3));
        assert_eq!(first.last_words(), "two");
        assert_eq!(first.stdout, shell("echo one", 60_000).stdout);
        assert_ne!(first.stdout, shell("echo One", 60_000).stdout);
        assert!(first.wall > 0.0 && first.used.peak > 0 && first.used.minor > 0);
        assert_eq!(shell("kill -SEGV $$", 60_000).ended, Ended::Killed(libc::SIGSEGV));
    }

    #[test]
    fn a_run_that_takes_too_long_ends_with_all_its_children() {
        let marker = tempfile::NamedTempFile::new().unwrap();
        let script = format!("(while :; do date > {}; sleep 0.1; done) & wait", marker.path().display());
        assert_eq!(shell(&script, 500).ended, Ended::TimedOut);
        std::thread::sleep(Duration::from_millis(300));
        std::fs::write(marker.path(), "").unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(std::fs::read_to_string(marker.path()).unwrap(), "", "a child is still there");
    }

    #[test]
    fn what_is_left_in_the_background_is_ended_too() {
        let folder = tempfile::tempdir().unwrap();
        let number = folder.path().join("number");
        let script = format!("sleep 100 & echo $! > '{}'", number.display());
        assert_eq!(shell(&script, 60_000).ended, Ended::Exited(0));
        let number = std::fs::read_to_string(number).unwrap();
        let status = std::path::Path::new("/proc").join(number.trim()).join("stat");
        // Until whoever is its parent now has seen that it has ended.
        let is_running = || std::fs::read_to_string(&status).is_ok_and(|line| !line.contains(") Z "));
        for _ in 0..500 {
            if !is_running() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("process {number} goes on");
    }
}
