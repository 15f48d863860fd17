//! Takes a profile of a program, and shows it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use hakmem_profile::model::{Moment, What};
use hakmem_profile::symbols::Symbols;
use hakmem_profile::{collapsed, pprof};

use super::largest::Largest;
use super::{Args, COLUMNS, Format, choice, prepare_page, write_page};
use crate::process::Status;
use crate::profile::alive::{self, Alive};
use crate::profile::builtin;
use crate::profile::files::{self, EXTENSION, Files};
use crate::profile::goes_on;
use crate::profile::input::{self, Input};
use crate::profile::table;
use crate::profile::units::bytes;
use crate::{elf, library, preload, process, report, sys, why};

/// The option that leaves the beginning of a profile to a signal.
const SIGNAL: &str = "HAKMEM_PROFILE_SIGNAL";

/// The option for the time between two snapshots.
const INTERVAL: &str = "HAKMEM_PROFILE_INTERVAL";

/// Runs the program; returns only when it could not be started, else leaves with the program's own status.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(args.at.is_none(), "--at is for a file: give one that was written before");
    ensure!(args.format == Format::Table, "--format is for a file: give one that was written before");
    let (program, rest) = args.command.split_first().expect("clap requires one");
    // A second Hakmem would write to the same file as the program's own, and have nothing to say.
    let has_own = why::locate(program).is_some_and(|path| builtin::has_hakmem(&path));
    ensure!(
        !has_own || args.lib.is_none(),
        "--lib: {} has Hakmem built in, which is used",
        report::printable(program)
    );
    let library = if has_own { None } else { Some(library::find(args.lib.as_deref())?) };
    let preload =
        library.as_ref().map(|library| preload::Preload::new(library, std::env::var_os("LD_PRELOAD")));
    let preload = preload.transpose()?;
    let name = report::name(program);
    if let Some(folder) = &args.report {
        prepare_page(folder)?;
    }
    let folder = args.out.clone().unwrap_or_else(|| format!("{}.profile", files::short(&name)).into());
    let files = Files::new(&folder, files::short(&name), None)?;

    let mut command = Command::new(program);
    command.args(rest);
    if let Some(preload) = &preload {
        command.env("LD_PRELOAD", preload.value());
    }
    command.envs(args.set.iter().map(|(name, value)| (name, value)));
    command.env("HAKMEM_PROFILE", &files.prefix);
    // With a signal to begin at, the library would not begin at the start.
    let set = |name: &str| args.set.iter().any(|(given, _)| given == name);
    if !set(SIGNAL) {
        command.env_remove(SIGNAL);
    }
    if let Some(rate) = args.rate {
        command.env("HAKMEM_PROFILE_RATE", rate.to_string());
    }
    if args.interval.is_some() || !(set(INTERVAL) || std::env::var_os(INTERVAL).is_some()) {
        let interval = args.interval.unwrap_or(Duration::from_secs(1));
        command.env(INTERVAL, interval.as_millis().to_string());
    }
    alive::begin(&name, &folder);
    let written = files.clone();
    let alive = Alive::new(name.clone(), move || written.written());
    let outcome = process::run(&mut command);
    drop(alive);
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            files.leave();
            return Ok(crate::cmd::run::could_not_start(program, &error));
        }
    };
    let going = goes_on::find(&files.prefix);
    let who = || goes_on::said(&going, "started by it");
    let written = files.written();
    let whole = if written.is_empty() && !going.is_empty() {
        // The folder is needed.
        report::say(&format!("hakmem: no profile of {name} yet: {}", who()));
        false
    } else if written.is_empty() {
        let gone = (!folder.exists()).then(|| format!("its folder {} is gone", folder.display()));
        files.leave();
        let why = gone.unwrap_or_else(|| unserved(program, library.as_deref(), outcome.status));
        report::say(&format!("hakmem: no profile of {name}: {why}"));
        false
    } else {
        conclude(args, &written, &folder).unwrap_or_else(|error| {
            report::say(&format!("hakmem: the profile of {name} cannot be shown: {error:#}"));
            false
        })
    };
    if !written.is_empty() && !going.is_empty() {
        report::say(&format!("hakmem: {}", who()));
    }
    // Leaving runs no destructors, and this owns a temporary folder.
    drop(preload);
    // The program's own failure says more than ours.
    if !whole && outcome.status == Status::Exited(0) {
        return Ok(ExitCode::FAILURE);
    }
    outcome.status.leave()
}

