//! `hakmem ab` where programs and libraries are for different C libraries, glibc and musl.
//!
//! Needs `musl-gcc`. Where it is missing each test says so, and passes, unless `HAKMEM_REQUIRE_PROGRAMS=1` is
//! set. For musl's `libhakmem.so` stands a library that does nothing: `hakmem-capi/tests/musl.rs` has the real
//! one.

#![cfg(all(feature = "lab", target_arch = "x86_64"))]

mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{Ended, compile, compile_by, hakmem, real, run};

const LOADER: &str = "/lib/ld-musl-x86_64.so.1";

/// Whether there is a compiler for musl.
fn has_musl() -> bool {
    let found =
        Command::new("musl-gcc").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("HAKMEM_REQUIRE_PROGRAMS").is_none(), "musl-gcc is missing");
        // Past the test harness's capture.
        let _ = writeln!(std::io::stderr(), "SKIPPED: musl-gcc is missing (apt-get install musl-tools)");
    }
    found
}

/// A program for musl that exits with 0.
fn program() -> PathBuf {
    compile_by("musl-gcc", "count.c", "for-musl", &[])
}

/// A library for musl that does nothing.
fn library() -> PathBuf {
    compile_by("musl-gcc", "plain.c", "for-musl.so", &["-shared", "-fPIC", "-Dmain=unused"])
}

fn ab(arguments: &[&str], program: &Path) -> Ended {
    let mut command = hakmem();
    command.args(["ab", "--rounds=1", "--warmups=0"]).args(arguments);
    run(command.arg("--").arg(program).arg("1000"))
}

fn with(name: &str, library: &Path) -> String {
    format!("{name}={}", library.display())
}

/// What the experiment says of one allocator: why it failed, and whether it has figures.
fn row<'a>(experiment: &'a Value, name: &str) -> (Option<&'a str>, bool) {
    let rows = experiment["workloads"][0]["rows"].as_array().unwrap();
    let row =
        rows.iter().find(|row| row["subject"] == name).unwrap_or_else(|| panic!("{name}: {experiment}"));
    (row["failure"].as_str(), row["summaries"]["wall"]["median"].as_f64().is_some())
}

#[test]
fn those_that_fit_are_compared_and_the_others_named() {
    if !has_musl() {
        return;
    }
    let glibcs = compile("plain.c", "nothing.so", &["-shared", "-fPIC", "-Dmain=unused"]);
    let cases = [
        (program(), LOADER, library(), real()),
        (compile("count.c", "for-glibc", &[]), "/lib64/ld-linux-x86-64.so.2", glibcs, library()),
    ];
    for (program, loader, fits, other) in cases {
        let json = tempfile::NamedTempFile::new().unwrap();
        let arguments = [with("fits", &fits), with("other", &other), json.path().display().to_string()];
        let [fits, misfit, json] = arguments.each_ref().map(String::as_str);
        let ended = ab(&["--allocators=glibc", "--with", fits, "--with", misfit, "--json", json], &program);
        let text = ended.stdout();

        let name = program.file_name().unwrap().to_str().unwrap();
        let expected = format!(
            "WARNING: {name}: other CANNOT BE COMPARED: {} uses another C library ({loader}) than {}",
            program.display(),
            other.display()
        );
        let said: Vec<_> = text.lines().filter(|line| line.contains("COMPARED")).collect();
        assert_eq!(said, [expected], "{text}");
        // A loader takes nothing that is for the other C library, and ends the program.
        assert_eq!(ended.code(), Some(1), "{text}");
        let experiment = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert_eq!(row(&experiment, "fits"), (None, true), "{text}");
        let (failure, has_figures) = row(&experiment, "other");
        assert!(failure.unwrap().contains("exits with 127") && !has_figures, "{text}");
        // In the table, too.
        let mut rows = text.lines().filter_map(|line| line.split('┆').nth(1));
        assert!(rows.any(|name| name.trim() == "fits"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("FAILED: other: exits with 127")), "{text}");
    }
}
