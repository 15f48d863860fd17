//! Counts the instructions of every pattern under every allocator.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use comfy_table::{CellAlignment, Table, presets};
use hakmem_workloads::{Malloc, patterns};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::callgrind::{Counts, UNKNOWN};
use super::model::{Missing, Subject};
use super::run::{self, Ended, Job};
use super::subjects::{Found, GLIBC};
use super::tasks;
use crate::elf;

/// The function of `hakmem worker` that is counted.
const FUNCTION: &str = "hakmem_measured_rounds";
/// About as many operations are counted of each pattern, whole rounds.
const OPERATIONS: u64 = 20_000;
/// A run takes a second or two; valgrind has been seen to hang with libraries that it does not know.
const TIMEOUT: Duration = Duration::from_secs(120);

/// All figures.
#[derive(Debug, Serialize)]
pub struct Experiment {
    /// What the figures are.
    what: &'static str,
    /// The processor that the instructions are of.
    architecture: &'static str,
    /// The patterns, the order of the figures.
    patterns: Vec<String>,
    /// What was counted, by allocator.
    allocators: Vec<Row>,
    /// What the others are compared with.
    baseline: String,
    /// Not installed.
    missing: Vec<Missing>,
}

/// One allocator.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    subject: Subject,
    /// By pattern; none where it failed.
    figures: Vec<Option<Figure>>,
    /// Why it failed, the first time.
    failure: Option<String>,
}

/// One pattern under one allocator, instructions per operation.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    /// In the allocator's library (glibc: in libc).
    allocator: f64,
    /// And in the loop and everything else. Depends on how the hakmem command was compiled.
    total: f64,
}

/// What one run counted.
struct Counted {
    operations: u64,
    allocator: u64,
    total: u64,
}

/// Counts `names` under all that was `found`.
pub fn count(names: &[&str], found: Found) -> anyhow::Result<Experiment> {
    match Command::new("valgrind").arg("--version").output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => bail!("valgrind does not run: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => {
            bail!("cannot run valgrind, which counts the instructions: {error} (apt-get install valgrind)")
        }
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} figures, {eta} left  {msg}");
    let progress = ProgressBar::new((names.len() * found.subjects.len()) as u64);
    let progress = progress.with_style(style.expect("a valid template"));
    let mut allocators = Vec::new();
    for (subject, broken) in found.subjects.into_iter().zip(found.broken) {
        let own = Own::of(&subject);
        let mut row = Row { subject, figures: vec![None; names.len()], failure: broken };
        for (name, figure) in names.iter().zip(&mut row.figures) {
            progress.set_message(format!("{} {name}", row.subject.name));
            // What failed once would take its time and fail again.
            if row.failure.is_none() {
                match per_operation(name, &row.subject, &own) {
                    Ok(counted) => *figure = Some(counted),
                    Err(error) => row.failure = Some(format!("{name}: {error:#}")),
                }
            }
            progress.inc(1);
        }
        allocators.push(row);
    }
    progress.finish_and_clear();
    Ok(Experiment {
        what: "instructions per operation (an allocation, a free and a change of size are one each)",
        architecture: std::env::consts::ARCH,
        patterns: names.iter().map(ToString::to_string).collect(),
        allocators,
        baseline: found.baseline,
        missing: found.missing,
    })
}

/// Of two runs the difference, so that what the first rounds cost more cancels.
fn per_operation(name: &str, subject: &Subject, own: &Own) -> anyhow::Result<Figure> {
    let mut pattern = patterns::pattern(name).context("no such pattern")?;
    pattern.round(&Malloc);
    let rounds = OPERATIONS.div_ceil(pattern.round(&Malloc));
    pattern.clear(&Malloc);
    let (short, long) = (once(name, rounds, subject, own)?, once(name, 3 * rounds, subject, own)?);
    let operations = long.operations.saturating_sub(short.operations);
    if operations == 0 {
        bail!("three times the rounds made no more operations");
    }
    let each = |long: u64, short: u64| (long as f64 - short as f64) / operations as f64;
    Ok(Figure { allocator: each(long.allocator, short.allocator), total: each(long.total, short.total) })
}

/// One run under callgrind.
fn once(name: &str, rounds: u64, subject: &Subject, own: &Own) -> anyhow::Result<Counted> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let (file, result) = (folder.path().join("callgrind.out"), folder.path().join("result"));
    let mut arguments: Vec<OsString> = vec![
        "--quiet".into(),
        "--tool=callgrind".into(),
        "--demangle=no".into(),
        format!("--toggle-collect={FUNCTION}").into(),
        option("--callgrind-out-file=", &file),
        std::env::current_exe().context("cannot find this program")?.into(),
    ];
    arguments.extend(
        ["worker", "--kernel", name, "--rounds", &rounds.to_string(), "--result"].map(OsString::from),
    );
    arguments.push(result.clone().into());
    let job = Job { program: "valgrind".as_ref(), arguments: &arguments, input: None, timeout: TIMEOUT };
    let measured = run::run(&job, subject)?;
    if measured.refused {
        bail!("the loader did not preload it: {}", measured.last_words);
    }
    if measured.ended != Ended::Exited(0) {
        let ended = measured.ended.in_words(TIMEOUT);
        bail!("under valgrind the pattern was {ended}; its last words: {}", measured.last_words);
    }
    let operations = tasks::read_report(&result)?.operations;
    let text = std::fs::read_to_string(&file).context("callgrind wrote no figures")?;
    let counts = Counts::parse(&text)?;
    let allocator = counts.of(|object, function| own.has(object, function));
    if allocator == 0 {
        bail!("callgrind counted no instructions in its library");
    }
    Ok(Counted { operations, allocator, total: counts.total() })
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

