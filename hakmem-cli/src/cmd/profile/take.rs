//! Takes a profile, and shows it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use hakmem_profile::model::{Moment, What};
use hakmem_profile::symbols::Symbols;
use hakmem_profile::{collapsed, pprof};

use super::{Args, COLUMNS, Format, choice, write_page};
use crate::profile::alive::{self, Alive};
use crate::profile::attach::{Process, Waited};
use crate::profile::files::{EXTENSION, Files};
use crate::profile::input::{self, Input};
use crate::profile::table;
use crate::profile::units::bytes;
use crate::{elf, library, preload, process, report, sys, why};

/// How long to wait for the end of the profile of a process that runs.
const LAST: Duration = Duration::from_secs(10);

/// The option that leaves the beginning of a profile to a signal.
const SIGNAL: &str = "HAKMEM_PROFILE_SIGNAL";

/// Processes that get tables of their own.
const MOST: usize = 5;

/// Runs the program; returns only when it could not be started, else leaves with the program's own status.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(args.at.is_none(), "--at is for a file: give one that was written before");
    ensure!(args.format == Format::Table, "--format is for a file: give one that was written before");
    let (program, rest) = args.command.split_first().expect("clap requires one");
    let library = library::find(args.lib.as_deref())?;
    let preload = preload::Preload::new(&library, std::env::var_os("LD_PRELOAD"))?;
    let name = report::name(program);
    let folder = args.out.clone().unwrap_or_else(|| format!("{name}.profile").into());
    let files = Files::new(&folder, &name)?;

    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload.value());
    command.envs(args.set.iter().map(|(name, value)| (name, value)));
    command.env("HAKMEM_PROFILE", &files.prefix);
    // With a signal to begin at, the library would not begin at the start.
    if !args.set.iter().any(|(name, _)| name == SIGNAL) {
        command.env_remove(SIGNAL);
    }
    if let Some(rate) = args.rate {
        command.env("HAKMEM_PROFILE_RATE", rate.to_string());
    }
    if args.interval.is_some() || std::env::var_os("HAKMEM_PROFILE_INTERVAL").is_none() {
        let interval = args.interval.unwrap_or(Duration::from_secs(1));
        command.env("HAKMEM_PROFILE_INTERVAL", interval.as_millis().to_string());
    }
    alive::begin(&name, &folder);
    let written = files.clone();
    let alive = Alive::new(name.clone(), move || written.written());
    let outcome = process::run(&mut command);
    drop(alive);
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Only if nothing is in it.
            let _ = std::fs::remove_dir(&folder);
            return Ok(crate::cmd::run::could_not_start(program, &error));
        }
    };
    let written = files.written();
    let mut lost = false;
    if written.is_empty() {
        let gone = (!folder.exists()).then(|| format!("its folder {} is gone", folder.display()));
        let _ = std::fs::remove_dir(&folder);
        let other = || (!elf::is_hakmem(&library)).then(|| why::not_served(program, &library));
        let why = gone.or_else(other).or_else(|| why::not_preloadable(program)).unwrap_or_else(|| {
            format!(
                "no word came from the library in it: it made no allocation, or ended before it could, or {} has \
                 no profiler",
                library.display()
            )
        });
        report::say(&format!("hakmem: no profile of {name}: {why}"));
    } else {
        match conclude(args, &written, &folder) {
            Ok(whole) => lost = !whole,
            Err(error) => report::say(&format!("hakmem: the profile of {name} cannot be shown: {error:#}")),
        }
    }
    // Leaving runs no destructors, and this owns a temporary folder.
    drop(preload);
    // The program's own failure says more than ours.
    if lost && outcome.status == process::Status::Exited(0) {
        return Ok(ExitCode::FAILURE);
    }
    outcome.status.leave()
}

/// Takes a profile of a process that runs.
pub fn watch(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    for (given, name) in [
        (args.at.is_some(), "--at"),
        (args.format != Format::Table, "--format"),
        (args.lib.is_some(), "--lib"),
        (!args.set.is_empty(), "--set"),
    ] {
        ensure!(!given, "{name} is not for a process that runs already");
    }
    let time = Duration::try_from_secs_f64(args.seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .with_context(|| format!("--seconds {}: expected a number above 0", args.seconds))?;
    let process = Process::find(pid)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim().replace('/', "_");
    let folder = args.out.clone().unwrap_or_else(|| format!("{name}.profile").into());
    let files = Files::new(&folder, &name)?;
    let (rate, interval) = (args.rate.unwrap_or(512 << 10), args.interval.unwrap_or(Duration::from_secs(1)));
    ensure!(rate != 0, "--rate 0: expected 1 or more bytes");
    let say = |what: &str| report::say(&format!("hakmem: {what}"));
    let mut waited = process.start(&files.prefix, rate, interval, say)?;
    if waited == Waited::Done {
        report::say(&format!(
            "hakmem: profile of {name}, process {pid}, for {} s; Ctrl-C ends it sooner",
            args.seconds
        ));
        waited = process.sleep(time)?;
    }
    if waited != Waited::Gone && process.stop(LAST)? == Waited::Done && files.written().is_empty() {
        report::say(&format!(
            "hakmem: process {pid} has not allocated since; what it has gathered is written when it does"
        ));
    }
    let written = files.written();
    ensure!(
        !written.is_empty(),
        "no profile of process {pid}: it has not begun one, or may not write to {}",
        folder.display()
    );
    let whole = conclude(args, &written, &folder)?;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a file, whole or not at all. An empty one where the disk is full would look like a profile.
fn put(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).inspect_err(|_| drop(std::fs::remove_file(path))).map_err(|error| {
        let path = report::printable(path.as_ref());
        anyhow::anyhow!("cannot write {path}: {error}; name another folder with --out")
    })
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
/// all of those files could be written.
fn conclude(args: &Args, written: &[PathBuf], folder: &Path) -> anyhow::Result<bool> {
    let mut symbols = Symbols::new();
    let mut inputs: Vec<(f64, Input, Moment)> = Vec::new();
    let mut there = [true; 2];
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
                inputs.push((peak, input, moment));
            }
            Err(error) => report::say(&format!("hakmem: {error:#}")),
        }
    }
    inputs.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
    let columns = sys::columns(&std::io::stderr());
    let largest = inputs.first().map_or(0.0, |(peak, ..)| *peak);
    let own = inputs.iter().take(MOST).take_while(|(peak, ..)| *peak >= largest / 20.0).count().max(1);
    let mut text = String::new();
    for (_, input, moment) in inputs.iter().take(own) {
        text += &format!("\n{}", table::render(&input.profile, moment, &choice(args, columns)));
    }
    if inputs.len() > own {
        let sum = inputs[own..].iter().map(|(peak, ..)| *peak).sum();
        let number = inputs.len() - own;
        let processes = if number == 1 { "process" } else { "processes" };
        text += &format!("\nand {number} more {processes}, together {} at their peaks\n", bytes(sum));
    }
    text += &table::said(symbols.notes(), columns.unwrap_or(COLUMNS));
    text += &format!("files: {}/*.{EXTENSION} (hakmem profile FILE)", folder.display());
    for (there, files) in there.iter().zip([", *.pb.gz (go tool pprof, hakmem diff)", ", *.collapsed"]) {
        text += if *there { files } else { "" };
    }
    report::say(&text);
    if let Some(folder) = &args.report {
        let shown: Vec<_> = inputs[..own].iter().map(|(_, input, moment)| (&input.profile, moment)).collect();
        report::say(&write_page(folder, &shown, symbols.notes())?);
    }
    Ok(there == [true; 2])
}
