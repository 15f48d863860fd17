//! One measured run of one program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::Hasher;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::model::Subject;
use super::resident::Sampler;
use crate::preload::Preload;
use crate::sys::{self, Change};

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
}

/// What a stream of output was: its length and a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    bytes: u64,
    hash: u64,
}

/// What was measured.
pub struct Measured {
    /// How it ended.
    pub ended: Ended,
    /// Wall-clock seconds from the start to the end of the program itself.
    pub wall: f64,
    /// Processor time of it and all children it waited for.
    pub used: sys::Used,
    /// Standard output.
    pub stdout: Digest,
    /// Standard error.
    pub stderr: Digest,
    /// The beginning and the end of standard error.
    pub errors: String,
    /// The loader's complaint, if it left the library out.
    pub refused: bool,
    /// Resident bytes of its process group over time: seconds, bytes.
    pub timeline: Vec<(f64, u64)>,
}

/// Runs it once under `subject`. An error means that it could not be started at all.
pub fn run(job: &Job, subject: &Subject) -> anyhow::Result<Measured> {
    let mut stdout = tempfile::tempfile().context("cannot make a temporary file")?;
    let mut stderr = tempfile::tempfile().context("cannot make a temporary file")?;
    let input = match job.input {
        Some(path) => File::open(path).with_context(|| path.display().to_string())?.into(),
        None => Stdio::null(),
    };
    let preload = subject.library.as_deref().map(|library| Preload::new(library, None)).transpose()?;

    let program = subject.program.as_deref().map_or(job.program, Path::as_os_str);
    let mut command = Command::new(program);
    command.args(job.arguments).stdin(input).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    command.env_remove("LD_PRELOAD").envs(subject.environment.iter().map(|(name, value)| (name, value)));
    if let Some(preload) = &preload {
        command.env("LD_PRELOAD", preload.value());
    }
    // A group of its own, so that all of it can be ended, and counted.
    command.process_group(0);
    // SAFETY: prctl is a plain system call. (Having a closure also makes std fork instead of vfork, whose
    // child would inherit our own peak resident size.)
    unsafe { command.pre_exec(|| sys::die_with_parent().map_err(Into::into)) };

    let start = Instant::now();
    let pid = command.spawn().with_context(|| program.to_string_lossy().into_owned())?.id() as i32;
    let _group = sys::InterruptKills::group(pid);
    let mut sampler = Sampler::new(pid, start);
    let handle = sys::ProcessHandle::open(pid)?;
    let mut timed_out = false;
    while !handle.wait(sampler.interval())? {
        sampler.sample();
        if start.elapsed() >= job.timeout && !timed_out {
            timed_out = true;
            sys::send(-pid, libc::SIGKILL);
        }
    }
    let wall = start.elapsed().as_secs_f64();
    // What it left behind in the background would disturb the next run. Before it is reaped: then the number
    // is free.
    sys::send(-pid, libc::SIGKILL);
    let (change, used) = sys::reap(pid)?;
    let ended = match change {
        _ if timed_out => Ended::TimedOut,
        Change::Killed(signal) => Ended::Killed(signal),
        Change::Exited(code) => Ended::Exited(code),
        Change::Stopped(_) | Change::Continued => unreachable!("only ends are asked for"),
    };
    let errors = tail(&mut stderr)?;
    let refused = preload.is_some() && errors.contains("from LD_PRELOAD cannot be preloaded");
    Ok(Measured {
        ended,
        wall,
        used,
        stdout: digest(&mut stdout)?,
        stderr: digest(&mut stderr)?,
        errors,
        refused,
        timeline: sampler.finish(),
    })
}

impl Measured {
    /// The last line on standard error, for messages.
    pub fn last_words(&self) -> String {
        last_line(&self.errors)
    }
}

fn digest(file: &mut File) -> anyhow::Result<Digest> {
    file.rewind()?;
    let mut hasher = std::hash::DefaultHasher::new();
    let mut buffer = [0; 1 << 16];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest { bytes, hash: hasher.finish() }),
            read => {
                hasher.write(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// The beginning (where the loader complains) and the end of `file`.
fn tail(file: &mut File) -> anyhow::Result<String> {
    const PART: u64 = 1 << 14;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    file.rewind()?;
    Read::by_ref(file).take(PART).read_to_end(&mut bytes)?;
    if length > PART {
        file.seek(std::io::SeekFrom::Start(length.saturating_sub(PART).max(PART)))?;
        Read::by_ref(file).take(PART).read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

impl Ended {
    /// In words, such as "exited with 3".
    pub fn in_words(self, timeout: Duration) -> String {
        match self {
            Ended::Exited(code) => format!("exited with {code}"),
            Ended::Killed(signal) => match nix::sys::signal::Signal::try_from(signal) {
                Ok(signal) => format!("killed by {signal}"),
                Err(_) => format!("killed by signal {signal}"),
            },
            Ended::TimedOut => format!("timed out after {}", humantime::format_duration(timeout)),
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
        let outcome = shell("sleep 100 & echo $!", 60_000);
        assert_eq!(outcome.ended, Ended::Exited(0));
    }

    #[test]
    fn last_lines() {
        assert_eq!(last_line("a\nb\n\n"), "b");
        assert_eq!(last_line("a\tb"), "a b");
        assert_eq!(last_line(""), "");
    }
}
