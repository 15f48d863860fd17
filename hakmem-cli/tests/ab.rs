//! `hakmem ab` and `hakmem report` as a user meets them.

#![cfg(feature = "lab")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{eventually, finish, state};
use tempfile::TempDir;

fn hakmem(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hakmem")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A quick comparison; its JSON, and its exit status.
fn ab(arguments: &[&str]) -> (Value, i32) {
    let output = hakmem(&[&["ab", "--rounds", "2", "--json", "-"], arguments].concat());
    let value = serde_json::from_slice(&output.stdout);
    let value = value.unwrap_or_else(|e| panic!("{e}: {}\n{}", text(&output.stdout), text(&output.stderr)));
    (value, output.status.code().unwrap())
}

fn row<'a>(experiment: &'a Value, name: &str) -> &'a Value {
    let rows = experiment["workloads"][0]["rows"].as_array().unwrap();
    rows.iter().find(|row| row["subject"] == name).unwrap_or_else(|| panic!("no row {name}: {experiment}"))
}

fn warnings(experiment: &Value) -> String {
    experiment["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w.as_str().unwrap().to_string() + "\n")
        .collect()
}

/// A library to preload that does `code` before `main`.
fn library(folder: &TempDir, name: &str, code: &str) -> PathBuf {
    let path = folder.path().join(format!("{name}.so"));
    let source = folder.path().join(format!("{name}.c"));
    let code = format!(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <signal.h>\n#include <unistd.h>\n\
         __attribute__((constructor)) static void start(void) {{ {code} }}\n"
    );
    std::fs::write(&source, code).unwrap();
    let gcc = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(&source).status().unwrap();
    assert!(gcc.success());
    path
}

fn with(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

#[test]
fn every_allocator_has_figures_or_is_named_as_missing() {
    let (experiment, status) = ab(&["--", "sh", "-c", "echo hello"]);
    assert_eq!(status, 0, "{experiment}");
    let names = |key: &str| -> Vec<String> {
        experiment[key].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().into()).collect()
    };
    let mut all = [names("subjects"), names("missing")].concat();
    all.sort();
    assert_eq!(all, ["glibc", "hakmem", "jemalloc", "mimalloc", "tcmalloc"]);
    for name in names("subjects") {
        let row = row(&experiment, &name);
        assert_eq!(row["runs"].as_array().unwrap().len(), 2, "{name}");
        for metric in ["wall", "user", "system", "peak", "minor", "major"] {
            let summary = &row["summaries"][metric];
            let figure =
                |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{name} {metric}: {row}"));
            assert!(figure("minimum") <= figure("median") && figure("median") <= figure("maximum"));
        }
        assert!(row["summaries"]["peak"]["median"].as_f64().unwrap() > 500_000.0);
        assert!(row["verdict"].is_null(), "two rounds are too few for one");
        assert_eq!(row["summaries"]["wall"]["ratio"].is_null(), name == "glibc");
    }
    assert!(warnings(&experiment).contains("fewer than 5 rounds"));
    let machine = &experiment["machine"];
    assert!(machine["processors"].as_u64().unwrap() > 0 && machine["kernel"].as_str().unwrap().contains('.'));
    assert_eq!(experiment["method"]["rounds"], 2);
}

#[test]
fn one_allocators_failure_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let crash = library(&folder, "crash", "raise(SIGSEGV);");
    let hang = library(&folder, "hang", "for (;;) pause();");
    let exit = library(&folder, "exit", "_exit(7);");
    let prints = library(&folder, "prints", "write(1, \"surprise\", 8);");
    let (experiment, status) = ab(&[
        "--allocators=glibc,hakmem",
        "--timeout=20s",
        "--with",
        &with("crash", &crash),
        "--with",
        &with("hang", &hang),
        "--with",
        &with("exit", &exit),
        "--with",
        &with("prints", &prints),
        "--",
        "sh",
        "-c",
        "echo hello",
    ]);
    assert_eq!(status, 1);
    let failure = |name| row(&experiment, name)["failure"].as_str().unwrap_or("none").to_string();
    assert!(failure("crash").contains("killed by SIGSEGV"), "{}", failure("crash"));
    assert!(failure("hang").contains("timed out after 20s"), "{}", failure("hang"));
    assert!(failure("exit").contains("exits with 7, under glibc with 0"), "{}", failure("exit"));
    for name in ["glibc", "hakmem", "prints"] {
        assert_eq!(failure(name), "none");
        assert_eq!(row(&experiment, name)["runs"].as_array().unwrap().len(), 2);
    }
    let warnings = warnings(&experiment);
    assert!(
        warnings.contains("OUTPUT DIFFERS: standard output under prints is not that under glibc"),
        "{warnings}"
    );
    assert!(warnings.contains("EXIT STATUS DIFFERS: under exit"), "{warnings}");
    assert!(!warnings.contains("under hakmem"), "{warnings}");
}

