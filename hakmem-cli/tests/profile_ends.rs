//! Heap profiles of processes that fork, become other programs, or are killed: what is there can be read, and
//! says what happened.

#![cfg(feature = "profile")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hakmem_profile::file::{self, Raw, Why};
use support::ends::*;
use support::{clean, compile, eventually, finish, hakmem, real, run};

/// The numbers of the processes that have files in `folder` whose names begin with `start`.
fn processes(folder: &Path, start: &str) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter_map(|name| Some(name.strip_prefix(start)?.strip_suffix(".hakprof")?.to_string())).collect()
}

/// Children made by `how` that end by `end`: the numbers of the parent and of the children.
fn children(folder: &Path, arguments: &[&str], hand: bool) -> (String, Vec<String>) {
    let mut command = if hand { unarmed(folder, arguments) } else { ends(folder, arguments) };
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let ended = finish(child);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""), "{arguments:?}");
    (pid, ended.stdout().lines().map(String::from).collect())
}

/// The parent's profile has nothing of its children, and the end.
#[track_caller]
fn check_parent(raw: &Raw, pid: &str, end: Why) {
    assert_eq!((raw.process.pid.to_string().as_str(), raw.cut), (pid, None));
    assert_eq!(raw.snapshots.last().unwrap().why, end);
    assert_eq!((count(raw, HELD), count(raw, OWN)), ((HOLD, HOLD), (0, 0)));
}

/// A child's profile has what it has allocated, and goes on where its parent was. Returns whether the fork
/// came while another thread was writing down a sample: the child has lost the record then.
#[track_caller]
fn check_child(raw: &Raw, pid: &str, own: u64) -> bool {
    assert_eq!((raw.process.pid.to_string().as_str(), raw.cut), (pid, None));
    assert_eq!(count(raw, OWN), (own, own));
    let held = count(raw, HELD);
    assert!(held == (HOLD, HOLD - FREE) || held == (0, 0), "{held:?}");
    held == (0, 0)
}

#[test]
fn children_of_fork_have_files_of_their_own() {
    let (mut forks, mut lost) = (0, 0);
    for thread in [None, Some("thread")] {
        for end in ["exit", "return", "_exit", "kill", "abort"] {
            let folder = tempfile::tempdir().unwrap();
            let arguments: Vec<_> = ["fork", "fork", end, "6"].into_iter().chain(thread).collect();
            let (parent, children) = children(folder.path(), &arguments, false);
            assert_eq!(children.len(), 6);
            let expected: BTreeSet<_> = children.iter().chain([&parent]).cloned().collect();
            assert_eq!(processes(folder.path(), "p."), expected, "{arguments:?}");
            let open = |pid: &str| read(&folder.path().join(format!("p.{pid}.hakprof")));
            let raw = open(&parent);
            check_parent(&raw, &parent, Why::End);
            assert_eq!(raw.end, Some(Why::End));
            for pid in &children {
                let raw = open(pid);
                let whole = end == "exit" || end == "return";
                assert_eq!(raw.end, whole.then_some(Why::End), "{arguments:?}");
                forks += 1;
                lost += u32::from(check_child(&raw, pid, if whole { MORE } else { MORE + 1 }));
            }
        }
    }
    println!("{lost} of {forks} children without their parents' samples");
    assert!(lost <= forks / 2, "{lost} of {forks}");
}

#[test]
fn children_of_a_program_that_profiles_by_hand_stay_armed() {
    for end in ["exit", "return", "_exit", "kill", "abort"] {
        let folder = tempfile::tempdir().unwrap();
        let (parent, children) = children(folder.path(), &["fork", "fork", end, "4", "hand"], true);
        assert_eq!(processes(folder.path(), "hand."), children.iter().cloned().collect());
        check_parent(&read(&folder.path().join("hand.hakprof")), &parent, Why::Asked);
        for pid in &children {
            let raw = read(&folder.path().join(format!("hand.{pid}.hakprof")));
            check_child(&raw, pid, MORE);
            assert!(raw.process.armed_late);
        }
    }
}

