//! `hakmem bench`, `hakmem replay` and the worker behind them, as a user meets them.

#![cfg(feature = "lab")]

use std::process::{Command, Output};

use serde_json::Value;

fn hakmem(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hakmem")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A quick run; its JSON.
fn bench(arguments: &[&str]) -> Value {
    let start = ["bench", "--rounds", "2", "--warmups", "0", "--json", "-"];
    let output = hakmem(&[&start, arguments].concat());
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(arguments: &[&str], expected: &str) {
    let output = hakmem(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(expected), "{expected}: {error}");
}

/// A reader that has seen enough is no failure, a full disk is one that is said.
#[test]
fn nothing_panics_where_nobody_reads() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/traces/gcc.trace");
    for arguments in [
        &["bench", "--list"][..],
        &["trace", file],
        &["ab", "--fairness=1", "--rounds=5", "--allocators=glibc", "--", "true"],
        &["ab", "--rounds=1", "--allocators=glibc", "--", "true"],
        &["ab", "--rounds=1", "--allocators=glibc", "--json=-", "--", "true"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_hakmem"));
        let output = command.args(arguments).stdout(writer).output().unwrap();
        // An unlucky try of the fairness is not what this is about.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {}", text(&output.stderr));
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        let last = error.lines().last().unwrap();
        assert!(last.starts_with("hakmem: cannot write to standard output: No space"), "{error}");
    }
}

#[test]
fn a_workload_has_time_and_memory_under_every_allocator() {
    let experiment = bench(&["random-mixed", "--set", "iterations=20000", "--set", "set=400"]);
    let workload = &experiment["workloads"][0];
    assert_eq!(workload["primary"], "per_op");
    assert!(workload["parameters"].as_str().unwrap().contains("iterations=20000 set=400 seed=1"));
    let rows = workload["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["subject"] == "hakmem") && rows.len() >= 2);
    for row in rows {
        for metric in ["per_op", "elapsed", "grown", "wall", "peak", "minor"] {
            assert!(row["summaries"][metric]["median"].as_f64().is_some(), "{metric}: {row}");
        }
        let per_op = row["summaries"]["per_op"]["median"].as_f64().unwrap();
        let elapsed = row["summaries"]["elapsed"]["median"].as_f64().unwrap();
        let operations = elapsed * 1e9 / per_op;
        assert!((operations - 40_400.0).abs() < 40.0, "{operations}");
    }
}

#[test]
fn figures_of_a_workload_and_latencies_are_reported() {
    let experiment = bench(&["--allocators=glibc,hakmem", "--set=operations=2000", "lifo"]);
    let row = &experiment["workloads"][0]["rows"][1];
    assert!(row["summaries"]["ns_65536"]["median"].as_f64().unwrap() > 0.0, "{row}");

    let experiment = bench(&["--allocators=glibc,hakmem", "--latency", "--set=requests=200", "server"]);
    for row in experiment["workloads"][0]["rows"].as_array().unwrap() {
        let malloc = &row["latency"]["malloc"];
        let at = |name: &str| malloc[name].as_f64().unwrap_or_else(|| panic!("{row}"));
        assert!(
            at("p50") <= at("p99") && at("p99") <= at("p999") && at("p999") <= at("max") && at("max") > 0.0
        );
        assert!(row["latency"]["timer_ns"].as_f64().unwrap() > 0.0);
    }
    assert!(experiment["warnings"].to_string().contains("--latency: times, and the verdicts on them"));
}

#[test]
fn presets_and_the_overview() {
    let arguments =
        ["bench", "--allocators=glibc,hakmem", "--rounds=5", "--warmups=0", "--set=rounds=2", "--set"];
    let output = hakmem(&[&arguments[..], &["blocks=1000", "burst:fifo", "burst:random"]].concat());
    let table = text(&output.stdout);
    assert!(output.status.success(), "{table}{}", text(&output.stderr));
    for expected in ["burst:fifo (blocks=1000 size=64 rounds=2 order=1)", "geometric mean", "burst:random"] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    if cfg!(debug_assertions) {
        assert!(table.contains("WARNING: this hakmem is a debug build"), "{table}");
    }
}

#[test]
fn a_trace_may_be_called_like_an_option() {
    let folder = tempfile::tempdir().unwrap();
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/traces/gcc.trace");
    std::fs::copy(trace, folder.path().join("-x.trace")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hakmem"));
    command.current_dir(&folder).args(["replay", "--allocators=glibc", "--rounds=1", "--warmups=0"]);
    let output = command.args(["--repeat=1", "--", "-x.trace"]).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_list_names_every_workload() {
    let list = text(&hakmem(&["bench", "--list"]).stdout);
    for workload in hakmem_workloads::all() {
        assert!(list.contains(&format!("\n{}", workload.name)) || list.starts_with(workload.name), "{list}");
        assert!(list.contains(workload.models));
    }
}

#[test]
fn nonsense_is_refused() {
    refused(&["bench", "nosuch"], "nosuch: no such workload; there are lifo");
    refused(&["bench", "burst:nosuch"], "burst:nosuch: no such preset; there are: fifo");
    refused(&["bench", "burst", "--set", "iterations=5"], "none of the chosen workloads has this parameter");
    refused(&["bench", "burst", "--set", "size=huge"], "size=huge: expected a whole number from 1");
    refused(&["bench", "lifo", "--latency"], "cannot measure single calls");
    refused(&["replay", "/no/such.trace"], "/no/such.trace");
    refused(&["replay", "/etc/passwd"], "/etc/passwd");
    refused(&["worker", "lifo"], "--result");
    refused(&["worker", "--kernel", "nosuch", "--rounds", "1", "--result", "/dev/null"], "no such pattern");
}

#[test]
fn a_crash_of_one_allocator_is_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("bad.c"), folder.path().join("bad.so"));
    // Hands out the same block again and again: the workload sees that what it wrote is gone.
    let code = "#include <stddef.h>\n#include <string.h>\nstatic char pool[1 << 26] __attribute__((aligned(16)));\n\
                static size_t used; static int calls;\n\
                void *malloc(size_t n) { n = (n + 31) & ~15ul; if (n > 100 && n < 1200 && ++calls > 3000) return pool;\n\
                char *p = pool + used; used += n; *(size_t *)p = n; return p + 16; }\n\
                void free(void *p) { (void)p; }\n\
                void *calloc(size_t a, size_t b) { void *p = malloc(a * b); return memset(p, 0, a * b); }\n\
                void *realloc(void *p, size_t n) { void *q = malloc(n);\n\
                if (p) memcpy(q, p, ((size_t *)p)[-2] < n ? ((size_t *)p)[-2] : n); return q; }\n";
    std::fs::write(&source, code).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(gcc.status().unwrap().success());
    let with = format!("bad={}", library.display());
    let arguments =
        ["bench", "--rounds=2", "--json=-", "--allocators=glibc", "--with", &with, "random-mixed"];
    let output = hakmem(&[&arguments[..], &["--set=iterations=20000", "--set=set=5000"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let experiment: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = &experiment["workloads"][0]["rows"];
    assert!(rows[0]["failure"].is_null() && rows[0]["runs"].as_array().unwrap().len() == 2);
    let failure = rows[1]["failure"].as_str().unwrap();
    assert!(
        failure.contains("does not hold what was written into it") || failure.contains("killed"),
        "{failure}"
    );
}

#[test]
fn a_recorded_trace_is_replayed_under_every_allocator() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/traces/sqlite.trace");
    let output =
        hakmem(&["replay", trace, "--rounds=2", "--repeat=2", "--allocators=glibc,hakmem", "--json=-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let experiment: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = experiment["workloads"][0]["rows"].as_array().unwrap();
    let of = |row: &Value, metric: &str| row["summaries"][metric]["median"].as_f64().unwrap();
    let operations = |row: &Value| of(row, "elapsed") * 1e9 / of(row, "per_op");
    assert!((operations(&rows[0]) - operations(&rows[1])).abs() < 1.0 && operations(&rows[0]) > 10_000.0);
    assert_eq!(of(&rows[0], "peak_live"), of(&rows[1], "peak_live"));
    // The command has read the trace itself; that must not hide the peaks.
    assert!(of(&rows[0], "peak") < 14e6, "{}", of(&rows[0], "peak"));
}

#[test]
fn a_trace_of_few_large_objects_is_not_replayed_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("x.trace");
    let trace = trace.to_str().unwrap();
    // It allocates its buffer of 200 MiB, and little else.
    let output = hakmem(&["record", "-o", trace, "--", "dd", "if=/dev/null", "bs=200M", "count=1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let repeat = |touch: &str| -> u32 {
        let once = ["--allocators=glibc", "--rounds=1", "--warmups=0", "--timeout=60s"];
        let arguments = [&once[..], &["--json=-", "--touch", touch]].concat();
        let output = hakmem(&[&["replay", trace], &arguments[..]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let experiment: Value = serde_json::from_slice(&output.stdout).unwrap();
        let parameters = experiment["workloads"][0]["parameters"].as_str().unwrap();
        parameters.split("repeat=").nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(repeat("pages"), 15, "of 256 MiB at the most, and a little");
    assert_eq!(repeat("none"), 10_000);
}
