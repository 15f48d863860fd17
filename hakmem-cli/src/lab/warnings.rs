//! What a reader has to know before believing a figure.

use super::experiment::Schedule;
use super::machine::Usage;
use super::model::Machine;
use super::output::Digest;
use super::stats;
use super::subjects::Found;
use super::tasks::Task;
use crate::report::printable;
use crate::{elf, why};

/// Above this share of all processors' time others disturb.
const BUSY: f64 = 0.05;
/// Above this share the hypervisor disturbs.
const STOLEN: f64 = 0.02;
/// Variables that change what an allocator does.
const TUNABLES: [&str; 6] = ["HAKMEM_", "GLIBC_TUNABLES", "MALLOC_", "JE_MALLOC_", "MIMALLOC_", "TCMALLOC_"];

/// Known before the first run.
pub fn before(machine: &Machine, found: &Found, tasks: &[Task], schedule: &Schedule) -> Vec<String> {
    let mut warnings = Vec::new();
    if usize::from(schedule.rounds) < stats::LEAST_RUNS {
        warnings.push(format!("fewer than {} rounds: no intervals and no verdicts", stats::LEAST_RUNS));
    }
    if machine.busy_before > BUSY {
        warnings.push(format!(
            "busy machine: before the start {:.0}% of the processors' time was in use",
            machine.busy_before * 100.0
        ));
    }
    if cfg!(debug_assertions) && tasks.iter().any(|task| task.worker) {
        warnings.push(
            "this hakmem is a debug build: the workloads' own code is slow; use a release build".into(),
        );
    }
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let own = matches!(&*name, "HAKMEM_LIB" | "HAKMEM_REQUIRE_PROGRAMS" | "HAKMEM_BLESS" | "HAKMEM_LONG");
        if !own && TUNABLES.iter().any(|prefix| name.starts_with(prefix)) {
            warnings
                .push(format!("{name}={} from the environment holds for every run", value.to_string_lossy()));
        }
    }
    if std::env::var_os("LD_PRELOAD").is_some_and(|value| !value.is_empty()) {
        warnings.push("LD_PRELOAD of the environment is left out of every run".into());
    }
    for task in tasks {
        let preloaded =
            found.subjects.iter().filter_map(|subject| Some((subject, subject.library.as_deref()?)));
        let reasons: Vec<_> = preloaded
            .map(|(subject, library)| (&subject.name, why::not_preloadable(&task.program, library)))
            .collect();
        let all = reasons.iter().all(|(_, reason)| reason.is_some());
        for (name, reason) in reasons.iter().filter_map(|(name, reason)| Some((name, reason.as_ref()?))) {
            if all {
                warnings.push(format!(
                    "{}: NO ALLOCATOR IS COMPARED: {reason}; all figures are those of the program's own allocator",
                    task.name
                ));
                break;
            }
            warnings.push(format!("{}: {name} CANNOT BE COMPARED: {reason}", task.name));
        }
    }
    warnings.extend(not_called(found, tasks));
    warnings
}

/// Who may not be called although the loader preloads it. No more than a warning: `dlsym` and pointers may
/// lead to it all the same.
fn not_called(found: &Found, tasks: &[Task]) -> Vec<String> {
    let mut warnings = Vec::new();
    let preloaded = || found.subjects.iter().filter_map(|one| Some((&one.name, one.library.as_deref()?)));
    for (name, library) in preloaded().filter(|(_, library)| elf::defines_malloc(library) == Some(false)) {
        let library = printable(library.as_os_str());
        warnings.push(format!(
            "{name} MAY NOT BE COMPARED: {library} defines no malloc, so programs are on their own"
        ));
    }
    let mut programs: Vec<_> = tasks.iter().map(|task| &task.program).collect();
    programs.dedup();
    if preloaded().next().is_some() {
        for file in programs.into_iter().filter_map(|program| why::defines_malloc(program)) {
            let file = printable(file.as_os_str());
            warnings.push(format!(
                "NO ALLOCATOR MAY BE COMPARED: {file} defines malloc itself, so it is on its own under all"
            ));
        }
    }
    warnings
}

/// Seen over the whole experiment, whose runs used `own` processor seconds, if that is known.
pub fn busy(usage: Usage, own: Option<f64>) -> Vec<String> {
    let mut warnings = Vec::new();
    let share = own.map_or(0.0, |own| usage.foreign_share(own));
    if share > BUSY {
        warnings.push(format!("busy machine: others used {:.0}% of the processors' time", share * 100.0));
    }
    if usage.stolen_share() > STOLEN {
        warnings.push(format!(
            "busy host: the hypervisor took {:.0}% of the processors' time",
            usage.stolen_share() * 100.0
        ));
    }
    warnings
}

/// What came of comparing output.
#[derive(Default)]
pub struct Compared {
    /// What to say about it.
    pub warnings: Vec<String>,
    /// Whether it differs.
    pub differs: bool,
}

/// Compares what a program printed: for each subject that did not fail, (standard output, standard error) of
/// all runs.
pub fn outputs(task: &str, baseline: &str, subjects: &[(&str, &[(Digest, Digest)])]) -> Compared {
    let mut compared = Compared::default();
    let reference = subjects.iter().find(|(name, _)| *name == baseline).or(subjects.first());
    let Some((reference, runs)) = reference.filter(|(_, runs)| !runs.is_empty()) else { return compared };
    type Stream = fn(&(Digest, Digest)) -> Digest;
    let streams: [(&str, Stream); 2] = [("standard output", |run| run.0), ("standard error", |run| run.1)];
    for (stream, of) in streams {
        let expected = of(&runs[0]);
        if runs.iter().any(|run| of(run) != expected) {
            compared.warnings.push(format!(
                "{task}: its {stream} changes from run to run under {reference} alone, so it is not compared"
            ));
            continue;
        }
        for (name, others) in subjects {
            let differing = others.iter().filter(|run| of(run) != expected).count();
            if differing == 0 {
                continue;
            }
            let what = format!("{stream} under {name} is not that under {reference}");
            if runs.len() == 1 {
                compared.warnings.push(format!(
                    "{task}: {what}, of which there is one run: that cannot tell whether it changes from run to \
                     run, so it is not compared"
                ));
            } else {
                compared
                    .warnings
                    .push(format!("{task}: OUTPUT DIFFERS: {what} in {differing} of {} runs", others.len()));
                compared.differs = true;
            }
        }
    }
    compared
}
