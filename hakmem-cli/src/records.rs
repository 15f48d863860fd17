//! The records that the library writes: one line of JSON for each start and each exit of a process.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use serde::Deserialize;
use serde_json::{Map, Value};
use tempfile::TempDir;

/// One record.
#[derive(Clone, Debug, Deserialize)]
pub struct Record {
    /// The library's version.
    #[serde(rename = "hakmem")]
    pub version: String,
    /// `start` or `exit`.
    pub event: String,
    /// The process.
    pub pid: i64,
    /// The statistics, in the library's order.
    #[serde(flatten)]
    pub members: Map<String, Value>,
    /// The line itself.
    #[serde(skip)]
    pub line: String,
}

impl Record {
    /// The statistic `name`.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.members.get(name)?.as_u64()
    }
}

/// What the records say about a run.
#[derive(Debug)]
pub struct Summary {
    /// The version of the library that served.
    pub version: Option<String>,
    /// How many processes it served.
    pub processes: usize,
    /// What became of the program itself.
    pub main: Main,
}

/// What the records say about the program itself.
#[derive(Debug)]
pub enum Main {
    /// The library never started in it.
    NotServed,
    /// It started, and the process ended without telling.
    NoReport,
    /// Its statistics.
    Report(Box<Record>),
}

/// Reads records; a line that is none (torn, or written by somebody else) is left out.
fn parse(text: &str) -> Vec<Record> {
    let record = |line: &str| {
        let record: Record = serde_json::from_str(line).ok()?;
        Some(Record { line: line.to_string(), ..record })
    };
    text.lines().filter_map(record).collect()
}

/// The statistics in `text` of all processes that have written some, in the order in which they ended.
pub fn exits(text: &str) -> Vec<Record> {
    parse(text).into_iter().filter(|record| record.event == "exit").collect()
}

/// What `text` says of a run whose program had process id `main`.
pub fn summary(text: &str, main: i32) -> Summary {
    summarise(&parse(text), main)
}

/// Sums up the records of a run whose program had process id `main`.
fn summarise(records: &[Record], main: i32) -> Summary {
    let main = i64::from(main);
    // A process that becomes another program by exec starts again, so only the last word counts.
    let last =
        records.iter().rev().find(|record| record.pid == main && matches!(&*record.event, "start" | "exit"));
    let processes: BTreeSet<i64> = records.iter().map(|record| record.pid).collect();
    Summary {
        version: last.or(records.last()).map(|record| record.version.clone()),
        processes: processes.len(),
        main: match last {
            None => Main::NotServed,
            Some(record) if record.event == "exit" => Main::Report(Box::new(record.clone())),
            Some(_) => Main::NoReport,
        },
    }
}

/// The file that the library writes records to, in a folder of its own so that no late writer leaves it
/// behind.
pub struct Records {
    folder: TempDir,
    path: PathBuf,
    full: Option<Errno>,
}

/// What the records of a dozen processes take at the most, bytes.
const ROOM: i64 = 1 << 18;

/// The longest path that the library takes.
const LONGEST: usize = 255;
/// What is behind the temporary folder in it: "/hakmem-XXXXXX/records-XXXXXX".
const BEHIND: usize = 29;

/// The folder for temporary files, which is `own` unless that leaves too little of a path.
fn place(own: PathBuf) -> PathBuf {
    if own.as_os_str().len() + BEHIND <= LONGEST { own } else { "/tmp".into() }
}

impl Records {
    /// An empty file.
    pub fn new() -> anyhow::Result<Self> {
        // A relative one becomes longer.
        let own = std::env::temp_dir();
        let place = place(std::path::absolute(&own).unwrap_or(own));
        let wrong = |error| anyhow::anyhow!("{}: cannot make a temporary file: {error}", place.display());
        Self::make(&place).map_err(wrong)
    }

