//! fork, vfork and spawn under allocation load, through the C library. `HAKMEM_LONG=1` runs 10,000 forks.

mod support;

use std::time::{Duration, Instant};
use support::{compile, expect_ok, lib, preloaded};

/// Runs one mode of fork_load.c, with as many forks as `long` says if a long run was asked for.
fn under_load(mode: &str, forks: u32, long: u32) {
    let forks = if std::env::var_os("HAKMEM_LONG").is_some_and(|v| v != "0") { long } else { forks };
    let program = compile("gcc", "fork_load.c", &["-pthread"]);
    let start = Instant::now();
    let limit = Duration::from_secs(60) + Duration::from_millis(100) * forks;
    let out = expect_ok(preloaded(program).args([mode, &forks.to_string()]), limit);
    print!("{out}");
    println!(
        "  {} us for each fork with all its child does",
        start.elapsed().as_micros() / u128::from(forks)
    );
}

#[test]
fn forks_while_four_threads_allocate() {
    under_load("load", 1500, 10_000);
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
    expect_ok(preloaded(program).arg("40"), Duration::from_secs(60));
}

#[test]
fn atfork_handlers_of_the_program_allocate() {
    let program = compile("gcc", "fork_atfork.c", &["-pthread"]);
    expect_ok(preloaded(program).arg("200"), Duration::from_secs(60));
}

#[test]
fn atfork_handlers_that_were_there_before_ours_allocate() {
    let program = compile("gcc", "fork_atfork.c", &["-pthread"]);
    let early = compile("gcc", "fork_atfork.c", &["-pthread", "-DEARLY", "-shared", "-fPIC"]);
    // The library named last is initialised first.
    let preload = format!("{} {}", lib().display(), early.display());
    expect_ok(preloaded(program).arg("200").env("LD_PRELOAD", preload), Duration::from_secs(60));
}
