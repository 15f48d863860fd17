//! `hakmem profile`: who holds a program's memory, and who allocated it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use hakmem_profile::symbols::Symbols;
use hakmem_profile::{collapsed, model, pprof, svg};

use crate::profile::alive::{self, Alive};
use crate::profile::attach::{Process, Waited};
use crate::profile::input::{self, Input};
use crate::profile::units::bytes;
use crate::profile::{By, What, json, page, table};
use crate::{elf, library, preload, process, report, settings, sys, why};

/// Run a program on Hakmem and show who holds its memory, or show a profile that was taken before
///
/// A sample of the allocations is taken while the program runs, and of every process that it starts. At the
/// end, tables on stderr show which call sites held memory, at the end and when that was most, and which
/// allocated; how resident memory is made up; and call sites that look like leaks. Arguments, input, output,
/// signals and exit status of the program pass through untouched.
///
/// Of a FILE.hakprof, the same is printed on stdout.
#[derive(clap::Args)]
#[command(override_usage = "hakmem profile [OPTIONS] [--] PROGRAM [ARGS]...
       hakmem profile [OPTIONS] --pid PID [--seconds S]
       hakmem profile [OPTIONS] FILE.hakprof")]
pub struct Args {
    /// Mean bytes between two samples; K, M and G are understood [default: 512K]
    #[arg(long, value_name = "BYTES", value_parser = settings::size)]
    rate: Option<u64>,

    /// Time between two points of the timeline, such as 100ms [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,

    /// The folder that the profiles are written to [default: NAME.profile]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Also write a page to DIR/index.html, which needs no network: timeline, flame graphs, call sites, leaks
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// The library to use, instead of looking for it
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,

    /// Set an option of Hakmem for the program, with or without its HAKMEM_ prefix; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = OsStringValueParser::new().try_map(settings::pair))]
    set: Vec<(OsString, OsString)>,

    /// Show only this, largest first
    #[arg(long, visible_alias = "sort", value_name = "WHAT")]
    what: Option<What>,

    /// What is added up
    #[arg(long, value_name = "BY", default_value = "site")]
    group: By,

    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Of a file: what to print
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,

    /// Of a file: this long after the profile's start, such as 90s, instead of at its end
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    at: Option<Duration>,

    /// Instead of running a program: a process that runs on Hakmem
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,

    /// How long a running process is watched; Ctrl-C ends it sooner
    #[arg(long, value_name = "S", default_value_t = 30.0, requires = "pid")]
    seconds: f64,

    /// The program and its arguments, or a file
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        required_unless_present = "pid",
        conflicts_with = "pid"
    )]
    command: Vec<OsString>,
}

/// How a profile is printed.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Format {
    /// Tables
    Table,
    /// All figures
    Json,
    /// A line for each call stack
    Collapsed,
    /// For `go tool pprof` and others
    Pprof,
    /// A flame graph
    Svg,
}

/// How files of profiles end; the allocator appends it.
const EXTENSION: &str = "hakprof";

/// The longest path that the allocator takes, before its own end of the name.
const PREFIX: usize = 255;

/// How long to wait for the end of the profile of a process that runs.
const LAST: Duration = Duration::from_secs(10);

/// Processes that get tables of their own.
const MOST: usize = 5;

/// Columns where there is no terminal.
pub(super) const COLUMNS: usize = 110;

/// Reads the time between two snapshots, for clap.
fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(1) { Err("expected 1ms or more".into()) } else { Ok(time) }
}

/// Runs the program and shows its profile, or shows a file.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(pid) = args.pid {
        return watch(&args, pid);
    }
    match file(&args.command[0]) {
        None => run(&args),
        Some(path) if args.command.len() == 1 => show(&args, path),
        // What follows a program is its own; what follows a file are options.
        Some(path) => {
            let mut words: Vec<OsString> = std::env::args_os().collect();
            let file = words.remove(words.len() - args.command.len());
            words.push(file);
            let super::Sub::Profile(args) = super::Cli::parse_from(words).command else {
                unreachable!("the second word is as before");
            };
            ensure!(args.command.len() == 1, "{}: one file at a time", path.display());
            show(&args, path)
        }
    }
}

