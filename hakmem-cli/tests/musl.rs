//! `hakmem ab` where programs and libraries are for different C libraries, glibc and musl.
//!
//! Needs `musl-gcc`. Where it is missing each test says so, and passes, unless `HAKMEM_REQUIRE_PROGRAMS=1`
//! is set. For musl's `libhakmem.so` stands a library that does nothing: the real one is the matter of
//! `hakmem-capi/tests/musl.rs`.

#![cfg(all(feature = "lab", target_arch = "x86_64"))]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::skips::has;
use support::{Ended, compile, compile_by, hakmem, real, run, script};

const LOADER: &str = "/lib/ld-musl-x86_64.so.1";

/// Whether there is a compiler for musl.
fn has_musl() -> bool {
    has("musl-gcc")
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

/// The names in the second column of the table.
fn names(table: &str) -> BTreeSet<&str> {
    let cells = table.lines().filter(|line| line.starts_with('│')).filter_map(|line| line.split('┆').nth(1));
    cells.map(str::trim).filter(|name| !["allocator", "all"].contains(name)).collect()
}

#[test]
fn those_that_fit_are_compared_and_the_others_named() {
    if !has_musl() {
        return;
    }
    let glibcs = compile("plain.c", "nothing.so", &["-shared", "-fPIC", "-Dmain=unused"]);
    let cases = [
        ("musl", program(), LOADER, library(), real()),
        ("glibc", compile("count.c", "for-glibc", &[]), "/lib64/ld-linux-x86-64.so.2", glibcs, library()),
    ];
    for (own, program, loader, fits, other) in cases {
        let json = tempfile::NamedTempFile::new().unwrap();
        let arguments = [with("fits", &fits), with("other", &other), json.path().display().to_string()];
        let [fits, misfit, json] = arguments.each_ref().map(String::as_str);
        let ended = ab(&["--allocators", own, "--with", fits, "--with", misfit, "--json", json], &program);
        let text = ended.stdout();

        let name = program.file_name().unwrap().to_str().unwrap();
        let expected = format!(
            "WARNING: {name}: other CANNOT BE COMPARED: {} uses another C library ({loader}) than {}",
            program.display(),
            other.display()
        );
        let said: Vec<_> = text.lines().filter(|line| line.contains("CANNOT BE COMPARED")).collect();
        assert_eq!(said, [expected], "{text}");
        // A loader takes nothing that is for the other C library, and ends the program.
        assert_eq!(ended.code(), Some(1), "{text}");
        let experiment = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert_eq!(row(&experiment, "fits"), (None, true), "{text}");
        let (failure, has_figures) = row(&experiment, "other");
        assert!(failure.unwrap().contains("exits with 127") && !has_figures, "{text}");
        // In the table, too.
        assert_eq!(names(text), [own, "fits"].into(), "{text}");
        assert!(text.lines().any(|line| line.starts_with("FAILED: other: exits with 127")), "{text}");
    }
}

/// In the table, in JSON and on the page; whatever else is called glibc.
#[test]
fn the_allocator_of_a_program_for_musl_is_called_musl() {
    if !has_musl() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (json, page) = (folder.path().join("a.json"), folder.path().join("page"));
    let script = script(&folder.path().join("script"), &format!("#!{}\n", program().display()), "755");
    for program in [program(), script] {
        let with = with("glibc", &library());
        let arguments = ["--allocators=musl", "--with", &with, "--json", json.to_str().unwrap(), "--report"];
        let ended = ab(&[&arguments[..], &[page.to_str().unwrap()]].concat(), &program);
        assert_eq!(
            (ended.code(), names(ended.stdout())),
            (Some(0), ["musl", "glibc"].into()),
            "{}",
            ended.stdout()
        );
        assert!(ended.stdout().contains("; ratios are to the musl run"), "{}", ended.stdout());
        let experiment: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(
            (&experiment["method"]["baseline"], row(&experiment, "musl")),
            (&"musl".into(), (None, true))
        );
        let version = experiment["subjects"][0]["version"].as_str().unwrap();
        assert!(version.starts_with("musl 1."), "{version}");
        let page = std::fs::read_to_string(page.join("index.html")).unwrap();
        assert!(page.contains("ratio to musl") && page.contains(version));
    }
}

#[test]
fn another_c_librarys_name_is_refused_in_one_line() {
    if !has_musl() {
        return;
    }
    for (program, other, own) in [(program(), "glibc", "musl"), ("true".into(), "musl", "glibc")] {
        let ended = ab(&["--allocators", &format!("{other},{own}")], &program);
        let expected =
            format!("hakmem: --allocators {other}: the program's own C library is called {own} here");
        assert_eq!((ended.code(), ended.line(), ended.stdout()), (Some(2), &*expected, ""));
        let ended = ab(&["--allocators", own, "--baseline", other], &program);
        let expected = format!("hakmem: --baseline {other}: not compared here; there are {own}");
        assert_eq!((ended.code(), ended.line(), ended.stdout()), (Some(2), &*expected, ""));
    }
}

#[test]
fn where_nothing_fits_no_figure_is_said_to_be_anothers() {
    if !has_musl() {
        return;
    }
    let ended = ab(&["--allocators=musl", "--with", &with("glibcs", &real())], &program());
    let expected = "; all figures are those of the program's own allocator";
    let said = ended.stdout().lines().find(|line| line.contains("NO ALLOCATOR IS COMPARED: "));
    assert!(said.is_some_and(|line| line.ends_with(expected)), "{}", ended.stdout());
    assert_eq!((ended.code(), names(ended.stdout())), (Some(1), ["musl"].into()), "{}", ended.stdout());
}

#[test]
fn programs_with_allocators_built_in_are_compared_with_musls() {
    let linked = "first=/bin/true,musl=/bin/true";
    let ended = run(hakmem().args(["ab", "--rounds=1", "--warmups=0", "--linked", linked]));
    assert!(ended.stdout().contains("; ratios are to the musl run"), "{}", ended.stdout());
}
