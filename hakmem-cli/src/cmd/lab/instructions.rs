//! `hakmem instructions`: instructions per operation, and the budgets.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hakmem_workloads::patterns;

use crate::lab::budgets::{Budgets, LEEWAY};
use crate::lab::instructions::{self, Experiment};
use crate::lab::subjects::{Choice, HAKMEM};
use crate::{report, workspace};

/// Count instructions per operation under callgrind, and compare Hakmem's with the budgets
///
/// Counts what is executed in the allocator and in what it calls (libc's memset, say) while a pattern
/// allocates and frees, so the figures are the same on every machine that runs the same libraries on the same
/// processor. The patterns are those of `cargo bench`. Needs valgrind. Exit status: 0; 1 when Hakmem needs
/// over 2% more instructions than its budgets, or could not be counted; 2 when something is wrong before
/// that.
#[derive(clap::Args)]
pub struct Args {
    /// Count only this pattern; can be repeated (default: all)
    #[arg(long, value_name = "PATTERN", value_parser = clap::builder::PossibleValuesParser::new(patterns::names()))]
    only: Vec<String>,

    #[command(flatten)]
    choice: Choice,

    /// The budgets (default: benches/instructions.json, where the sources are)
    #[arg(long, value_name = "FILE")]
    budgets: Option<PathBuf>,

    /// Write what Hakmem needs into the budgets, instead of comparing
    #[arg(long)]
    bless: bool,

    /// Write the figures as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Counts, shows and compares.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let found = args.choice.find()?;
    let ours = found.subjects.iter().any(|subject| subject.name == HAKMEM);
    let file = match args.budgets {
        Some(_) if !ours => bail!("--budgets are Hakmem's, which is not among the chosen allocators"),
        Some(file) => Some(file),
        None => workspace::root().map(|root| root.join("benches/instructions.json")).filter(|_| ours),
    };
    let budgets = match &file {
        // The first time there is none.
        Some(file) if args.bless && !file.exists() => Some(Budgets::default()),
        Some(file) => Some(Budgets::read(file)?),
        None if args.bless => bail!("--bless: say by --budgets where the budgets are"),
        None => None,
    };
    if let Some(path) = args.json.as_deref().filter(|path| path.as_os_str() != "-") {
        crate::lab::report::prepare(path)?;
    }
    if let Some(file) = file.as_deref().filter(|_| args.bless) {
        Budgets::prepare(file)?;
    }
    let names: Vec<&str> = patterns::names()
        .filter(|name| args.only.is_empty() || args.only.iter().any(|n| n == name))
        .collect();

    let experiment = instructions::count(&names, found)?;
    let text = if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&experiment)? + "\n";
        if path.as_os_str() == "-" {
            text
        } else {
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
            experiment.render()
        }
    } else {
        experiment.render()
    };
    report::print(text.as_bytes())?;
    match (file, budgets) {
        (Some(file), Some(mut budgets)) if args.bless => {
            if let Some(why) = experiment.failure(HAKMEM) {
                bail!("--bless: {HAKMEM}: {why}; {} stays as it is", file.display());
            }
            budgets.bless(experiment.figures(HAKMEM), args.only.is_empty());
            budgets.write(&file)?;
            report::say(&format!("hakmem: wrote {}", file.display()));
            Ok(ExitCode::SUCCESS)
        }
        (Some(file), Some(budgets)) => Ok(compare(&experiment, &budgets, &file, args.only.is_empty())),
        // Without budgets there is nothing to exceed, but Hakmem must have been counted where it was to be.
        _ if experiment.failure(HAKMEM).is_some() => Ok(ExitCode::FAILURE),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Says what is over and under the budgets.
fn compare(experiment: &Experiment, budgets: &Budgets, file: &std::path::Path, all: bool) -> ExitCode {
    let file = file.display();
    let mut complaints = budgets.complaints(experiment.figures(HAKMEM), all);
    if let Some(why) = experiment.failure(HAKMEM) {
        complaints.push(format!("{HAKMEM} was not counted: {why}"));
    }
    for complaint in &complaints {
        report::say(&format!("hakmem: {complaint} ({file})"));
    }
    for hint in budgets.hints(experiment.figures(HAKMEM)) {
        report::say(&format!("hakmem: {hint}; --bless makes that the budget ({file})"));
    }
    if complaints.is_empty() {
        let count = experiment.figures(HAKMEM).count();
        report::say(&format!("hakmem: {count} patterns within {LEEWAY}% of their budgets ({file})"));
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