/// Why no word came from `library`, or from its own Hakmem, in `program`, which has ended so.
fn unserved(program: &OsStr, library: Option<&Path>, status: Status) -> String {
    if let Some(library) = library {
        if !elf::is_hakmem(library) {
            return why::not_served(program, library);
        }
        if let Some(why) = why::not_preloadable(program, library) {
            return why;
        }
    }
    if let Status::Killed(_) = status {
        return format!(
            "it was {} before its first snapshot, which is written while it allocates; try a shorter --interval",
            status.in_words()
        );
    }
    match library {
        Some(library) => format!(
            "no word came from the library in it: it made no allocation, ended or became another program \
             before it could, or {} has no profiler",
            library.display()
        ),
        None => {
            "no word came from the Hakmem that is built into it: it made no allocation, or ended before it \
                 could, or has no profiler (the crate's feature `profile`)"
                .into()
        }
    }
}

/// Writes a file, whole or not at all. An empty one where the disk is full would look like a profile.
fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    // Anew: the folder may be another user's, and a link there may lead to any file of ours.
    let _ = std::fs::remove_file(path);
    let file = File::options().write(true).create_new(true).open(path);
    file.and_then(|file| fill(file, path, bytes)).map_err(|error| {
        let path = report::printable(path.as_ref());
        anyhow::anyhow!("cannot write {path}: {error}; name another folder with --out")
    })
}

/// Writes the bytes to the new file of this path, which is gone if that fails.
fn fill(mut file: File, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all(bytes).inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Writes a profile for other tools, and says which of the files cannot be. Whether
/// each of the two is there.
fn convert(path: &Path, input: &Input, moment: &Moment, what: What, symbols: &mut Symbols) -> [bool; 2] {
    let pprof = pprof::encode(&input.profile, moment, symbols);
    let word = what.to_possible_value().expect("none is hidden");
    let lines = collapsed::lines(&collapsed::fold(&input.profile, moment, what)).join("\n") + "\n";
    [
        pprof.and_then(|bytes| put(&path.with_extension("pb.gz"), &bytes)),
        put(&path.with_extension(format!("{}.collapsed", word.get_name())), lines.as_bytes()),
    ]
    .map(|done| done.inspect_err(|error| report::say(&format!("hakmem: {error:#}"))).is_ok())
}

/// Shows the profiles of all processes, those first that held most, and writes them for other tools. Whether
/// everything could be read, written and shown.
pub(super) fn conclude(args: &Args, written: &[PathBuf], folder: &Path) -> anyhow::Result<bool> {
    let mut symbols = Symbols::new();
    let mut inputs = Largest::new();
    let (mut there, mut whole) = ([true; 2], true);
    for path in written {
        let mut read = || -> anyhow::Result<_> {
            let input = input::open(path, &mut symbols)?;
            let moment = input.moment(None)?;
            Ok((input.profile.total(&moment).peak.bytes, input, moment))
        };
        match read() {
            Ok((peak, input, moment)) => {
                let what = args.what.unwrap_or(What::Peak);
                let done = convert(path, &input, &moment, what, &mut symbols);
                there = [there[0] && done[0], there[1] && done[1]];
                inputs.add(peak, (input, moment));
            }
            Err(error) => {
                whole = false;
                report::say(&format!("hakmem: {error:#}"));
            }
        }
    }
    let columns = sys::columns(&std::io::stderr());
    let mut text = String::new();
    for (input, moment) in inputs.shown() {
        text += &format!("\n{}", table::render(&input.profile, moment, &choice(args, columns)));
    }
    let (number, sum) = inputs.others();
    if number > 0 {
        let processes = if number == 1 { "process" } else { "processes" };
        text += &format!("\nand {number} more {processes}, together {} at their peaks\n", bytes(sum));
    }
    text += &table::said(symbols.notes(), columns.unwrap_or(COLUMNS));
    let folder = report::printable(folder.as_ref());
    text += &format!("files: {folder}/*.{EXTENSION} (hakmem profile FILE)");
    for (there, files) in there.iter().zip([", *.pb.gz (go tool pprof, hakmem diff)", ", *.collapsed"]) {
        text += if *there { files } else { "" };
    }
    // There may be room for the page.
    let shown = report::show((text + "\n").as_bytes());
    if let Some(folder) = &args.report {
        let profiles: Vec<_> = inputs.shown().map(|(input, moment)| (&input.profile, moment)).collect();
        report::say(&write_page(folder, &profiles, symbols.notes())?);
    }
    Ok(whole && shown && there == [true; 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (theirs, path) = (folder.path().join("theirs"), folder.path().join("x.pb.gz"));
        std::fs::write(&theirs, "theirs").unwrap();
        for hard in [false, true] {
            let _ = std::fs::remove_file(&path);
            if hard {
                std::fs::hard_link(&theirs, &path).unwrap();
            } else {
                std::os::unix::fs::symlink(&theirs, &path).unwrap();
            }
            put(&path, b"ours").unwrap();
            put(&path, b"ours again").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"ours again");
            assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
        }
        assert!(put(&folder.path().join("gone/x"), b"").is_err());
    }

    #[test]
    fn a_full_disk_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pb.gz");
        std::fs::write(&path, "").unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(fill(full, &path, b"ours").unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert!(!path.exists());
    }
}
