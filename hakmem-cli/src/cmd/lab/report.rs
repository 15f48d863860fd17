//! `hakmem report`: the reports of an experiment that was made before.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::lab::report::{self, Outputs};

/// Show the results that --json wrote once more: as a table, CSV or a page with plots
#[derive(clap::Args)]
pub struct Args {
    /// What --json wrote
    file: PathBuf,

    #[command(flatten)]
    outputs: Outputs,
}

/// Reads and shows.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let experiment = report::read(&args.file)?;
    args.outputs.prepare()?;
    args.outputs.deliver(&experiment)?;
    Ok(ExitCode::SUCCESS)
}
