//! `fake/ends.c`, a program with a profile that ends in many ways.

use super::{Ended, clean, compile, finish, real};
use hakmem_profile::file::{self, Raw};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// As in `fake/ends.c`.
pub const HELD: u64 = 40960;
pub const OWN: u64 = 49152;
pub const HOLD: u64 = 200;
pub const FREE: u64 = 80;
pub const MORE: u64 = 150;

/// `ends` in `folder`, with a profile from its start that goes to files there.
pub fn ends(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = unarmed(folder, arguments);
    command.env("HAKMEM_PROFILE", "p");
    command
}

pub fn unarmed(folder: &Path, arguments: &[&str]) -> Command {
    let program = compile("ends.c", "ends", &["-g", "-O1", "-pthread"]);
    let mut command = clean(Command::new(program));
    command.current_dir(folder).args(arguments).env("LD_PRELOAD", real());
    command.env("HAKMEM_PROFILE_RATE", "1024").env("HAKMEM_PROFILE_INTERVAL", "1");
    command
}

#[track_caller]
pub fn read(path: &Path) -> Raw {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file::read(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// How many blocks of a size were allocated, and how many live. At the rate of these tests the sample is all
/// of them.
pub fn count(raw: &Raw, size: u64) -> (u64, u64) {
    let mut rows = vec![(0, 0); raw.sites.len()];
    for (site, row) in raw.snapshots.iter().flat_map(|snapshot| &snapshot.rows) {
        rows[*site] = (row.allocated, row.live);
    }
    let of_size = raw.sites.iter().zip(rows).filter(|(site, _)| site.size == size);
    of_size.fold((0, 0), |sum, (_, row)| (sum.0 + row.0, sum.1 + row.1))
}

/// `ends steps`, which goes on by one snapshot for each step.
pub struct Steps {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
    pub path: PathBuf,
}

impl Steps {
    pub fn start(folder: &Path, prefix: &str) -> Self {
        let mut command = ends(folder, &["steps"]);
        command.env("HAKMEM_PROFILE", prefix);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let path = folder.join(format!("{prefix}.{}.hakprof", child.id()));
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, path }
    }

    pub fn step(&mut self) {
        self.input.write_all(b"\n").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "the program goes on");
    }

    /// Its messages.
    pub fn end(self) -> Ended {
        drop(self.input);
        let ended = finish(self.child);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        ended
    }
}
