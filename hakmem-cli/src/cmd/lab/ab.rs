//! `hakmem ab`: one program under every allocator.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};

use crate::lab::experiment::{self, Schedule};
use crate::lab::model::Verdict;
use crate::lab::report::{self, Outputs};
use crate::lab::stats::LEAST_RUNS;
use crate::lab::subjects::{self, Choice, Found};
use crate::lab::tasks::{self, Task};
use crate::why;

/// Compare allocators on your own program: time, memory and page faults under each of them
///
/// The program runs under Hakmem, its own C library's allocator (glibc or musl), every other one that is
/// installed and those that --with and --peers name: in rounds, each in an order shuffled anew. With --linked
/// there are several programs, each with an allocator of its own built in. Before each run as much memory as
/// it needs is touched and freed, because on virtual machines the price of a page fault depends on what ran
/// before. Its output and exit status must be the same under all. The verdict on an allocator is GO when it
/// is 1% faster than the baseline or better, NO-GO when it is over 0.5% slower, both only where the 95%
/// interval excludes no difference, else NEUTRAL.
///
/// Exit status: 0, or 1 when an allocator failed or the output differed, or 2 when nothing could be started,
/// or the results not be written.
#[derive(clap::Args)]
#[command(override_usage = "hakmem ab [OPTIONS] [--] PROGRAM [ARGS]...
       hakmem ab [OPTIONS] --linked NAME=PROGRAM,... [--] [ARGS]...")]
pub struct Args {
    #[command(flatten)]
    choice: Choice,

    #[command(flatten)]
    schedule: Schedule,

    #[command(flatten)]
    outputs: Outputs,

    /// Run these programs, which have allocators built in, instead of one under each allocator; all get the
    /// same ARGS
    #[arg(
        long,
        value_name = "NAME=PROGRAM,...",
        value_delimiter = ',',
        value_parser = subjects::named_path,
        conflicts_with_all = ["allocators", "with", "peers", "env", "preset", "lib"]
    )]
    linked: Vec<(String, PathBuf)>,

    /// The program's standard input (default: empty)
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// Try the harness instead: compare the baseline with itself this many times, which must come out NEUTRAL
    #[arg(long, value_name = "TRIES", value_parser = clap::value_parser!(u16).range(1..), conflicts_with_all = ["json", "csv", "report", "markdown", "full"])]
    fairness: Option<u16>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, required_unless_present = "linked")]
    command: Vec<OsString>,
}

/// Runs the comparison.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let task = if args.linked.is_empty() { preloaded(&args) } else { linked(&args) };
    if args.linked.is_empty() {
        why::locate(&task.program)
            .with_context(|| format!("{}: program not found", task.program.to_string_lossy()))?;
    }
    if let Some(input) = &args.input {
        std::fs::File::open(input).with_context(|| format!("--input {}", input.display()))?;
    }
    args.outputs.prepare()?;
    let baseline = args.choice.baseline.as_deref();
    let found = if args.linked.is_empty() {
        args.choice.find_for(&task.program)?
    } else {
        Found::linked(&args.linked, baseline)?
    };
    if let Some(tries) = args.fairness {
        return fairness(found, args.schedule, &task, tries);
    }
    let title = format!("hakmem ab: {}", task.parameters);
    let metrics = tasks::process_metrics();
    let experiment = experiment::conduct(title, &found, &args.schedule, &[task], metrics)?;
    args.outputs.deliver(&experiment)?;
    Ok(if experiment::is_clean(&experiment) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One program, which every allocator is preloaded into.
fn preloaded(args: &Args) -> Task {
    let (program, arguments) = args.command.split_first().expect("clap requires one");
    let name = crate::report::name(program);
    task(name, shown(&args.command), program, arguments, args)
}

/// One program for each allocator.
fn linked(args: &Args) -> Task {
    let name = crate::report::printable(subjects::common_name(&args.linked).as_ref());
    let words: Vec<OsString> = std::iter::once(name.clone().into()).chain(args.command.clone()).collect();
    task(name, shown(&words), args.linked[0].1.as_os_str(), &args.command, args)
}

fn task(name: String, line: String, program: &OsStr, arguments: &[OsString], args: &Args) -> Task {
    Task {
        name,
        models: "a program of yours, from start to end".into(),
        parameters: line,
        primary: "wall",
        program: program.into(),
        arguments: arguments.to_vec(),
        input: args.input.clone(),
        apart: false,
        worker: false,
    }
}

/// Compares the baseline with itself and prints a line for every try; the exit status is 1 where more than
/// one try in twenty comes out with a difference.
fn fairness(mut found: Found, mut schedule: Schedule, task: &Task, tries: u16) -> anyhow::Result<ExitCode> {
    let rounds = schedule.rounds;
    ensure!(
        usize::from(rounds) >= LEAST_RUNS,
        "--fairness: {rounds} rounds give no verdict, which takes {LEAST_RUNS} or more"
    );
    found.only_baseline_twice();
    let say = |line: &str| crate::report::print(format!("{line}\n").as_bytes());
    say(&format!(
        "try  ratio [95% interval]  verdict  seed; {} against itself: {}",
        found.baseline, task.parameters
    ))?;
    let mut differing = 0;
    for try_ in 1..=tries {
        let experiment = experiment::conduct(
            "fairness".into(),
            &found,
            &schedule,
            std::slice::from_ref(task),
            Vec::new(),
        )?;
        let row = &experiment.workloads[0].rows[1];
        let ratio = row.summaries.get("wall").and_then(|summary| summary.ratio);
        let interval = ratio.and_then(|ratio| ratio.interval);
        let (Some(ratio), Some(interval), Some(verdict)) = (ratio, interval, row.verdict) else {
            bail!("no figures: {}", row.failure.as_deref().unwrap_or("the baseline failed"));
        };
        differing += usize::from(verdict != Verdict::Neutral);
        say(&format!(
            "{try_:3}  {:.4} [{:.4}, {:.4}]  {:7}  {}",
            ratio.median,
            interval.low,
            interval.high,
            report::word(verdict),
            experiment.method.seed
        ))?;
        for warning in experiment.warnings {
            say(&format!("     WARNING: {warning}"))?;
        }
        schedule.seed = schedule.seed.map(|seed| seed.wrapping_add(1));
    }
    say(&format!("{} of {tries} tries NEUTRAL", usize::from(tries) - differing))?;
    Ok(if differing * 20 > usize::from(tries) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A command line for people: words that need it are in quotes, and a long script is cut.
fn shown(words: &[OsString]) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|word| {
            let word = word.to_string_lossy();
            let short: String =
                word.chars().map(|c| if c.is_control() { ' ' } else { c }).take(120).collect();
            let cut = if short.len() < word.len() { "…" } else { "" };
            let plain =
                !short.is_empty() && short.chars().all(|c| c.is_alphanumeric() || "-_./=,:+@%".contains(c));
            if plain { short + cut } else { format!("'{short}{cut}'") }
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn command_lines_are_readable() {
        let shown = |words: &[&str]| super::shown(&words.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(shown(&["ls", "-l", "/tmp"]), "ls -l /tmp");
        assert_eq!(shown(&["sh", "-c", "echo a\nb", ""]), "sh -c 'echo a b' ''");
        assert!(shown(&["x".repeat(500).as_str()]).ends_with('…'));
    }
}
