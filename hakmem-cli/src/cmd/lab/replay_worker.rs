//! One replay of a trace, on the allocator that was preloaded into this process; `hakmem replay` starts it.
//!
//! The processes of a trace are replayed one after another (nothing is known of how they ran together), each
//! in a child of its own with a fresh heap. The trace is read by yet another child: so neither its memory nor
//! its time are among what is measured. For that it is also not waited for; the kernel would add its figures
//! to ours.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use hakmem_trace::{Options, Program, Touch, Trace, replay};
use hakmem_workloads::{Malloc, Report};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::ForkResult;

use crate::sys;

/// Replay a trace once and write what was measured
#[derive(clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// The trace
    file: PathBuf,

    /// Only this process of it, counted from 0
    #[arg(long, value_name = "N")]
    process: Option<usize>,

    /// What is written to each new object: nothing, its first byte, one in every page, or all
    #[arg(long, value_name = "WHAT", default_value = "pages", value_parser = touch)]
    touch: Touch,

    /// How often each process is replayed
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,

    /// Where the report goes, as JSON
    #[arg(long, value_name = "FILE")]
    result: PathBuf,
}

/// Reads the name of a [`Touch`].
pub fn touch(text: &str) -> Result<Touch, String> {
    match text {
        "none" => Ok(Touch::None),
        "first" => Ok(Touch::First),
        "pages" => Ok(Touch::Pages),
        "all" => Ok(Touch::All),
        _ => Err("expected none, first, pages or all".into()),
    }
}

/// Replays it.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let programs = Program::file()?;
    let ready = apart(false, || {
        make_ready(&args.file, args.process, &programs)?;
        Ok(b"ready".to_vec())
    })?;
    ensure!(ready == b"ready", "{}: reading it ended early", args.file.display());

    let options = Options { touch: args.touch, repeat: args.repeat };
    let mut total = Report::default();
    for number in 0..Program::count(&programs)? {
        let replayed = apart(true, || {
            let program = Program::load(&programs, number)?;
            Ok(serde_json::to_vec(&replay(&program, &Malloc, options)?)?)
        });
        let text = replayed.with_context(|| format!("{}: process {number}", args.file.display()))?;
        add(&mut total, serde_json::from_slice(&text)?);
    }
    let result = File::create(&args.result).with_context(|| args.result.display().to_string())?;
    serde_json::to_writer(result, &total)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the trace, and makes one process of it ready to be replayed, or all.
fn make_ready(path: &Path, process: Option<usize>, programs: &File) -> anyhow::Result<()> {
    let trace = Trace::read(path)?;
    let all = &trace.processes[..];
    let wanted = match process {
        Some(number) => all.get(number..=number).with_context(|| {
            format!("{}: it has no process {number}, only {} from 0 on", path.display(), all.len())
        })?,
        None => all,
    };
    ensure!(!wanted.is_empty(), "{}: it holds no process", path.display());
    Program::save(wanted, programs).with_context(|| path.display().to_string())
}

/// Adds up operations and time. Memory is that of the process with the most of it in use: there are never two
/// at a time.
fn add(total: &mut Report, one: Report) {
    let peak =
        |report: &Report| report.figures.iter().find(|(key, _)| key == "peak_live").map_or(-1.0, |f| f.1);
    let (operations, elapsed) = (total.operations + one.operations, total.elapsed_ns + one.elapsed_ns);
    if peak(&one) > peak(total) {
        *total = one;
    }
    (total.operations, total.elapsed_ns) = (operations, elapsed);
}

/// Runs `work` in a child and returns what it returned. Where it is not `counted`, nothing of it is in the
/// figures that the kernel keeps of this process and its children.
fn apart(counted: bool, work: impl FnOnce() -> anyhow::Result<Vec<u8>>) -> anyhow::Result<Vec<u8>> {
    let (reader, writer) = nix::unistd::pipe().context("cannot make a pipe")?;
    let (mut reader, mut writer) = (File::from(reader), File::from(writer));
    // A child whose end is ignored is not waited for.
    sys::set_action(libc::SIGCHLD, !counted);
    // SAFETY: this process has one thread.
    let fork = unsafe { nix::unistd::fork() }.context("cannot fork")?;
    let ForkResult::Parent { child } = fork else {
        drop(reader);
        let _ = sys::die_with_parent();
        if !counted {
            // Nor is it in the group whose memory is sampled.
            let _ = nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0));
        }
        sys::set_action(libc::SIGCHLD, false);
        let (mark, bytes) = match work() {
            Ok(bytes) => (0u8, bytes),
            Err(error) => (1, format!("{error:#}").into_bytes()),
        };
        let _ = writer.write_all(&[&[mark][..], &bytes].concat());
        // With what the allocator does at a process's end.
        std::process::exit(0);
    };
    drop(writer);
    let mut answer = Vec::new();
    let read = reader.read_to_end(&mut answer);
    if counted {
        if let WaitStatus::Signaled(_, signal, _) = waitpid(child, None).context("waitpid")? {
            bail!("killed by {signal}");
        }
    }
    sys::set_action(libc::SIGCHLD, false);
    read.context("a pipe")?;
    match answer.split_first() {
        Some((0, bytes)) => Ok(bytes.to_vec()),
        Some((_, bytes)) => bail!("{}", String::from_utf8_lossy(bytes)),
        None => bail!("it ended without a word"),
    }
}
