//! `hakmem record`: a program's allocations, written down.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use hakmem_trace::{Recording, Trace, convert, raw, replaceable};
use tempfile::NamedTempFile;

use crate::lab::output::room;
use crate::library::RECORDER;
use crate::process::Status;
use crate::sys::interrupt;
use crate::{preload, process, report, settings, why};

/// Record the allocations of a program, and of all it starts, in a file that `hakmem replay` takes
///
/// The file holds, for every process, its name (15 bytes of it; see --no-names) and which process started it;
/// and for every call of malloc and its relatives, in the order of time: the thread, the size and alignment,
/// and which object it freed. No arguments, no addresses, no times, nothing of what the program did with the
/// memory.
///
/// While the program runs it is on the C library's allocator, whatever LD_PRELOAD says; arguments, input,
/// output, signals and exit status pass through untouched. What it did up to a crash is in the file.
///
/// The recording takes the place of what was in FILE when it is whole. If there is none, which is said also
/// with --quiet, FILE stays as it was, and the exit status is not 0: 2 where the recording is lost, 1 where
/// nothing was recorded of a program that has left with 0.
#[derive(clap::Args)]
#[command(override_usage = "hakmem record [OPTIONS] -o FILE [--] PROGRAM [ARGS]...")]
pub struct Args {
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Stop recording, but not the program, after this much of the temporary raw recording, which takes 16 to
    /// 40 bytes an operation; K, M and G are understood [default: 1G, or half of the free space]
    #[arg(long, value_name = "SIZE", value_parser = settings::size)]
    limit: Option<u64>,

    /// Leave out the names of the programs
    #[arg(long)]
    no_names: bool,

    /// Leave out the line about the recording
    #[arg(short, long)]
    quiet: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

/// Raw bytes that are recorded unless the user says otherwise.
const LIMIT: u64 = 1 << 30;

/// What the names of all begin with that is beside the file for a while.
const PREFIX: &str = ".hakmem-record-";

/// Runs the program and writes the file; returns only when it could not be started, else leaves with the
/// program's status.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let (program, rest) = args.command.split_first().expect("clap requires one");
    let library = RECORDER.find()?;
    let preload = preload::Preload::new(&library, std::env::var_os("LD_PRELOAD"))?;
    let (raw, raw_path) = raw_file(&args.output, args.limit)?.into_parts();

    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload.value()).env(raw::VARIABLE, &raw_path);
    // Whoever ends this command while it makes the trace leaves nothing behind that takes room.
    let tidy = || drop(std::fs::remove_file(&raw_path));
    let outcome = match process::run_and(&mut command, tidy) {
        Ok(outcome) => outcome,
        Err(error) => return Ok(crate::cmd::run::could_not_start(program, &error)),
    };
    // Leaving runs no destructors, and this may own a folder.
    drop(preload);
    let name = report::name(program);
    match finish(&args, program, &raw) {
        Ok(Some(line)) => {
            if !args.quiet {
                report::say(&line);
            }
        }
        Ok(None) => {
            let why = why::not_preloadable(program, &library)
                .unwrap_or_else(|| "it made no allocation, or the loader refused the library".into());
            report::say(&format!(
                "hakmem: nothing was recorded of {name}: {why}{}",
                still_there(&args.output)
            ));
            // The program's own failure says more than ours.
            if outcome.status == Status::Exited(0) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Err(error) => {
            // The program's own status is of no use to one who wanted a recording.
            let end = match outcome.status {
                Status::Exited(code) => format!("exited with {code}"),
                Status::Killed(_) => format!("was {}", outcome.status.in_words()),
            };
            let (output, kept) = (args.output.display(), still_there(&args.output));
            report::say(&format!("hakmem: {output}: the recording is lost: {error:#}{kept}; {name} {end}"));
            return Ok(ExitCode::from(crate::cmd::USAGE));
        }
    }
    outcome.status.leave()
}

/// Makes the trace; returns what there is to say about it, nothing where nothing was recorded.
fn finish(args: &Args, program: &OsStr, raw: &File) -> anyhow::Result<Option<String>> {
    let Recording { trace, failed, disk_full } = convert(raw, !args.no_names)?;
    if trace.processes.is_empty() {
        return Ok(None);
    }
    let name = report::name(program);
    let bytes = trace.to_bytes()?;
    let size = bytes.len() as u64;
    // Where that fails, a signal leaves something behind.
    let _ = interrupt::watch();
    put(&args.output, &bytes).with_context(|| format!("cannot write {}", args.output.display()))?;
    let mut line = format!("hakmem: recorded {name} in {}: {}", args.output.display(), summary(&trace, size));
    if trace.truncated && disk_full {
        line += "; TRUNCATED: it went on after the disk was full";
    } else if trace.truncated {
        let limit = report::mebibytes(limit(raw)?);
        line += &format!("; TRUNCATED: it went on after the limit of {limit} (--limit)");
    }
    if failed > 0 {
        line += &format!("; {} could not be recorded", count(failed, "process", "processes"));
    }
    Ok(Some(line))
}

