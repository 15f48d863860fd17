//! `hakmem bench`: the built-in workloads under every allocator.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hakmem_workloads::{Settings, Workload};

use crate::lab::experiment::{self, Schedule};
use crate::lab::model::Metric;
use crate::lab::report::Outputs;
use crate::lab::subjects::Choice;
use crate::lab::targets;
use crate::lab::tasks::{self, Task};
use crate::report;

/// Run the built-in workloads under every allocator: time per operation, memory, page faults
///
/// Each run is a process of its own with the allocator preloaded, measured as by `hakmem ab` (see
/// `hakmem help ab` for rounds, verdicts and exit status). `hakmem bench --list` tells the workloads, what
/// they model and their parameters.
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

/// Reads `NAME=VALUE`, for clap.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_string(), value.to_string())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

/// The workload of this name, or an error that names all of them.
pub fn find(name: &str) -> anyhow::Result<&'static Workload> {
    hakmem_workloads::find(name).with_context(|| {
        let names: Vec<_> = hakmem_workloads::all().iter().map(|workload| workload.name).collect();
        format!("{name}: no such workload; there are {}", names.join(", "))
    })
}

/// Runs the workloads, or lists them.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    if args.list {
        report::print(list().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let tasks = tasks(&chosen(&args)?, &args.set, args.latency)?;
    args.outputs.prepare()?;
    let found = args.choice.find()?;
    let chosen = args.workloads.join(" ");
    let title = format!("hakmem bench {}", if chosen.is_empty() { "(all workloads)" } else { &chosen });
    let mut experiment = experiment::conduct(title, &found, &args.schedule, &tasks, metrics())?;
    if args.latency {
        experiment.warnings.push(
            "--latency: times, and the verdicts on them, include reading the clock at every call; compare times \
             without it"
                .into(),
        );
    }
    args.outputs.deliver(&experiment)?;
    Ok(if experiment::is_clean(&experiment) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every workload with what it models, its parameters and presets.
fn list() -> String {
    let mut text = String::new();
    for workload in hakmem_workloads::all() {
        let latency = if workload.latency { " (--latency)" } else { "" };
        text += &format!("{}{latency}\n  {}\n", workload.name, workload.models);
        for parameter in workload.parameters {
            text += &format!("    {}={}  {}\n", parameter.name, parameter.default, parameter.help);
        }
        for preset in workload.presets {
            let values: Vec<_> =
                preset.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            text += &format!("    {}:{}  {}\n", workload.name, preset.name, values.join(" "));
        }
        for target in workload.targets {
            text += &format!("    target: {}\n", targets::in_words(workload, target));
        }
    }
    text
}

/// The chosen workloads, each with its preset, as tasks; `set` are parameters of all that have them.
pub fn tasks(
    chosen: &[(&'static Workload, Option<&str>)],
    set: &[(String, String)],
    latency: bool,
) -> anyhow::Result<Vec<Task>> {
    let program = std::env::current_exe().context("this command's own file")?.into_os_string();
    let mut tasks = Vec::new();
    let mut used = vec![false; set.len()];
    for &(workload, preset) in chosen {
        let mut values: Vec<(String, String)> = Vec::new();
        if let Some(preset) = preset {
            let found = workload.preset(preset).with_context(|| {
                let names: Vec<_> = workload.presets.iter().map(|preset| preset.name).collect();
                format!("{}:{preset}: no such preset; there are: {}", workload.name, names.join(", "))
            })?;
            values.extend(found.values.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        }
        for (i, (name, value)) in set.iter().enumerate() {
            if workload.parameters.iter().any(|parameter| parameter.name == name) {
                used[i] = true;
                values.push((name.clone(), value.clone()));
            }
        }
        let settings = Settings::resolve(workload, &values).map_err(|why| anyhow::anyhow!(why))?;
        let mut arguments: Vec<OsString> = vec!["worker".into(), workload.name.into()];
        for (name, value) in &values {
            arguments.extend(["--set".into(), format!("{name}={value}").into()]);
        }
        if latency {
            arguments.push("--latency".into());
        }
        tasks.push(Task {
            name: preset.map_or(workload.name.to_string(), |preset| format!("{}:{preset}", workload.name)),
            models: workload.models.into(),
            parameters: settings.to_string(),
            primary: workload.primary.unwrap_or("per_op"),
            program: program.clone(),
            arguments,
            input: None,
            apart: false,
            worker: true,
        });
    }
    if let Some(i) = used.iter().position(|used| !used) {
        bail!("--set {}={}: none of the chosen workloads has this parameter", set[i].0, set[i].1);
    }
    Ok(tasks)
}

/// The workloads that the command line names, each with its preset.
fn chosen(args: &Args) -> anyhow::Result<Vec<(&'static Workload, Option<&str>)>> {
    let mut chosen = Vec::new();
    for name in &args.workloads {
        let (name, preset) = name.split_once(':').map_or((name.as_str(), None), |(n, p)| (n, Some(p)));
        let workload = find(name)?;
        if args.latency && !workload.latency {
            bail!("{name}: --latency: it cannot measure single calls");
        }
        chosen.push((workload, preset));
    }
    if chosen.is_empty() {
        let all = hakmem_workloads::all().iter().filter(|workload| !args.latency || workload.latency);
        chosen.extend(all.map(|workload| (*workload, None)));
    }
    Ok(chosen)
}

/// Every metric that a workload may have: the general ones, then each workload's own.
pub fn metrics() -> Vec<Metric> {
    let mut metrics = tasks::worker_metrics();
    for figure in hakmem_workloads::all().iter().flat_map(|workload| workload.figures) {
        if metrics.iter().all(|metric| metric.key != figure.key) {
            metrics.push(tasks::own_metric(figure.key, figure.label, figure.unit));
        }
    }
    metrics
}