/// Nobody tells such a child that it is one: it may find out, or write nothing. Its parent's file is its
/// parent's.
#[test]
fn children_that_no_handler_hears_of_leave_their_parents_file_alone() {
    for end in ["exit", "return", "_exit", "kill", "abort"] {
        let folder = tempfile::tempdir().unwrap();
        let (parent, children) = children(folder.path(), &["fork", "_Fork", end, "6"], false);
        check_parent(&read(&folder.path().join(format!("p.{parent}.hakprof"))), &parent, Why::End);
        for pid in processes(folder.path(), "p.") {
            assert!(pid == parent || children.contains(&pid));
            if pid != parent {
                let raw = read(&folder.path().join(format!("p.{pid}.hakprof")));
                assert_eq!((raw.process.pid.to_string(), raw.cut), (pid, None));
            }
        }
    }
}

#[test]
fn other_programs_begin_files_of_their_own() {
    for how in ["vfork", "spawn"] {
        let folder = tempfile::tempdir().unwrap();
        let (parent, children) = children(folder.path(), &["fork", how, "exit", "4"], false);
        check_parent(&read(&folder.path().join(format!("p.{parent}.hakprof"))), &parent, Why::End);
        for pid in &children {
            let raw = read(&folder.path().join(format!("p.{pid}.hakprof")));
            assert_eq!((raw.process.arguments[1].as_str(), raw.end), ("own", Some(Why::End)));
            assert_eq!((count(&raw, OWN), count(&raw, HELD)), ((MORE, MORE), (0, 0)));
        }
        assert_eq!(processes(folder.path(), "p.").len(), 5);
    }
}

#[test]
fn a_process_that_becomes_another_program_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let child = ends(folder.path(), &["exec"]).stderr(Stdio::piped()).spawn().unwrap();
    let path = folder.path().join(format!("p.{}.hakprof", child.id()));
    assert_eq!(finish(child).code(), Some(0));
    let raw = read(&path);
    assert_eq!((&*raw.process.arguments, raw.cut), (&["ends".to_string(), "own".into()][..], None));
    assert_eq!((count(&raw, OWN), count(&raw, HELD)), ((MORE, MORE), (0, 0)));
}

/// Wherever it is cut, a file of a real program holds what was written before.
#[test]
fn a_profile_is_readable_wherever_it_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.hakprof");
    // A snapshot at the step and one at the end, however quick the program is.
    let mut steps = Steps::start(folder.path(), "p");
    let written = steps.path.clone();
    steps.step();
    steps.end();
    let bytes = std::fs::read(&written).unwrap();
    let whole = read(&written);
    assert!(whole.cut.is_none() && whole.snapshots.len() >= 2, "{} snapshots", whole.snapshots.len());
    // From its first snapshot on: before that there is no file.
    let first =
        (0..bytes.len()).find(|&end| file::read(&bytes[..end]).is_ok_and(|raw| !raw.snapshots.is_empty()));
    let (mut cut, mut shown) = (0, 0);
    for end in first.unwrap()..bytes.len() {
        let raw = file::read(&bytes[..end]).unwrap_or_else(|error| panic!("cut at {end}: {error}"));
        assert!(whole.snapshots.starts_with(&raw.snapshots) && raw.end.is_none(), "cut at {end}");
        // Between two frames it is not, and there it ends as if the process had been killed.
        cut += usize::from(raw.cut.is_some());
        if raw.cut.is_some() && cut % 500 == 1 {
            std::fs::write(&path, &bytes[..end]).unwrap();
            let ended = run(hakmem().arg("profile").arg(&path).args(["--group", "thread"]));
            assert_eq!(ended.code(), Some(0), "cut at {end}: {}", ended.stderr);
            shown += 1;
        }
    }
    assert!(cut > 0 && shown > 0, "{cut} of {} places are within a frame", bytes.len());
}

