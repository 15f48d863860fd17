//! `hakmem diff`: what has grown from one profile to another.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use hakmem_profile::model::What;
use hakmem_profile::{diff, svg};

use crate::profile::input;
use crate::profile::table;
use crate::{report, sys};

/// Compare two heap profiles: what has grown, by call site
///
/// Both may be files of Hakmem (.hakprof, at their ends) or of any tool that writes pprof's format (.pb.gz).
/// Call sites are the same if their functions have the same names; lines may have moved.
#[derive(clap::Args)]
pub struct Args {
    /// The earlier profile
    before: PathBuf,

    /// The later profile
    after: PathBuf,

    /// What to compare
    #[arg(long, visible_alias = "sort", value_name = "WHAT", default_value = "live")]
    what: What,

    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Also draw a flame graph of the later profile, red where it has grown and blue where it has shrunk
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Prints the comparison.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let (before, mut notes) = input::side(&args.before, args.what)?;
    let (after, more) = input::side(&args.after, args.what)?;
    notes.extend(more);
    notes.sort();
    notes.dedup();
    let drawn = args.svg.as_ref().map(|path| -> anyhow::Result<_> {
        let title = format!("{} to {}", args.before.display(), args.after.display());
        let Some(drawn) = svg::differential(&before.folded(), &after.folded(), &title)? else {
            return Ok(format!("no flame graph: nothing of {} is there to be drawn", args.after.display()));
        };
        std::fs::write(path, drawn)
            .with_context(|| format!("cannot write {}; name another file", path.display()))?;
        Ok(format!("flame graph: {}", path.display()))
    });
    let width = sys::columns(&std::io::stdout()).unwrap_or(super::profile::COLUMNS);
    let totals = (before.bytes(), after.bytes());
    let text = table::changes(&diff::rows(&before, &after), totals, args.top, width);
    report::print((text + &table::said(&notes, width)).as_bytes())?;
    // Only now: whoever cannot write the picture still has the table.
    if let Some(drawn) = drawn.transpose()? {
        report::say(&drawn);
    }
    Ok(ExitCode::SUCCESS)
}
