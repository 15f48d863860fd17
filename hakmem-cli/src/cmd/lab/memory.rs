//! `hakmem memory`: the targets for memory, with every allocator beside Hakmem.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use hakmem_workloads::Workload;

use super::bench;
use crate::lab::experiment::{self, Schedule};
use crate::lab::model::{Experiment, Outcome};
use crate::lab::report::{self, Outputs};
use crate::lab::subjects::{Choice, HAKMEM};
use crate::lab::targets;

/// Compare what Hakmem holds and gives back with its targets, and with every other allocator
///
/// Runs each workload that has a target (`hakmem bench --list` tells them) as `hakmem bench` does, under
/// Hakmem, under the settings of it that a target is about, and under every other allocator, and adds a table
/// of the targets to the report: met or missed.
///
/// Exit status: 0 when every target is met, 1 when one is missed or cannot be told, or an allocator failed, 2
/// when nothing could be started, or the results not be written.
#[derive(clap::Args)]
#[command(mut_arg("rounds", |arg| arg.default_value("3")), mut_arg("warmups", |arg| arg.default_value("0")))]
pub struct Args {
    /// Only these workloads, each NAME or NAME:PRESET (default: all that have a target)
    #[arg(value_name = "WORKLOAD")]
    scenarios: Vec<String>,

    /// Set a parameter of every workload that has it, for a quick try: the targets are meant for the
    /// parameters as they are
    #[arg(long, value_name = "NAME=VALUE", value_parser = bench::pair)]
    set: Vec<(String, String)>,

    /// Judge the peak memory of real programs, too: what `hakmem ab --json` wrote of each of them (a WORKLOAD
    /// after them is one, unless there is a file of that name)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    programs: Vec<PathBuf>,

    #[command(flatten)]
    choice: Choice,

    #[command(flatten)]
    schedule: Schedule,

    #[command(flatten)]
    outputs: Outputs,
}

impl Args {
    /// Of the words after --programs, which takes as many as the shell makes of ab-*.json, those that are
    /// meant for workloads.
    fn take_back(&mut self) {
        let known: Vec<_> =
            targets::scenarios().iter().map(|(w, preset)| targets::name(w, *preset)).collect();
        self.programs.retain(|word| {
            let name = known.iter().find(|name| word.as_os_str() == name.as_str() && !word.exists());
            self.scenarios.extend(name.cloned());
            name.is_none()
        });
    }
}

/// Runs the workloads and judges.
pub fn execute(mut args: Args) -> anyhow::Result<ExitCode> {
    args.take_back();
    let tasks = bench::tasks(&chosen(&args.scenarios)?, &args.set, false)?;
    let programs = args.programs.iter().map(|path| report::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut choice = args.choice;
    ensure!(
        choice.allocators.is_empty() || choice.allocators.iter().any(|name| name == HAKMEM),
        "--allocators leaves out {HAKMEM}, whose targets these are"
    );
    for setting in targets::settings() {
        if choice.env.iter().all(|own| own != setting) {
            choice.env.push(setting.into());
        }
    }
    let found = choice.find_all()?;
    let of_programs = match programs.as_slice() {
        [] => None,
        programs => Some(targets::programs(programs, &found.subjects).context("--programs")?),
    };
    args.outputs.prepare()?;
    let title = format!("hakmem memory {}", args.scenarios.join(" ")).trim_end().to_string();
    let mut experiment = experiment::conduct(title, &found, &args.schedule, &tasks, bench::metrics())?;
    experiment.targets = targets::judge(&experiment);
    match of_programs {
        Some(target) => experiment.targets.push(target),
        None => experiment.warnings.push("real programs were not judged: that takes --programs".into()),
    }
    if !args.set.is_empty() {
        experiment.warnings.push("--set: the targets are meant for the parameters as they are".into());
    }
    args.outputs.deliver(&experiment)?;
    Ok(if is_green(&experiment) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_green(experiment: &Experiment) -> bool {
    let met = experiment.targets.iter().all(|target| target.outcome == Outcome::Met);
    met && experiment::is_clean(experiment)
}

/// The named ones of the workloads that have targets; all without names.
fn chosen(names: &[String]) -> anyhow::Result<Vec<(&'static Workload, Option<&'static str>)>> {
    let all = targets::scenarios();
    let known: Vec<String> = all.iter().map(|(workload, preset)| targets::name(workload, *preset)).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        bail!("{name}: no such target; there are {}", known.join(", "));
    }
    let wanted = |i: &usize| names.is_empty() || names.contains(&known[*i]);
    Ok((0..all.len()).filter(wanted).map(|i| all[i]).collect())
}
