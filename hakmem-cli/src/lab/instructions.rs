//! Counts the instructions of every pattern under every allocator.

mod experiment;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use hakmem_workloads::{Malloc, patterns};
use indicatif::{ProgressBar, ProgressStyle};

pub use self::experiment::Experiment;
use self::experiment::{Figure, Row};
use super::callgrind::{Counts, UNKNOWN};
use super::model::Subject;
use super::run::{self, Ended, Job};
use super::subjects::Found;
use super::tasks;
use crate::sys::interrupt::Folder;

/// The function of `hakmem worker` that is counted.
const FUNCTION: &str = "hakmem_measured_rounds";
/// About as many operations are counted of each pattern, whole rounds.
const OPERATIONS: u64 = 20_000;
/// A run takes a second or two; valgrind has been seen to hang with libraries that it does not know.
const TIMEOUT: Duration = Duration::from_secs(120);

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
        let mut row = Row { subject, figures: vec![None; names.len()], failure: broken };
        for (name, figure) in names.iter().zip(&mut row.figures) {
            progress.set_message(format!("{} {name}", row.subject.name));
            // What failed once would take its time and fail again.
            if row.failure.is_none() {
                match per_operation(name, &row.subject) {
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
fn per_operation(name: &str, subject: &Subject) -> anyhow::Result<Figure> {
    let mut pattern = patterns::pattern(name).context("no such pattern")?;
    pattern.round(&Malloc);
    let rounds = OPERATIONS.div_ceil(pattern.round(&Malloc));
    pattern.clear(&Malloc);
    let (short, long) = (once(name, rounds, subject)?, once(name, 3 * rounds, subject)?);
    let operations = long.operations.saturating_sub(short.operations);
    if operations == 0 {
        bail!("three times the rounds made no more operations");
    }
    let each = |long: u64, short: u64| (long as f64 - short as f64) / operations as f64;
    Ok(Figure { allocator: each(long.allocator, short.allocator), total: each(long.total, short.total) })
}

/// One run under callgrind.
fn once(name: &str, rounds: u64, subject: &Subject) -> anyhow::Result<Counted> {
    let folder = Folder::new(tempfile::tempdir).context("cannot make a temporary folder")?;
    let (file, result) = (folder.path().join("callgrind.out"), folder.path().join("result"));
    let program = real(&std::env::current_exe().context("cannot find this program")?);
    let mut arguments: Vec<OsString> = vec![
        "--quiet".into(),
        "--tool=callgrind".into(),
        format!("--toggle-collect={FUNCTION}").into(),
        option("--callgrind-out-file=", &file),
        program.clone().into(),
    ];
    arguments.extend(
        ["worker", "--kernel", name, "--rounds", &rounds.to_string(), "--result"].map(OsString::from),
    );
    arguments.push(result.clone().into());
    let job = Job { program: "valgrind".as_ref(), arguments: &arguments, input: None, timeout: TIMEOUT };
    let measured = run::run(&job, subject)?;
    if measured.refused {
        bail!("the loader did not preload it: {}", measured.last_words());
    }
    if measured.ended != Ended::Exited(0) {
        let ended = measured.ended.in_words(TIMEOUT);
        bail!("under valgrind the pattern was {ended}; its last words: {}", measured.last_words());
    }
    let operations = tasks::read_report(&result)?.operations;
    let text = std::fs::read_to_string(&file).context("callgrind wrote no figures")?;
    let counts = Counts::parse(&text)?;
    if !took_part(&counts, subject) {
        bail!("callgrind counted no instructions in its library");
    }
    Ok(Counted { operations, allocator: outside(&counts, &program), total: counts.total() })
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

/// Instructions outside the worker's own program: in the allocator and in whatever it calls, such as libc's
/// memset.
///
/// Not by the allocator's own file: callgrind puts code in sections of unusual names (tcmalloc's `malloc`)
/// under an unknown object, and for glibc memset would count, for others not.
fn outside(counts: &Counts, program: &Path) -> u64 {
    counts.total() - counts.of(|object| real(object) == program)
}

/// Whether any of it was in the subject's library: else it was not there, and libc's allocator was counted.
fn took_part(counts: &Counts, subject: &Subject) -> bool {
    subject.library.as_deref().map(real).is_none_or(|library| {
        counts.of(|object| real(object) == library) > 0
            || counts.of(|object| object == Path::new(UNKNOWN)) > 0
    })
}

/// Without links on the way, where that can be told.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_allocator_calls_counts_for_it_and_the_loop_does_not() {
        let text = "events: Ir\nob=/bin/loop\n1 100\nob=/no/such/liba.so\n1 20\nob=/lib/libc.so.6\n1 3\n";
        let counts = Counts::parse(text).unwrap();
        assert_eq!(outside(&counts, Path::new("/bin/loop")), 23);
        let subject = |library: Option<&str>| Subject {
            name: "x".into(),
            library: library.map(Into::into),
            ..Subject::default()
        };
        assert!(took_part(&counts, &subject(None)) && took_part(&counts, &subject(Some("/no/such/liba.so"))));
        assert!(!took_part(&counts, &subject(Some("/no/such/libb.so"))));
    }
}