    fn make(place: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("hakmem-").tempdir_in(place)?;
        let (file, path) = tempfile::Builder::new().prefix("records-").tempfile_in(folder.path())?.keep()?;
        // Now, so that a program which fills the disk does not lose its own record. Where room cannot be kept
        // there may be some all the same.
        let kept = fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, ROOM);
        let full = kept.err().filter(|error| matches!(error, Errno::ENOSPC | Errno::EDQUOT));
        // Started by root, a program may go on as another user and must still be able to write. Nobody else
        // can guess the file's name, nor list the folder.
        if nix::unistd::geteuid().is_root() {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711))?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        }
        Ok(Self { folder, path, full })
    }

    /// Why there may be no record of a program that was served: that the disk was full.
    pub fn lost(&self) -> Option<String> {
        let folder = self.folder.path().parent().unwrap_or(Path::new("/")).display();
        self.full.map(|error| format!("its record goes to {folder}: {}", error.desc()))
    }

    /// Where the library shall write.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All that was written.
    pub fn text(&self) -> String {
        std::fs::read(&self.path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_one_that_the_library_takes() {
        let length = |own: usize| {
            let folder = tempfile::tempdir().unwrap();
            let mut long = folder.path().to_path_buf();
            while long.as_os_str().len() < own {
                let left = own - long.as_os_str().len() - 1;
                long.push("x".repeat(if left > 202 { 200 } else { left }));
            }
            std::fs::create_dir_all(&long).unwrap();
            let records = Records::make(&place(long.clone())).unwrap();
            (records.path().as_os_str().len(), records.path().starts_with(&long))
        };
        assert_eq!(length(LONGEST - BEHIND), (LONGEST, true));
        assert_eq!(length(LONGEST - BEHIND + 1), ("/tmp".len() + BEHIND, false));
        assert_eq!(place("/var/tmp".into()), PathBuf::from("/var/tmp"));
    }

    fn summary(text: &str) -> Summary {
        super::summary(text, 7)
    }

    const START: &str = r#"{"hakmem":"0.1.0","event":"start","pid":7}"#;
    const EXIT: &str =
        r#"{"hakmem":"0.1.0","event":"exit","pid":7,"allocations":12,"peak_resident_bytes":4096}"#;

    #[test]
    fn a_whole_run() {
        let got = summary(&format!("{START}\n{EXIT}\n"));
        assert_eq!((got.version.as_deref(), got.processes), (Some("0.1.0"), 1));
        let Main::Report(record) = got.main else { panic!("{got:?}") };
        assert_eq!(record.number("allocations"), Some(12));
        assert_eq!(record.number("nothing"), None);
        assert_eq!(record.line, EXIT);
        assert_eq!(record.members.keys().collect::<Vec<_>>(), ["allocations", "peak_resident_bytes"]);
    }

    #[test]
    fn nothing_at_all() {
        let got = summary("");
        assert!(matches!(got.main, Main::NotServed));
        assert_eq!((got.version, got.processes), (None, 0));
    }

    #[test]
    fn only_a_start() {
        assert!(matches!(summary(START).main, Main::NoReport));
    }

    #[test]
    fn the_start_after_an_exec_counts_anew() {
        assert!(matches!(summary(&[START, START, EXIT].join("\n")).main, Main::Report(_)));
        assert!(matches!(summary(&[START, EXIT, START].join("\n")).main, Main::NoReport));
    }

    #[test]
    fn others_alone_do_not_serve_the_program() {
        let got = summary(&START.replace(":7", ":8"));
        assert!(matches!(got.main, Main::NotServed));
        assert_eq!((got.version.as_deref(), got.processes), (Some("0.1.0"), 1));
    }

    #[test]
    fn processes_are_counted_once() {
        let child = START.replace(":7", ":8");
        // A forked child may exit without a start of its own.
        let forked = EXIT.replace(":7,", ":9,");
        assert_eq!(summary(&[START, &child, &child, &forked, EXIT].join("\n")).processes, 3);
    }

    #[test]
    fn rubbish_is_left_out() {
        let rubbish = [
            "",
            "hello",
            "{",
            "[]",
            "null",
            "{}",
            r#"{"hakmem":"0.1.0","event":"exit","pid":7,"alloca"#,
            r#"{"hakmem":"0.1.0","event":"exit","pid":"7"}"#,
            r#"{"hakmem":1,"event":"exit","pid":7}"#,
            r#"{"event":"exit","pid":7}"#,
        ];
        assert_eq!(parse(&rubbish.join("\n")).len(), 0);
        let text = format!("{}\n{START}\n\u{fffd}\n{EXIT}", rubbish.join("\n"));
        assert!(matches!(summary(&text).main, Main::Report(_)));
        assert_eq!(summary(&text).processes, 1);
    }

    #[test]
    fn a_number_may_be_missing_or_no_number() {
        let text = r#"{"hakmem":"0.2.0","event":"exit","pid":7,"allocations":"many","new":-1}"#;
        let Main::Report(record) = summary(text).main else { panic!() };
        assert_eq!((record.number("allocations"), record.number("new")), (None, None));
    }

    #[test]
    fn an_unknown_event_says_nothing_about_the_program() {
        let text = START.replace("start", "pause");
        assert!(matches!(summary(&text).main, Main::NotServed));
    }

    #[test]
    fn the_file_goes_away() {
        let records = Records::new().unwrap();
        let path = records.path().to_path_buf();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        drop(records);
        assert!(!path.exists() && !path.parent().unwrap().exists());
    }
}
