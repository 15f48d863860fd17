//! The schedule: every task under every subject, interleaved, the order shuffled anew in every round.

use std::time::{Duration, Instant, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::equal::equalise;
use super::machine::{self, Usage};
use super::model::{Experiment, FORMAT, Method, Metric, Row, Run, Workload};
use super::rows::Track;
use super::run::{self, Ended, Job, Measured};
use super::subjects::Found;
use super::tasks::{self, Task};
use super::{stats, warnings};
use crate::sys::{self, interrupt, interrupt::Folder};

/// How often a run is made at most during which this command was stopped: something may do that all the time.
const TRIES: u32 = 4;

/// How to measure, for clap.
#[derive(clap::Args, Clone, Debug)]
pub struct Schedule {
    /// Measured rounds; each runs every allocator once, in an order shuffled anew
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,

    /// Rounds before them that do not count
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub warmups: u16,

    /// What one run may take, such as 90s or 5min; after that it is killed and its allocator left out
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = humantime::parse_duration)]
    pub timeout: Duration,

    /// What the shuffle and the bootstrap begin with (default: taken from the clock; the reports name it)
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// Do not touch and free memory before each run (see `hakmem help ab`)
    #[arg(long)]
    pub no_equal_memory: bool,
}

/// An experiment under way.
pub struct Conductor<'a> {
    found: &'a Found,
    schedule: &'a Schedule,
    random: StdRng,
    seed: u64,
    progress: ProgressBar,
    warnings: Vec<String>,
    /// Whether output or exit status differs somewhere.
    differs: bool,
    /// Processor seconds that the runs used.
    used: f64,
    /// Whether memory was equal before every run of the task.
    equal: bool,
    /// Whether any run succeeded.
    succeeded: bool,
}

/// Runs `tasks` and puts the figures together. `metrics` is every metric that may occur, in order.
pub fn conduct(
    title: String,
    found: &Found,
    schedule: &Schedule,
    tasks: &[Task],
    metrics: Vec<Metric>,
) -> anyhow::Result<Experiment> {
    let (when, start) = (SystemTime::now(), Instant::now());
    let seed = schedule.seed.unwrap_or_else(|| {
        when.duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64)
    });
    let machine = machine::describe();
    let mut conductor = Conductor {
        found,
        schedule,
        random: StdRng::seed_from_u64(seed),
        seed,
        progress: progress_bar(tasks.len(), found.subjects.len(), schedule),
        warnings: warnings::before(&machine, found, tasks, schedule),
        differs: false,
        used: 0.0,
        equal: true,
        succeeded: false,
    };
    sys::trim();
    let (before, own_before) = (Usage::now(), own_time());
    let mut workloads = Vec::new();
    for task in tasks {
        workloads.push(conductor.task(task)?);
    }
    conductor.progress.finish_and_clear();
    let usage = before.and_then(|before| Some(Usage::now()?.since(&before)));
    // What the runs had done elsewhere cannot be told from what others did.
    let own = (!tasks.iter().any(|task| task.apart)).then(|| conductor.used + own_time() - own_before);
    conductor.warnings.extend(usage.map(|usage| warnings::busy(usage, own)).unwrap_or_default());
    Ok(Experiment {
        format: FORMAT,
        title,
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        when: humantime::format_rfc3339_seconds(when).to_string(),
        took: start.elapsed().as_secs_f64(),
        machine,
        method: Method {
            rounds: schedule.rounds.into(),
            warmups: schedule.warmups.into(),
            timeout: schedule.timeout.as_secs_f64(),
            equal_memory: !schedule.no_equal_memory,
            seed,
            baseline: found.baseline.clone(),
            confidence: stats::CONFIDENCE,
            resamples: stats::RESAMPLES,
        },
        subjects: found.subjects.clone(),
        missing: found.missing.clone(),
        warnings: conductor.warnings,
        differs: conductor.differs,
        metrics: metrics.into_iter().filter(|metric| occurs(&metric.key, &workloads)).collect(),
        workloads,
        targets: Vec::new(),
    })
}

/// Whether any run has a figure of this metric.
fn occurs(key: &str, workloads: &[Workload]) -> bool {
    workloads.iter().flat_map(|workload| &workload.rows).any(|row| row.summaries.contains_key(key))
}

/// Processor seconds that this process itself used (touching memory, mostly), without its children.
fn own_time() -> f64 {
    use nix::sys::resource::{UsageWho, getrusage};
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        [usage.user_time(), usage.system_time()]
            .iter()
            .map(|t| t.tv_sec() as f64 + t.tv_usec() as f64 * 1e-6)
            .sum()
    })
}

fn progress_bar(tasks: usize, subjects: usize, schedule: &Schedule) -> ProgressBar {
    let runs = tasks * subjects * (usize::from(schedule.rounds) + usize::from(schedule.warmups));
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} left  {msg}");
    // Drawn on standard error, and only where that is a terminal.
    ProgressBar::new(runs as u64).with_style(style.expect("a valid template"))
}

