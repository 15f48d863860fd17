//! `hakmem profile`: who holds a program's memory, and who allocated it.

mod largest;
mod running;
mod take;

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use hakmem_profile::model::{By, Moment, Profile, What};
use hakmem_profile::symbols::Symbols;
use hakmem_profile::{collapsed, pprof, svg};

use crate::profile::files::EXTENSION;
use crate::profile::{input, json, page, table};
use crate::{report, settings, sys, why};

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
       hakmem profile [OPTIONS] --pid PID --stop
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

    /// What is added up [default: site]
    #[arg(long, value_name = "BY")]
    group: Option<By>,

    /// Rows of each table [default: 10]
    #[arg(long, value_name = "N")]
    top: Option<usize>,

    /// Of a file: what to print
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,

    /// Of a file: this long after the profile's start, such as 90s, instead of at its end
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    at: Option<Duration>,

    /// Instead of running a program: a process that runs on Hakmem
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,

    /// How long a running process is watched; Ctrl-C ends it sooner [default: 30]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,

    /// End the profile of a running process, whoever began it, and show it
    #[arg(long, conflicts_with_all = ["seconds", "rate", "interval", "out"])]
    stop: bool,

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

/// What is added up unless something else is asked for.
const BY: By = By::Site;

/// Columns where there is no terminal.
pub(super) const COLUMNS: usize = 110;

/// Reads the time between two snapshots, for clap.
fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(1) {
        return Err("expected 1ms or more".into());
    }
    // The allocator has 32 bits for the milliseconds.
    if time.as_millis() > u32::MAX.into() {
        return Err("expected 49days or less".into());
    }
    Ok(time)
}

/// Runs the program and shows its profile, or shows a file.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(pid) = args.pid {
        return if args.stop { running::stop(&args, pid) } else { running::watch(&args, pid) };
    }
    // clap's `requires` says nothing here, because a program, which is there, excludes --pid.
    for (given, name) in [(args.stop, "--stop"), (args.seconds.is_some(), "--seconds")] {
        ensure!(!given, "{name} is for a process that runs already: name it with --pid");
    }
    // Behind `--` it is a program, even if it cannot be run.
    let is_program = || {
        let words: Vec<OsString> = std::env::args_os().collect();
        words.len().checked_sub(args.command.len() + 1).is_some_and(|before| words[before] == "--")
    };
    match file(&args.command[0]).filter(|path| is_profile(path) || !is_program()) {
        None => take::run(&args),
        Some(path) if args.command.len() == 1 => show(&args, path),
        // What follows a program is its own; what follows a file are options.
        Some(path) => {
            let mut words: Vec<OsString> = std::env::args_os().collect();
            let file = words.remove(words.len() - args.command.len());
            words.push(file);
            let super::Sub::Profile(again) = super::Cli::parse_from(words).command else {
                unreachable!("the second word is as before");
            };
            ensure!(again.command.len() == 1, "{}: one file at a time", path.display());
            execute(*again)
        }
    }
}

/// The file that is to be shown, if `word` is none that can be run.
fn file(word: &OsStr) -> Option<&Path> {
    let path = Path::new(word);
    let runs = || why::locate(word).is_some_and(|path| why::is_executable(&path));
    (is_profile(path) || (path.exists() && !runs())).then_some(path)
}

/// Whether it is called as profiles are.
fn is_profile(path: &Path) -> bool {
    path.extension() == Some(OsStr::new(EXTENSION))
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
    let (has_tables, is_json) = (args.format == Format::Table, args.format == Format::Json);
    for (given, fits, name) in [
        (args.what.is_some(), args.format != Format::Pprof, "--what"),
        (args.group.is_some(), has_tables || is_json, "--group"),
        (args.top.is_some(), has_tables, "--top"),
    ] {
        let word = args.format.to_possible_value().expect("none is hidden");
        ensure!(!given || fits, "{name}: --format {} has no place for it", word.get_name());
    }
    let mut symbols = Symbols::new();
    let input = input::open(path, &mut symbols)?;
    let moment = input.moment(args.at.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))?;
    let page = match &args.report {
        Some(folder) => Some(write_page(folder, &[(&input.profile, &moment)], symbols.notes())?),
        None => None,
    };
    let one = args.what.unwrap_or(What::Live);
    let folded = || collapsed::fold(&input.profile, &moment, one);
    let output = match args.format {
        Format::Table => {
            let choice = choice(args, sys::columns(&std::io::stdout()));
            let text = table::render(&input.profile, &moment, &choice);
            (text + &table::said(symbols.notes(), choice.width)).into_bytes()
        }
        Format::Json => {
            json::render(&input.profile, &moment, args.group.unwrap_or(BY), one, symbols.notes())?
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
    report::print(&output)?;
    if let Some(page) = page {
        report::say(&page);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the folder of the page, and finds out whether that can be written to.
fn prepare_page(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| tempfile::tempfile_in(folder).map(drop))
        .with_context(|| format!("--report: cannot write to {}; name another folder", folder.display()))
}

/// Writes the page; what there is to say about that.
fn write_page(folder: &Path, profiles: &[(&Profile, &Moment)], notes: &[String]) -> anyhow::Result<String> {
    let path = folder.join("index.html");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, page::render(profiles, notes)))
        .with_context(|| format!("--report: cannot write {}; name another folder", path.display()))?;
    Ok(format!("report: {}", path.display()))
}

fn choice(args: &Args, columns: Option<usize>) -> table::Choice {
    let (by, top) = (args.group.unwrap_or(BY), args.top.unwrap_or(10));
    table::Choice { what: args.what, by, top, width: columns.unwrap_or(COLUMNS) }
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
        for wrong in ["", "0s", "1us", "x", "-1s", "50days", "9999999days"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
