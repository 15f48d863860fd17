//! What `hakmem ab` says about output that differs, or may, and what its exit status is by that.

#![cfg(feature = "lab")]

mod support;

use serde_json::Value;
use support::{Ended, compile, fake, hakmem, run, script};

/// A comparison of two names of the C library's allocator.
fn ab(arguments: &[&str], program: &[&str]) -> (Ended, Value) {
    // A library that does nothing.
    let library = compile("plain.c", "nothing.so", &["-shared", "-fPIC", "-Dmain=unused"]);
    let with = format!("same={}", library.display());
    let mut command = hakmem();
    command.args(["ab", "--allocators=glibc", "--json=-", "--with", &with]).args(arguments);
    let ended = run(command.arg("--").args(program));
    let experiment = serde_json::from_slice(&ended.stdout);
    let experiment = experiment.unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    (ended, experiment)
}

#[test]
fn a_name_that_says_so_makes_no_difference() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("DIFFERS");
    std::os::unix::fs::symlink("/bin/true", &program).unwrap();
    let (ended, experiment) = ab(&["--rounds=1"], &[program.to_str().unwrap()]);
    let warnings = experiment["warnings"].to_string();
    assert!(warnings.contains("DIFFERS: a peak resident size under"), "{warnings}");
    assert_eq!(ended.code(), Some(0), "{warnings}");
}

#[test]
fn one_run_cannot_tell_that_output_differs() {
    let (ended, experiment) = ab(&["--rounds=1", "--warmups=0"], &["date", "+%N"]);
    let warnings = experiment["warnings"].to_string();
    let expected = "date: standard output under same is not that under glibc, of which there is one run: that \
                    cannot tell whether it changes from run to run, so it is not compared";
    assert!(warnings.contains(expected) && !warnings.contains("OUTPUT DIFFERS"), "{warnings}");
    assert_eq!(ended.code(), Some(0), "{warnings}");
}

#[test]
fn names_of_programs_are_printable() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("two\nlines\x1b[1m");
    std::os::unix::fs::symlink("/bin/true", &program).unwrap();
    let (_, experiment) = ab(&["--rounds=1"], &[program.to_str().unwrap()]);
    assert_eq!(experiment["workloads"][0]["name"], "two\\nlines\\u{1b}[1m");
    let linked = format!("a={}", program.display());
    let ended = run(hakmem().args(["ab", "--rounds=1", "--linked", &linked]));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let text = ended.stdout();
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
}

#[test]
fn the_largest_numbers_are_numbers() {
    let (ended, _) = ab(&["--rounds=65535", "--warmups=1"], &["sh", "-c", "kill -KILL $$"]);
    assert_eq!(ended.code(), Some(1), "every run fails at once: {}", ended.stderr);
    let seed = u64::MAX.to_string();
    let mut command = hakmem();
    command.args(["ab", "--fairness=2", "--rounds=5", "--warmups=0", "--allocators=glibc", "--seed", &seed]);
    let ended = run(command.args(["--", "true"]));
    assert!(ended.stdout().contains("of 2 tries NEUTRAL"), "{}", ended.stderr);
    assert!(ended.stdout().contains("  0\n"), "the seed after the largest: {}", ended.stdout());
}

#[test]
fn what_may_not_be_called_is_warned_of() {
    let program = compile("own.c", "own-malloc", &["-O0", "-fno-builtin"]);
    let (ended, experiment) = ab(&["--rounds=1"], &[program.to_str().unwrap()]);
    let warnings = experiment["warnings"].to_string();
    assert!(warnings.contains("same MAY NOT BE COMPARED: "), "{warnings}");
    assert!(warnings.contains("/nothing.so defines no malloc"), "{warnings}");
    assert!(warnings.contains("NO ALLOCATOR MAY BE COMPARED: "), "{warnings}");
    assert!(warnings.contains("/own-malloc defines malloc itself"), "{warnings}");
    assert_eq!(ended.code(), Some(0), "no more than a warning: {warnings}");
    let (_, experiment) = ab(&["--rounds=1"], &["true"]);
    let warnings = experiment["warnings"].to_string();
    assert!(!warnings.contains("defines malloc itself"), "{warnings}");
}

#[test]
fn hakmem_has_the_version_of_its_library() {
    let mut command = hakmem();
    command.args(["ab", "--allocators=hakmem", "--rounds=1", "--warmups=0", "--json=-", "--", "true"]);
    let ended = run(command.env("HAKMEM_LIB", fake()));
    let experiment: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(experiment["subjects"][0]["version"], "Hakmem 9.8.7", "{}", ended.stderr);
    let nothing = compile("plain.c", "nothing.so", &["-shared", "-fPIC", "-Dmain=unused"]);
    let ended = run(command.env("HAKMEM_LIB", &nothing));
    let expected = format!("hakmem: {}: not Hakmem's library; ", nothing.display());
    assert!(ended.code() == Some(2) && ended.line().starts_with(&expected), "{}", ended.stderr);
}

#[test]
fn an_exit_status_that_changes_by_itself_accuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    // Every run leaves with the number of those before it: both allocators have many codes.
    let script = format!("cd '{}' && echo >>runs && exit $(wc -l <runs)", folder.path().display());
    let (ended, experiment) = ab(&["--rounds=2"], &["sh", "-c", &script]);
    let warnings = experiment["warnings"].to_string();
    assert!(warnings.contains("exit status changes from run to run under glibc alone ("), "{warnings}");
    assert!(!warnings.contains("EXIT STATUS DIFFERS") && !warnings.contains("under every"), "{warnings}");
    assert_eq!(ended.code(), Some(0), "{warnings}");
    // Only what is preloaded into it makes it leave with 1, in one run of three.
    let script = format!("cd '{}'; test -z \"$LD_PRELOAD\" || ! mkdir once 2>&-", folder.path().display());
    let (ended, experiment) = ab(&["--rounds=2"], &["sh", "-c", &script]);
    let failure = experiment["workloads"][0]["rows"][1]["failure"].to_string();
    assert!(failure.contains("exits with 1 in 1 of 3 runs, under glibc with 0"), "{failure}");
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
}

#[test]
fn what_cannot_be_started_any_more_costs_no_earlier_result() {
    let folder = tempfile::tempdir().unwrap();
    let program = script(&folder.path().join("once"), "#!/bin/sh\ntest -z \"$LD_PRELOAD\" || rm $0\n", "755");
    let (ended, experiment) = ab(&["--rounds=3", "--warmups=0", "--seed=1"], &[program.to_str().unwrap()]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let rows = &experiment["workloads"][0]["rows"];
    for row in rows.as_array().unwrap() {
        assert!(row["failure"].as_str().unwrap().contains("once: program not found (round "), "{rows}");
    }
    assert_eq!(rows[1]["runs"].as_array().unwrap().len(), 1, "{rows}");
}
