//! `hakmem bench`: the built-in workloads under every allocator.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hakmem_workloads::Workload;

use crate::lab::experiment::{self, Schedule};
use crate::lab::model::{Metric, Unit};
use crate::lab::report::Outputs;
use crate::lab::subjects::Choice;
use crate::lab::tasks::{self, Task};

/// Run the built-in workloads under every allocator: time per operation, memory, page faults
///
/// Each run is a process of its own with the allocator preloaded, measured as by `hakmem ab` (see `hakmem help ab` for
/// rounds, verdicts and exit status). `hakmem bench --list` tells the workloads, what they model and their parameters.
#[derive(clap::Args)]
pub struct Args {
    /// The workloads to run, each NAME or NAME:PRESET (default: all, with their defaults)
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,

    /// List the workloads, their parameters and presets, and do nothing
    #[arg(long)]
    list: bool,

    /// Set a parameter of every workload that has it; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,

    /// Measure the latency of single calls, too, in the workloads that can (others are left out)
    #[arg(long)]
    latency: bool,

    #[command(flatten)]
    choice: Choice,

    #[command(flatten)]
    schedule: Schedule,

    #[command(flatten)]
    outputs: Outputs,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err("expected NAME=VALUE".into()),
    }
}
