//! `hakmem run`: one program on Hakmem, and one line that says whether it really was.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::process::Status;
use crate::records::{self, Records};
use crate::settings::{self, Settings};
use crate::{library, preload, process, report, why};

/// Run a program on Hakmem; afterwards one line on stderr says whether Hakmem really served it
///
/// Arguments, input, output, signals and exit status of the program pass through untouched.
#[derive(clap::Args)]
#[command(override_usage = "hakmem run [OPTIONS] [--] PROGRAM [ARGS]...")]
pub struct Args {
    /// The library to use, instead of looking for it
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,

    /// Count every allocation (sets HAKMEM_MAGAZINE=off, which makes the program slower)
    #[arg(long)]
    exact: bool,

    /// Print the library's statistics of the main process as a table; where there are none, or they cannot be
    /// printed, the exit status is 1 instead of 0
    #[arg(long)]
    stats: bool,

    /// Leave out the line about the run
    #[arg(short, long)]
    quiet: bool,

    /// Set an option of Hakmem for the program, with or without its HAKMEM_ prefix; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = OsStringValueParser::new().try_map(settings::pair))]
    set: Vec<(OsString, OsString)>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the program; returns only when it could not be started, else leaves with the program's own status.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let (program, rest) = args.command.split_first().expect("clap requires one");
    let library = library::find(args.lib.as_deref())?;
    let preload = preload::Preload::new(&library, std::env::var_os("LD_PRELOAD"))?;
    let settings = Settings::new(&args.set, args.exact, args.stats)?;
    let records = Records::new()?;

    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload.value());
    command.envs(settings.environment()).env("HAKMEM_STATS", "json").env("HAKMEM_STATS_FILE", records.path());
    let outcome = match process::run(&mut command) {
        Ok(outcome) => outcome,
        Err(error) => return Ok(could_not_start(program, &error)),
    };

    let (text, lost) = (records.text(), records.lost());
    // Now: a signal may end this process while it prints, and leaving runs no destructors. The library's
    // folder goes then, too.
    drop((records, preload));
    let summary = records::summary(&text, outcome.pid);
    let name = report::name(program);
    let shown = settings.deliver(&name, &text, &summary);
    if !args.quiet {
        let lost = lost.filter(|_| summary.processes == 0);
        match lost.filter(|_| why::obvious(program, &library).is_none()) {
            Some(why) => report::say(&format!("hakmem: whether {name} was served cannot be told: {why}")),
            None => {
                let why = || why::not_served(program, &library);
                report::say(&report::line(&name, &summary, &outcome, settings.counts_all(), why));
            }
        }
    }
    // The program's own failure says more than ours.
    if !shown && outcome.status == Status::Exited(0) {
        return Ok(ExitCode::FAILURE);
    }
    outcome.status.leave()
}

/// Says why the program did not start, with the exit status a shell would give.
pub(super) fn could_not_start(program: &OsStr, error: &std::io::Error) -> ExitCode {
    let (what, code) = process::not_started(program, error);
    report::say(&format!("hakmem: {what}"));
    ExitCode::from(code)
}