/// The file that is to be shown, if `word` is none that can be run.
fn file(word: &OsStr) -> Option<&Path> {
    let path = Path::new(word);
    let runs = || why::locate(word).is_some_and(|path| why::is_executable(&path));
    let shown = path.extension() == Some(OsStr::new(EXTENSION)) || (path.exists() && !runs());
    shown.then_some(path)
}

/// Prints what is in a file.
fn show(args: &Args, path: &Path) -> anyhow::Result<ExitCode> {
    for (given, name) in [
        (args.rate.is_some(), "--rate"),
        (args.interval.is_some(), "--interval"),
        (args.out.is_some(), "--out"),
        (args.lib.is_some(), "--lib"),
        (!args.set.is_empty(), "--set"),
    ] {
        ensure!(!given, "{}: {name} is for running a program, not for a file", path.display());
    }
    let mut symbols = Symbols::new();
    let input = input::open(path, &mut symbols)?;
    let moment = input.moment(args.at.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))?;
    let page = match &args.report {
        Some(folder) => {
            let end = input.moment(None)?;
            Some(write_page(folder, &[(&input.profile, &end)], symbols.notes())?)
        }
        None => None,
    };
    let what = args.what.map(model::What::from);
    let one = what.unwrap_or(model::What::Live);
    let folded = || collapsed::fold(&input.profile, &moment, one);
    let output = match args.format {
        Format::Table => {
            let choice = choice(args, sys::columns(&std::io::stdout()));
            let text = table::render(&input.profile, &moment, &choice);
            (text + &table::said(symbols.notes(), choice.width)).into_bytes()
        }
        Format::Json => {
            let mut value = json::render(&input.profile, &moment, args.group.into(), one);
            value["missing_symbols"] = serde_json::json!(symbols.notes());
            (serde_json::to_string_pretty(&value)? + "\n").into_bytes()
        }
        Format::Collapsed => {
            collapsed::lines(&folded()).iter().map(|line| format!("{line}\n")).collect::<String>().into()
        }
        Format::Pprof => {
            ensure!(
                !std::io::stdout().is_terminal(),
                "{}: pprof's format is not for a terminal: write it to a file with > NAME.pb.gz",
                path.display()
            );
            pprof::encode(&input.profile, &moment, &mut symbols)?
        }
        Format::Svg => svg::plain(&folded(), input.profile.name())?,
    };
    print(&output)?;
    if let Some(page) = page {
        report::say(&page);
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page; what there is to say about that.
fn write_page(
    folder: &Path,
    profiles: &[(&model::Profile, &model::Moment)],
    notes: &[String],
) -> anyhow::Result<String> {
    let path = folder.join("index.html");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, page::render(profiles, notes)))
        .with_context(|| format!("--report: cannot write {}", path.display()))?;
    Ok(format!("report: {}", path.display()))
}

/// Writes to stdout.
pub(super) fn print(output: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(output).and_then(|()| stdout.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the profile"),
    }
}

fn choice(args: &Args, columns: Option<usize>) -> table::Choice {
    table::Choice {
        what: args.what.map(model::What::from),
        by: args.group.into(),
        top: args.top,
        width: columns.unwrap_or(COLUMNS),
    }
}

/// Runs the program; returns only when it could not be started, else leaves with the program's own status.
fn run(args: &Args) -> anyhow::Result<ExitCode> {
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
            return Ok(super::run::could_not_start(program, &error));
        }
    };
    let written = files.written();
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
    } else if let Err(error) = conclude(args, &written, &folder) {
        report::say(&format!("hakmem: the profile of {name} cannot be shown: {error:#}"));
    }
    // Leaving runs no destructors, and this owns a temporary folder.
    drop(preload);
    outcome.status.leave()
}

