//! `hakmem trace`: what is in a recording.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use hakmem_trace::{ProcessTrace, Trace};

use crate::report::{mebibytes, print, printable};

/// Print what is in a file that `hakmem record` wrote: its processes, what each called, and the sizes it
/// asked for
#[derive(clap::Args)]
pub struct Args {
    /// The file
    file: PathBuf,
}

/// Prints it.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let trace = Trace::read(&args.file)?;
    let size = std::fs::metadata(&args.file).with_context(|| args.file.display().to_string())?.len();
    let mut text = format!("{}: {}\n", args.file.display(), super::record::summary(&trace, size));
    if trace.truncated {
        text += "TRUNCATED: the program went on after the recording had reached its limit\n";
    }
    text += &format!("{}\n", processes(&trace));
    text += &format!("Allocations and new sizes by size:\n{}\n", sizes(&trace));
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_header(header);
    table
}

/// All but the first `texts` columns are figures.
fn figures(table: &mut Table, texts: usize) {
    for column in table.column_iter_mut().skip(texts) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn processes(trace: &Trace) -> Table {
    let mut table = table([
        "process",
        "program",
        "started by",
        "threads",
        "allocations",
        "zeroed",
        "aligned",
        "new sizes",
        "frees",
        "by another thread",
        "peak live",
        "live at end",
        "left out",
    ]);
    for (number, process) in trace.processes.iter().enumerate() {
        let ProcessTrace { name, parent, facts, unknown, .. } = process;
        table.add_row([
            number.to_string(),
            printable(OsStr::new(name)),
            parent.map(|parent| parent.to_string()).unwrap_or_default(),
            facts.threads.to_string(),
            facts.allocations.to_string(),
            facts.zeroed.to_string(),
            facts.aligned.to_string(),
            facts.reallocations.to_string(),
            facts.frees.to_string(),
            facts.remote.to_string(),
            mebibytes(facts.peak_live),
            mebibytes(facts.live_at_end),
            unknown.to_string(),
        ]);
    }
    figures(&mut table, 2);
    table
}

/// The histogram of sizes, all processes together.
fn sizes(trace: &Trace) -> Table {
    let classes = trace.processes.iter().map(|process| process.facts.sizes.len()).max().unwrap_or(0);
    let count = |class: usize| -> u64 {
        trace.processes.iter().filter_map(|process| process.facts.sizes.get(class)).sum()
    };
    let all: u64 = (0..classes).map(count).sum();
    let mut table = table(["up to", "calls", "share"]);
    for class in (0..classes).filter(|&class| count(class) > 0) {
        let share = count(class) as f64 * 100.0 / all as f64;
        table.add_row([bytes(1 << class), count(class).to_string(), format!("{share:.1} %")]);
    }
    figures(&mut table, 0);
    table
}

/// A power of two.
fn bytes(value: u64) -> String {
    match value {
        0..1024 => format!("{value} B"),
        1024..0x10_0000 => format!("{} KiB", value >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", value >> 20),
        _ => format!("{} GiB", value >> 30),
    }
}
