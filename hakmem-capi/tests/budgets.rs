//! What the C library costs: instructions, resident memory, system calls. The limits are in `budgets.txt`.
//!
//! Time is printed, never asserted.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::skips::is_there;
use support::{compile, expect_ok, lib, preloaded, run, scratch};

const LIMIT: Duration = Duration::from_secs(120);

/// The limit that `budgets.txt` gives for `name`.
fn budget(name: &str) -> f64 {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/budgets.txt");
    let text = std::fs::read_to_string(&file).unwrap();
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name));
    let value = line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok());
    value.unwrap_or_else(|| panic!("{} has no limit for {name}", file.display()))
}

/// Prints a figure beside its limit, and returns a complaint if it is above.
fn compare(name: &str, figure: f64) -> Option<String> {
    let limit = budget(name);
    let line = format!("{name:36} {figure:10.1}   at most {limit}");
    println!("{line}");
    (figure > limit).then_some(line)
}

/// Fails the test if there were complaints, all of them at once.
fn settle(complaints: impl IntoIterator<Item = Option<String>>) {
    let complaints: Vec<String> = complaints.into_iter().flatten().collect();
    assert!(complaints.is_empty(), "over budget:\n{}", complaints.join("\n"));
}

/// Whether a tool is there and works here; see [`is_there`].
fn works(tool: &str, args: &[&str]) -> bool {
    is_there(tool, Command::new(tool).args(args).output().is_ok_and(|o| o.status.success()))
}

/// The instructions of a whole run of `program`, with the library preloaded or without.
fn instructions(program: &Path, args: &[&str], ours: bool) -> f64 {
    counted(program, args, if ours { preloaded("valgrind") } else { Command::new("valgrind") })
}

/// The instructions of a whole run of `program` by a command that is valgrind so far.
fn counted(program: &Path, args: &[&str], mut command: Command) -> f64 {
    let file = scratch("callgrind").join(format!("{:?}", std::thread::current().id()));
    let out = format!("--callgrind-out-file={}", file.display());
    expect_ok(command.args(["--quiet", "--tool=callgrind", &out]).arg(program).args(args), LIMIT);
    let text = std::fs::read_to_string(&file).expect("callgrind wrote its figures");
    let total = text.lines().find_map(|l| l.strip_prefix("totals: ").or_else(|| l.strip_prefix("summary: ")));
    total.and_then(|t| t.trim().parse().ok()).expect("callgrind's file has a total")
}

/// The instructions of one operation: of two runs of different length the difference, so that start-up
/// cancels.
fn each(program: &Path, kind: &str, size: &str, batch: f64) -> f64 {
    each_hardened(program, kind, size, batch, "off")
}

/// [`each`] with these parts of hardened mode.
fn each_hardened(program: &Path, kind: &str, size: &str, batch: f64, parts: &str) -> f64 {
    let (few, many) = (100.0, 2100.0);
    let count = |rounds: f64| {
        let mut command = preloaded("valgrind");
        command.env("HAKMEM_HARDENED", parts);
        counted(program, &[kind, size, &rounds.to_string()], command)
    };
    (count(many) - count(few)) / (many - few) / batch
}

#[test]
fn instructions_of_each_entry() {
    if !works("valgrind", &["--version"]) {
        return;
    }
    let program = compile("gcc", "budget_loop.c", &[]);
    let sizes = ["16", "64", "512", "1024", "4096", "32768"];
    let pairs = sizes.map(|size| {
        let figure = each(&program, "malloc_free", size, 50.0);
        compare(&format!("malloc_free_{size}"), figure)
    });
    let others = [
        ("calloc_free", "64", 50.0),
        ("realloc_in_place", "100", 50.0),
        ("realloc_moved", "64", 50.0),
        ("realloc_null", "64", 50.0),
        ("free_null", "0", 50.0),
        ("burst", "64", 1000.0),
        ("two", "1048576", 50.0),
    ];
    let others = others
        .map(|(kind, size, batch)| compare(&format!("{kind}_{size}"), each(&program, kind, size, batch)));
    settle(pairs.into_iter().chain(others));
}

#[test]
fn instructions_in_hardened_mode() {
    if !works("valgrind", &["--version"]) {
        return;
    }
    let program = compile("gcc", "budget_loop.c", &[]);
    settle(["checks", "light", "on"].map(|parts| {
        let figure = each_hardened(&program, "malloc_free", "64", 50.0, parts);
        compare(&format!("hardened_{parts}_64"), figure)
    }));
}

