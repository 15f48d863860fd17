//! How runs that are compared end otherwise than by themselves, and what is left of them.

#![cfg(feature = "lab")]

mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use support::disk::Disk;
use support::{Ended, compile, eventually, fake, finish, hakmem, install, run, state};

/// One run of `sh -c SCRIPT`, with the C library's allocator.
fn once(script: &str, prepare: impl FnOnce(&mut Command)) -> Ended {
    let mut command = hakmem();
    command.args(["ab", "--allocators=glibc", "--rounds=1", "--warmups=0", "--json=-", "--", "sh", "-c"]);
    prepare(&mut command);
    run(command.arg(script))
}

/// Why the only row has failed.
#[track_caller]
fn failure(ended: &Ended) -> String {
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let experiment: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let failure = &experiment["workloads"][0]["rows"][0]["failure"];
    failure.as_str().unwrap_or_else(|| panic!("no failure: {experiment}")).to_string()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Waits for the number of a process that is written to `file`.
fn number(file: &Path) -> i32 {
    let read = || std::fs::read_to_string(file).ok()?.trim().parse().ok();
    eventually("a process says its number", || read().is_some());
    read().unwrap()
}

/// Ends a command by SIGTERM.
#[track_caller]
fn terminate(child: Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let ended = finish(child);
    assert_eq!(ended.status.signal(), Some(libc::SIGTERM), "{}", ended.stderr);
}

#[test]
fn a_signal_leaves_no_program_and_no_folder() {
    let place = tempfile::tempdir().unwrap();
    let temporary = place.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    // The loader gets a link to it, for the space in its name.
    let library = place.path().join("with space.so");
    install(&fake(), &library, "755");
    let marker = place.path().join("marker");
    let script = format!("setsid -w sh -c 'echo $$ >{}; exec sleep 1000'", marker.display());
    let mut command = hakmem();
    command.env("TMPDIR", &temporary).args(["ab", "--allocators=hakmem", "--lib"]).arg(&library);
    command.args(["--", "sh", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let program = number(&marker);
    assert!(!entries(&temporary).is_empty(), "there is a link");
    terminate(child);
    assert_eq!(entries(&temporary), [""; 0].map(PathBuf::from));
    eventually("a program in a session of its own ends, too", || matches!(state(program), None | Some('Z')));

    // A worker, which has a folder for its result.
    let mut command = hakmem();
    command.env("TMPDIR", &temporary).args(["bench", "--allocators=glibc", "idle-return"]);
    command.args(["--set=peak=1", "--set=idle_ms=1000000"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    eventually("a worker runs", || !entries(&temporary).is_empty());
    terminate(child);
    assert_eq!(entries(&temporary), [""; 0].map(PathBuf::from));
}

#[test]
fn what_is_left_in_a_session_of_its_own_is_ended() {
    let place = tempfile::tempdir().unwrap();
    let marker = place.path().join("marker");
    let script = format!(
        "setsid sh -c 'echo $$ >{0}; exec sleep 1000' & until test -s {0}; do sleep 0.01; done",
        marker.display()
    );
    let ended = once(&script, |_| ());
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(state(number(&marker)), None);
    let said = "what it had started was still running when it had ended itself (under glibc)";
    assert!(ended.stdout().contains(said), "{}", ended.stdout());
    let ended = once("sleep 1000 & kill $!; wait", |_| ());
    assert!(!ended.stdout().contains("was still running"), "{}", ended.stdout());
}

#[test]
fn who_leaves_its_group_is_ended_in_time() {
    let leaves = compile("leaves.c", "leaves", &[]);
    let mut command = hakmem();
    command.args(["ab", "--allocators=glibc", "--rounds=1", "--warmups=0", "--timeout=1s", "--json=-", "--"]);
    let ended = run(command.arg(leaves));
    assert!(failure(&ended).starts_with("timed out after 1s"), "{}", failure(&ended));
}

#[test]
fn orphans_that_have_ended_do_not_pile_up() {
    // They are children of the command, as the shell itself is.
    let script = r#"for i in 1 2 3 4 5; do (sh -c 'sleep 0.1' &); done; sleep 1
        dead='$3 == "Z" && $4 == parent { found = 1 } END { exit !found }'
        while cat /proc/[0-9]*/stat 2>&- | awk -v parent=$PPID "$dead"; do sleep 0.1; done"#;
    let mut command = hakmem();
    command.args([
        "ab",
        "--allocators=glibc",
        "--rounds=1",
        "--warmups=0",
        "--timeout=60s",
        "--json=-",
        "--",
    ]);
    let ended = run(command.args(["sh", "-c", script]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stdout());
}

#[test]
fn a_run_during_which_the_command_was_stopped_is_repeated() {
    let place = tempfile::tempdir().unwrap();
    let (runs, go) = (place.path().join("runs"), place.path().join("go"));
    let script =
        format!("echo $$ >>'{}'; until test -e '{}'; do sleep 0.01; done", runs.display(), go.display());
    let mut command = hakmem();
    command.args(["ab", "--allocators=glibc", "--rounds=1", "--warmups=0", "--", "sh", "-c", &script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let own = child.id() as i32;
    let program = number(&runs);
    kill(Pid::from_raw(own), Signal::SIGTSTP).unwrap();
    eventually("the command stops", || state(own) == Some('T'));
    std::fs::write(&go, "").unwrap();
    eventually("the program ends", || state(program) == Some('Z'));
    kill(Pid::from_raw(own), Signal::SIGCONT).unwrap();
    let ended = finish(child);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&runs).unwrap().lines().count(), 2);
}
