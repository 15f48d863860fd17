//! Faults that reviews and tests under load found, each with the situation that showed it.

mod support;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use support::{compile, expect_ok, preloaded};

const LIMIT: Duration = Duration::from_secs(60);

fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compile("gcc", "regress.c", &["-pthread"]))
}

#[test]
fn a_thread_ends_while_its_slabs_are_published() {
    expect_ok(preloaded(program()).arg("publish"), LIMIT);
    expect_ok(preloaded(program()).arg("publish").env("HAKMEM_MAGAZINE", "off"), LIMIT);
}

#[test]
fn threads_that_grow_the_pool_together_all_get_memory() {
    for _ in 0..10 {
        expect_ok(preloaded(program()).arg("grow").env("HAKMEM_THP", "never"), LIMIT);
    }
}

#[test]
fn adjacent_pages_are_found_at_the_limit() {
    expect_ok(preloaded(program()).arg("adjacent"), LIMIT);
}

#[test]
fn large_blocks_hardly_touched_are_hardly_resident() {
    print!("{}", expect_ok(preloaded(program()).arg("sparse"), LIMIT));
}

#[test]
fn blocks_of_half_a_huge_page_share_them() {
    print!("{}", expect_ok(preloaded(program()).arg("halves").env("HAKMEM_THP", "always"), LIMIT));
}

#[test]
fn zeroed_blocks_hardly_touched_are_hardly_resident() {
    print!("{}", expect_ok(preloaded(program()).arg("zeroed"), LIMIT));
}

#[test]
fn zeroed_blocks_are_not_cleared_for_ever() {
    for hardened in ["off", "on"] {
        print!("{}", expect_ok(preloaded(program()).arg("refilled").env("HAKMEM_HARDENED", hardened), LIMIT));
    }
}

#[test]
fn a_run_that_shrinks_a_little_stays_one() {
    expect_ok(preloaded(program()).arg("border"), LIMIT);
}

#[test]
fn what_realloc_cuts_off_is_used_again() {
    print!("{}", expect_ok(preloaded(program()).arg("cut"), LIMIT));
}

#[test]
fn many_idle_threads_keep_little_each() {
    print!("{}", expect_ok(preloaded(program()).arg("idlers"), LIMIT));
}

#[test]
fn a_fork_meets_an_orphan_that_is_being_released() {
    for _ in 0..3 {
        let mut command = preloaded(program());
        expect_ok(command.arg("claimed").env("HAKMEM_MAGAZINE", "off").env("HAKMEM_OUTBOX", "off"), LIMIT);
    }
}

#[test]
fn a_plugin_in_a_c_program_catches_bad_alloc() {
    let plugin = compile("g++", "cxx_plugin.cpp", &["-shared", "-fPIC"]);
    let host = compile("gcc", "cxx_plugin_host.c", &["-ldl"]);
    expect_ok(preloaded(host).arg(plugin), LIMIT);
}