/// What belongs to an allocator.
struct Own {
    /// Its library; none is libc.
    library: Option<PathBuf>,
    /// What the library exports.
    functions: HashSet<String>,
}

impl Own {
    fn of(subject: &Subject) -> Self {
        let library = subject.library.as_deref();
        Self {
            library: library.map(real),
            functions: library.map(elf::exported_functions).unwrap_or_default(),
        }
    }

    fn has(&self, object: &Path, function: &str) -> bool {
        match &self.library {
            Some(_) if object == Path::new(UNKNOWN) => self.functions.contains(function),
            Some(library) => real(object) == *library,
            None => {
                let name = object.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("libc.so") || name.starts_with("libc-")
            }
        }
    }
}

/// Without links on the way, where that can be told.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

impl Experiment {
    /// Pattern and instructions per operation inside `allocator`.
    pub fn figures<'a>(&'a self, allocator: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let rows = self.allocators.iter().filter(move |row| row.subject.name == allocator);
        rows.flat_map(|row| self.patterns.iter().zip(&row.figures))
            .filter_map(|(name, figure)| Some((name.as_str(), figure.as_ref()?.allocator)))
    }

    /// Why not all patterns were counted under `allocator`, if so.
    pub fn failure(&self, allocator: &str) -> Option<&str> {
        self.allocators.iter().find(|row| row.subject.name == allocator)?.failure.as_deref()
    }

    /// As a table.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        let names = self.allocators.iter().map(|row| row.subject.name.clone());
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        table.set_header(["pattern".to_string()].into_iter().chain(names));
        for (i, pattern) in self.patterns.iter().enumerate() {
            let figures = self.allocators.iter().map(|row| match row.figures[i] {
                Some(figure) => format!("{:.1}", figure.allocator),
                None => "-".into(),
            });
            table.add_row([pattern.clone()].into_iter().chain(figures));
        }
        if self.allocators.len() > 1 {
            let ratios = self.allocators.iter().map(|row| match self.ratio(&row.subject.name) {
                Some(ratio) => format!("{ratio:.3}"),
                None => "-".into(),
            });
            table.add_row([format!("mean ratio to {}", self.baseline)].into_iter().chain(ratios));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let libc = self.allocators.iter().any(|row| row.subject.name == GLIBC);
        let mut text = format!(
            "Instructions per operation inside the allocator's library{}, {}, counted by callgrind\n{table}\n",
            if libc { " (glibc: inside libc, with its memset and memcpy)" } else { "" },
            self.architecture
        );
        for row in &self.allocators {
            if let Some(why) = &row.failure {
                text += &format!("FAILED: {}: {why}\n", row.subject.name);
            }
        }
        for missing in &self.missing {
            text += &format!("missing: {}: {}\n", missing.name, missing.hint);
        }
        text
    }

    /// The geometric mean of the ratios to the baseline, over the patterns that both were counted in.
    fn ratio(&self, allocator: &str) -> Option<f64> {
        let base: Vec<_> = self.figures(&self.baseline).collect();
        let logarithms: Vec<f64> = self
            .figures(allocator)
            .filter_map(|(name, figure)| {
                let (_, base) = base.iter().find(|(other, _)| *other == name)?;
                Some((figure / base).ln())
            })
            .collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        (!logarithms.is_empty()).then(|| mean.exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_an_allocator() {
        let libc = Own { library: None, functions: HashSet::new() };
        let has = |own: &Own, object: &str, function: &str| own.has(Path::new(object), function);
        assert!(
            has(&libc, "/lib/x86_64-linux-gnu/libc.so.6", "malloc")
                && has(&libc, "/lib/libc-2.31.so", "free")
        );
        assert!(!has(&libc, "/lib/libcrypt.so.1", "malloc") && !has(&libc, UNKNOWN, "malloc"));
        let other = Own { library: Some("/no/such/liba.so".into()), functions: ["malloc".into()].into() };
        assert!(has(&other, "/no/such/liba.so", "anything") && has(&other, UNKNOWN, "malloc"));
        assert!(!has(&other, UNKNOWN, "0x1234") && !has(&other, "/lib/libc.so.6", "malloc"));
    }

    #[test]
    fn ratios_are_over_what_both_were_counted_in() {
        let figure = |allocator: f64| Some(Figure { allocator, total: allocator });
        let row = |name: &str, figures: &[Option<Figure>], failure: Option<&str>| Row {
            subject: Subject { name: name.into(), library: None, version: None, environment: Vec::new() },
            figures: figures.to_vec(),
            failure: failure.map(Into::into),
        };
        let experiment = Experiment {
            what: "",
            architecture: "",
            patterns: ["a", "b", "c"].map(Into::into).into(),
            allocators: vec![
                row("base", &[figure(10.0), figure(20.0), figure(30.0)], None),
                row("half", &[figure(10.0), figure(5.0), None], Some("c: it crashed")),
                row("gone", &[None; 3], Some("no such file")),
            ],
            baseline: "base".into(),
            missing: Vec::new(),
        };
        assert_eq!(experiment.ratio("half"), Some(0.5), "the geometric mean of 1 and 1/4");
        assert_eq!(experiment.ratio("gone"), None);
        assert_eq!(experiment.figures("half").collect::<Vec<_>>(), [("a", 10.0), ("b", 5.0)]);
        let text = experiment.render();
        assert!(text.contains("FAILED: half: c: it crashed\nFAILED: gone: no such file\n"), "{text}");
        let line = text.lines().find(|line| line.contains("mean ratio to base")).unwrap();
        assert!(line.contains("0.500") && line.contains('-'), "{line}");
    }
}