/// The memory that a run has used, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Used {
    /// The peak of the largest process, as the kernel counts it.
    peak: u64,
    /// Of all its processes at a time, as far as that was sampled, but at least that.
    together: u64,
}

impl Used {
    fn of(peak: u64, timeline: &[(f64, u64)]) -> Self {
        let sampled = timeline.iter().map(|&(_, bytes)| bytes).max();
        Self { peak, together: peak.max(sampled.unwrap_or(0)) }
    }
}

impl Conductor<'_> {
    /// Runs one task under all subjects.
    fn task(&mut self, task: &Task) -> anyhow::Result<Workload> {
        let mut tracks: Vec<Track> =
            self.found.broken.iter().map(|broken| Track::new(broken.clone())).collect();
        let (mut need, mut least) = (0, u64::MAX);
        self.equal = true;
        let warmups = usize::from(self.schedule.warmups);
        for pass in 0..warmups + usize::from(self.schedule.rounds) {
            let mut order: Vec<usize> = (0..tracks.len()).collect();
            order.shuffle(&mut self.random);
            for (place, &i) in order.iter().enumerate() {
                let (track, subject) = (&mut tracks[i], &self.found.subjects[i]);
                let round = pass.checked_sub(warmups);
                let label = round.map_or("warm-up".to_string(), |round| format!("round {}", round + 1));
                self.progress.set_message(format!("{}: {label}, {}", task.name, subject.name));
                if track.failure.is_none() {
                    let counted = round.map(|round| (round, place));
                    let measured = self.once(task, i, track, counted, &label, need);
                    let used = match measured {
                        // It may have taken hours to get here.
                        Err(error) if self.succeeded => {
                            track.failure = Some(format!("{error:#} ({label})"));
                            None
                        }
                        measured => measured?,
                    };
                    if let Some(used) = used {
                        self.succeeded = true;
                        need = need.max(used.together);
                        least = least.min(used.peak);
                    }
                }
                self.progress.inc(1);
            }
        }
        self.compare_exits(&mut tracks, &task.name);
        if !self.equal {
            self.warnings.push(format!(
                "{}: too little memory is free to make it equal before each run; page faults may cost unequally",
                task.name
            ));
        }
        // Between fork and exec the child touches code, which the kernel maps 64 KiB at a time: 0.7 MiB were
        // seen.
        let floor = sys::forked_peak().map_or(0, |peak| peak + (1 << 20));
        if least <= floor {
            self.warnings.push(format!(
                "{}: a peak resident size under {} KiB cannot be told from this command's own",
                task.name,
                floor / 1024
            ));
        }
        if !task.worker {
            let compared = warnings::outputs(
                &task.name,
                &self.found.baseline,
                &tracks
                    .iter()
                    .zip(&self.found.subjects)
                    .filter(|(track, _)| track.failure.is_none())
                    .map(|(track, subject)| (subject.name.as_str(), track.outputs.as_slice()))
                    .collect::<Vec<_>>(),
            );
            self.differs |= compared.differs;
            self.warnings.extend(compared.warnings);
        }
        let left = tracks.iter().zip(&self.found.subjects).filter(|(track, _)| track.left);
        let left: Vec<_> = left.map(|(_, subject)| subject.name.as_str()).collect();
        if !left.is_empty() {
            self.warnings.push(format!(
                "{}: what it had started was still running when it had ended itself (under {}), and was ended \
                 then: a program that goes on in the background is measured only until it is there",
                task.name,
                left.join(", ")
            ));
        }
        let mut codes: Vec<i32> = tracks
            .iter()
            .filter(|track| track.failure.is_none())
            .flat_map(|track| track.exits.clone())
            .collect();
        codes.sort_unstable();
        codes.dedup();
        if let Some(code) = codes.first().filter(|code| codes.len() == 1 && **code != 0) {
            self.warnings.push(format!("{}: exits with {code} under every allocator", task.name));
        }
        Ok(self.workload(task, tracks))
    }

    /// One run. What it has used, unless it failed; `counted` is the round and the place in it.
    fn once(
        &mut self,
        task: &Task,
        i: usize,
        track: &mut Track,
        counted: Option<(usize, usize)>,
        label: &str,
        need: u64,
    ) -> anyhow::Result<Option<Used>> {
        let folder = task.worker.then(|| Folder::new(tempfile::tempdir)).transpose()?;
        let result = folder.as_ref().map(|folder| folder.path().join("result.json"));
        let mut arguments = task.arguments.clone();
        if let Some(result) = &result {
            arguments.extend(["--result".into(), result.into()]);
        }
        let timeout = self.schedule.timeout;
        let job =
            Job { program: &task.program, arguments: &arguments, input: task.input.as_deref(), timeout };
        let measured = self.undisturbed(&job, i, need)?;
        track.left |= measured.left;
        let fail = |why: String| Some(format!("{why} ({label})"));
        let words = |measured: &Measured| {
            let words = measured.last_words();
            if words.is_empty() { String::new() } else { format!(": {words}") }
        };
        if measured.refused {
            track.failure = fail(format!("the loader refused the library{}", words(&measured)));
            return Ok(None);
        }
        match measured.ended {
            Ended::Exited(code) if !task.worker || code == 0 => track.exits.push(code),
            ended => {
                track.failure = fail(format!("{}{}", ended.in_words(timeout), words(&measured)));
                return Ok(None);
            }
        }
        let mut report = None;
        if let Some(result) = &result {
            match tasks::read_report(result) {
                Ok(found) => report = Some(found),
                Err(error) => {
                    track.failure = fail(format!("{error:#}"));
                    return Ok(None);
                }
            }
        }
        track.outputs.push((measured.stdout, measured.stderr));
        let used = Used::of(measured.used.peak, &measured.timeline);
        if let Some((round, place)) = counted {
            track.runs.push(Run { round, place, values: tasks::values(&measured, report.as_ref()) });
            let (own, latency) =
                report.map_or((Vec::new(), None), |report| (report.timeline, report.latency));
            track.timelines.push(if own.is_empty() { measured.timeline } else { own });
            track.latencies.extend(latency);
        }
        Ok(Some(used))
    }

    /// A run, after memory for `need` bytes was made equal, in which this command was not stopped: while it
    /// stands still nobody sees when the program ends.
    fn undisturbed(&mut self, job: &Job, i: usize, need: u64) -> anyhow::Result<Measured> {
        for _ in 0..TRIES {
            self.equal &= self.schedule.no_equal_memory || equalise(need);
            let pauses = interrupt::pauses();
            let measured = run::run(job, &self.found.subjects[i])?;
            self.used += measured.used.user + measured.used.system;
            if interrupt::pauses() == pauses {
                return Ok(measured);
            }
        }
        anyhow::bail!("this command was stopped during each of {TRIES} runs")
    }

    /// A program that leaves with another exit code than under the baseline has failed, unless the code
    /// changes from run to run under that, too.
    fn compare_exits(&mut self, tracks: &mut [Track], name: &str) {
        let subjects = &self.found.subjects;
        let alive = |i: &usize| tracks[*i].failure.is_none();
        let baseline = subjects.iter().position(|subject| subject.name == self.found.baseline);
        let Some(reference) = baseline.filter(alive).or_else(|| (0..tracks.len()).find(|i| alive(i))) else {
            return;
        };
        let (codes, reference) = (&tracks[reference].exits, &subjects[reference].name);
        let Some(&expected) = codes.first() else { return };
        if let Some(other) = codes.iter().find(|code| **code != expected) {
            self.warnings.push(format!(
                "{name}: its exit status changes from run to run under {reference} alone ({expected}, {other}), so \
                 it is not compared"
            ));
            return;
        }
        for (track, subject) in tracks.iter_mut().zip(subjects).filter(|(track, _)| track.failure.is_none()) {
            let mut differing = track.exits.iter().filter(|code| **code != expected);
            if let Some(code) = differing.next() {
                let (count, all) = (1 + differing.count(), track.exits.len());
                let part = if count < all { format!(" in {count} of {all} runs") } else { String::new() };
                let why = format!("exits with {code}{part}, under {reference} with {expected}");
                self.warnings.push(format!("{name}: EXIT STATUS DIFFERS: under {} it {why}", subject.name));
                track.failure = Some(why);
                self.differs = true;
            }
        }
    }

    /// Puts the figures of a task together.
    fn workload(&self, task: &Task, tracks: Vec<Track>) -> Workload {
        let subjects = &self.found.subjects;
        let base = subjects.iter().position(|subject| subject.name == self.found.baseline);
        let base = base.filter(|&i| tracks[i].failure.is_none()).map(|i| (i, tracks[i].runs.clone()));
        let rows = tracks
            .into_iter()
            .zip(subjects)
            .enumerate()
            .map(|(i, (track, subject))| {
                let base = base.as_ref().filter(|(at, _)| *at != i).map(|(_, runs)| runs.as_slice());
                track.row(&subject.name, base, task.primary, self.seed)
            })
            .collect();
        Workload {
            name: task.name.clone(),
            models: task.models.clone(),
            parameters: task.parameters.clone(),
            primary: task.primary.to_string(),
            rows,
        }
    }
}

/// Whether something went wrong that the exit status should tell: a failed row, or differing output.
pub fn is_clean(experiment: &Experiment) -> bool {
    let failed = experiment.workloads.iter().flat_map(|w| &w.rows).any(|row: &Row| row.failure.is_some());
    !failed && !experiment.differs
}
