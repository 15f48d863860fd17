//! What the user gets to read.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;

use crate::process::Outcome;
use crate::records::{Main, Record, Summary};
use crate::sys;

/// Writes one line to stderr. That nobody may be there to read it is no reason to fail.
pub fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// Writes to stdout. A reader that has gone has seen enough; any other error is one.
pub fn print(output: &[u8]) -> anyhow::Result<()> {
    put(std::io::stdout().lock(), output).context("cannot write to standard output")
}

/// [`print`] to stderr, for what the user has asked for. Where that fails, nobody can be told why.
pub fn show(output: &[u8]) -> bool {
    // Closed, it is /dev/null here.
    let is_closed = sys::INHERITED.is_closed(libc::STDERR_FILENO);
    (!is_closed || output.is_empty()) && put(std::io::stderr().lock(), output).is_ok()
}

fn put(mut to: impl Write, output: &[u8]) -> io::Result<()> {
    match to.write_all(output).and_then(|()| to.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// `text` without anything that would break a line.
pub fn printable(text: &OsStr) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.to_string_lossy().chars().map(escape).collect()
}

/// The short name of `program`.
pub fn name(program: &OsStr) -> String {
    printable(Path::new(program).file_name().unwrap_or(program))
}

/// `bytes` for people.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1048576.0)
}

/// The statistics of a process; `of` says which program's they are, where that is known.
pub fn table(of: Option<&str>, record: &Record) -> String {
    let of = of.map(|name| format!(" of {name}")).unwrap_or_default();
    let Record { version, pid, .. } = record;
    format!("hakmem {version} statistics{of} (process {pid})\n{}\n", crate::table::render(record))
}

/// Why there are none of the program itself.
pub fn no_table(name: &str, main: &Main) -> String {
    let why = match main {
        Main::NotServed => "there is no record of it",
        _ => "it left without a report",
    };
    format!("hakmem: no statistics of {name}: {why}\n")
}

/// The line at the end: whether Hakmem served the program, and how much. `why` is asked if it did not.
pub fn line(
    name: &str,
    summary: &Summary,
    outcome: &Outcome,
    counts_all: bool,
    why: impl FnOnce() -> String,
) -> String {
    let version = summary.version.as_deref().unwrap_or_default();
    let several = summary.processes > 1;
    let peak = mebibytes(outcome.peak_resident);
    let peak = format!("{peak} peak resident{}", if several { " in the largest process" } else { "" });
    let processes = count(summary.processes as u64, "process", "processes");
    match &summary.main {
        Main::Report(record) => {
            let blocks = record.number("allocations");
            let blocks = match (blocks, counts_all) {
                (None, _) => "an unknown number of allocations".to_string(),
                (Some(n), true) => count(n, "allocation", "allocations"),
                (Some(n), false) => format!(
                    "{} from slabs and large memory (magazine hits not counted; --exact counts them)",
                    count(n, "block", "blocks")
                ),
            };
            let of = if several { " in the main process" } else { "" };
            format!("hakmem {version} served {name}: {blocks}{of}, {peak}, {processes}")
        }
        Main::NoReport => format!(
            "hakmem {version} served {name}, which left without a report ({}): {peak}, {processes}",
            outcome.status.in_words()
        ),
        Main::NotServed if summary.processes == 0 => {
            format!("hakmem: {name} was NOT served by Hakmem: {}", why())
        }
        Main::NotServed => format!(
            "hakmem: {name} was NOT served by Hakmem: {}; but hakmem {version} served {} started by it",
            why(),
            processes
        ),
    }
}

/// `n` things.
fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Status;

    fn text(main: Main, processes: usize, status: Status, counts_all: bool) -> String {
        let version = (processes > 0).then(|| "0.1.0".to_string());
        let outcome = Outcome { pid: 7, status, peak_resident: 10_276_045 };
        line("python3", &Summary { version, processes, main }, &outcome, counts_all, || "because".into())
    }

    fn report(members: &str) -> Main {
        let text = format!(r#"{{"hakmem":"0.1.0","event":"exit","pid":7{members}}}"#);
        Main::Report(serde_json::from_str(&text).unwrap())
    }

    const FINE: Status = Status::Exited(0);

    #[test]
    fn served() {
        assert_eq!(
            text(report(r#","allocations":12345"#), 1, FINE, true),
            "hakmem 0.1.0 served python3: 12345 allocations, 9.8 MiB peak resident, 1 process"
        );
        assert_eq!(
            text(report(r#","allocations":1"#), 3, FINE, true),
            "hakmem 0.1.0 served python3: 1 allocation in the main process, 9.8 MiB peak resident in the largest \
             process, 3 processes"
        );
        assert_eq!(
            text(report(r#","allocations":9"#), 1, FINE, false),
            "hakmem 0.1.0 served python3: 9 blocks from slabs and large memory (magazine hits not counted; \
             --exact counts them), 9.8 MiB peak resident, 1 process"
        );
        assert!(text(report(""), 1, FINE, true).contains(": an unknown number of allocations,"));
    }

    #[test]
    fn without_a_report() {
        let text = |status| text(Main::NoReport, 1, status, false);
        assert_eq!(
            text(Status::Killed(9)),
            "hakmem 0.1.0 served python3, which left without a report (killed by SIGKILL): 9.8 MiB peak resident, \
             1 process"
        );
        assert!(text(Status::Killed(40)).contains("(killed by signal 40)"));
        assert!(text(Status::Exited(0)).contains("_exit"));
    }

    #[test]
    fn not_served() {
        assert_eq!(
            text(Main::NotServed, 0, FINE, false),
            "hakmem: python3 was NOT served by Hakmem: because"
        );
        assert_eq!(
            text(Main::NotServed, 2, FINE, false),
            "hakmem: python3 was NOT served by Hakmem: because; but hakmem 0.1.0 served 2 processes started by it"
        );
    }

    #[test]
    fn names_stay_on_one_line() {
        assert_eq!(name(OsStr::new("/a/b\nc\x1b")), "b\\nc\\u{1b}");
        assert_eq!(name(OsStr::new("..")), "..");
    }
}
