//! How complete the call stacks of real programs are: at least 95% of their samples come to the start of the
//! program, of the loader, or of a thread. The programs are those that `.ci/install` brings; none of them
//! keeps frame pointers.

#![cfg(feature = "profile")]

mod support;

use std::path::Path;

use support::{clean, hakmem, real, run};

/// The least share.
const LEAST: f64 = 0.95;

/// Fewer samples say nothing.
const FEW: u64 = 10;

/// Runs `command` under `hakmem profile` with many samples, prints how far their stacks reach, and refuses
/// less than there should be. Of all its processes.
#[track_caller]
fn reaches_the_start(name: &str, command: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mut profile = hakmem();
    // Memory of their own would hide what they allocate.
    profile.env("HAKMEM_LIB", real()).env("PYTHONMALLOC", "malloc").env("USE_ZEND_ALLOC", "0");
    profile.args(["profile", "--rate", "8K", "--out"]).arg(folder.path()).arg("--").args(command);
    let ended = run(&mut profile);
    assert_eq!(ended.code(), Some(0), "{name}: {}", ended.stderr);
    let (mut samples, mut whole, mut to_start) = (0, 0, 0);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "hakprof") {
            let (a, b, c) = reach(&path);
            (samples, whole, to_start) = (samples + a, whole + b, to_start + c);
        }
    }
    let share = |part: u64| part as f64 / samples as f64;
    println!(
        "{name}: {samples} samples, {:.1}% whole, {:.1}% to the start of the program or of a thread",
        100.0 * share(whole),
        100.0 * share(to_start)
    );
    assert!(samples >= FEW, "{name}: {samples} samples only: {}", ended.stderr);
    assert!(share(whole) >= LEAST && share(to_start) >= LEAST, "{name}: {whole}, {to_start} of {samples}");
}

/// All samples of a file, those with whole stacks, and those whose stacks come to a start.
fn reach(path: &Path) -> (u64, u64, u64) {
    let shown = run(hakmem().arg("profile").arg(path).args(["--format", "json"]));
    assert_eq!(shown.code(), Some(0), "{}", shown.stderr);
    let value: serde_json::Value = serde_json::from_str(shown.stdout()).unwrap();
    let figure = |name: &str| value["stacks"][name].as_u64().unwrap();
    (figure("samples"), figure("whole"), figure("to_start"))
}

#[test]
fn interpreters() {
    // Not a wrapper that is called so.
    let mut ask = clean(std::process::Command::new("python3"));
    let python = run(ask.args(["-c", "import sys; print(sys.executable)"]));
    let script =
        "import json\nfor i in range(12000): x = json.loads(json.dumps([{'a': [i] * 9, 'b': str(i)}]))";
    reaches_the_start("python3", &[python.stdout().trim(), "-c", script]);
    reaches_the_start("perl", &["perl", "-e", "my %h; $h{\"key$_\"} = 'value' x ($_ % 7) for 1..40000"]);
    reaches_the_start("bash", &["bash", "-c", "for i in {1..400}; do x=\"$i $x\"; x=${x:0:2000}; done"]);
    reaches_the_start(
        "php",
        &["php", "-r", "for ($i = 0; $i < 40000; $i++) $a[\"k$i\"] = ['v' => \"str$i\"];"],
    );
    let script = "const m = new Map(); for (let i = 0; i < 100000; i++) m.set('k' + i, {a: [i]}); \
                  console.log(require('zlib').gzipSync(Buffer.alloc(1 << 20)).length)";
    reaches_the_start("node", &["node", "-e", script]);
}

#[test]
fn programs_in_c() {
    let query = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<20000) \
                 SELECT count(*) FROM (SELECT printf('%08d-%s', x, hex(x*7919)) y FROM c ORDER BY y)";
    reaches_the_start("sqlite3", &["sqlite3", ":memory:", query]);
    reaches_the_start("jq", &["jq", "-n", "[range(20000) | {id: ., name: \"n\\(.)\"}] | length"]);
    // A history of its own: this may be no checkout, or one that belongs to somebody else.
    let folder = tempfile::tempdir().unwrap();
    let script =
        "cd $0 && git init -q && seq 20000 >a && git add a && seq 9 20009 | rev >a && git diff --stat -p";
    reaches_the_start("git", &["bash", "-c", script, folder.path().to_str().unwrap()]);
    // Threads.
    reaches_the_start("xz", &["xz", "-T4", "-0", "--block-size=16KiB", "-k", "-c", "/bin/bash"]);
    let script = "redis-server --port 0 --unixsocket $0/s --save '' --daemonize no --dir $0 >/dev/null & \
                  until redis-cli -s $0/s ping >/dev/null 2>&1; do sleep 0.01; done; \
                  redis-benchmark -s $0/s -q -P 16 -n 20000 -r 20000 -d 100 -t set,lpush,hset >/dev/null; \
                  redis-cli -s $0/s shutdown nosave; wait";
    let folder = tempfile::tempdir().unwrap();
    reaches_the_start("redis-server", &["bash", "-c", script, folder.path().to_str().unwrap()]);
}

#[test]
fn programs_in_cplusplus() {
    reaches_the_start("clang++", &["clang++", "-x", "c++", "-fsyntax-only", "-include", "map", "/dev/null"]);
    reaches_the_start("gdb", &["gdb", "-nx", "-batch", "-ex", "info functions main", "/bin/bash"]);
    reaches_the_start(
        "g++",
        &["g++", "-x", "c++", "-O1", "-S", "-o", "/dev/null", "-include", "regex", "/dev/null"],
    );
    let page = "newpath 0 0 10 0 360 arc stroke showpage";
    reaches_the_start(
        "gs",
        &["gs", "-q", "-dBATCH", "-dNOPAUSE", "-sDEVICE=pdfwrite", "-sOutputFile=/dev/null", "-c", page],
    );
}
