//! Threads of every kind through the C library: who frees whose block, when threads end, how many there are.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use support::{compile, expect_ok, lib, preloaded, run};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs a program under the library, shows what it printed, and returns it.
fn check(program: &PathBuf, args: &[&str]) -> String {
    let out = expect_ok(preloaded(program).args(args), LIMIT);
    print!("{out}");
    assert!(!out.is_empty(), "{program:?} ended without its last line");
    out
}

fn foreign() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("gcc", "thread_foreign.c", &["-pthread"]))
}

#[test]
fn blocks_of_a_living_thread_freed_by_another() {
    check(foreign(), &["alive"]);
}

#[test]
fn blocks_freed_by_a_thread_that_never_allocated() {
    check(foreign(), &["never"]);
}

#[test]
fn blocks_freed_by_a_thread_for_whose_heap_there_is_no_room() {
    let program = compile("gcc", "thread_no_room.c", &["-pthread", lib().to_str().unwrap()]);
    check(&program, &[]);
    for (misuse, says) in [("twice", "double free"), ("interior", "not the start of a block")] {
        let output = run(preloaded(&program).arg(misuse), LIMIT);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{misuse}: {error}");
        assert!(error.contains(says), "{misuse}: {error}");
    }
}

#[test]
fn blocks_of_a_thread_that_has_exited() {
    check(foreign(), &["exited"]);
}

#[test]
fn four_threads_replace_each_others_blocks() {
    check(foreign(), &["swap"]);
}

#[test]
fn four_threads_replace_each_others_blocks_with_layers_switched_off() {
    for option in ["HAKMEM_MAGAZINE", "HAKMEM_OUTBOX", "HAKMEM_ORPHANS"] {
        expect_ok(preloaded(foreign()).args(["swap", "30000"]).env(option, "off"), LIMIT);
        expect_ok(preloaded(foreign()).arg("exited").env(option, "off"), LIMIT);
    }
    expect_ok(preloaded(foreign()).args(["swap", "30000"]).env("HAKMEM_PURGE_DELAY", "0"), LIMIT);
}

#[test]
fn destructors_of_pthread_keys_allocate_after_our_exit_hook() {
    check(&compile("gcc", "thread_keys.c", &["-pthread"]), &["200"]);
}

#[test]
fn the_program_may_have_all_keys() {
    let program = compile("gcc", "thread_all_keys.c", &["-pthread"]);
    for mode in ["take", "churn"] {
        print!("{}", expect_ok(preloaded(&program).arg(mode), LIMIT));
    }
    expect_ok(preloaded(&program).arg("take").env("HAKMEM_MAGAZINE", "off"), LIMIT);
}

#[test]
fn destructors_of_cxx_thread_locals_allocate() {
    check(&compile("g++", "thread_cxx.cc", &["-std=c++17", "-pthread"]), &[]);
}

#[test]
fn ten_thousand_threads_one_after_another_keep_resident_memory() {
    check(&compile("gcc", "thread_many.c", &["-pthread"]), &["serial", "10000"]);
}

/// Found by glibc's `tst-create-detached`: such a thread was given a heap, and nothing gave it back.
#[test]
fn threads_whose_only_call_is_a_free_after_their_destructors_leave_no_heap() {
    let program = compile("gcc", "thread_late.c", &["-pthread"]);
    check(&program, &[]);
    for hardened in ["light", "on"] {
        print!("{}", expect_ok(preloaded(&program).env("HAKMEM_HARDENED", hardened), LIMIT));
    }
}

#[test]
fn five_hundred_threads_at_once() {
    check(&compile("gcc", "thread_many.c", &["-pthread"]), &["at-once", "500"]);
}

#[test]
fn producers_and_consumers() {
    let program = compile("gcc", "thread_pipe.c", &["-pthread"]);
    check(&program, &["1", "1", "40000"]);
    check(&program, &["1", "4", "40000"]);
    check(&program, &["4", "1", "10000"]);
    check(&program, &["3", "3", "10000"]);
}

#[test]
fn a_ring_of_threads_hands_blocks_on() {
    let program = compile("gcc", "thread_pipe.c", &["-pthread"]);
    check(&program, &["ring", "2", "5000"]);
    check(&program, &["ring", "8", "2000"]);
}

#[test]
fn what_a_dead_thread_left_serves_other_sizes() {
    let program = compile("gcc", "thread_legacy.c", &["-pthread"]);
    check(&program, &["200", "1000", "main"]);
    check(&program, &["200", "1000", "thread"]);
    check(&program, &["1000", "64", "main"]);
}

#[test]
fn the_smallest_stacks_are_enough() {
    let program = compile("gcc", "thread_stack.c", &["-pthread"]);
    for stats in ["none", "json", "table"] {
        let mut command = preloaded(&program);
        assert_eq!(expect_ok(command.arg("tiny").env("HAKMEM_STATS", stats), LIMIT), "ok\n");
    }
    // With the stacks of every allocation and free.
    for hardened in ["off", "on"] {
        let mut command = preloaded(&program);
        command.arg("tiny").env("HAKMEM_GUARD", "1").env("HAKMEM_HARDENED", hardened);
        assert_eq!(expect_ok(&mut command, LIMIT), "ok\n", "{hardened}");
    }
    // With a heap profile of every block, and a snapshot of it each millisecond.
    let mut command = preloaded(&program);
    command.arg("tiny").env("HAKMEM_PROFILE", support::scratch("profiles").join("tiny"));
    command.env("HAKMEM_PROFILE_RATE", "1").env("HAKMEM_PROFILE_INTERVAL", "1");
    assert_eq!(expect_ok(&mut command, LIMIT), "ok\n");
}

/// And while a profile is taken.
#[test]
fn detached_threads_are_profiled_while_the_process_ends() {
    let program = compile("gcc", "thread_stack.c", &["-pthread"]);
    for _ in 0..5 {
        let mut command = preloaded(&program);
        command.arg("exit").env("HAKMEM_PROFILE", support::scratch("profiles").join("exit"));
        command.env("HAKMEM_PROFILE_RATE", "1").env("HAKMEM_PROFILE_INTERVAL", "1");
        expect_ok(&mut command, LIMIT);
    }
}

#[test]
fn detached_threads_allocate_while_the_process_ends() {
    let program = compile("gcc", "thread_stack.c", &["-pthread"]);
    for round in 0..25 {
        let stats = if round % 2 == 0 { "none" } else { "json" };
        expect_ok(preloaded(&program).arg("exit").env("HAKMEM_STATS", stats), LIMIT);
    }
}
