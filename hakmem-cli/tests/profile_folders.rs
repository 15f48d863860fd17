//! Whose the files are in a folder that several profiles go to, folders that nothing was written to, and
//! files that are no profiles.

#![cfg(feature = "profile")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::saved::{profile, put};
use support::{Ended, eventually, fake, finish, hakmem, install, real, run, state};

/// `cat` under the profiler, which has answered and ends with its input.
fn cat(folder: &Path) -> Child {
    let mut command = hakmem();
    command.env("HAKMEM_LIB", real()).args(["profile", "--rate", "1", "--out"]).arg(folder);
    command.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "hello").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hello\n");
    child
}

/// The numbers of the processes that tables are about.
fn processes(ended: &Ended) -> Vec<&str> {
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let lines = ended.stderr.lines().filter_map(|line| line.strip_prefix("process "));
    lines.map(|line| line.split(':').next().unwrap()).collect()
}

#[test]
fn two_runs_at_once_do_not_take_each_others_files() {
    let folder = tempfile::tempdir().unwrap();
    let (mut first, mut second) = (cat(folder.path()), cat(folder.path()));
    let number = second.id();
    // The first one's process ends while the second one goes on.
    drop(first.stdin.take());
    let first = finish(first);
    drop(second.stdin.take());
    let second = finish(second);
    let (one, two) = (processes(&first), processes(&second));
    assert_eq!((one.len(), two.len()), (1, 1), "{}{}", first.stderr, second.stderr);
    assert_ne!(one, two);
    assert!(folder.path().join(format!("cat.{}.hakprof", one[0])).exists());
    assert!(folder.path().join(format!("cat-{number}.{}.hakprof", two[0])).exists());
    let said = format!("; this one goes to cat-{number}.*.hakprof");
    assert!(second.stderr.lines().next().unwrap().ends_with(&said), "{}", second.stderr);
    // One after another need no other names.
    let mut third = cat(folder.path());
    drop(third.stdin.take());
    let third = finish(third);
    let three = processes(&third);
    assert_eq!(three.len(), 1, "{}", third.stderr);
    assert!(folder.path().join(format!("cat.{}.hakprof", three[0])).exists());
}

/// Names of files are as long at most, and have the process and an ending, too.
#[test]
fn a_program_with_the_longest_name_is_profiled() {
    let folder = tempfile::tempdir().unwrap();
    for (length, out) in [(255, None), (230, None), (255, Some("out"))] {
        let (name, short) = ("x".repeat(length), "x".repeat(80));
        install(Path::new("/bin/cat"), &folder.path().join(&name), "755");
        let mut command = hakmem();
        command.current_dir(folder.path()).env("HAKMEM_LIB", real()).args(["profile", "--rate=1"]);
        command.args(out.map(|out| format!("--out={out}"))).args(["--", &format!("./{name}")]);
        let ended = finish(
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
        );
        let processes = processes(&ended);
        assert_eq!(processes.len(), 1, "{}", ended.stderr);
        let place = folder.path().join(out.map_or(format!("{short}.profile"), str::to_string));
        for ending in ["hakprof", "pb.gz", "peak.collapsed"] {
            assert!(place.join(format!("{short}.{}.{ending}", processes[0])).exists(), "{}", ended.stderr);
        }
    }
}

#[test]
fn a_process_that_ends_before_it_begins_is_said_to() {
    let folder = tempfile::tempdir().unwrap();
    // It takes no memory while it sleeps, so it does not begin.
    let mut sleeping = Command::new("sleep").arg("1000").env("LD_PRELOAD", real()).spawn().unwrap();
    let pid = sleeping.id();
    let maps = format!("/proc/{pid}/maps");
    eventually("it sleeps, with the library", || {
        state(pid as i32) == Some('S') && std::fs::read_to_string(&maps).unwrap().contains("libhakmem.so")
    });
    let out = folder.path().join("out");
    let mut command = hakmem();
    command.args(["profile", "--pid", &pid.to_string(), "--out"]).arg(&out).stderr(Stdio::piped());
    let mut watch = command.stdin(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(watch.stderr.take().unwrap()).lines().map(Result::unwrap);
    let waiting = said.next().unwrap();
    assert!(waiting.starts_with("hakmem: waiting: "), "{waiting}");
    assert!(out.exists());
    sleeping.kill().unwrap();
    sleeping.wait().unwrap();
    assert_eq!(
        said.next(),
        Some(format!("hakmem: no profile of process {pid}: it has ended before it began one"))
    );
    assert_eq!(finish(watch).code(), Some(2));
    assert!(!out.exists());
}

/// Behind `--` there is a program, whatever else it may be.
#[test]
fn what_cannot_be_run_is_no_profile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    std::fs::write(&path, "hello").unwrap();
    for word in [&*path, folder.path()] {
        let mut command = hakmem();
        command.env("HAKMEM_LIB", fake()).args(["profile", "--out"]).arg(folder.path().join("out"));
        let ended = run(command.args(["--rate", "4K", "--"]).arg(word).arg("x"));
        assert_eq!(ended.code(), Some(126), "{}", ended.stderr);
        assert!(ended.line().ends_with(": program not executable (permission denied)"), "{}", ended.stderr);
    }
    // A profile is one all the same.
    let saved = put(folder.path(), "x.hakprof", &profile(12));
    assert_eq!(run(hakmem().args(["profile", "--"]).arg(saved)).code(), Some(0));
}
