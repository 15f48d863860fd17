//! `hakmem record` without a recording, and ended while it makes one.

#![cfg(feature = "lab")]

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::disk::Disk;
use support::{Ended, compile, eventually, finish, hakmem, run};

fn record(file: &Path, program: &[&str]) -> Ended {
    run(hakmem().args(["record", "--quiet", "-o"]).arg(file).arg("--").args(program))
}

#[test]
fn that_nothing_was_recorded_is_a_failure_and_said_to_the_quiet_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.trace");
    let count = compile("count.c", "count-static", &["-static", "-O0", "-fno-builtin"]);
    let good = [count.to_str().unwrap(), "7"];
    let ended = record(&file, &good);
    let said = ended.stderr.lines().last().unwrap();
    assert_eq!(ended.code(), Some(1), "the program has left with 0: {said}");
    assert!(said.starts_with("hakmem: nothing was recorded of count-static: "), "{said}");
    assert!(said.ends_with("so no loader reads LD_PRELOAD"), "there is no older file: {said}");

    std::fs::write(&file, "older").unwrap();
    let ended = record(&file, &good);
    let said = ended.stderr.lines().last().unwrap();
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.ends_with(&format!("; {} is what was there before", file.display())), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "older");

    let plain = compile("plain.c", "plain-static", &["-static"]);
    let ended = record(&file, &[plain.to_str().unwrap()]);
    assert_eq!(ended.code(), Some(3), "the program's own status: {}", ended.stderr);
    assert!(ended.stderr.contains("nothing was recorded"), "{}", ended.stderr);
}

#[test]
fn a_signal_while_the_trace_is_made_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("x.trace");
    // Where nobody reads, the trace is not finished.
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = hakmem();
    command.env("TMPDIR", folder.path()).args(["record", "-o"]).arg(&pipe);
    command.args(["--", "sh", "-c", "echo $$; cat </dev/null"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // Until then signals are the program's.
    let program = Path::new("/proc").join(line.trim());
    eventually("the program ends", || !program.exists());
    let command = Pid::from_raw(child.id() as i32);
    eventually("the command ends", || {
        kill(command, Signal::SIGTERM).unwrap();
        support::state(command.as_raw()) == Some('Z')
    });
    assert_eq!(finish(child).status.signal(), Some(libc::SIGTERM));
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(left.collect::<Vec<_>>(), [pipe]);
}

#[test]
fn a_signal_before_the_trace_is_in_its_place_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let marker = tempfile::tempdir().unwrap();
    let marker = marker.path().join("marker");
    // What records may have to be built first, which is not to meet that.
    assert_eq!(record(&folder.path().join("first.trace"), &["sh", "-c", ":"]).code(), Some(0));
    std::fs::remove_file(folder.path().join("first.trace")).unwrap();
    // The call that puts it there does not return.
    let stuck = compile("stuck.c", "libstuck.so", &["-shared", "-fPIC"]);
    let mut command = hakmem();
    command.env("LD_PRELOAD", stuck).env("MARKER", &marker).args(["record", "-o"]);
    command.arg(folder.path().join("x.trace")).args(["--", "sh", "-c", ":"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the trace is written", || marker.exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(finish(child).status.signal(), Some(libc::SIGTERM));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_disk_that_does_not_tell_its_room_takes_a_recording() {
    let Some(disk) = Disk::of("ramfs", "8M") else { return };
    let file = disk.path().join("x.trace");
    // More processes than a chunk is for.
    let ended = record(&file, &["sh", "-c", "cat </dev/null; cat </dev/null"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let trace = hakmem_trace::Trace::read(&file).unwrap();
    assert!(!trace.processes.is_empty() && !trace.truncated);
}

#[test]
fn a_file_may_have_any_name_that_there_is_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("n".repeat(255));
    let ended = record(&file, &["sh", "-c", ":"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(!hakmem_trace::Trace::read(&file).unwrap().processes.is_empty());
}
