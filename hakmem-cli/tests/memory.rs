//! `hakmem memory`, as a user meets it.

#![cfg(feature = "lab")]

mod support;

use std::process::Output;

use serde_json::Value;
use support::{hakmem, real};

fn memory(arguments: &[&str]) -> Output {
    hakmem().env("HAKMEM_LIB", real()).arg("memory").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Quick, and without a busy machine's influence: two allocators, one round.
const QUICK: [&str; 2] = ["--allocators=glibc,hakmem", "--rounds=1"];

#[test]
fn a_target_is_met_or_missed_and_the_exit_status_tells() {
    let met = memory(&[&QUICK[..], &["thread-cost", "--set=threads=60", "--json=-"]].concat());
    let experiment: Value = serde_json::from_slice(&met.stdout).unwrap();
    assert_eq!(met.status.code(), Some(0), "{}", text(&met.stderr));
    let names: Vec<_> = experiment["subjects"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(names, ["glibc", "hakmem", "hakmem BACKGROUND=on"]);
    assert_eq!(experiment["subjects"][2]["environment"][0], serde_json::json!(["HAKMEM_BACKGROUND", "on"]));
    let target = &experiment["targets"][0];
    assert_eq!((&target["scenario"], &target["outcome"]), (&"thread-cost".into(), &"met".into()));
    assert_eq!(target["bound"], 12288.0);
    let median = &experiment["workloads"][0]["rows"][1]["summaries"]["per_thread"]["median"];
    assert_eq!(&target["values"][1], median);

    // Every block is kept, so nothing can come back.
    let keep = ["idle-return", "--set=keep=1", "--set=peak=4", "--set=idle_ms=50"];
    let missed = memory(&[&QUICK[..], &keep].concat());
    let table = text(&missed.stdout);
    assert_eq!(missed.status.code(), Some(1), "{table}");
    assert!(
        table.contains("│ idle-return ┆ resident after idling / at the peak ┆ 0.100   ┆ MISSED"),
        "{table}"
    );
    assert!(table.contains("0 of 1 targets met") && table.contains("WARNING: --set: "), "{table}");
}

#[test]
fn real_programs_are_judged_by_what_ab_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ab.json");
    let ab = |more: &[&str]| {
        let mut ab = hakmem();
        ab.env("HAKMEM_LIB", real()).args(["ab", "--rounds=1", "--warmups=0", "--json"]).arg(&file);
        assert!(ab.args(more).args(["--", "seq", "300000"]).output().unwrap().status.success());
    };
    ab(&["--allocators=glibc,hakmem"]);
    let programs = ["--programs", file.to_str().unwrap(), "--set=threads=20", "--markdown=-"];
    let output = memory(&[&["thread-cost"], &QUICK[..], &programs].concat());
    let table = text(&output.stdout);
    let row =
        table.lines().find(|line| line.starts_with("| 1 real programs")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.contains("| 1.02, and below every other peer |") && row.contains("| 1.000 |"), "{row}");
    assert!(!text(&output.stderr).contains("takes --programs"));

    ab(&["--env=THP=never"]);
    let output = memory(&[&["thread-cost"], &QUICK[..], &programs].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("compared with hakmem, not with glibc"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_workload_after_the_programs_is_one() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = memory(&["--programs", file, "thread-cost"]);
    // The files are read one after another: it came to the first, and there is no second.
    assert!(text(&output.stderr).contains("Cargo.toml: not JSON"), "{}", text(&output.stderr));
    let output = memory(&["--programs", "thread-cost", "--rounds=1", "--set=threads=2", "--json=-"]);
    let experiment: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(experiment["title"], "hakmem memory thread-cost", "{}", text(&output.stderr));
    let output = memory(&["--programs", "nosuch"]);
    assert!(text(&output.stderr).contains("nosuch: No such file"), "{}", text(&output.stderr));
}

#[test]
fn nonsense_is_refused() {
    for (arguments, expected) in [
        (&["larson"][..], "larson: no such target; there are idle-return, "),
        (&["idle-return:nosuch"], "idle-return:nosuch: no such target"),
        (&["--allocators=glibc"], "--allocators leaves out hakmem, whose targets these are"),
        (&["drift", "--set=nosuch=1"], "none of the chosen workloads has this parameter"),
        (&["--programs", "/no/such.json"], "/no/such.json"),
        (&["--programs", "/etc/passwd"], "/etc/passwd: not JSON"),
        (&["--rounds=0"], "--rounds"),
    ] {
        let output = memory(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn three_rounds_are_enough() {
    let help = text(&memory(&["--help"]).stdout);
    let default = |option: &str| help.split(option).nth(1).and_then(|rest| rest.split("[default: ").nth(1));
    assert!(default("--rounds").is_some_and(|rest| rest.starts_with("3]")), "{help}");
    assert!(default("--warmups").is_some_and(|rest| rest.starts_with("0]")), "{help}");
}