#[test]
fn a_baseline_that_fails_leaves_the_figures_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let crash = with("crash", &library(&folder, "crash", "raise(SIGSEGV);"));
    let (experiment, status) =
        ab(&["--allocators=glibc", "--with", &crash, "--baseline=crash", "--", "echo", "hello"]);
    assert_eq!(status, 1);
    let row = row(&experiment, "glibc");
    assert!(row["summaries"]["wall"]["median"].as_f64().is_some() && row["verdict"].is_null(), "{row}");
}

#[test]
fn a_folder_of_libraries_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    library(&folder, "one", "");
    library(&folder, "two", "_exit(3);");
    std::fs::write(folder.path().join("one.version"), "One 1.0\n").unwrap();
    let peers = folder.path().to_str().unwrap();
    let (experiment, status) = ab(&["--allocators=glibc", "--peers", peers, "--", "echo", "hello"]);
    assert_eq!(status, 1, "two fails");
    let subjects = experiment["subjects"].as_array().unwrap();
    let names: Vec<_> = subjects.iter().map(|subject| subject["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["glibc", "one", "two"]);
    assert_eq!((&subjects[1]["version"], &subjects[2]["version"]), (&"One 1.0".into(), &Value::Null));
    assert!(row(&experiment, "one")["failure"].is_null());
    assert!(row(&experiment, "two")["failure"].as_str().unwrap().contains("exits with 3"));
}

#[test]
fn programs_with_allocators_built_in_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str, script: &str| {
        let path = folder.path().join(format!("app-{name}"));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        format!("{name}={}", path.display())
    };
    let all = [
        program("glibc", "echo $1$LD_PRELOAD"),
        program("mine", "echo $1"),
        program("other", "echo other"),
        program("crash", "kill -SEGV $$"),
    ];
    let (experiment, status) = ab(&["--linked", &all.join(","), "--", "argument"]);
    assert_eq!(status, 1, "one fails");
    assert_eq!(experiment["workloads"][0]["name"], "app");
    assert_eq!(experiment["workloads"][0]["parameters"], "app argument");
    assert_eq!(experiment["method"]["baseline"], "glibc");
    assert!(row(&experiment, "crash")["failure"].as_str().unwrap().contains("killed by SIGSEGV"));
    assert!(row(&experiment, "mine")["summaries"]["wall"]["ratio"]["median"].as_f64().is_some());
    let said = warnings(&experiment);
    assert!(said.contains("OUTPUT DIFFERS: standard output under other"), "{said}");
    assert!(!said.contains("under mine") && !said.contains("NO ALLOCATOR"), "{said}");

    let (alone, status) = ab(&["--linked", &all[1], "--linked", &all[2], "--baseline=other"]);
    assert_eq!((status, &alone["method"]["baseline"]), (1, &"other".into()), "they print different things");
    let tries = hakmem(&["ab", "--linked", &all[1], "--fairness=1", "--rounds=5"]);
    assert!(text(&tries.stdout).contains("mine against itself: app-mine"), "{}", text(&tries.stdout));
}

