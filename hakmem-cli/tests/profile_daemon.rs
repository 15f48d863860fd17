//! Heap profiles of programs that leave processes behind when they end, as daemons do.

#![cfg(feature = "profile")]

mod support;

use std::process::{Child, Stdio};

use hakmem_profile::file::{self, Why};
use support::{compile, eventually, finish, hakmem, real, run};

/// A shell under the profiler in `out`, which starts a process that grows until the command's input ends,
/// and leaves by itself.
fn daemon(folder: &std::path::Path, script: &str) -> Child {
    let mut command = hakmem();
    command.current_dir(folder).env("HAKMEM_LIB", real()).args(["profile", "--rate", "4K", "--interval"]);
    command.args(["1h", "--out", "out", "sh", "-c", script]).arg(compile("grow.c", "grow", &["-g", "-O1"]));
    command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The number of the process that is said to go on.
#[track_caller]
fn going(stderr: &str) -> String {
    let rest = stderr.split_once("process ").map(|(_, rest)| rest);
    let pid = rest.and_then(|rest| rest.split_once(", started by it, goes on: ")).map(|(pid, _)| pid);
    pid.unwrap_or_else(|| panic!("{stderr}")).to_string()
}

#[test]
fn what_a_daemon_writes_later_has_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = daemon(folder.path(), "exec 3<&0; $0 <&3 >/dev/null 2>&1 & exit 0");
    let input = command.stdin.take();
    let ended = finish(command);
    assert!(ended.line().starts_with("hakmem: no profile of sh yet: process "), "{}", ended.stderr);
    assert_eq!(ended.code(), Some(1));
    let pid = going(&ended.stderr);
    // It may not have come to its `main` yet.
    let resident = || {
        let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    eventually("its growth", || resident() > before + 500);
    // The process is there to be asked, and its profile can be ended.
    let mut stop = hakmem();
    let stop = run(stop.args(["profile", "--pid", &pid, "--stop"]));
    assert_eq!(stop.code(), Some(0), "{}", stop.stderr);
    assert!(stop.stderr.contains("has ended: ") && stop.stderr.contains("← main"), "{}", stop.stderr);
    let file = folder.path().join(format!("out/sh.{pid}.hakprof"));
    assert_eq!(file::read(&std::fs::read(file).unwrap()).unwrap().end, Some(Why::End));
    drop(input);
}

#[test]
fn a_profile_that_is_there_does_not_hide_what_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let script = "exec 3<&0; $0 <&3 >/dev/null 2>&1 & $0 </dev/null; exit 7";
    let mut command = daemon(folder.path(), script);
    let input = command.stdin.take();
    let ended = finish(command);
    assert_eq!(ended.code(), Some(7));
    assert!(ended.stderr.contains("Held at the end"), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap();
    assert!(last.starts_with("hakmem: process "), "{last}");
    let pid = going(last);
    drop(input);
    let file = folder.path().join(format!("out/sh.{pid}.hakprof"));
    eventually("the end of its profile", || {
        let raw = std::fs::read(&file).ok().and_then(|bytes| file::read(&bytes).ok());
        raw.is_some_and(|raw| raw.end == Some(Why::End))
    });
}
