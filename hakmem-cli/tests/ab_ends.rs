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
    // They are children of the command, as the shell itself is. One is ended by a signal that most libraries
    // have no name for.
    let script = r#"(bash -c 'kill -RTMIN $$' &); for i in 1 2 3 4 5; do (sh -c 'sleep 0.1' &); done; sleep 1
        while cat /proc/[0-9]*/stat 2>&- | sed 's/.*) //' | grep "^Z $PPID " >&2; do sleep 0.1; done"#;
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

/// As helpers that Python leaves for a moment do.
#[test]
fn what_ends_by_itself_is_not_said_to_go_on() {
    let ended = once("sleep 0.05 & exit 0", |_| ());
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!ended.stdout().contains("was still running"), "{}", ended.stdout());
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
    // As Ctrl-Z does, which has no effect in an orphaned group.
    kill(Pid::from_raw(own), Signal::SIGSTOP).unwrap();
    eventually("the command stops", || state(own) == Some('T'));
    std::fs::write(&go, "").unwrap();
    eventually("the program ends", || state(program) == Some('Z'));
    kill(Pid::from_raw(own), Signal::SIGCONT).unwrap();
    let ended = finish(child);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(&runs).unwrap().lines().count(), 2);
}

#[test]
fn a_pipe_gets_the_results() {
    let place = tempfile::tempdir().unwrap();
    let pipe = place.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let path = pipe.clone();
    let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
    let mut command = hakmem();
    command.args(["ab", "--allocators=glibc", "--rounds=1", "--warmups=0", "--json"]).arg(&pipe);
    let ended = run(command.args(["--", "true"]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let experiment: Value = serde_json::from_slice(&reader.join().unwrap()).unwrap();
    assert!(experiment["workloads"][0]["rows"][0]["failure"].is_null(), "{experiment}");
}

/// Nor are files left where nothing was measured, but those that were there.
#[test]
fn without_results_there_are_no_files() {
    let place = tempfile::tempdir().unwrap();
    let [new, old] = ["new", "old"].map(|name| place.path().join(name));
    std::fs::write(&old, "old").unwrap();
    let mut command = hakmem();
    command.args(["ab", "--allocators=glibc,none", "--json"]).arg(&new).arg("--csv").arg(&old);
    let ended = run(command.args(["--", "true"]));
    assert!(ended.code() == Some(2) && ended.stderr.contains("none"), "{}", ended.stderr);
    assert!(!new.exists());
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
}

#[test]
fn what_was_started_before_is_not_ended() {
    let place = tempfile::tempdir().unwrap();
    let marker = place.path().join("marker");
    // A child of the shell, and so of the command that the shell becomes.
    let script = format!(
        "sleep 1000 >/dev/null 2>&1 & echo $! >{}; exec '{}' ab --allocators=glibc --rounds=1 --warmups=0 true",
        marker.display(),
        env!("CARGO_BIN_EXE_hakmem")
    );
    let ended = run(Command::new("sh").args(["-c", &script]));
    let before = number(&marker);
    let found = state(before);
    let _ = kill(Pid::from_raw(before), Signal::SIGKILL);
    assert_eq!((ended.code(), found), (Some(0), Some('S')), "{}", ended.stderr);
}

#[test]
fn a_stopped_program_is_not_waited_for() {
    let ended = once("kill -STOP $$", |_| ());
    assert!(failure(&ended).starts_with("stopped by SIGSTOP"), "{}", failure(&ended));
    // Which goes on at once is not stopped.
    let hold = compile("hold.c", "hold", &["-O0"]);
    let ended = once(&format!("'{}' & kill -STOP $!; kill -CONT $!; wait", hold.display()), |_| ());
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_program_that_prints_without_end_is_ended() {
    let Some(disk) = Disk::new("8M") else { return };
    let ended = once("head -c 5000000 /dev/zero; exec sleep 1000", |command| {
        command.env("TMPDIR", disk.path());
    });
    let expected =
        format!("printed over 4.0 MiB, which are kept in {}, and was ended", disk.path().display());
    assert!(failure(&ended).starts_with(&expected), "{}", failure(&ended));
}

#[test]
fn a_full_disk_is_named_where_output_goes_there() {
    let Some(disk) = Disk::new("8M") else { return };
    let fill = disk.path().join("fill");
    let script = format!("cat /dev/zero >'{}' 2>/dev/null; seq 100000", fill.display());
    let with = |command: &mut Command| {
        command.env("TMPDIR", disk.path());
    };
    let ended = once(&script, with);
    let expected = format!("not compared: the disk of {} is full", disk.path().display());
    assert!(failure(&ended).starts_with(&expected), "{}", failure(&ended));
    // It still is: nothing is begun.
    let ended = once("touch /no/such/folder/x", with);
    assert_eq!(ended.code(), Some(2));
    let expected = format!("hakmem: {}: the disk is full", disk.path().display());
    assert!(ended.line().starts_with(&expected), "{}", ended.line());
}

/// The results go to all places that take them, and what does not is said.
#[test]
fn one_place_that_is_full_costs_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = hakmem();
    command.current_dir(&folder).args(["ab", "--allocators=glibc", "--rounds=1", "--warmups=0"]);
    command.args(["--json=/dev/full", "--csv=/dev/full", "--markdown=tables.md", "--report=page"]);
    let ended = run(command.args(["--", "true"]));
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("hakmem: /dev/full: No space left").count(), 2, "{}", ended.stderr);
    assert!(ended.stdout().contains("glibc"), "{}", ended.stdout());
    for name in ["tables.md", "page/index.html", "page/experiment.json"] {
        assert!(std::fs::metadata(folder.path().join(name)).is_ok_and(|meta| meta.len() > 0), "{name}");
    }
}