#[test]
fn settings_of_hakmem_are_compared_with_its_defaults() {
    let (experiment, status) = ab(&[
        "--env",
        "MAGAZINE=off,PURGE_DELAY=0",
        "--preset",
        "memory",
        "--",
        "sh",
        "-c",
        "echo $HAKMEM_MAGAZINE$HAKMEM_PURGE_DELAY$HAKMEM_PRESET",
    ]);
    assert_eq!(experiment["method"]["baseline"], "hakmem");
    let names: Vec<_> =
        experiment["subjects"].as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    assert_eq!(names, ["hakmem", "hakmem MAGAZINE=off,PURGE_DELAY=0", "hakmem memory"]);
    // The settings reach the program: it prints them.
    let warnings = warnings(&experiment);
    assert!(
        warnings.contains("under hakmem MAGAZINE=off,PURGE_DELAY=0 is not that under hakmem"),
        "{warnings}"
    );
    assert!(warnings.contains("under hakmem memory is not that"), "{warnings}");
    assert!(!warnings.contains("standard error"), "a setting was not understood: {warnings}");
    assert_eq!(status, 1);
}

#[test]
fn output_that_changes_by_itself_accuses_nobody() {
    let (experiment, status) = ab(&["--allocators=glibc,hakmem", "--", "date", "+%N"]);
    let warnings = warnings(&experiment);
    assert!(warnings.contains("changes from run to run under glibc alone"), "{warnings}");
    assert_eq!(status, 0, "{warnings}");
}

#[test]
fn a_static_program_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("s.c"), folder.path().join("s"));
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    assert!(
        Command::new("gcc").arg("-static").arg("-o").args([&program, &source]).status().unwrap().success()
    );
    let (experiment, _) = ab(&["--allocators=glibc,hakmem", "--", program.to_str().unwrap()]);
    let warnings = warnings(&experiment);
    assert!(
        warnings.contains("NO ALLOCATOR IS COMPARED") && warnings.contains("statically linked"),
        "{warnings}"
    );
}

#[test]
fn input_and_exit_status_are_the_programs() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "exit 5").unwrap();
    let input = file.path().to_str().unwrap();
    let (experiment, status) = ab(&["--allocators=glibc,hakmem", "--input", input, "--", "sh"]);
    assert!(warnings(&experiment).contains("sh: exits with 5 under every allocator"), "{experiment}");
    assert_eq!(status, 0);
}

