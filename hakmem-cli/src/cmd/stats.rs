//! `hakmem stats`: the statistics of a process while that runs.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::attach::stats::Answer;
use crate::attach::{Process, Waited};
use crate::report;

/// Print the allocator's statistics of a process that runs on Hakmem already
///
/// They are what HAKMEM_STATS prints when a process ends. The process is not stopped and gets no signal; it
/// answers when one of its threads next takes memory that they do not have at hand. The exit status is 1 if
/// it does not, and 2 if it cannot be asked.
#[derive(clap::Args)]
pub struct Args {
    /// The process
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,

    /// One line of JSON instead of a table
    #[arg(long)]
    json: bool,

    /// How long to wait for the answer, in seconds
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    wait: f64,
}

/// Asks the process, and prints what it answers.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let Args { pid, json, wait } = args;
    let limit = Duration::try_from_secs_f64(wait)
        .ok()
        .filter(|limit| !limit.is_zero())
        .with_context(|| format!("--wait {wait}: expected a number above 0"))?;
    let built_in =
        "it has to print `hakmem::stats()` or call `hak_stats_print` itself, or end with HAKMEM_STATS set";
    let process = Process::find(pid, built_in)?;
    let waited = match process.stats(json, limit)? {
        Answer::Text(text) => {
            report::print(text.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        Answer::Refused => {
            bail!("process {pid}: it has no memory for its statistics, or may make few system calls only")
        }
        Answer::None(waited) => waited,
    };
    report::say(&match waited {
        Waited::Gone => {
            format!("hakmem: process {pid} has ended, or become another program, before it answered")
        }
        Waited::Stopped => format!("hakmem: process {pid} had not answered yet"),
        Waited::Done => format!(
            "hakmem: process {pid} has not answered within {wait} s: its threads slept or were stopped, or found every \
             block in their own caches; ask again while it works, or wait longer with --wait"
        ),
    });
    Ok(ExitCode::FAILURE)
}
