//! Scopes of C programs in the reports, and handlers of signals that allocate while a profile is taken.

#![cfg(feature = "profile")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{Ended, compile, hakmem, real, run};

/// Runs `scopes` under `hakmem profile`: what it prints, and the profile.
fn profiled(folder: &Path, mode: &str, options: &[&str]) -> (Ended, PathBuf) {
    let program = compile("scopes.c", "scopes", &["-g", "-O1", "-pthread"]);
    let mut command = hakmem();
    command.current_dir(folder).env("HAKMEM_LIB", real()).args(["profile", "--rate", "1K"]);
    let ended = run(command.args(options).arg("--").arg(program).arg(mode));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let files = std::fs::read_dir(folder.join("scopes.profile")).unwrap().map(|file| file.unwrap().path());
    let file = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "hakprof"));
    (ended, file.unwrap())
}

fn by_tag(file: &Path) -> Value {
    let mut command = hakmem();
    let ended = run(command.arg("profile").arg(file).args(["--group", "tag", "--format", "json"]));
    serde_json::from_str(ended.stdout()).unwrap()
}

/// Bytes of the blocks that `scopes` counts.
const SIZE: f64 = 40960.0;

#[test]
fn names_of_any_kind_are_charged() {
    let folder = tempfile::tempdir().unwrap();
    let (ended, file) = profiled(folder.path(), "names", &["--group", "tag", "--top", "20"]);
    let value = by_tag(&file);
    let groups = value["groups"].as_array().unwrap();
    let blocks = |group: &Value| (group["live"]["bytes"].as_f64().unwrap() / SIZE).round() as u64;
    let found: BTreeMap<&str, u64> =
        groups.iter().map(|group| (group["label"].as_str().unwrap(), blocks(group))).collect();
    let long = "x".repeat(255);
    let expected = [
        // Null, none, an end that was no scope's, and a thread that had begun none.
        ("(no tag)", 2 + 7 + 8 + 9 + 10 + 11),
        ("outer", 1 + 3),
        ("(empty tag)", 4),
        (&long, 5),
        ("\u{fffd}\u{fffd}?", 6),
        ("thread", 13),
    ];
    assert_eq!(found, expected.into());
    // The groups add up to everything, and the program's own figure lies in the interval of that.
    let sum = |field: &str| groups.iter().map(|group| group["live"][field].as_f64().unwrap()).sum::<f64>();
    let total = |field: &str| value["live"][field].as_f64().unwrap();
    assert_eq!(sum("samples"), total("samples"));
    assert!((sum("bytes") - total("bytes")).abs() < 1.0);
    // And a little that the C library allocates.
    let truth = 79.0 * SIZE;
    assert!(total("bytes_low") < truth + 8192.0 && total("bytes_high") > truth - 0.5, "{}", value["live"]);
    assert!(ended.stderr.lines().all(|line| line.chars().count() <= 110), "{}", ended.stderr);
    assert!(ended.stderr.contains("thread") && ended.stderr.contains("(no tag)"), "{}", ended.stderr);
}

#[test]
fn handlers_on_a_stack_of_their_own_take_part() {
    let folder = tempfile::tempdir().unwrap();
    let (ended, file) = profiled(folder.path(), "signals", &["--interval", "1ms"]);
    let handled: f64 = ended.stdout().trim().parse().unwrap();
    let value = by_tag(&file);
    let group = value["groups"].as_array().unwrap().iter().find(|group| group["label"] == "handler");
    let allocated = &group.unwrap()["allocated"];
    // A handler that has interrupted the profile itself goes without a sample.
    let blocks = allocated["bytes"].as_f64().unwrap() / SIZE;
    println!("{handled} handlers, {blocks} blocks' bytes charged to them");
    assert!(blocks > 0.9 * handled && blocks < 1.5 * handled, "{allocated}");
    assert!(value["notes"].as_array().unwrap().iter().all(|note| !note.to_string().contains("cut")));
    let live = group.unwrap()["live"]["samples"].as_u64().unwrap();
    assert!(live <= 16, "{live}");
    // Beyond the handler, the walk goes on where the thread was interrupted.
    let mut command = hakmem();
    let stacks =
        run(command.arg("profile").arg(&file).args(["--format", "collapsed", "--what", "allocated"]));
    let through = stacks.stdout().lines().filter(|line| line.contains(";handler")).count();
    let from_main =
        stacks.stdout().lines().filter(|line| line.contains(";handler") && line.contains("main;")).count();
    println!("{from_main} of {through} stacks through the handler come from main");
    assert!(through > 0 && from_main * 10 >= through * 9, "{}", stacks.stdout());
}
