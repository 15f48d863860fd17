//! `hakmem instructions`: Hakmem within its budgets, and what the command says when it is not.

#![cfg(feature = "lab")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::skips::has;
use support::{clean, hakmem, real};
use tempfile::TempDir;

/// The budgets of the repository.
fn budgets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/instructions.json")
}

/// Exit status, standard output, standard error.
fn instructions(arguments: &[&str]) -> (i32, String, String) {
    let mut command = hakmem();
    command.env("HAKMEM_LIB", real()).arg("instructions").args(arguments);
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("not killed"), text(output.stdout), text(output.stderr))
}

/// Budgets for some patterns.
fn write(folder: &TempDir, figures: &Value) -> String {
    let file = folder.path().join("budgets.json");
    let all = serde_json::json!({
        "what": "a test", "architecture": std::env::consts::ARCH, "instructions_per_operation": figures
    });
    std::fs::write(&file, all.to_string()).unwrap();
    file.to_str().unwrap().to_string()
}

#[test]
fn hakmem_is_within_its_budgets() {
    if !has("valgrind") {
        return;
    }
    let file = budgets();
    let (status, table, complaints) =
        instructions(&["--allocators", "hakmem", "--budgets", file.to_str().unwrap()]);
    println!("{table}{complaints}");
    assert_eq!(status, 0, "{complaints}");
}

#[test]
fn too_much_fails_and_is_named_and_can_be_blessed() {
    if !has("valgrind") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = write(&folder, &serde_json::json!({"hit-64": 1.5, "calloc-64": 1000, "lifo-64": 7}));
    let arguments = ["--allocators", "hakmem", "--only", "hit-64", "--only", "calloc-64", "--budgets", &file];
    let (status, _, complaints) = instructions(&arguments);
    assert_eq!(status, 1, "{complaints}");
    assert!(complaints.contains("hit-64 needs ") && complaints.contains("its budget is 1.5"), "{complaints}");
    assert!(
        complaints.contains("calloc-64 needs only ") && complaints.contains("of its budget of 1000"),
        "{complaints}"
    );

    assert_eq!(instructions(&[&arguments[..], &["--bless"]].concat()).0, 0);
    let (status, _, complaints) = instructions(&arguments);
    assert_eq!(status, 0, "{complaints}");
    assert!(complaints.contains("2 patterns within 2%") && !complaints.contains("only"), "{complaints}");
    let blessed: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let blessed = &blessed["instructions_per_operation"];
    assert_eq!(blessed["lifo-64"], 7.0, "not counted, not touched: {blessed}");
    assert!(blessed["hit-64"].as_f64().unwrap() > 5.0, "{blessed}");
}

#[test]
fn one_that_cannot_be_counted_does_not_stop_the_others() {
    if !has("valgrind") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("dies.c");
    std::fs::write(
        &source,
        "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { _Exit(9); }\n",
    )
    .unwrap();
    let library = folder.path().join("dies.so");
    let mut gcc = clean(Command::new("gcc"));
    assert!(gcc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap().success());
    let with = format!("dies={}", library.display());
    let (status, json, complaints) =
        instructions(&["--allocators", "glibc", "--with", &with, "--only", "hit-16", "--json", "-"]);
    assert_eq!(status, 0, "{complaints}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let row = |i: usize| &json["allocators"][i];
    assert_eq!([&row(0)["name"], &row(1)["name"]], ["glibc", "dies"]);
    assert!(
        row(0)["failure"].is_null() && row(0)["figures"][0]["allocator"].as_f64().unwrap() > 10.0,
        "{json}"
    );
    assert!(row(1)["failure"].as_str().unwrap().contains("exited with 9"), "{json}");
    assert!(row(1)["figures"][0].is_null());
}

#[test]
fn figures_that_are_there_stay_until_there_are_others() {
    let folder = tempfile::tempdir().unwrap();
    let old = folder.path().join("old.json");
    std::fs::write(&old, "old").unwrap();
    let file = write(&folder, &serde_json::json!({}));
    let run = |arguments: &[&str]| {
        let mut command = hakmem();
        // Without valgrind, so nothing is counted.
        command.env("PATH", folder.path()).env("HAKMEM_LIB", real()).arg("instructions").args(arguments);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = run(&["--allocators", "glibc", "--json", old.to_str().unwrap()]);
    assert!(error.contains("cannot run valgrind"), "{error}");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
    // That budgets cannot be written is seen before anything is counted, and none are made of nothing.
    let bless = |file: &str| run(&["--allocators", "hakmem", "--bless", "--budgets", file]);
    let error = bless("/no/such/folder/x.json");
    assert!(error.contains("budgets /no/such/folder/x.json: "), "{error}");
    let before = std::fs::read_to_string(&file).unwrap();
    let fresh = folder.path().join("fresh.json");
    for file in [&*file, fresh.to_str().unwrap()] {
        assert!(bless(file).contains("cannot run valgrind"));
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    assert!(!fresh.exists());
}

#[test]
fn what_cannot_work_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(&folder, &serde_json::json!({}));
    let said = |arguments: &[&str], what: &str| {
        let (status, table, complaints) = instructions(arguments);
        assert_eq!((status, table.as_str()), (2, ""), "{complaints}");
        assert!(complaints.contains(what), "{complaints}");
    };
    said(&["--allocators", "glibc", "--budgets", &file], "--budgets are Hakmem's");
    said(&["--allocators", "hakmem", "--budgets", "/no/such.json"], "/no/such.json: No such file");
    said(&["--only", "nonsense"], "hit-64");

    let output = hakmem().env("PATH", folder.path()).args(["instructions", "--allocators", "glibc"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaint.starts_with("hakmem: cannot run valgrind") && complaint.contains("apt-get"),
        "{complaint}"
    );
}
