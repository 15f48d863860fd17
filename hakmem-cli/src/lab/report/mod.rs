//! What came out, for people and for programs.

mod about;
mod csv;
pub mod html;
mod terminal;
pub mod units;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

pub use self::csv::word;
pub use self::terminal::outcome;
use super::model::{Experiment, FORMAT};

/// Where the results go, for clap. A table goes to standard output unless something else does.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Outputs {
    /// Write everything, each single run too, as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write a line for every workload, allocator and metric as CSV; - is standard output
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write a page with plots (DIR/index.html, needs no network), the raw JSON and the plots as SVG
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// Write the tables as Markdown; - is standard output
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Every metric of every workload in the table, also where there are several workloads
    #[arg(long)]
    full: bool,
}

/// Writes the results in one of the forms.
type Fill = fn(&Experiment, &mut dyn Write) -> anyhow::Result<()>;

impl Outputs {
    /// Finds out before the measurement whether the results can be written.
    pub fn prepare(&self) -> anyhow::Result<()> {
        for path in
            [&self.json, &self.csv, &self.markdown].into_iter().flatten().filter(|path| !is_stdout(path))
        {
            prepare(path)?;
        }
        if let Some(dir) = &self.report {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
            tempfile::tempfile_in(dir).with_context(|| dir.display().to_string())?;
        }
        Ok(())
    }

    /// Writes the results to all places, also where one of them takes nothing: measuring takes long.
    pub fn deliver(&self, experiment: &Experiment) -> anyhow::Result<()> {
        let taken = [&self.json, &self.csv, &self.markdown].into_iter().flatten().any(|path| is_stdout(path));
        let mut done = Vec::new();
        if !taken {
            let text = terminal::render(experiment, self.full);
            done.push(crate::report::print(text.as_bytes()));
        } else {
            // What makes figures doubtful must not get lost.
            for warning in &experiment.warnings {
                crate::report::say(&format!("hakmem: warning: {warning}"));
            }
        }
        if let Some(dir) = &self.report {
            let page = html::write(experiment, dir).with_context(|| dir.display().to_string());
            done.push(page.map(|_| {
                crate::report::say(&format!("hakmem: report: {}", dir.join("index.html").display()));
            }));
        }
        let json: Fill = |experiment, out| Ok(writeln!(out, "{}", serde_json::to_string(experiment)?)?);
        let csv: Fill = |experiment, out| csv::write(experiment, out);
        let markdown: Fill = |experiment, out| Ok(out.write_all(terminal::markdown(experiment).as_bytes())?);
        let all = [(&self.json, json), (&self.csv, csv), (&self.markdown, markdown)];
        let mut files: Vec<_> =
            all.into_iter().filter_map(|(path, fill)| Some((path.as_ref()?, fill))).collect();
        // A pipe last: it may be that nobody reads it.
        files.sort_by_key(|(path, _)| is_special(path));
        done.extend(files.into_iter().map(|(path, fill)| write(path, |out| fill(experiment, out))));
        let mut errors = done.into_iter().filter_map(Result::err);
        let last = errors.next_back();
        errors.for_each(|error| crate::report::say(&format!("hakmem: {error:#}")));
        last.map_or(Ok(()), Err)
    }
}

/// Finds out whether a file can be written to; what is in it stays until there is something better. A pipe is
/// left alone: its reader would take that for the end.
pub fn prepare(path: &Path) -> anyhow::Result<()> {
    if is_special(path) {
        return Ok(());
    }
    can_write(path).with_context(|| path.display().to_string())
}

/// Whether a file can be written to. None is left where there was none: an empty one would be no result.
pub fn can_write(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    if path.exists() {
        File::options().append(true).open(path).map(drop)
    } else {
        tempfile::tempfile_in(folder).map(drop)
    }
}

/// Whether there is a pipe or a device.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if is_stdout(path) {
        let mut text = Vec::new();
        fill(&mut text)?;
        return crate::report::print(&text);
    }
    let context = || path.display().to_string();
    let mut out = File::create(path).with_context(context)?;
    fill(&mut out).with_context(context)
}

/// Reads what `--json` wrote.
pub fn read(path: &Path) -> anyhow::Result<Experiment> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{}: not JSON", path.display()))?;
    let format = value.get("format").and_then(serde_json::Value::as_u64);
    anyhow::ensure!(
        format == Some(FORMAT.into()),
        "{}: not an experiment of format {FORMAT}, which this hakmem reads",
        path.display()
    );
    serde_json::from_value(value).with_context(|| format!("{}: not an experiment", path.display()))
}
