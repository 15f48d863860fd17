//! `hakmem worker`: one run of one workload, in this process. For `hakmem bench` and `hakmem instructions`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use hakmem_workloads::patterns::{self, Pattern};
use hakmem_workloads::{Malloc, Report, Settings};

/// Run a workload in this process, on whatever malloc it has
#[derive(clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// The workload
    #[arg(required_unless_present = "kernel")]
    workload: Option<String>,

    /// Set a parameter of the workload
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::bench::pair)]
    set: Vec<(String, String)>,

    /// Measure single calls, too
    #[arg(long)]
    latency: bool,

    /// Run this pattern instead of a workload
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["workload", "set", "latency"], requires = "rounds")]
    kernel: Option<String>,

    /// How often the pattern is run
    #[arg(long, value_name = "N", requires = "kernel")]
    rounds: Option<u64>,

    /// Where the figures go, as JSON
    #[arg(long, value_name = "FILE")]
    result: PathBuf,
}

/// Runs it.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let report = match (&args.kernel, &args.workload) {
        (Some(name), _) => kernel(name, args.rounds.unwrap_or(1))?,
        (None, name) => workload(name.as_deref().unwrap_or_default(), &args)?,
    };
    let text = serde_json::to_vec(&report)?;
    std::fs::write(&args.result, text).with_context(|| args.result.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

fn workload(name: &str, args: &Args) -> anyhow::Result<Report> {
    let workload = super::bench::find(name)?;
    let settings = Settings::resolve(workload, &args.set).map_err(|why| anyhow!(why))?;
    Ok(hakmem_workloads::run(workload, &settings, &Malloc, args.latency)?)
}

fn kernel(name: &str, rounds: u64) -> anyhow::Result<Report> {
    let mut pattern = patterns::pattern(name).with_context(|| {
        let names: Vec<_> = patterns::names().collect();
        format!("{name}: no such pattern; there are {}", names.join(", "))
    })?;
    let operations = hakmem_measured_rounds(&mut pattern, rounds);
    pattern.clear(&Malloc);
    Ok(Report { operations, ..Report::default() })
}

/// The measured part, under a name that callgrind can be told.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn hakmem_measured_rounds(pattern: &mut Pattern, rounds: u64) -> u64 {
    (0..rounds).map(|_| pattern.round(&Malloc)).sum()
}