/// Takes a profile of a process that runs.
fn watch(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
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
    conclude(args, &written, &folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the profiles of all processes, those first that held most, and writes them for other tools.
fn conclude(args: &Args, written: &[PathBuf], folder: &Path) -> anyhow::Result<()> {
    let mut symbols = Symbols::new();
    let mut inputs: Vec<(f64, Input, model::Moment)> = Vec::new();
    for path in written {
        let mut read = || -> anyhow::Result<_> {
            let input = input::open(path, &mut symbols)?;
            let moment = input.moment(None)?;
            std::fs::write(
                path.with_extension("pb.gz"),
                pprof::encode(&input.profile, &moment, &mut symbols)?,
            )?;
            let what = args.what.unwrap_or(What::Peak);
            let word = what.to_possible_value().expect("none is hidden");
            let lines = collapsed::lines(&collapsed::fold(&input.profile, &moment, what.into()));
            std::fs::write(
                path.with_extension(format!("{}.collapsed", word.get_name())),
                lines.join("\n") + "\n",
            )?;
            Ok((input.profile.total(&moment).peak.bytes, input, moment))
        };
        match read() {
            Ok(input) => inputs.push(input),
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
    text += &format!(
        "files: {}/*.{EXTENSION} (hakmem profile FILE), *.pb.gz (go tool pprof, hakmem diff), *.collapsed",
        folder.display()
    );
    report::say(&text);
    if let Some(folder) = &args.report {
        let shown: Vec<_> = inputs[..own].iter().map(|(_, input, moment)| (&input.profile, moment)).collect();
        report::say(&write_page(folder, &shown, symbols.notes())?);
    }
    Ok(())
}

/// The files of one run: those of its folder that were not there before.
#[derive(Clone)]
struct Files {
    folder: PathBuf,
    name: String,
    /// What the allocator makes its files' names of.
    prefix: PathBuf,
    before: BTreeMap<PathBuf, Option<SystemTime>>,
}

impl Files {
    fn new(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let context = || format!("cannot write profiles to {}", folder.display());
        if folder.exists() && !folder.is_dir() {
            bail!("{}: it is no folder; name another with --out", context());
        }
        std::fs::create_dir_all(folder).with_context(context)?;
        // Absolute, for programs that go elsewhere.
        let folder = folder.canonicalize().with_context(context)?;
        tempfile::tempfile_in(&folder).with_context(context)?;
        let length = folder.as_os_str().len() + 1 + name.len();
        ensure!(length <= PREFIX, "{}: its path is too long; name another with --out", context());
        let mut files =
            Self { prefix: folder.join(name), folder, name: name.into(), before: BTreeMap::new() };
        files.before = files.all();
        Ok(files)
    }

    fn all(&self) -> BTreeMap<PathBuf, Option<SystemTime>> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ours = |path: &PathBuf| {
            let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let middle = file.strip_prefix(&*self.name).and_then(|rest| rest.strip_suffix(EXTENSION));
            middle.is_some_and(|middle| middle.starts_with('.') && middle.ends_with('.'))
        };
        let changed = |path: PathBuf| {
            let time = path.metadata().and_then(|meta| meta.modified()).ok();
            (path, time)
        };
        entries.map(|entry| entry.path()).filter(ours).map(changed).collect()
    }

    /// What the run has written so far.
    fn written(&self) -> Vec<PathBuf> {
        self.all()
            .into_iter()
            .filter(|(path, time)| self.before.get(path) != Some(time))
            .map(|(path, _)| path)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_programs_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text");
        std::fs::write(&text, "hello").unwrap();
        let is_file = |word: &OsStr| file(word).is_some();
        assert!(
            is_file("gone.hakprof".as_ref()) && is_file(text.as_os_str()) && is_file(dir.path().as_os_str())
        );
        assert!(
            !is_file("sh".as_ref()) && !is_file("/bin/sh".as_ref()) && !is_file("no-such-program".as_ref())
        );
    }

    #[test]
    fn intervals() {
        assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
        for wrong in ["", "0s", "1us", "x", "-1s"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