/// What the program has written when it is killed can be read, however far the next piece has come.
#[test]
fn a_profile_is_readable_whenever_the_process_is_killed() {
    let (mut cut, mut seen) = (0, 0);
    for round in 0..30u64 {
        let folder = tempfile::tempdir().unwrap();
        let mut child = ends(folder.path(), &["work"]).spawn().unwrap();
        let path = folder.path().join(format!("p.{}.hakprof", child.id()));
        // Every other one as soon as there is a file.
        eventually("a file", || path.exists());
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(1 + round * 2909 % 50_000));
        }
        let before = std::fs::read(&path).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let written = file::read(&before).expect("it is never there without its beginning");
        let raw = read(&path);
        let snapshots = |raw: &Raw| raw.snapshots.len();
        assert!(snapshots(&written) >= 1 && raw.snapshots.starts_with(&written.snapshots));
        assert!(std::fs::metadata(&path).unwrap().len() >= before.len() as u64);
        cut += u32::from(raw.cut.is_some());
        seen += snapshots(&raw);
        if round % 10 == 0 {
            let ended = run(hakmem().arg("profile").arg(&path).args(["--group", "thread"]));
            assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        }
    }
    println!("{seen} snapshots in 30 files, {cut} of which are cut");
}

/// What a program writes by itself is there as a whole or not at all.
#[test]
fn a_file_that_the_program_writes_is_never_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.hakprof");
    let mut numbers = BTreeSet::new();
    for round in 0..30u64 {
        let mut child = unarmed(folder.path(), &["write", "whole.hakprof"]).spawn().unwrap();
        eventually("a file", || path.exists());
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(1 + round * 2909 % 50_000));
        }
        let seen = read(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        for raw in [seen, read(&path)] {
            assert_eq!((raw.cut, raw.snapshots.len(), raw.process.pid), (None, 1, child.id()));
            assert_eq!(raw.snapshots[0].why, Why::Asked);
            numbers.insert(raw.snapshots[0].time);
        }
        std::fs::remove_file(&path).unwrap();
    }
    // Mostly another one than a moment before.
    assert!(numbers.len() > 20, "{}", numbers.len());
}

/// In hardened mode a block has the bytes that were asked for.
#[test]
fn blocks_of_no_bytes_count_as_small_ones() {
    for hardened in ["off", "on"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = ends(folder.path(), &["empty"]);
        command.env("HAKMEM_HARDENED", hardened).env("HAKMEM_PROFILE_RATE", "1");
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let path = folder.path().join(format!("p.{}.hakprof", child.id()));
        let ended = finish(child);
        assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
        let raw = read(&path);
        let small: u64 = (1..=16).map(|size| count(&raw, size).1).sum();
        assert!((HOLD..2 * HOLD).contains(&small), "{hardened}: {small}");
        assert!(count(&raw, OWN).0 >= MORE);
    }
}

/// However rarely a block is sampled, whatever call it comes from, and in hardened mode, too.
#[test]
fn snapshots_are_written_when_their_time_has_come() {
    let program = compile("steady.c", "steady", &[]);
    for hardened in ["off", "on", "light"] {
        for how in ["malloc", "calloc", "large", "same"] {
            let folder = tempfile::tempdir().unwrap();
            let mut command = clean(Command::new(&program));
            command.arg(how).current_dir(folder.path()).env("LD_PRELOAD", real());
            command.env("HAKMEM_PROFILE", "p").env("HAKMEM_PROFILE_RATE", "1G");
            command.env("HAKMEM_PROFILE_INTERVAL", "20").env("HAKMEM_HARDENED", hardened);
            let mut child = command.spawn().unwrap();
            let path = folder.path().join(format!("p.{}.hakprof", child.id()));
            eventually("some snapshots", || path.exists() && read(&path).snapshots.len() >= 3);
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(
                read(&path).snapshots.iter().all(|snapshot| snapshot.why == Why::Timer),
                "{hardened} {how}"
            );
        }
    }
}