#[test]
fn what_cannot_be_measured_ends_with_a_line_and_2() {
    let no = |arguments: &[&str], expected: &str| {
        let output = hakmem(&[&["ab"], arguments].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    };
    no(&["--", "no-such-program-here"], "no-such-program-here: program not found");
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("lost");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    no(&["--", script], "lost: the interpreter it asks for is missing");
    no(&["--", "/etc/passwd"], "/etc/passwd: program not executable (permission denied)");
    no(&["--input", "/no/such/input", "--", "true"], "/no/such/input");
    no(&["--json", "/no/such/folder/x", "--", "true"], "/no/such/folder/x");
    no(&["--report", "/proc/nothing", "--", "true"], "/proc/nothing");
    no(&["--baseline", "nobody", "--", "true"], "nobody: not compared here");
    no(&["--allocators", "dlmalloc", "--", "true"], "dlmalloc: not one of glibc");
    no(&["--rounds", "0", "--", "true"], "0");
    no(&["--env", "nonsense", "--", "true"], "expected NAME=VALUE");
    no(&["--env", "NONSENSE=1", "--", "true"], "HAKMEM_NONSENSE: unknown option; known: HAKMEM_PRESET, ");
    // A name that is read by the tests, and by no program that Hakmem serves.
    no(&["--env", "THP=never,LONG=1", "--", "true"], "HAKMEM_LONG: unknown option; known: HAKMEM_PRESET, ");
    no(&["--with", "nonsense", "--", "true"], "expected NAME=PATH");
    no(&["--lib", "/no/such.so", "--", "true"], "/no/such.so");
    no(&["--with", "x=/no/such.so", "--", "true"], "hakmem: --with x=/no/such.so: No such file");
    no(&["--with", "x=/etc/passwd", "--", "true"], "hakmem: --with x=/etc/passwd: not an ELF file");
    no(&["--lib", "/etc/passwd", "--", "true"], "/etc/passwd: not an ELF file");
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign.so");
    let mut bytes = std::fs::read(library(&folder, "own", "")).unwrap();
    // MIPS; x86-64 is 62, and 64-bit Arm 183.
    bytes[18] = 8;
    std::fs::write(&foreign, bytes).unwrap();
    let expected = "foreign.so: a shared library for another kind of machine";
    no(&["--with", &with("x", &foreign), "--", "true"], expected);
    no(&["--lib", foreign.to_str().unwrap(), "--", "true"], expected);
    no(&["--peers", folder.path().to_str().unwrap(), "--", "true"], expected);
    no(&["--peers", "/no/such/folder", "--", "true"], "--peers /no/such/folder: No such file");
    no(&["--linked", "a=/no/such/program"], "--linked a=/no/such/program: No such file");
    no(&["--linked", "a=/etc/passwd"], "not a program");
    no(&["--linked", "a=/bin/true", "--with", "b=/no/such.so"], "cannot be used with");
    no(&["--linked", "a=/bin/true", "--baseline", "b"], "b: not compared here; there are a");
    no(&[], "PROGRAM");
}

#[test]
fn results_can_be_shown_again() {
    let folder = tempfile::tempdir().unwrap();
    let (json, csv) = (folder.path().join("a.json"), folder.path().join("a.csv"));
    let (json, csv) = (json.to_str().unwrap(), csv.to_str().unwrap());
    let first = hakmem(&[
        "ab",
        "--rounds=5",
        "--allocators=glibc,hakmem",
        "--json",
        json,
        "--csv",
        csv,
        "--",
        "true",
    ]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let table = text(&first.stdout);
    for word in ["wall time", "peak resident", "minor faults", "glibc", "hakmem", "shuffled rounds"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let again = hakmem(&["report", json, "--csv", "-"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(text(&again.stdout), std::fs::read_to_string(csv).unwrap());
    assert_eq!(text(&hakmem(&["report", json]).stdout), table);
    let lines = std::fs::read_to_string(csv).unwrap();
    assert_eq!(lines.lines().count(), 1 + 2 * 6, "{lines}");
    let wall = lines.lines().find(|line| line.contains(",hakmem,wall,s,5,")).unwrap();
    assert!(["GO", "NEUTRAL", "NO-GO"].iter().any(|word| wall.contains(&format!(",{word},"))), "{wall}");

    std::fs::write(json, "{\"format\": 99}").unwrap();
    let other = hakmem(&["report", json]);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("not an experiment of format"), "{}", text(&other.stderr));
}

#[test]
fn an_interrupt_ends_the_program_too() {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", marker.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_hakmem"));
    command.args(["ab", "--allocators=glibc", "--", "sh", "-c", &script]).stderr(Stdio::null());
    // A shell that starts these tests in the background has it ignored, which the command would respect.
    // SAFETY: signal may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    let pid = || std::fs::read_to_string(&marker).unwrap_or_default().trim().parse::<i32>().ok();
    eventually("the program begins", || pid().is_some());
    let pid = pid().unwrap();
    // SAFETY: takes plain numbers.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let ended = finish(child);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(libc::SIGINT));
    // The orphan is reaped by whoever is in charge of that; until then it is a zombie at most.
    eventually("the program ends", || state(pid).is_none_or(|letter| letter == 'Z'));
}

#[test]
fn the_harness_can_be_tried_against_itself() {
    let output =
        hakmem(&["ab", "--fairness=2", "--rounds=5", "--allocators=glibc", "--seed=5", "--", "true"]);
    for (arguments, expected) in [
        (["--fairness=1", "--rounds=2"], "--fairness: 2 rounds give no verdict, which takes 5 or more"),
        (["--fairness=0", "--rounds=5"], "0 is not in 1..=65535"),
        (["--preset=bogus", "--rounds=2"], "[possible values: balanced, throughput, memory, latency]"),
    ] {
        let output = hakmem(&[&["ab"], &arguments[..], &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    let lines = text(&output.stdout);
    assert!(lines.contains("of 2 tries NEUTRAL"), "{lines}{}", text(&output.stderr));
    assert!(lines.contains("  5\n") && lines.contains("  6\n"), "each try has a seed of its own: {lines}");
}