#[test]
fn instructions_of_each_operator() {
    if !works("valgrind", &["--version"]) {
        return;
    }
    let program = compile("g++", "budget_cxx.cpp", &["-std=c++17", "-fno-builtin"]);
    settle([("cxx_sized", "48"), ("cxx_aligned", "200")].map(|(kind, size)| {
        let figure = each(&program, kind, size, 50.0);
        compare(&format!("{kind}_{size}"), figure)
    }));
}

#[test]
fn instructions_in_destructors_after_the_exit_hook() {
    if !works("valgrind", &["--version"]) {
        return;
    }
    let program = compile("gcc", "budget_exit.c", &["-pthread"]);
    settle(["nodes", "pairs"].map(|kind| {
        let figure = each(&program, kind, "48", 50.0);
        compare(&format!("exit_{kind}_48"), figure)
    }));
}

/// The least of several runs of a program that prints a number.
fn least(program: &PathBuf, arg: Option<&str>, ours: bool) -> f64 {
    let figure = |_| -> f64 {
        let mut command = if ours { preloaded(program) } else { Command::new(program) };
        expect_ok(command.args(arg), LIMIT).trim().parse().unwrap()
    };
    // Where the libraries lie differs from run to run, and with it how many of their pages the kernel maps at
    // once. Where a library was just written, it lies well in one run of a dozen only.
    (0..200).map(figure).fold(f64::INFINITY, f64::min)
}

#[test]
fn resident_memory_of_an_empty_process() {
    let program = compile("gcc", "budget_empty.c", &[]);
    let (ours, glibc) = (least(&program, None, true), least(&program, None, false));
    println!("empty process: {ours} KiB, under glibc {glibc} KiB");
    settle([compare("empty_process_kib", ours - glibc)]);
}

#[test]
fn resident_memory_of_a_thread() {
    let program = compile("gcc", "budget_threads.c", &["-pthread"]);
    for mode in ["one", "seven"] {
        println!("glibc, {mode}: {} bytes for each thread", least(&program, Some(mode), false));
    }
    settle([
        compare("thread_first_block", least(&program, Some("one"), true)),
        compare("thread_seven_sizes", least(&program, Some("seven"), true)),
    ]);
}

#[test]
fn instructions_of_a_short_thread() {
    if !works("valgrind", &["--version"]) {
        return;
    }
    let program = compile("gcc", "budget_short.c", &["-pthread"]);
    // On a busy machine some threads cost 14,000 instructions more: those that start while the one before has
    // not quite ended, and get a heap of their own. So short runs, of each length the least of several.
    let least =
        |count, ours| (0..8).map(|_| instructions(&program, &[count], ours)).fold(f64::INFINITY, f64::min);
    let each = |ours| (least("400", ours) - least("100", ours)) / 300.0;
    let (ours, glibc) = (each(true), each(false));
    println!("short thread: {ours:.0} instructions, under glibc {glibc:.0}");
    settle([compare("short_thread_instructions_percent", ours * 100.0 / glibc)]);
}

#[test]
fn system_calls_of_a_short_thread() {
    if !works("strace", &["-c", "true"]) {
        return;
    }
    let program = compile("gcc", "budget_short.c", &["-pthread"]);
    let count = |threads: &str, ours: bool| -> f64 {
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-U", "calls,name"]);
        if ours {
            command.arg("-E").arg(format!("LD_PRELOAD={}", lib().display()));
        }
        let output = run(command.arg(&program).arg(threads), LIMIT);
        assert!(output.status.success(), "{output:?}");
        let table = String::from_utf8_lossy(&output.stderr).into_owned();
        let total = table.lines().find(|l| l.trim_end().ends_with("total")).expect("strace prints a total");
        total.split_whitespace().next().unwrap().parse().unwrap()
    };
    let each = |ours| (count("600", ours) - count("100", ours)) / 500.0;
    let (ours, glibc) = (each(true), each(false));
    println!("short thread: {ours:.2} system calls, under glibc {glibc:.2}");
    settle([compare("short_thread_syscalls_percent", ours * 100.0 / glibc)]);
}

/// The clock is for reading only: interleaved pairs of runs, and their middle ratio.
#[test]
fn time_of_short_threads_is_printed() {
    let program = compile("gcc", "budget_short.c", &["-pthread"]);
    let time = |ours: bool| {
        let mut command = if ours { preloaded(&program) } else { Command::new(&program) };
        let start = Instant::now();
        expect_ok(command.arg("20000"), LIMIT);
        start.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..5).map(|_| time(true) / time(false)).collect();
    ratios.sort_by(f64::total_cmp);
    println!("20,000 short threads take {:.2} of glibc's time (middle of {ratios:.2?})", ratios[2]);
}
