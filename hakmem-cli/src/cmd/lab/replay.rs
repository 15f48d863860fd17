//! `hakmem replay`: recorded traces under every allocator.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use hakmem_trace::{Facts, Touch, Trace};

use crate::lab::experiment::{self, Schedule};
use crate::lab::model::Metric;
use crate::lab::report::Outputs;
use crate::lab::subjects::Choice;
use crate::lab::tasks::{self, Task};
use crate::report;

/// Replay traces that `hakmem record` wrote under every allocator: time per operation, memory, page faults
///
/// Each run is a process of its own with the allocator preloaded, measured as by `hakmem ab` (see
/// `hakmem help ab` for rounds, verdicts and exit status). It makes the recorded calls in the recorded order,
/// with as many threads; what the program did between its calls is left out.
#[derive(clap::Args)]
pub struct Args {
    /// The traces
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Only this process of each trace, counted from 0 (default: all, one after another)
    #[arg(long, value_name = "N")]
    process: Option<usize>,

    /// What is written to each new object, which a trace does not tell: none, first (byte), pages (one byte
    /// in every page) or all
    #[arg(long, value_name = "WHAT", default_value = "pages", value_parser = super::replay_worker::touch)]
    touch: Touch,

    /// How often each process is replayed in a run (default: so often that the run makes some 3 million
    /// operations, or has touched objects of some 4 GiB)
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,

    #[command(flatten)]
    choice: Choice,

    #[command(flatten)]
    schedule: Schedule,

    #[command(flatten)]
    outputs: Outputs,
}

/// Operations that make a run long enough to be measured.
const ENOUGH: u64 = 3_000_000;
/// Bytes of objects whose pages are touched that do so, too: a second or two.
const ENOUGH_BYTES: u64 = 4 << 30;

/// Runs the comparison.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let tasks = args.files.iter().map(|file| task(file, &args)).collect::<anyhow::Result<Vec<_>>>()?;
    args.outputs.prepare()?;
    let found = args.choice.find()?;
    let names: Vec<_> = tasks.iter().map(|task| task.name.as_str()).collect();
    let title = format!("hakmem replay {}", names.join(" "));
    let experiment = experiment::conduct(title, &found, &args.schedule, &tasks, metrics())?;
    args.outputs.deliver(&experiment)?;
    Ok(if experiment::is_clean(&experiment) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The general metrics and those of replays.
fn metrics() -> Vec<Metric> {
    let mut metrics = tasks::worker_metrics();
    metrics
        .extend(hakmem_trace::FIGURES.iter().map(|(key, label, unit)| tasks::own_metric(key, label, unit)));
    metrics
}

/// The replay of one trace, which is read once to see that it can be.
fn task(file: &Path, args: &Args) -> anyhow::Result<Task> {
    let trace = Trace::read(file)?;
    let count = trace.processes.len();
    if let Some(process) = args.process {
        ensure!(process < count, "{}: --process {process}: it has {count} processes", file.display());
    }
    let replayed = match args.process {
        Some(process) => &trace.processes[process..=process],
        None => &trace.processes[..],
    };
    let operations: u64 = replayed.iter().map(|process| process.facts.operations()).sum();
    let bytes = replayed.iter().map(|process| bytes(&process.facts)).fold(0, u64::saturating_add);
    let repeat = args.repeat.unwrap_or_else(|| enough(operations, bytes, args.touch));
    let program = std::env::current_exe().context("this command's own file")?.into_os_string();
    // No option, whatever the name of the file begins with.
    let path = Path::new(".").join(file);
    let mut arguments: Vec<OsString> = vec!["replay-worker".into(), path.into()];
    if let Some(process) = args.process {
        arguments.extend(["--process".into(), process.to_string().into()]);
    }
    arguments.extend(["--touch".into(), word(args.touch).into()]);
    arguments.extend(["--repeat".into(), repeat.to_string().into()]);
    let name = report::printable(file.file_stem().unwrap_or(file.as_os_str()));
    let only = args.process.map_or(String::new(), |process| format!(", only process {process}"));
    Ok(Task {
        name,
        models: format!(
            "a recording: {operations} operations in {} processes, in the recorded order",
            replayed.len()
        ),
        parameters: format!("touch={} repeat={repeat}{only}", word(args.touch)),
        primary: "per_op",
        program,
        arguments,
        input: None,
        apart: true,
        worker: true,
    })
}

/// The most that the objects of a process may come to, new sizes included, whether all at once or not.
fn bytes(facts: &Facts) -> u64 {
    let of_class = |(class, &count): (usize, &u64)| count.saturating_mul(1 << class.min(63));
    facts.sizes.iter().enumerate().map(of_class).fold(0, u64::saturating_add)
}

/// How often to replay so that a run is long enough. One replay of a small trace takes a few milliseconds,
/// which tells little.
fn enough(operations: u64, bytes: u64, touch: Touch) -> u32 {
    let mut repeat = ENOUGH / operations.max(1);
    if matches!(touch, Touch::Pages | Touch::All) {
        repeat = repeat.min(ENOUGH_BYTES / bytes.max(1));
    }
    repeat.clamp(1, 10_000) as u32
}

fn word(touch: Touch) -> &'static str {
    match touch {
        Touch::None => "none",
        Touch::First => "first",
        Touch::Pages => "pages",
        Touch::All => "all",
    }
}