/// Writes a new file that takes the place of what is at `path`, all of it or nothing. Links stay, and so does
/// what is no regular file: a pipe or a device gets the bytes.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(file) = replaceable(path)? else {
        return File::options().write(true).open(path)?.write_all(bytes);
    };
    // In a folder, which is removed with what is in it, and where a name is short.
    let make = || tempfile::Builder::new().prefix(PREFIX).tempdir_in(folder_of(&file));
    let folder = interrupt::Folder::new(make)?;
    let draft = folder.path().join("trace");
    std::fs::write(&draft, bytes)?;
    std::fs::rename(&draft, &file)
}

/// Where a file is, or is to be.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// Without a new recording: that the file is not one, if there is a file.
fn still_there(output: &Path) -> String {
    if !output.is_file() {
        return String::new();
    }
    format!("; {} is what was there before", report::printable(output.as_os_str()))
}

/// What a trace amounts to, in a line.
pub(super) fn summary(trace: &Trace, size: u64) -> String {
    let sum =
        |figure: fn(&hakmem_trace::ProcessTrace) -> u64| trace.processes.iter().map(figure).sum::<u64>();
    let operations = sum(|process| process.facts.operations());
    let peak = trace.processes.iter().map(|process| process.facts.peak_live).max().unwrap_or(0);
    let several = trace.processes.len() > 1;
    let mut text = format!(
        "{} by {} with {}, {} live at the peak{}, {:.1} KiB ({:.1} bytes an operation)",
        count(operations, "operation", "operations"),
        count(trace.processes.len() as u64, "process", "processes"),
        count(sum(|process| process.facts.threads.into()), "thread", "threads"),
        report::mebibytes(peak),
        if several { " of the largest process" } else { "" },
        size as f64 / 1024.0,
        size as f64 / operations.max(1) as f64,
    );
    let unknown = sum(|process| process.unknown);
    if unknown > 0 {
        text += &format!("; {} of older objects left out", count(unknown, "free", "frees"));
    }
    text
}

/// `n` things.
fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A new raw recording, sparse: beside the file at `output`, or among temporary files if a pipe or a device
/// is there, as nothing can be made beside many of those. `asked` is how large the user wants it at the most.
fn raw_file(output: &Path, asked: Option<u64>) -> anyhow::Result<NamedTempFile> {
    let context = || format!("cannot write {}", output.display());
    if output.is_dir() {
        bail!("{}: it is a folder", context());
    }
    let file = replaceable(output).with_context(context)?.unwrap_or_else(|| std::env::temp_dir().join("x"));
    let folder = folder_of(&file);
    // Absolute, for programs that are elsewhere.
    let folder = folder.canonicalize().with_context(|| format!("{}: {}", context(), folder.display()))?;
    let mut file = tempfile::Builder::new().prefix(PREFIX).tempfile_in(&folder).with_context(context)?;
    // On old kernels, a write into a hole that the disk has no room for kills the program.
    let free = room(file.as_file()).with_context(context)?;
    if let Some(limit) = asked {
        ensure!(limit <= free, "{} has only {} free for --limit", folder.display(), report::mebibytes(free));
    }
    // A longer file than the process may write would end it by a signal.
    let (longest, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_FSIZE)?;
    let longest = longest.saturating_sub(raw::file_size(1));
    ensure!(longest > 0, "files may be too short here (ulimit -f) for a recording");
    if let Some(limit) = asked {
        let may = report::mebibytes(longest);
        ensure!(limit <= longest, "files may have {may} at the most here (ulimit -f), less than --limit");
    }
    let limit = asked.unwrap_or(LIMIT.min(free / 2).min(longest));
    let chunks = (limit / raw::CHUNK as u64).clamp(1, u32::MAX.into());
    file.write_all([raw::MAGIC, chunks].map(u64::to_ne_bytes).as_flattened()).with_context(context)?;
    file.as_file().set_len(raw::file_size(chunks)).with_context(context)?;
    Ok(file)
}

/// The limit that holds for a raw recording, bytes.
fn limit(raw: &File) -> anyhow::Result<u64> {
    Ok(raw.metadata()?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raw_file_is_as_the_recorder_wants_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = raw_file(&dir.path().join("x"), Some(100_000)).unwrap();
        assert_eq!(limit(file.as_file()).unwrap(), raw::file_size(6));
        assert!(file.path().is_absolute());
        assert!(convert(file.as_file(), true).unwrap().trace.processes.is_empty());
        let error = format!("{:#}", raw_file(&dir.path().join("x"), Some(1 << 60)).unwrap_err());
        assert!(error.contains("--limit"), "{error}");
        let error = format!("{:#}", raw_file(Path::new("/does/not/exist/x"), None).unwrap_err());
        assert!(error.contains("/does/not/exist"), "{error}");
        assert!(raw_file(dir.path(), None).is_err());
    }
}
