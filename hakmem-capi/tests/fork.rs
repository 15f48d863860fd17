//! fork, vfork and spawn under allocation load, through the C library. `HAKMEM_LONG=1` runs 10,000 forks.

mod support;

use std::time::{Duration, Instant};
use support::{compile, expect_ok, lib, preloaded};

/// Only a program that hangs takes as long.
const LIMIT: Duration = Duration::from_secs(180);

/// `long` if a long run was asked for.
fn forks(short: u32, long: u32) -> u32 {
    if std::env::var_os("HAKMEM_LONG").is_some_and(|v| v != "0") { long } else { short }
}

/// Runs one mode of fork_load.c, with as many forks as `long` says if a long run was asked for.
fn under_load(mode: &str, short: u32, long: u32) {
    let forks = forks(short, long);
    let program = compile("gcc", "fork_load.c", &["-pthread"]);
    let start = Instant::now();
    let out = expect_ok(preloaded(program).args([mode, &forks.to_string()]), LIMIT);
    print!("{out}");
    println!(
        "  {} us for each fork with all its child does",
        start.elapsed().as_micros() / u128::from(forks)
    );
}

/// Runs fork_libc.c: `how` forks beside threads that are inside the C library in each of `modes`.
fn beside_libc(how: &str, modes: &[(&str, u32)]) {
    let program = compile("gcc", "fork_libc.c", &["-pthread", "-ldl"]);
    for (mode, short) in modes {
        let forks = forks(*short, 20 * short).to_string();
        print!("{}", expect_ok(preloaded(&program).args([how, mode, &forks]), LIMIT));
    }
}

/// Forks for each of the things that other threads do. Forks beside stdio take long, with any allocator: they
/// wait for a lock of the C library's that goes from thread to thread.
const BESIDE: [(&str, u32); 9] = [
    ("stdio", 15),
    ("names", 300),
    ("loader", 300),
    ("pipes", 300),
    ("environment", 300),
    ("threads", 300),
    ("close", 300),
    ("none", 300),
    ("all", 300),
];

#[test]
fn a_thread_forks_while_others_hold_locks_of_the_c_library() {
    beside_libc("thread", &BESIDE);
}

/// The interrupted thread holds locks of ours now and then, and others wait for it while it waits for them.
#[test]
fn a_signal_handler_forks_that_has_interrupted_malloc() {
    beside_libc("signal", &BESIDE);
}

/// One call in 20 is for a block with guard pages: the handler interrupts these, too.
#[test]
fn a_signal_handler_forks_that_has_interrupted_the_making_of_guard_pages() {
    let program = compile("gcc", "fork_libc.c", &["-pthread", "-ldl"]);
    for mode in ["none", "threads"] {
        let mut command = preloaded(&program);
        expect_ok(
            command.args(["signal", mode, &forks(100, 2000).to_string()]).env("HAKMEM_GUARD", "20"),
            LIMIT,
        );
    }
}

/// A background thread of the child's, which would have to look after the parent's memory, goes with it.
#[test]
fn a_child_ends_with_its_last_thread() {
    let program = compile("gcc", "fork_background.c", &["-pthread"]);
    for args in [&[][..], &["alone"]] {
        expect_ok(preloaded(&program).args(args).env("HAKMEM_BACKGROUND", "on"), Duration::from_secs(60));
    }
}

/// Of these no handler hears.
#[test]
fn forks_without_handlers() {
    beside_libc("raw", &BESIDE);
}

#[test]
fn forks_while_four_threads_allocate() {
    under_load("load", 1500, 10_000);
}

/// These share their slabs, so that one of them is giving one up at most times.
#[test]
fn forks_while_twelve_threads_free_each_others_blocks() {
    under_load("many", 100, 3000);
}

#[test]
fn forks_while_threads_allocate_large_blocks() {
    under_load("large", 400, 3000);
}

#[test]
fn forks_while_threads_start_and_end() {
    under_load("churn", 400, 3000);
}

#[test]
fn a_thread_other_than_main_forks() {
    under_load("thread", 400, 3000);
}

#[test]
fn children_fork_again() {
    under_load("nested", 150, 1000);
}

#[test]
fn exec_vfork_spawn_system_popen() {
    let program = compile("gcc", "fork_exec.c", &["-pthread"]);
    expect_ok(preloaded(program).arg("40"), LIMIT);
}

#[test]
fn atfork_handlers_of_the_program_allocate() {
    let program = compile("gcc", "fork_atfork.c", &["-pthread"]);
    expect_ok(preloaded(program).arg("200"), LIMIT);
}

#[test]
fn atfork_handlers_that_were_there_before_ours_allocate() {
    let program = compile("gcc", "fork_atfork.c", &["-pthread"]);
    let early = compile("gcc", "fork_atfork.c", &["-pthread", "-DEARLY", "-shared", "-fPIC"]);
    // The library named last is initialised first.
    let preload = format!("{} {}", lib().display(), early.display());
    expect_ok(preloaded(program).arg("200").env("LD_PRELOAD", preload), LIMIT);
}

/// Nobody tells such a child that it is one, and which of its threads finds out is chance.
#[test]
fn children_made_without_handlers_start_threads() {
    let program = compile("gcc", "fork_threads.c", &["-pthread"]);
    // A program that may not ask for its threads' numbers finds out less.
    for (how, few) in [("_Fork", "off"), ("clone", "off"), ("_Fork", "on"), ("clone", "on")] {
        let mut command = preloaded(&program);
        command.args([how, &forks(8, 200).to_string()]).env("HAKMEM_FEW_SYSCALLS", few);
        expect_ok(&mut command, LIMIT);
    }
}

/// One fork in some thousand finds the background thread at work in the heap of the thread that forks.
#[test]
fn a_child_made_beside_a_visitor_starts_a_thread() {
    let program = compile("gcc", "fork_late.c", &["-pthread"]);
    let mut command = preloaded(program);
    command.arg(forks(60, 5000).to_string()).env("HAKMEM_BACKGROUND", "on").env("HAKMEM_PURGE_DELAY", "1");
    expect_ok(&mut command, LIMIT);
}
